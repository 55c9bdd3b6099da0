"""Draw photos of badges: 24 kinds, of which 6 shall be recognised without a single photo to learn from.

    python examples/badges.py badges

makes ``badges/photos`` with a subfolder for each kind, ``badges/classes.csv`` with the attributes of every kind,
``badges/described.csv`` with a sentence about each instead, and ``badges/new.csv`` with one kind more.
Photos of the six unseen kinds are there for testing only.
"""

import csv
import itertools
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SHAPES = ("circle", "square", "triangle", "star")
COLOURS = {"red": (205, 40, 45), "green": (45, 150, 70), "blue": (45, 85, 190)}
PATTERNS = ("plain", "striped")
# Every shape, colour and pattern of these is seen in other combinations.
UNSEEN = (
    "red plain circle",
    "blue striped circle",
    "green plain square",
    "red striped triangle",
    "blue plain star",
    "green striped star",
)
N_PHOTOS = 20
SIZE = 160


def draw(shape: str, colour: str, pattern: str, rng: np.random.Generator) -> Image.Image:
    """A badge lying somewhere on a table, turned a little."""
    table = Image.new("RGB", (SIZE, SIZE), tuple(int(x) for x in rng.integers(150, 230, 3)))
    inside = Image.new("L", (SIZE, SIZE), 0)
    centre, radius = SIZE / 2 + rng.uniform(-15, 15, 2), rng.uniform(45, 60)
    turn = rng.uniform(-0.3, 0.3)
    pen = ImageDraw.Draw(inside)
    if shape == "circle":
        pen.ellipse([*(centre - radius), *(centre + radius)], fill=255)
    else:
        angles, radii = {
            "square": (np.arange(4) * np.pi / 2 + np.pi / 4, np.ones(4)),
            "triangle": (np.arange(3) * 2 * np.pi / 3 - np.pi / 2, np.ones(3)),
            "star": (np.arange(10) * np.pi / 5 - np.pi / 2, np.resize([1, 0.42], 10)),
        }[shape]
        corners = np.stack([np.cos(angles + turn), np.sin(angles + turn)], axis=1) * (radii * radius)[:, None] + centre
        pen.polygon([tuple(corner) for corner in corners], fill=255)
    paint = np.array(COLOURS[colour]) + rng.integers(-25, 26, 3)
    badge = Image.new("RGB", (SIZE, SIZE), tuple(int(x) for x in np.clip(paint, 0, 255)))
    if pattern == "striped":
        pen = ImageDraw.Draw(badge)
        for x in range(int(rng.integers(0, 16)), 2 * SIZE, 18):
            pen.line([(x, 0), (x - SIZE, SIZE)], fill=(245, 245, 240), width=7)
    table.paste(badge, mask=inside)
    grain = rng.normal(0, 8, (SIZE, SIZE, 3))
    photo = np.clip(np.asarray(table.filter(ImageFilter.GaussianBlur(0.8))) + grain, 0, 255)
    return Image.fromarray(photo.astype(np.uint8))


def main(folder: Path) -> None:
    """Draw all photos, and write the tables."""
    rng = np.random.default_rng(0)
    kinds = list(itertools.product(SHAPES, COLOURS, PATTERNS))
    for shape, colour, pattern in kinds:
        place = folder / "photos" / f"{colour} {pattern} {shape}"
        place.mkdir(parents=True, exist_ok=True)
        for i in range(N_PHOTOS):
            draw(shape, colour, pattern, rng).save(place / f"{i:02d}.jpg", quality=90)
    words = (*SHAPES, *COLOURS, *PATTERNS)
    with (folder / "classes.csv").open("w", newline="") as one, (folder / "described.csv").open("w", newline="") as two:
        attributes, sentences = csv.writer(one), csv.writer(two)
        attributes.writerow(["name", "split", *words])
        sentences.writerow(["name", "split", "description"])
        for kind in kinds:
            shape, colour, pattern = kind
            name = f"{colour} {pattern} {shape}"
            group = "unseen" if name in UNSEEN else "seen"
            attributes.writerow([name, group, *(int(word in kind) for word in words)])
            marked = "white stripes" if pattern == "striped" else "no pattern"
            sentences.writerow([name, group, f"a {colour} {shape} with {marked}"])
    (folder / "new.csv").write_text("name,description\nyellow plain circle,a yellow circle with no pattern\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "badges"))
