"""Photos and backbones small enough for tests: pictures of known colours, and a network of one operation."""

import io
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from dgz.images import Backbone, Preparation

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Numbers as they are, so that features can be worked out by hand.
PLAIN = Preparation(size=(8, 8), crop=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(size: tuple[int, int] = (40, 30), seed: int = 0) -> Image.Image:
    """A picture that is different everywhere."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def tiny_onnx(
    shape: tuple[Any, ...] = ("n", 3, 8, 8),
    output: str = "pooled",
    kind: int = TensorProto.FLOAT,
) -> bytes:
    """A network that averages the colours over the whole picture (``pooled``), or leaves that to the caller (``map``)."""
    photos = helper.make_tensor_value_info("photos", kind, shape)
    mix = numpy_helper.from_array(np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]], dtype=np.float32), "mix")
    weights = numpy_helper.from_array(mix_weights(), "weights")
    nodes = {
        "pooled": [
            helper.make_node("GlobalAveragePool", ["photos"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["flat"]),
            helper.make_node("MatMul", ["flat", "mix"], ["features"]),
        ],
        "map": [helper.make_node("Conv", ["photos", "weights"], ["features"])],
        "tokens": [
            helper.make_node("Flatten", ["photos"], ["flat"], axis=2),
            helper.make_node("Identity", ["flat"], ["features"]),
        ],
        "nan": [
            helper.make_node("GlobalAveragePool", ["photos"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["flat"]),
            helper.make_node("Log", ["flat"], ["features"]),
        ],
        "two": [
            helper.make_node("GlobalAveragePool", ["photos"], ["features"]),
            helper.make_node("Flatten", ["photos"], ["flat"]),
        ],
    }[output]
    names = ["features", "flat"] if output == "two" else ["features"]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in names]
    initial = {"pooled": [mix], "map": [weights]}.get(output, [])
    graph = helper.make_graph(nodes, "tiny", [photos], outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    content: bytes = model.SerializeToString()
    return content


def mix_weights() -> Any:
    """The same four features at every place: red, green, blue, their sum."""
    return np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=np.float32)[:, :, None, None]


def tiny_backbone(**changes: Any) -> Backbone:
    """Mean red, green and blue of a photo, and their sum."""
    return Backbone(tiny_onnx(), PLAIN, **{"name": "tiny", **changes})


def colours(photo: Image.Image) -> Any:
    """What :func:`tiny_backbone` makes of a photo of a single colour."""
    red, green, blue = photo.convert("RGB").getpixel((0, 0))
    return np.array([red, green, blue, red + green + blue], dtype=np.float32)


def save_photo(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 10)) -> Path:
    """A PNG of a single colour, which no compression changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, "PNG")
    return path


def stand_in_for_timm(monkeypatch: pytest.MonkeyPatch, network: Callable[[bool], Any]) -> list[dict[str, Any]]:
    """Put the calls of timm that are used in its place; ``network`` makes one, pretrained or not.

    Gives the list of what is asked for.
    """
    asked: list[dict[str, Any]] = []

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> Any:
        asked.append({"name": name, "pretrained": pretrained, "num_classes": num_classes})
        if name == "unknown":
            raise RuntimeError("Unknown model (unknown)")
        return network(pretrained)

    config = {
        "input_size": (3, 16, 20),
        "interpolation": "bicubic",
        "mean": IMAGENET[0],
        "std": IMAGENET[1],
        "crop_pct": 0.9,
        "crop_mode": "center",
    }
    module, data = types.ModuleType("timm"), types.ModuleType("timm.data")
    module.create_model, module.data = create_model, data  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda network: config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return asked
