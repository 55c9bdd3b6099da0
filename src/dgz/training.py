"""The training loop: one step after the other, with progress, a history, checkpoints and resumption.

In comes a trainee (networks, optimizers, one random stream and a step); out comes the trained trainee and the history
of its losses. Data lives on the device and is indexed directly. What is random is drawn from streams that are derived
from the seed and the stage's name, so that a change in one stage never moves another.
"""

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Adam

from dgz.errors import DataError, DGZError, one_line
from dgz.files import write_whole
from dgz.progress import Progress

Row = dict[str, Any]


def pick_device(device: str | torch.device) -> torch.device:
    """The device called ``device``; ``"auto"`` is a GPU where there is one.

    Examples
    --------
    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:  # torch's ways to say that there is none
        raise DGZError(f"device {str(device)!r} cannot be used here: {one_line(error)}.") from error
    return found


def random_stream(seed: int, stage: str, device: torch.device | str = "cpu") -> torch.Generator:
    """The random stream of one stage, derived from the seed and the stage's name.

    Examples
    --------
    >>> torch.rand(1, generator=random_stream(0, "a")) == torch.rand(1, generator=random_stream(0, "b"))
    tensor([False])
    """
    digest = hashlib.sha256(f"{seed}/{stage}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def adam(net: nn.Module, learning_rate: float) -> Adam:
    """Adam with the settings that all networks here share."""
    # Authors' code: β1 = 0.5 for every network, which the paper leaves to f-CLSWGAN's settings.
    return Adam(net.parameters(), lr=learning_rate, betas=(0.5, 0.999), fused=True)


def update(optimizer: Adam, loss: Tensor) -> None:
    """One step of ``optimizer`` down ``loss``; only its own parameters get gradients."""
    parameters = _parameters(optimizer)
    for values, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        values.grad = gradient
    optimizer.step()


def _parameters(optimizer: Adam) -> list[Tensor]:
    return [values for group in optimizer.param_groups for values in group["params"]]


class Trainee(ABC):
    """What :func:`train` trains.

    Attributes
    ----------
    networks : mapping of str to Module
        Everything learned.
    optimizers : mapping of str to Adam
    rng : torch.Generator
        Where every random number of a step comes from; on the device of the data.
    n_steps : int
        Steps of one epoch.
    """

    networks: Mapping[str, nn.Module]
    optimizers: Mapping[str, Adam]
    rng: torch.Generator
    n_steps: int

    @abstractmethod
    def step(self) -> dict[str, Tensor]:
        """Update the networks once; gives the losses, as tensors of one number that stay on the device."""

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027  (most trainees have nothing to prepare)
        """Prepare epoch number ``epoch``, counted from 1: shuffle rows, set learning rates."""


class Checkpoints:
    """Files, one per stage, from which a broken training goes on.

    Parameters
    ----------
    folder : str or Path
    fingerprint : str
        What the training is of (settings, data). Files with another one are refused.
    every : float
        Least number of seconds between two files of a stage; its end is always kept.
    """

    def __init__(self, folder: str | Path, fingerprint: str, every: float = 30.0) -> None:
        self.folder, self.fingerprint, self.every = Path(folder), fingerprint, every
        self._saved_at = time.monotonic()

    def path(self, stage: str) -> Path:
        """Where the file of a stage is."""
        return self.folder / f"{stage}.safetensors"

    def save(self, stage: str, trainee: Trainee, history: list[Row], *, is_last: bool) -> None:
        """Keep the state after an epoch, if enough time has passed since the last one kept."""
        if not is_last and time.monotonic() - self._saved_at < self.every:
            return
        words = {"fingerprint": self.fingerprint, "history": json.dumps(history)}
        with write_whole(self.path(stage)) as file:
            file.write(save(_state(trainee), metadata=words))
        self._saved_at = time.monotonic()

    def restore(self, stage: str, trainee: Trainee) -> list[Row]:
        """Put the trainee into the state last kept, and give the history up to there; empty where nothing was kept."""
        path = self.path(stage)
        if not path.exists():
            return []
        try:
            with safe_open(path, framework="pt") as file:
                words = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
            if words["fingerprint"] != self.fingerprint:
                raise DGZError(
                    f"{path} is a checkpoint of other settings or other data; start anew or in another folder."
                )
            history: list[Row] = json.loads(words["history"])
            _load_state(trainee, tensors)
        except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
            if isinstance(error, DGZError):
                raise
            raise DataError(f"{path} is not a whole checkpoint of this training: {one_line(error)}.") from error
        return history


def _state(trainee: Trainee) -> dict[str, Tensor]:
    """Everything that the next step depends on, as named tensors."""
    tensors = {"rng": trainee.rng.get_state()}
    for name, net in trainee.networks.items():
        tensors |= {f"net/{name}/{key}": values for key, values in net.state_dict().items()}
    for name, optimizer in trainee.optimizers.items():
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{name}/{index}/{key}": value for key, value in values.items()}
    return {name: values.contiguous() for name, values in tensors.items()}


def _load_state(trainee: Trainee, tensors: Mapping[str, Tensor]) -> None:
    trainee.rng.set_state(tensors["rng"])
    for name, net in trainee.networks.items():
        prefix = f"net/{name}/"
        net.load_state_dict({key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)})
    for name, optimizer in trainee.optimizers.items():
        moments: dict[int, dict[str, Tensor]] = {}
        for key, values in tensors.items():
            if key.startswith(f"adam/{name}/"):
                _, _, number, what = key.split("/")
                moments.setdefault(int(number), {})[what] = values
        for index, parameter in enumerate(_parameters(optimizer)):  # the next step would fail over a misfit, or worse
            shapes = {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
            if {what: moment.shape for what, moment in moments.get(index, {}).items()} != shapes:
                raise ValueError(f"the moments of parameter {index} of the {name} do not fit")
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})


def train(
    stage: str,
    trainee: Trainee,
    n_epochs: int,
    *,
    after_epoch: Callable[[int], Row] | None = None,
    checkpoints: Checkpoints | None = None,
    verbose: bool = False,
) -> list[Row]:
    """Train for ``n_epochs`` epochs, or for those that are left of them.

    Parameters
    ----------
    stage : str
        What is trained, for messages and files.
    trainee : Trainee
        Trained in place.
    n_epochs : int
    after_epoch : callable, optional
        Given the number of each finished epoch; what it returns joins the history's row.
    checkpoints : Checkpoints, optional
        Where states are kept, and where training goes on from.
    verbose : bool
        Show progress.

    Returns
    -------
    list of dict
        One row per epoch: its number from 1, the mean of each loss over its steps, and what ``after_epoch`` said.

    Raises
    ------
    DGZError
        When a loss is no longer a finite number; the last checkpoint is from before that.
    """
    history = checkpoints.restore(stage, trainee) if checkpoints else []
    with Progress(stage, total=n_epochs, unit="epochs") if verbose else nullcontext() as progress:
        if progress:
            progress.advance(len(history))
        for epoch in range(len(history) + 1, n_epochs + 1):
            trainee.begin_epoch(epoch)
            row: Row = {"epoch": epoch, **_mean_losses(stage, trainee, epoch, checkpoints)}
            if after_epoch is not None:
                row |= after_epoch(epoch)
            history.append(row)
            if checkpoints:
                checkpoints.save(stage, trainee, history, is_last=epoch == n_epochs)
            if progress:
                progress.advance(note=_note(row))
    return history


def _mean_losses(stage: str, trainee: Trainee, epoch: int, checkpoints: Checkpoints | None) -> dict[str, float]:
    """Run one epoch; losses are summed on the device and read once."""
    totals: dict[str, Tensor] = {}
    for _ in range(trainee.n_steps):
        for name, loss in trainee.step().items():
            totals[name] = totals[name] + loss.detach() if name in totals else loss.detach()
    means = dict(zip(totals, (torch.stack(list(totals.values())) / trainee.n_steps).tolist(), strict=True))
    broken = [name for name, mean in means.items() if not math.isfinite(mean)]
    # The last step may break a network whose loss was still sound.
    sound = [values.isfinite().all() for net in trainee.networks.values() for values in net.state_dict().values()]
    if not broken and not bool(torch.stack(sound).all()):
        broken = ["state"]
    if broken:
        kept = checkpoints.path(stage) if checkpoints else None
        hint = f" The state before is kept in {kept}." if kept and kept.exists() else ""
        raise DGZError(
            f"Training the {stage} stopped in epoch {epoch}: its {' and '.join(broken)} is no finite number any more; "
            f"a smaller learning rate or other scaling may help.{hint}"
        )
    return means


def _note(row: Row) -> str:
    """A history's row as a progress note: losses, and H in percent where it is known."""
    numbers = [f"{name} {value:.3g}" for name, value in row.items() if name.endswith("loss")]
    tested = row["classifier"][-1] if row.get("classifier") else row  # of a generator: the classifier trained on it
    return "  ".join([*numbers, *([f"test H {100 * tested['h']:.1f}"] if "h" in tested else [])])
