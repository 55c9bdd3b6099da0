"""A trained model as ONNX: features or pictures in, scores of all classes out, with nothing of dgz needed to run it.

What is written has been run, by onnxruntime, and compared with the model first.
"""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.functional import normalize

import dgz
from dgz.classifier import prepared
from dgz.composed import ComposedMethod
from dgz.data.dataset import Floats
from dgz.errors import DGZError, one_line
from dgz.estimator import GZSLClassifier
from dgz.files import write_whole
from dgz.peers.scoring import ScoringMethod
from dgz.trained import TrainedMethod

if TYPE_CHECKING:
    from dgz.images import Backbone

_OPSET = 20
_MOST_ROWS = 65536  # in one call
_TRIED = 32  # rows that a file is compared on
_TOLERANCE = 1e-4  # of the largest score: float32, added up in another order


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An ONNX file that does what the model does.

    Attributes
    ----------
    path : Path
    reads : str
        Name of its input: ``features`` (n, d_x) in float32, or ``pictures`` (n, height, width, 3) in uint8.
    difference : float
        The largest difference to the model's own scores on the rows that were tried.
    """

    path: Path
    reads: str
    difference: float


def export_onnx(
    model: GZSLClassifier, path: str | Path, *, backbone: "Backbone | None" = None, overwrite: bool = False
) -> Exported:
    """Write a model as one ONNX file, and compare what it gives with what the model gives.

    Parameters
    ----------
    model : GZSLClassifier
        Fitted; of a method that scores by networks, which all do but the closed forms, and GCM-CF, which trains some
        for each row.
    path : str or Path
        The file.
    backbone : Backbone, optional
        What made the features: with it, the file reads pictures that were cropped and resized as its preparation says,
        as red, green and blue from 0 to 255.
    overwrite : bool
        Replace what is there.

    Notes
    -----
    The file's metadata has what is needed to use it: ``classes``, ``seen`` and, for pictures, ``preparation``, as JSON.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise DGZError(f"{path} exists already; choose another place or pass --overwrite (overwrite=True).")
    onnx = _onnx()
    check_is_fitted(model)
    if not isinstance(model, TrainedMethod):
        raise DGZError(f"A {type(model).__name__} is no network: there is nothing to write as ONNX.")
    if model.learns_in_use:
        raise DGZError(
            f"A {type(model).__name__} trains networks for the rows that it is asked about, which no ONNX file can do; "
            f"'dgz predict' and 'dgz serve' can."
        )
    if backbone is not None and backbone.d_x != model.n_features_in_:
        raise DGZError(
            f"{backbone.name} makes {backbone.d_x} features of a picture, but the model reads {model.n_features_in_}."
        )
    proto = _scores_graph(model)
    if backbone is not None:
        proto = _with_backbone(proto, backbone)
    known = {"classes": model.classes_.tolist(), "seen": model.seen_.tolist(), "method": type(model).__name__}
    known["dgz"] = dgz.__version__
    if backbone is not None:
        known |= {"preparation": backbone.preparation.to_dict(), "backbone": backbone.name}
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in known.items()})
    content = proto.SerializeToString()
    difference = _compared(content, model, backbone)
    with write_whole(path) as file:
        file.write(content)
    return Exported(path=path, reads="features" if backbone is None else "pictures", difference=difference)


def _onnx() -> Any:
    try:
        import onnx
        import onnxruntime  # noqa: F401  (what is written is run)
        import onnxscript  # noqa: F401  (torch writes by it)
    except ImportError as error:
        raise DGZError(f"Writing ONNX needs {error.name}: install dgz[onnx].") from error
    return onnx


class _Scorer(nn.Module):
    """What a model does with rows as they come: (n, d_x) to scores (n, C)."""

    min_: Tensor
    scale_: Tensor
    weights: Tensor
    penalties: Tensor
    vectors: Tensor

    def __init__(self, model: TrainedMethod) -> None:
        super().__init__()
        self.model = model
        self.parts = nn.ModuleDict(model._networks())
        scaler = model.scaler_
        self.scaling, self.norm = scaler.method, scaler.norm
        for name in ("min_", "scale_"):
            self.register_buffer(name, torch.as_tensor(getattr(scaler, name, np.zeros(0, dtype=np.float32))))
        if isinstance(model, ComposedMethod):
            self.register_buffer("weights", torch.as_tensor(model.weights_))
            penalties = np.where(model.seen_, model.seen_penalty_, 0.0)
            self.register_buffer("penalties", torch.as_tensor(penalties, dtype=torch.float32))
        self.register_buffer("vectors", model._vectors("cpu"))

    def forward(self, x: Tensor) -> Tensor:
        if self.scaling != "none":
            x = (x - self.min_) * self.scale_
        if self.scaling == "minmax_l2":
            x = normalize(x) * self.norm
        if isinstance(self.model, ComposedMethod):
            rows = self.model.generator_.embed_block(x)
            return prepared(rows, self.model.classifier_.weights) @ self.weights.T - self.penalties
        assert isinstance(self.model, ScoringMethod)  # noqa: S101  (there is no third kind)
        return self.model._compare(x, self.vectors)


