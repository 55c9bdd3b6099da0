"""Fine-tuning: photos of seen classes and their labels in, a backbone that tells such classes apart better out.

A linear layer over the classes is put on a network's features, and both are trained, the network slowly: features must
still serve classes that no photo was seen of. So it stays as it is when in use (normalisation keeps the statistics
it came with, dropout is off), and starts under a layer of zeros, which has learned something before it moves anything.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dgz.data.dataset import Ints
from dgz.errors import DataError, DGZError, require_at_least, require_count
from dgz.images.backbones import Backbone, Preparation, cache_folder
from dgz.images.networks import Network, trainable
from dgz.images.photos import MAX_PIXELS, prepare, quiet_decoding, read_bytes, read_photo
from dgz.progress import Progress
from dgz.training import multiplying, pick_device, random_stream

Bytes = npt.NDArray[np.uint8]

# Of how networks are trained: raised when that changes their weights, so that none of before is used.
_TRAINING_VERSION = 1
# Photos are decoded once, this much larger than the network's input. A view of one is a part of it with at least this
# share of its sides: from a little enlarged to the whole photo.
_SPARE, _SMALLEST_VIEW = 1.25, 0.7
# Share of the steps in which learning rates rise.
_WARM_UP = 0.1


@dataclass(frozen=True)
class FineTuning:
    """How a network is trained further.

    Parameters
    ----------
    n_epochs : int
        How often every photo is looked at, each time another part of it, mirrored or not.
    learning_rate : float
        Adam's for the network, far below what is usual for one that is trained from scratch: chosen on folds of
        training photos (docs/photos.md).
    head_learning_rate : float
        Adam's for the layer of classes on top, which starts from nothing.
    batch_size : int
        Photos per step.
    label_smoothing : float
        Share of the target that is spread over all classes: a network that need not be certain moves less.

    Examples
    --------
    >>> FineTuning(n_epochs=3).batch_size
    32
    """

    n_epochs: int = 10
    learning_rate: float = 3e-5
    head_learning_rate: float = 1e-3
    batch_size: int = 32
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        require_count(n_epochs=self.n_epochs, batch_size=self.batch_size)
        require_at_least(
            0,
            learning_rate=self.learning_rate,
            head_learning_rate=self.head_learning_rate,
            label_smoothing=self.label_smoothing,
        )
        if self.label_smoothing >= 1:
            raise DGZError(f"label_smoothing must lie below 1, found {self.label_smoothing:g}.")


def fine_tune(
    network: Network | str | Path,
    paths: Sequence[str | Path],
    labels: npt.ArrayLike,
    settings: FineTuning | None = None,
    *,
    names: Sequence[str] | None = None,
    max_pixels: int = MAX_PIXELS,
    random_state: int = 0,
    device: str = "auto",
) -> Backbone:
    """Train a network further on photos, and make a backbone of it; one that was made before is found again.

    Parameters
    ----------
    network : Network, str or Path
        ``"lite0"``, ``"timm:NAME"`` or ``"hf:NAME"``. What holds an ONNX file is refused.
    paths : sequence of str or Path
        Photos of seen classes, training rows only. Each is decoded once, into a temporary file in the cache folder
        (235 kB a photo where the network reads 224 × 224 pixels), so that their number is not bounded by memory.
    labels : array of shape (n,)
        Their classes.
    settings : FineTuning, optional
    names : sequence of str, optional
        What sentences call the photos; the paths by default.
    max_pixels : int
        Photos with more are refused.
    random_state : int
        On a CPU, the same number gives the same weights.
    device : {"auto", "cpu", "cuda"}
        Where to train; a GPU multiplies in bfloat16.

    Returns
    -------
    Backbone
        With ``is_fine_tuned``, and a name and source that say so.
    """
    settings, where = settings or FineTuning(), pick_device(device)
    original = trainable(network)
    files = [Path(path) for path in paths]
    called = list(map(str, files)) if names is None else list(names)
    classes, y = np.unique(np.asarray(labels), return_inverse=True)
    if not files or len(files) != len(y):
        raise DataError(f"Fine-tuning needs photos and a label for each, found {len(files)} and {len(y)}.")
    known = [_TRAINING_VERSION, original.digest, asdict(settings), random_state, where.type, y.tolist()]
    known_as = json.dumps(known, sort_keys=True, default=lambda number: number.item())  # one of numpy's
    digest = hashlib.sha256(known_as.encode())
    for file, name in zip(files, called, strict=True):
        digest.update(hashlib.sha256(read_bytes(file, name, max_pixels)).digest())

    def load() -> nn.Module:
        stream = random_stream(random_state, "fine-tuning")
        with decoded(files, called, original.preparation, max_pixels) as photos:
            return train(original, photos, y, settings, stream, where)[0]

    tuned = replace(
        original,
        load=load,
        spec=f"{original.spec}-finetuned",
        source=f"{original.source}; trained further on {len(y):,} photos of {len(classes):,} classes, "
        f"{settings.n_epochs} epoch(s)",
        digest=digest.hexdigest(),
        is_fine_tuned=True,
    )
    return tuned.backbone()


@contextmanager
def decoded(files: list[Path], names: list[str], preparation: Preparation, max_pixels: int) -> Iterator[Bytes]:
    """Photos as (n, 3, height, width), somewhat larger than the network reads them, kept while the block runs."""
    height, width = (math.ceil(_SPARE * side) for side in preparation.size)
    plain = replace(preparation, size=(height, width), crop=1.0, mean=(0, 0, 0), std=(1, 1, 1))

    def decode(i: int) -> bytes:
        photo = read_photo(files[i], name=names[i], max_pixels=max_pixels, shorter_side=plain.shorter_side)
        return prepare(photo, plain).astype(np.uint8).tobytes()

    cache_folder().mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=cache_folder()) as file:
        with quiet_decoding(), ThreadPoolExecutor() as pool:
            # Written in order by one thread, and not through a map: a full disk is an error then, not a crash.
            for content in pool.map(decode, range(len(files))):
                file.write(content)
        file.flush()
        yield np.memmap(file, np.uint8, "r", shape=(len(files), 3, height, width))


def train(
    network: Network, photos: Bytes, y: Ints, settings: FineTuning, stream: torch.Generator, device: torch.device
) -> tuple[nn.Module, list[float]]:
    """Train a copy of a network; give it, and the mean loss of every epoch."""
    module: Any = deepcopy(network.load()).eval()  # the types of torch do not know of memory formats
    module = module.to(device, memory_format=torch.channels_last)
    views = _Views(photos, network.preparation, stream, device)

    def features(seen: Tensor) -> Tensor:
        found = network.features(module, seen)
        found = found.mean((2, 3)) if found.ndim == 4 else found
        # Rows of mean 0 and deviation 1: the rates then suit networks whose features are of any size.
        return functional.layer_norm(found.float(), found.shape[1:])

    with torch.no_grad():
        width = features(views.draw(np.arange(1))).shape[1]
    n_classes = int(y.max()) + 1
    head = [torch.zeros(*shape, device=device, requires_grad=True) for shape in ((n_classes, width), (n_classes,))]
    targets = torch.from_numpy(y).to(device)
    optimizer = torch.optim.Adam(
        [
            {"params": list(module.parameters()), "lr": settings.learning_rate},
            {"params": head, "lr": settings.head_learning_rate},
        ]
    )
    starts = range(settings.batch_size, len(y), settings.batch_size)
    n_steps = settings.n_epochs * (len(starts) + 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, n_steps))
    losses: list[float] = []
    with Progress("fine-tuning", settings.n_epochs * len(y), "photos") as progress:
        for epoch in range(1, settings.n_epochs + 1):
            total = 0.0
            for rows in np.split(torch.randperm(len(y), generator=stream).numpy(), starts):
                optimizer.zero_grad(set_to_none=True)
                x = views.draw(rows)  # outside of the block: places in a photo need more than bfloat16's digits
                with multiplying("bf16" if device.type == "cuda" else "float32", device):
                    x = features(x)
                scores = functional.linear(x, *head)
                loss = functional.cross_entropy(scores, targets[rows], label_smoothing=settings.label_smoothing)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                total += len(rows) * loss.item()
                progress.advance(len(rows), note=f"epoch {epoch} of {settings.n_epochs}, loss {loss.item():.3f}")
            losses.append(total / len(y))
            if not (math.isfinite(total) and all(bool(values.isfinite().all()) for values in module.parameters())):
                raise DGZError(
                    f"Fine-tuning {network.spec} failed: numbers ceased to be finite in epoch {epoch}; a learning rate "
                    f"below {settings.learning_rate:g} may help."
                )
    return module.to("cpu", memory_format=torch.contiguous_format), losses


def _rate(step: int, n_steps: int) -> float:
    """The share of its learning rate that a step has: rising at first, then falling to nothing along a cosine."""
    return min(1.0, (step + 1) / (_WARM_UP * n_steps)) * (1 + math.cos(math.pi * step / n_steps)) / 2


class _Views:
    """Random views of photos, as a network reads them: a part of the photo, mirrored or not."""

    def __init__(self, photos: Bytes, preparation: Preparation, stream: torch.Generator, device: torch.device) -> None:
        self.photos, self.size, self.stream, self.device = photos, preparation.size, stream, device
        self.mean, self.std = (
            torch.tensor(values, device=device)[:, None, None] for values in (preparation.mean, preparation.std)
        )

    def draw(self, rows: Ints) -> Tensor:
        """A view of each of some photos: (n, 3, height, width)."""
        photos = torch.from_numpy(np.array(self.photos[rows])).to(self.device).float()
        share, x, y, side = torch.rand(4, len(rows), generator=self.stream)
        share = _SMALLEST_VIEW + (1 - _SMALLEST_VIEW) * share
        place = torch.zeros(len(rows), 2, 3)
        place[:, 0, 0], place[:, 1, 1] = share * (2 * side.round() - 1), share
        place[:, 0, 2], place[:, 1, 2] = (1 - share) * (2 * x - 1), (1 - share) * (2 * y - 1)
        grid = functional.affine_grid(place.to(self.device), [len(rows), 3, *self.size], align_corners=False)
        seen = functional.grid_sample(photos, grid, padding_mode="border", align_corners=False)
        return (seen - self.mean) / self.std
