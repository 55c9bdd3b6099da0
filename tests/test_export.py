"""Models as ONNX: the file gives the model's scores for any number of rows, or it is not written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from dgz import GZSLData, load_numbers
from dgz.data.dataset import Floats
from dgz.errors import DGZError
from dgz.estimator import GZSLClassifier
from dgz.export import export_onnx
from dgz.images import Backbone, Preparation
from dgz.model import DGZ
from dgz.peers import METHODS, make_method
from dgz.peers.closed_form import ClosedForm
from dgz.reproduce import shortened

NETWORKS = [name for name, kind in METHODS.items() if not issubclass(kind, ClosedForm) and name != "gcm-cf"]


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=4)


def fitted(model: GZSLClassifier, data: GZSLData) -> Any:
    return model.fit(data.x_train, data.y_train, data.attributes)


def scores_of(path: Path, given: Any) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (port,) = session.get_inputs()
    (out,) = session.get_outputs()
    assert out.name == "scores"
    return session.run(None, {port.name: given})[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_gives_the_scores_of_the_model(name: str, data: GZSLData, tmp_path: Path) -> None:
    model = fitted(shortened(make_method(name)), data)
    written = export_onnx(model, tmp_path / "model.onnx")
    assert (written.path, written.reads) == (tmp_path / "model.onnx", "features")
    for n in (1, 3, 50):  # another number than the one it was made with
        rows = data.x_test_seen[:n]
        expected = model.decision_function(rows)
        np.testing.assert_allclose(scores_of(written.path, rows), expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("scaling", ["minmax_l2", "minmax", "none"])
def test_scaling_is_in_the_file(scaling: str, data: GZSLData, tmp_path: Path) -> None:
    model = fitted(DGZ.without_generator(n_epochs=1, generator__n_epochs=1, feature_scaling=scaling), data)
    rows = 3 + 7 * data.x_test_seen[:9]
    assert export_onnx(model, tmp_path / "m.onnx").difference < 1e-5
    np.testing.assert_allclose(scores_of(tmp_path / "m.onnx", rows), model.decision_function(rows), atol=1e-5)


def test_the_penalty_on_seen_classes_is_in_the_file(data: GZSLData, tmp_path: Path) -> None:
    model = fitted(DGZ.without_generator(n_epochs=1, generator__n_epochs=1, seen_penalty=0.5), data)
    export_onnx(model, tmp_path / "m.onnx")
    found = scores_of(tmp_path / "m.onnx", data.x_test_seen[:9])
    np.testing.assert_allclose(found, model.decision_function(data.x_test_seen[:9]), atol=1e-5)
    assert (found[:, data.seen] < 0.5).all()


def test_what_the_columns_are_is_in_the_metadata(data: GZSLData, tmp_path: Path) -> None:
    model = fitted(shortened(make_method("zla")), data)
    export_onnx(model, tmp_path / "m.onnx")
    known = {entry.key: json.loads(entry.value) for entry in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert known["classes"] == model.classes_.tolist()
    assert known["seen"] == model.seen_.tolist()
    assert known["method"] == "ZLA"
    assert "preparation" not in known


# --- Pictures.
def tiny_backbone(opset: int = 20, *, pooled: bool = True, weights: Floats | None = None) -> Backbone:
    """A network of one 1 × 1 convolution, with or without the mean over places."""
    kernel = np.random.default_rng(0).normal(size=(128, 3, 1, 1)).astype(np.float32) if weights is None else weights
    nodes = [helper.make_node("Conv", ["x", "w"], ["places"])]
    shape: list[Any] = ["n", 128, 8, 6]
    if pooled:
        nodes += [helper.make_node("GlobalAveragePool", ["places"], ["p"]), helper.make_node("Flatten", ["p"], ["f"])]
        shape = ["n", 128]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 6])],
        [helper.make_tensor_value_info("f" if pooled else "places", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(kernel, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 9
    preparation = Preparation(size=(8, 6), mean=(10.0, 20.0, 30.0), std=(50.0, 60.0, 70.0))
    return Backbone(proto.SerializeToString(), preparation, "tiny", licence="MIT")


@pytest.mark.parametrize(("opset", "pooled"), [(20, True), (20, False), (13, True)])
def test_pictures_go_through_the_backbone_first(data: GZSLData, tmp_path: Path, opset: int, pooled: bool) -> None:
    model = fitted(shortened(make_method("dgz-without-generator")), data)
    backbone = tiny_backbone(opset, pooled=pooled)
    written = export_onnx(model, tmp_path / "pictures.onnx", backbone=backbone)
    assert written.reads == "pictures"
    pictures = np.random.default_rng(1).integers(0, 256, (5, 8, 6, 3), dtype=np.uint8)
    prepared = (pictures - np.array([10.0, 20, 30])) / np.array([50.0, 60, 70])
    features = backbone.run(prepared.transpose(0, 3, 1, 2).astype(np.float32))
    expected = model.decision_function(features)
    np.testing.assert_allclose(scores_of(written.path, pictures), expected, atol=1e-5)
    known = {entry.key: json.loads(entry.value) for entry in onnx.load(written.path).metadata_props}
    assert known["preparation"] == backbone.preparation.to_dict()
    assert known["backbone"] == "tiny"


# --- What is refused.
def test_a_file_that_differs_is_not_written(data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(shortened(make_method("zla")), data)
    honest = model.decision_function
    monkeypatch.setattr(model, "decision_function", lambda X: honest(X) + 0.01)
    with pytest.raises(DGZError, match=r"differs from the model by 0\.01, so it was not written\."):
        export_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays_unless_told_otherwise(data: GZSLData, tmp_path: Path) -> None:
    model = fitted(shortened(make_method("zla")), data)
    (tmp_path / "m.onnx").write_text("mine")
    with pytest.raises(DGZError, match="exists already"):
        export_onnx(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_text() == "mine"
    export_onnx(model, tmp_path / "m.onnx", overwrite=True)
    assert (tmp_path / "m.onnx").stat().st_size > 1000


def test_a_closed_form_is_no_network(data: GZSLData, tmp_path: Path) -> None:
    model = fitted(make_method("sae"), data)
    with pytest.raises(DGZError, match="A SAE is no network"):
        export_onnx(model, tmp_path / "m.onnx")


def test_a_method_that_trains_in_use_is_no_file(data: GZSLData, tmp_path: Path) -> None:
    model = fitted(shortened(make_method("gcm-cf")), data)
    with pytest.raises(DGZError, match="A GCMCF trains networks for the rows that it is asked about, which no ONNX"):
        export_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_backbone_of_another_width_is_refused(data: GZSLData, tmp_path: Path) -> None:
    model = fitted(shortened(make_method("zla")), data)
    narrow = tiny_backbone(weights=np.ones((7, 3, 1, 1), dtype=np.float32))
    with pytest.raises(DGZError, match="tiny makes 7 features of a picture, but the model reads 128"):
        export_onnx(model, tmp_path / "m.onnx", backbone=narrow)