def _scores_graph(model: TrainedMethod) -> Any:
    """The model as an ONNX graph from ``features`` to ``scores``."""
    scorer = _Scorer(model).cpu().eval()
    x = torch.from_numpy(_rows_like_training(model, 2))
    n = torch.export.Dim("n", max=_MOST_ROWS)
    try:
        with _silence(), torch.no_grad():
            program = torch.onnx.export(
                scorer,
                (x,),
                dynamo=True,
                input_names=["features"],
                output_names=["scores"],
                dynamic_shapes={"x": {0: n}},
                opset_version=_OPSET,
            )
        return program.model_proto  # type: ignore[union-attr]
    except Exception as error:  # exporters have many, none of which a person could act on
        raise DGZError(f"A {type(model).__name__} cannot be written as ONNX: {one_line(error)}.") from error


def _with_backbone(scores: Any, backbone: "Backbone") -> Any:
    """A graph of scores behind a backbone: from ``pictures`` (n, height, width, 3) in uint8 to ``scores``."""
    import onnx
    from onnx import TensorProto, compose, helper, numpy_helper, version_converter

    height, width = backbone.preparation.size
    try:
        network = onnx.load_from_string(backbone.onnx)
        (own,) = (entry.version for entry in network.opset_import if entry.domain in ("", "ai.onnx"))
        if own != _OPSET:
            network = version_converter.convert_version(network, _OPSET)
        (port,) = network.graph.input
        (out,) = network.graph.output
        # One precision of the format for all three, as merging wants it.
        scores.ir_version = network.ir_version = min(scores.ir_version, network.ir_version)
        numbers = {
            "mean": np.array(backbone.preparation.mean, dtype=np.float32),
            "std": np.array(backbone.preparation.std, dtype=np.float32),
        }
        nodes = [
            helper.make_node("Cast", ["pictures"], ["values"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["values", "mean"], ["centred"]),
            helper.make_node("Div", ["centred", "std"], ["scaled"]),
            helper.make_node("Transpose", ["scaled"], ["prepared"], perm=[0, 3, 1, 2]),
        ]
        graph = helper.make_graph(
            nodes,
            "preparation",
            [helper.make_tensor_value_info("pictures", TensorProto.UINT8, ["n", height, width, 3])],
            [helper.make_tensor_value_info("prepared", TensorProto.FLOAT, ["n", 3, height, width])],
            [numpy_helper.from_array(values, name) for name, values in numbers.items()],
        )
        before = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
        before.ir_version = scores.ir_version
        network = compose.add_prefix(network, "backbone/")
        merged = compose.merge_models(before, network, [("prepared", f"backbone/{port.name}")])
        last = f"backbone/{out.name}"
        if len(out.type.tensor_type.shape.dim) == 4:  # averaged over places, as Backbone.run does
            pooled = helper.make_node("GlobalAveragePool", [last], ["pooled"])
            flat = helper.make_node("Flatten", ["pooled"], ["flat"])
            merged.graph.node.extend([pooled, flat])
            del merged.graph.output[:]
            merged.graph.output.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["n", backbone.d_x]))
            last = "flat"
        scores = compose.add_prefix(scores, "scores/", rename_inputs=True, rename_outputs=False)
        return compose.merge_models(merged, scores, [(last, "scores/features")])
    except Exception as error:  # of onnx: many kinds, about a file that may be anyone's
        raise DGZError(f"{backbone.name} cannot be put before the model: {one_line(error)}.") from error


def _compared(content: bytes, model: TrainedMethod, backbone: "Backbone | None") -> float:
    """The largest difference between a graph's scores and the model's, on rows or pictures that are made up."""
    import onnxruntime

    if backbone is None:
        given: Any = _rows_like_training(model, _TRIED)
        rows = given
    else:
        shape = (4, *backbone.preparation.size, 3)
        given = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        values = (given - np.array(backbone.preparation.mean)) / np.array(backbone.preparation.std)
        rows = backbone.run(np.ascontiguousarray(values.transpose(0, 3, 1, 2), dtype=np.float32))
    expected = model.decision_function(rows)
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (port,) = session.get_inputs()
        (found,) = session.run(None, {port.name: given})
    except Exception as error:  # onnxruntime has a kind for each status, none of them public
        raise DGZError(f"The ONNX file of a {type(model).__name__} does not run: {one_line(error)}.") from error
    if found.shape != expected.shape:
        raise DGZError(f"The ONNX file gives scores of shape {found.shape}, the model of shape {expected.shape}.")
    difference = float(np.abs(found - expected).max())
    if not difference <= _TOLERANCE * max(float(np.abs(expected).max()), 1e-6):
        raise DGZError(f"The ONNX file differs from the model by {difference:.3g}, so it was not written.")
    return difference


def _rows_like_training(model: TrainedMethod, n: int) -> Floats:
    """Made-up rows in the range of the training rows, where the scaling knows it."""
    rng = np.random.default_rng(0)
    rows = rng.random((n, model.n_features_in_), dtype=np.float32)
    scaler = model.scaler_
    return rows if scaler.method == "none" else rows / scaler.scale_ + scaler.min_


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporter's steps and its advice to developers from a user's terminal."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
