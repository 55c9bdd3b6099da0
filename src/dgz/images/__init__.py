"""Photos: a folder of photos per class in; features of a backbone, and with them a GZSLData, out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import onnxruntime  # noqa: F401 (only whether it is there)
    import PIL  # noqa: F401
except ImportError as error:
    from dgz.errors import DGZError

    raise DGZError("Reading photos needs pillow and onnxruntime: install dgz[images].") from error

from dgz.images.backbones import Backbone, Preparation, open_backbone
from dgz.images.features import Extracted, extract, features_of
from dgz.images.folder import ImagesReport, backbone_of, import_images, save_images
from dgz.images.photos import PhotoError, prepare, quiet_decoding, read_photo

if TYPE_CHECKING:
    from dgz.images.finetune import FineTuning, fine_tune

__all__ = [
    "Backbone",
    "Extracted",
    "FineTuning",
    "ImagesReport",
    "PhotoError",
    "Preparation",
    "backbone_of",
    "extract",
    "features_of",
    "fine_tune",
    "import_images",
    "open_backbone",
    "prepare",
    "quiet_decoding",
    "read_photo",
    "save_images",
]


def __getattr__(name: str) -> Any:
    if name in ("FineTuning", "fine_tune"):  # looked up on first use: they need torch, and the rest does not
        return getattr(import_module("dgz.images.finetune"), name)
    raise AttributeError(f"module 'dgz.images' has no attribute {name!r}")
