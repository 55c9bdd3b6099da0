"""Photos from anywhere: files of strangers in, upright RGB pictures and the numbers a network reads out.

A file is looked at before it is decoded: its kind must be one of a short list, and its header must not promise more
pixels than allowed. Whatever is wrong with it becomes one sentence, a :class:`PhotoError`. Pillow is used without its
settings being touched, so that a program around us keeps its own.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from dgz.data.dataset import Floats
from dgz.errors import DataError, one_line, require_count
from dgz.images.backbones import Preparation

ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
MAX_PIXELS = 100_000_000

# The first bytes of the kinds that are read, and what reads them. Pillow's own ``open`` would try dozens of rare ones,
# and warns of large pictures by a process-wide switch; we have a limit of our own.
_READERS: dict[bytes, Callable[..., Image.Image]] = {
    b"\xff\xd8\xff": JpegImageFile,
    b"\x89PNG\r\n\x1a\n": PngImageFile,
    b"RIFF": WebPImageFile,
    b"GIF8": GifImageFile,
    b"BM": BmpImageFile,
    b"II*\0": TiffImageFile,
    b"MM\0*": TiffImageFile,
}
_KINDS = "JPEG, PNG, WebP, GIF, BMP and TIFF"
# No kind takes more than eight bytes for a pixel (four channels of 16 bits); the rest is room for comments and such.
_BYTES_PER_PIXEL, _EXTRA_BYTES = 8, 64 << 20
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# JPEG can be decoded at 1/2, 1/4 and 1/8 of its size. Decoding it twice as large as needed keeps what is resized
# afterwards close to what the whole picture would give.
_SPARE = 2


class PhotoError(DataError):
    """A file that cannot be used as a photo."""


def read_bytes(path: Path, name: str, max_pixels: int = MAX_PIXELS) -> bytes:
    """The bytes of a photo's file, which must not be empty, nor larger than a photo of ``max_pixels`` can be."""
    most = _BYTES_PER_PIXEL * max_pixels + _EXTRA_BYTES
    try:
        with path.open("rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            content = file.read() if n_bytes <= most else b""
    except OSError as error:
        raise PhotoError(f"{name} cannot be read: {error.strerror or error}.") from error
    if n_bytes > most:
        raise PhotoError(f"{name} is larger than the {most:,} bytes that a photo of {max_pixels:,} pixels can take.")
    if not content:
        raise PhotoError(f"{name} is empty (0 bytes).")
    return content


def read_photo(
    source: Path | bytes,
    *,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
    shorter_side: int | None = None,
) -> Image.Image:
    """Decode a photo: upright, in RGB, transparent parts on white, 16 bits of grey as 8.

    Parameters
    ----------
    source : Path or bytes
        The file, or what it holds: JPEG, PNG, WebP, GIF (the first picture), BMP or TIFF (the first page).
    name : str, optional
        What sentences call it; the path by default.
    max_pixels : int
        Photos with more are refused before they are decoded.
    shorter_side : int, optional
        How large the photo is needed. A much larger JPEG is decoded at a half, a quarter or an eighth of its size,
        which leaves at least twice this.

    Notes
    -----
    Pillow warns of some files, such as broken EXIF notes and very large WebP; :func:`quiet_decoding` prevents that.

    Raises
    ------
    PhotoError
        One sentence: the file is empty, cut off, too large, damaged or no photo at all.

    Examples
    --------
    >>> file = BytesIO()
    >>> Image.new("L", (30, 20), 255).save(file, "PNG")
    >>> photo = read_photo(file.getvalue())
    >>> photo.mode, photo.size, photo.getpixel((0, 0))
    ('RGB', (30, 20), (255, 255, 255))
    """
    require_count(max_pixels=max_pixels)
    if isinstance(source, bytes):
        name, content = name or "The photo", source
    else:
        name = name or str(source)
        content = read_bytes(source, name, max_pixels)
    if not content:
        raise PhotoError(f"{name} is empty (0 bytes).")
    reader = next((reader for start, reader in _READERS.items() if content.startswith(start)), None)
    if reader is None or (reader is WebPImageFile and content[8:12] != b"WEBP"):
        raise PhotoError(f"{name} is no photo: it is none of {_KINDS}, whatever its name says.")
    try:
        with reader(BytesIO(content)) as image:
            if image.width * image.height > max_pixels:
                raise PhotoError(
                    f"{name} has {image.width:,} × {image.height:,} pixels, more than the {max_pixels:,} allowed."
                )
            if shorter_side is not None and isinstance(image, JpegImageFile):
                image.draft(None, (_SPARE * shorter_side,) * 2)
            image.load()
            turn = _UPRIGHT.get(_orientation(image))  # after loading, when Pillow has turned a TIFF by itself
            photo = _as_rgb(image)
            return photo if turn is None else photo.transpose(turn)
    except PhotoError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow's own limit, for WebP and for a GIF larger than its screen; a warning only where warnings are errors.
        raise PhotoError(f"{name} has more pixels than are allowed.") from error
    except Exception as error:  # hostile bytes raise many kinds; each means the same to a person
        raise PhotoError(f"{name} cannot be decoded: {one_line(error)}.") from error


@contextmanager
def quiet_decoding() -> Iterator[None]:
    """Keep Pillow's remarks on odd files to itself while the block runs, in all threads: what counts is raised.

    Warning filters belong to the whole process, so this is for the one thread that starts and ends the work.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _orientation(image: Image.Image) -> int:
    """How the camera was held, 1 to 8; broken notes on it count as upright, as every viewer does it."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _as_rgb(image: Image.Image) -> Image.Image:
    """The pixels in 8 bits of red, green and blue."""
    if image.mode.startswith("I"):
        # Pillow's own conversion cuts at 255, which makes a 16-bit photo white.
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 0xFFFF) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are fractions, for which no white is agreed on")
    if image.has_transparency_data:
        solid = Image.new("RGBA", image.size, "white")
        solid.alpha_composite(image.convert("RGBA"))
        return solid.convert("RGB")
    return image.convert("RGB")


def prepare(photo: Image.Image, preparation: Preparation) -> Floats:
    """The numbers that a network reads: central part, resized, (x - mean) / std; shape (3, height, width).

    Examples
    --------
    >>> grey = Image.new("RGB", (60, 40), (127, 127, 255))
    >>> x = prepare(grey, Preparation(size=(8, 8), mean=(127, 127, 127), std=(128, 128, 128)))
    >>> x.shape, x[:, 0, 0].tolist()
    ((3, 8, 8), [0.0, 0.0, 1.0])
    """
    height, width = preparation.size
    how = Image.Resampling[preparation.interpolation.upper()]
    small = photo.resize((width, height), how, box=preparation.box(*photo.size))
    values: npt.NDArray[np.float32] = np.asarray(small, dtype=np.float32).transpose(2, 0, 1)
    mean = np.array(preparation.mean, dtype=np.float32)[:, None, None]
    std = np.array(preparation.std, dtype=np.float32)[:, None, None]
    return np.ascontiguousarray((values - mean) / std)
