"""Decoding: every kind of photo comes out upright in RGB, and everything else as one sentence."""

import struct
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from dgz.errors import DataError, DGZError
from dgz.images import PhotoError, Preparation, prepare, read_photo
from dgz.images.photos import quiet_decoding
from images.making import encoded, noise

JPEG = encoded(noise((64, 48)), quality=95)


def pixels(image: Image.Image) -> Any:
    return np.asarray(image).astype(int)


def gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    """A GIF whose first picture may be larger than its screen, with next to no data."""
    header = b"GIF89a" + struct.pack("<HH", *screen) + b"\x80\0\0" + bytes(6)
    picture = b"," + struct.pack("<HHHH", 0, 0, *frame) + b"\0"
    return header + picture + b"\x02\x02\x4c\x01\x00;"


def png_header(width: int, height: int) -> bytes:
    """A PNG of a few bytes that promises a picture of any size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_kinds_without_loss_come_out_as_they_went_in(kind: str, tmp_path: Path) -> None:
    photo = noise()
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(photo, kind, **options)
    (tmp_path / "a.photo").write_bytes(content)
    for source in (content, tmp_path / "a.photo"):
        found = read_photo(source)
        assert (found.mode, found.size) == ("RGB", photo.size)
        assert (pixels(found) == pixels(photo)).all()


def test_jpeg_and_gif_are_read_as_pillow_reads_them(tmp_path: Path) -> None:
    for content in (JPEG, encoded(noise().quantize(16), "GIF"), encoded(noise(), progressive=True)):
        (tmp_path / "a").write_bytes(content)
        with Image.open(tmp_path / "a") as expected:
            assert (pixels(read_photo(content)) == pixels(expected.convert("RGB"))).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_photos_come_out_upright(orientation: int, kind: str) -> None:
    # Written straight from the EXIF standard: where row 0 and column 0 of the stored picture are in the scene.
    stored = np.zeros((16, 32, 3), dtype=np.uint8)
    stored[:8, :16], stored[:8, 16:], stored[8:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    views = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.transpose(1, 0, 2),
        6: lambda x: x.transpose(1, 0, 2)[:, ::-1],
        7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
        8: lambda x: x.transpose(1, 0, 2)[::-1],
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    content = encoded(Image.fromarray(stored), kind, exif=exif.tobytes(), **options)
    found = pixels(read_photo(content))
    expected = views[orientation](stored).astype(int)
    assert found.shape == expected.shape
    assert abs(found - expected).max() < 10
    # Decoding at a fraction of the size turns it the same way.
    small = read_photo(content, shorter_side=4)
    assert (small.width < small.height) == (orientation >= 5)


def test_broken_notes_on_the_orientation_do_not_matter() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(noise(), exif=exif.tobytes())
    start = content.index(b"Exif\0\0") + 6
    for damage in (b"\xff" * 8, b"II*\0\xff\xff\xff\x7f", b""):
        broken = content[:start] + damage + content[start + len(damage) :]
        with quiet_decoding():
            assert read_photo(broken).size == ((40, 30) if damage else (30, 40))
    exif[0x0112] = 99
    assert read_photo(encoded(noise(), exif=exif.tobytes())).size == (40, 30)


def test_transparent_parts_are_white() -> None:
    clear = Image.new("RGBA", (4, 2), (255, 0, 0, 255))
    clear.putpixel((1, 0), (0, 0, 0, 0))
    clear.putpixel((2, 0), (0, 0, 0, 128))
    found = read_photo(encoded(clear, "PNG"))
    assert [found.getpixel((x, 0)) for x in range(3)] == [(255, 0, 0), (255, 255, 255), (127, 127, 127)]

    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    for transparency in (1, bytes([255, 0])):  # one colour, or a value for each
        found = read_photo(encoded(palette, "PNG", transparency=transparency))
        assert [found.getpixel((x, 0)) for x in range(2)] == [(10, 20, 30), (255, 255, 255)]
    assert read_photo(encoded(palette, "PNG")).getpixel((1, 0)) == (200, 100, 50)
    grey = Image.new("LA", (1, 1), (0, 0))
    assert read_photo(encoded(grey, "PNG")).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_of_grey_become_eight(kind: str) -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    found = pixels(read_photo(encoded(Image.fromarray(values), kind)))
    assert found[0].tolist() == [[0] * 3, [0] * 3, [1] * 3, [128] * 3, [255] * 3]


def test_other_modes_become_rgb() -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 30))
    for mode in ("CMYK", "YCbCr"):
        found = read_photo(encoded(red.convert(mode), "JPEG", quality=100))
        assert found.mode == "RGB"
        assert abs(pixels(found) - (200, 30, 30)).max() < 6
    assert read_photo(encoded(Image.new("1", (3, 3), 1), "PNG")).getpixel((0, 0)) == (255, 255, 255)
    assert read_photo(encoded(Image.new("L", (3, 3), 77), "PNG")).getpixel((0, 0)) == (77, 77, 77)


def test_fractions_are_no_photo() -> None:
    content = encoded(Image.fromarray(np.ones((4, 4), dtype=np.float32)), "TIFF")
    with pytest.raises(PhotoError, match=r"^a\.tif cannot be decoded: its pixels are fractions, .*\.$"):
        read_photo(content, name="a.tif")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"is empty \(0 bytes\)\."),
        (b"Dear reader,", r"is no photo: it is none of JPEG, PNG, WebP, GIF, BMP and TIFF, whatever its name says\."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "is no photo"),
        (b"RIFF\0\0\0\0WAVE", "is no photo"),
        (b"\xff\xd8\xff", "cannot be decoded"),
        (png_header(100_000, 100_000), r"has 100,000 × 100,000 pixels, more than the 100,000,000 allowed\."),
        (gif((60_000, 60_000), (1, 1)), r"has 60,000 × 60,000 pixels, more than the 100,000,000 allowed\."),
        (gif((1, 1), (60_000, 60_000)), r"has more pixels than are allowed\."),
        (gif((1, 1), (12_000, 12_000)), r"pixels"),
    ],
)
def test_what_is_no_photo_is_refused_by_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    for source, name in ((path, str(path)), (content, "The photo")):
        with pytest.raises(PhotoError, match=sentence) as error:
            read_photo(source)
        assert str(error.value).startswith(f"{name} ")
        assert str(error.value).endswith(".")
        assert isinstance(error.value, DataError)


def test_a_header_is_believed_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    with pytest.raises(PhotoError, match=r"has 64 × 48 pixels, more than the 3,071 allowed\."):
        read_photo(JPEG, max_pixels=3071)
    with pytest.raises(PhotoError, match="cannot be decoded: decoded"):
        read_photo(JPEG, max_pixels=3072)


def test_large_photos_may_be_allowed_and_pillows_limits_stay_as_they_are() -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, warnings.filters[:]
    with pytest.raises(PhotoError, match="cannot be decoded"):  # not the pixels: the data end early
        read_photo(png_header(20_000, 20_000), max_pixels=10**9)
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, warnings.filters[:]) == before
    with pytest.raises(DGZError, match="max_pixels must be a whole number"):
        read_photo(JPEG, max_pixels=0)


def test_a_file_larger_than_any_photo_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    with path.open("wb") as file:
        file.write(JPEG)
        file.truncate(70_000_000)
    with pytest.raises(
        PhotoError, match=r"is larger than the 67,133,440 bytes that a photo of 3,072 pixels can take\."
    ):
        read_photo(path, max_pixels=3072)
    assert read_photo(path).size == (64, 48)


def test_files_that_cannot_be_opened_are_sentences_too(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match=r"none\.jpg cannot be read: No such file or directory\."):
        read_photo(tmp_path / "none.jpg")
    with pytest.raises(PhotoError, match=r"cannot be read: Is a directory\."):
        read_photo(tmp_path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_photo_cut_off_anywhere_is_refused_or_whole(kind: str) -> None:
    content = encoded(noise((64, 48)), kind)
    whole = pixels(read_photo(content))
    n_refused = 0
    for length in range(0, len(content), max(1, len(content) // 150)):
        try:
            found = read_photo(content[:length])
        except PhotoError:
            n_refused += 1
        else:  # only a mark of the end is missing
            assert (pixels(found) == whole).all()
            assert length > len(content) - 16
    assert n_refused > 100


@settings(max_examples=300)
@given(st.data())
def test_flipped_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]))
    content = bytearray(encoded(noise((16, 12)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        photo = read_photo(bytes(content), max_pixels=100_000, shorter_side=4)
    except PhotoError:
        return
    assert photo.mode == "RGB"
    assert photo.width * photo.height <= 100_000


@settings(max_examples=200)
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0"])
)
def test_any_bytes_are_a_photo_or_a_sentence(content: bytes, start: bytes) -> None:
    with pytest.raises(PhotoError):
        read_photo(start + content, max_pixels=10_000)


def test_a_large_jpeg_is_decoded_small() -> None:
    ramp = np.linspace(0, 255, 1600).astype(np.uint8)
    large = Image.fromarray(np.stack([np.tile(ramp, (1200, 1))] * 3, axis=2))
    content = encoded(large, quality=95)
    assert read_photo(content).size == (1600, 1200)
    assert read_photo(content, shorter_side=100).size == (400, 300)  # 1/4; 1/8 would leave less than twice 100
    assert read_photo(content, shorter_side=601).size == (1600, 1200)
    preparation = Preparation(size=(64, 64), mean=(0, 0, 0), std=(1, 1, 1))
    small = read_photo(content, shorter_side=preparation.shorter_side)
    assert small.width < 800
    assert abs(prepare(small, preparation) - prepare(large, preparation)).max() < 3
    assert read_photo(encoded(large, "PNG"), shorter_side=100).size == (1600, 1200)


def test_pillows_warnings_are_kept_quiet_for_all_threads_and_then_heard_again() -> None:
    bomb, found = gif((1, 1), (12_000, 12_000)), []

    def read() -> None:
        try:
            read_photo(bomb)
        except PhotoError as error:
            found.append(str(error))

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with quiet_decoding():
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
        assert heard == []
        warnings.warn("again", stacklevel=1)
    assert len(heard) == 1
    assert found == ["The photo has 12,000 × 12,000 pixels, more than the 100,000,000 allowed."]


# --- Preparation.
def test_the_central_part_is_resized_and_normalised() -> None:
    picture = np.zeros((20, 40, 3), dtype=np.uint8)
    picture[5:15, 15:25] = (10, 20, 30)  # exactly the half of the largest square
    preparation = Preparation(
        size=(10, 10), crop=0.5, interpolation="nearest", mean=(10.0, 10.0, 10.0), std=(1.0, 10.0, 20.0)
    )
    found = prepare(Image.fromarray(picture), preparation)
    assert (found.dtype, found.shape, found.flags.c_contiguous) == (np.float32, (3, 10, 10), True)
    for channel, value in enumerate((0.0, 1.0, 1.0)):
        assert (found[channel] == value).all()


def test_height_and_width_are_not_mixed_up() -> None:
    photo = noise((40, 30))
    found = prepare(photo, Preparation(size=(6, 12), crop=1.0, mean=(0, 0, 0), std=(1, 1, 1), interpolation="box"))
    assert found.shape == (3, 6, 12)
    # 40 × 20 is the largest box of that shape.
    expected = pixels(photo.resize((12, 6), Image.Resampling.BOX, box=(0, 5, 40, 25)))
    assert (found == expected.transpose(2, 0, 1)).all()


def test_squashing_keeps_the_whole_photo() -> None:
    photo = noise((40, 20))
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1), "interpolation": "bilinear"}
    found = prepare(photo, Preparation(size=(10, 10), crop=1.0, fit="squash", **plain))
    assert (found == pixels(photo.resize((10, 10), Image.Resampling.BILINEAR)).transpose(2, 0, 1)).all()
    assert Preparation(size=(10, 10), crop=0.5, fit="squash").box(40, 20) == (10, 5, 30, 15)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 50), st.integers(1, 50), st.floats(0.01, 1.0))
def test_the_box_lies_within_the_photo(width: int, height: int, h: int, w: int, crop: float) -> None:
    preparation = Preparation(size=(h, w), crop=crop)
    left, upper, right, lower = preparation.box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    assert (right - left) / (lower - upper) == pytest.approx(w / h)
    assert prepare(Image.new("RGB", (width, height)), preparation).shape == (3, h, w)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"size": (0, 8)}, "size must be from 1 to 4096 pixels, found (0, 8)."),
        ({"size": (8,)}, "size must be 2 whole numbers, found (8,)."),
        ({"size": "big"}, "size must be 2 whole numbers, found 'big'."),
        ({"size": (8.5, 8)}, "size must be 2 whole numbers"),
        ({"size": (True, 8)}, "size must be 2 whole numbers"),
        ({"crop": 0.0}, "crop must lie above 0 and not above 1, found 0."),
        ({"crop": 1.1}, "crop must lie above 0"),
        ({"crop": None}, "crop must be 1 number, found (None,)."),
        ({"std": (1, 0, 1)}, "std must be positive"),
        ({"mean": (1, float("nan"), 1)}, "mean must be 3 numbers"),
        ({"fit": "stretch"}, "fit must be one of crop, squash, found 'stretch'."),
        ({"interpolation": "best"}, "interpolation must be one of nearest, "),
    ],
)
def test_a_preparation_that_makes_no_sense_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DGZError) as error:
        Preparation(**wrong)
    assert sentence in str(error.value)
    content = {key: list(value) if isinstance(value, tuple) else value for key, value in wrong.items()}
    with pytest.raises(DataError, match=r"^here: "):
        Preparation.from_dict(content, "here")


def test_a_preparation_survives_json() -> None:
    preparation = Preparation(size=(8, 9), crop=0.5, fit="squash", interpolation="box", mean=(1, 2, 3), std=(4, 5, 6.5))
    assert Preparation.from_dict(preparation.to_dict(), "here") == preparation
    assert Preparation(size=8).size == (8, 8)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="here says sise, but a preparation consists of size, crop, "):
        Preparation.from_dict({"sise": [8, 8]}, "here")
    with pytest.raises(DataError, match="here must be a JSON object"):
        Preparation.from_dict([1], "here")
