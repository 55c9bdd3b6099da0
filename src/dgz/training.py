"""The training loop: one step after the other, with progress, a history, checkpoints and resumption.

In comes a trainee (networks, optimizers, one random stream and a step); out comes the trained trainee and the history
of its losses. Data lives on the device and is indexed directly; on a GPU, steps are captured once as a graph and then
replayed. What is random is drawn from streams that are derived from the seed and the stage's name, so that a change in
one stage never moves another.
"""

import copy
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Adam

from dgz.errors import BrokenTrainingError, DataError, DGZError, one_line
from dgz.files import write_whole
from dgz.progress import Progress

Row = dict[str, Any]
Observer = Callable[[str, int, Row], object]
Precision = Literal["float32", "tf32", "bf16"]
_PATIENCE = 0.5  # seconds that a GPU may run ahead of what has been read from it
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())
_parts: ContextVar[tuple[str, ...]] = ContextVar("parts", default=())


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


def has_kernels(device: torch.device) -> bool:
    """Whether the fused kernels of :mod:`dgz.kernels` can be used on a device."""
    return device.type == "cuda" and find_spec("triton") is not None


# What the fused kernels multiply. Float16 has TF32's ten bits of fraction in half the space, but not its range.
OPERANDS: dict[Precision, torch.dtype] = {"float32": torch.float32, "tf32": torch.float16, "bf16": torch.bfloat16}


def in_range(precision: Precision, *inputs: Tensor) -> bool:
    """Whether inputs are of a size with which float16 neither overflows nor vanishes, if it is to be used."""
    return precision != "tf32" or all(0.01 < float(values.abs().max()) < 1000 for values in inputs)


def random_stream(seed: int, stage: str, device: torch.device | str = "cpu") -> torch.Generator:
    """The random stream of one stage, derived from the seed and the stage's name.

    Examples
    --------
    >>> torch.rand(1, generator=random_stream(0, "a")) == torch.rand(1, generator=random_stream(0, "b"))
    tensor([False])
    """
    digest = hashlib.sha256(f"{seed}/{stage}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextmanager
def multiplying(precision: Precision, device: torch.device) -> Iterator[None]:
    """Multiply matrices inside the block with a given precision; everything else stays float32.

    ``tf32`` rounds what is multiplied to 10 bits of fraction, on GPUs that know it; ``bf16`` to 7, and results too, on
    any device.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    # Casts are not cached: inside a captured graph, a cached one would outlive the weights it was made of.
    lower = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
    try:
        with lower:
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block: steps of a few rows are slower with more, on busy cores by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def adam(
    parameters: Iterable[Tensor],
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.5, 0.999),
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> Adam:
    """Adam with the settings that most networks here share, and with its moments in place from the start."""
    leaves = list(parameters)
    on_gpu = leaves[0].is_cuda
    rate = torch.tensor(learning_rate, device=leaves[0].device) if on_gpu else learning_rate
    # Authors' code: β1 = 0.5 for every network, which the paper leaves to f-CLSWGAN's settings.
    options: dict[str, Any] = {"betas": betas, "weight_decay": weight_decay, "amsgrad": amsgrad}
    optimizer = Adam(leaves, lr=rate, **options, fused=True, capturable=on_gpu)
    for leaf in leaves:
        moments = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if amsgrad else ()))
        optimizer.state[leaf] = {name: torch.zeros_like(leaf) for name in moments}
        optimizer.state[leaf]["step"] = torch.zeros((), device=leaf.device)
    return optimizer


def set_rate(optimizer: Adam, learning_rate: float) -> None:
    """Change the learning rate, in place where a captured graph may hold it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


def descend(optimizer: Adam, loss: Tensor) -> None:
    """One step of ``optimizer`` down ``loss``; only its own parameters get gradients."""
    update(optimizer, torch.autograd.grad(loss, parameters_of(optimizer)))


def update(optimizer: Adam, gradients: Sequence[Tensor | None]) -> None:
    """One step of ``optimizer`` with the gradients of its parameters; one without a gradient stays as it is."""
    for values, gradient in zip(parameters_of(optimizer), gradients, strict=True):
        # Adam's fused kernels take memory as it comes.
        values.grad = None if gradient is None else gradient.contiguous()
    optimizer.step()


def clipped(gradients: Sequence[Tensor], most: float) -> list[Tensor]:
    """Gradients whose norm, of all together, is no longer than ``most``.

    Examples
    --------
    >>> clipped([torch.tensor([3.0]), torch.tensor([4.0])], 1.0), clipped([torch.tensor([3.0])], 5.0)
    ([tensor([0.6000]), tensor([0.8000])], [tensor([3.])])
    """
    length = torch.stack([torch.linalg.vector_norm(values) for values in gradients]).norm()
    share = (most / length.clamp(min=1e-12)).clamp(max=1.0)
    return [values * share for values in gradients]


def parameters_of(optimizer: Adam) -> list[Tensor]:
    """Everything that an optimizer moves."""
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
    precision : {"float32", "tf32", "bf16"}
        How matrices are multiplied in a step.
    steps_alike : bool
        Whether all steps of an epoch are the same but for the random numbers they draw, so that one captured step
        stands for all; otherwise the epoch is captured whole.
    places : sequence of int
        Of several trained at once: where each stands among those that were given.
    """

    networks: Mapping[str, nn.Module]
    optimizers: Mapping[str, Adam]
    rng: torch.Generator
    n_steps: int
    precision: Precision = "float32"
    steps_alike = True
    places: Sequence[int] = ()
    _is_warm = False
    _captured: "_Captured | None" = None

    @property
    def rngs(self) -> list[torch.Generator]:
        """All random streams."""
        return [self.rng]

    @abstractmethod
    def step(self) -> dict[str, Tensor]:
        """Update the networks once; gives the losses, one number each or one for each member trained at once.

        A step never waits for the device: it reads nothing back, and all its shapes are known beforehand.
        """

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027  (most trainees have nothing to prepare)
        """Prepare epoch number ``epoch``, counted from 1: what the host has to do, such as setting learning rates."""

    def shuffle(self) -> None:  # noqa: B027  (most trainees draw rows in each step)
        """Prepare an epoch: what the device has to do."""

    def mean_losses(self, totals: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Means over an epoch from the sums over its steps."""
        return {name: total / self.n_steps for name, total in totals.items()}

    def measure(self) -> dict[str, Tensor]:
        """What is found out after each epoch: whether everything learned is finite."""
        values = [values for net in self.networks.values() for values in net.state_dict().values()]
        # What is not finite stays so in a sum.
        return {SOUND: torch.stack([part.sum() for part in values]).isfinite().all()}


SOUND = "is sound"  # in rows that have not been checked yet


class _Captured:
    """A CUDA graph of some work, and the numbers that the work gives."""

    def __init__(self, trainee: Trainee, work: Callable[[], dict[str, Tensor]]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        for rng in trainee.rngs:
            self.graph.register_generator_state(rng)
        # Another thread may use the GPU meanwhile.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.found = _Numbers.of(work())

    def replay(self, times: int = 1) -> "_Numbers":
        """Do the work again; numbers of several times are added up."""
        total = torch.zeros_like(self.found.values)
        for _ in range(times):
            self.graph.replay()
            total += self.found.values
        return _Numbers(self.found.names, total)


class _Numbers(NamedTuple):
    """Named numbers on a device, in one tensor: one each, or one for each member."""

    names: list[str]
    values: Tensor

    @classmethod
    def of(cls, found: Mapping[str, Tensor]) -> Self:
        return cls(list(found), torch.stack([value.double() for value in found.values()]))


def _epoch(trainee: Trainee) -> _Numbers:
    """One epoch: the mean of each loss and what was measured at its end, on the device."""

    def steps(n_steps: int) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        for _ in range(n_steps):
            for name, loss in trainee.step().items():
                found.setdefault(name, []).append(loss.detach())
        return {name: torch.stack(losses).sum(0) for name, losses in found.items()}

    def epoch() -> dict[str, Tensor]:
        trainee.shuffle()
        return trainee.mean_losses(steps(trainee.n_steps)) | trainee.measure()

    with multiplying(trainee.precision, trainee.rng.device):
        # On a GPU the first epoch is run directly, too: libraries make their plans and kernels are compiled, which a
        # graph cannot hold. The second is recorded, for all that follow.
        if trainee.rng.device.type != "cuda" or not trainee._is_warm:
            trainee._is_warm = True
            return _Numbers.of(epoch())
        if trainee.steps_alike:
            trainee._captured = trainee._captured or _Captured(trainee, lambda: steps(1))
            names, totals = trainee._captured.replay(trainee.n_steps)
            means = trainee.mean_losses(dict(zip(names, totals.unbind(), strict=True)))
            return _Numbers.of(means | trainee.measure())
        trainee._captured = trainee._captured or _Captured(trainee, epoch)
        return trainee._captured.replay()


def fingerprint(known: Any, *arrays: npt.NDArray[Any]) -> str:
    """A hash of what JSON can hold and of the values of arrays: what a checkpoint belongs to."""
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for values in arrays:
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


class Checkpoints:
    """Files, one per stage, from which a broken training goes on.

    Parameters
    ----------
    folder : str or Path
    fingerprint : str
        What the training is of (settings, data). Files with another one are refused.
    every : float
        Least number of seconds between two files of a stage.
    keep_short : bool
        Whether the end of a stage is kept however little time it took; otherwise only of one that took longer.
    """

    def __init__(self, folder: str | Path, fingerprint: str, every: float = 30.0, *, keep_short: bool = True) -> None:
        self.folder, self.fingerprint, self.every, self.keep_short = Path(folder), fingerprint, every, keep_short
        self._saved_at = time.monotonic()

    def path(self, stage: str) -> Path:
        """Where the file of a stage is."""
        return self.folder / f"{stage}.safetensors"

    def save(self, stage: str, trainee: Trainee, history: list[Row], *, is_last: bool) -> None:
        """Keep the state after an epoch, if enough time has passed since the last one kept."""
        keep_end = is_last and (self.keep_short or self.path(stage).exists())
        if not keep_end and time.monotonic() - self._saved_at < self.every:
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
    tensors = {"rng": torch.stack([rng.get_state() for rng in trainee.rngs])}
    for name, net in trainee.networks.items():
        tensors |= {f"net/{name}/{key}": values for key, values in net.state_dict().items()}
    for name, optimizer in trainee.optimizers.items():
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{name}/{index}/{key}": value for key, value in values.items()}
    # Copies: fused kernels let parameters share what they count steps with, which a file of tensors cannot.
    return {name: values.detach().clone(memory_format=torch.contiguous_format) for name, values in tensors.items()}


def _load_state(trainee: Trainee, tensors: Mapping[str, Tensor]) -> None:
    for rng, state in zip(trainee.rngs, tensors["rng"], strict=True):
        rng.set_state(state.clone())  # it reads from the start of the memory that a state is in
    for name, net in trainee.networks.items():
        prefix = f"net/{name}/"
        net.load_state_dict({key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)})
    for name, optimizer in trainee.optimizers.items():
        moments: dict[int, dict[str, Tensor]] = {}
        for key, values in tensors.items():
            if key.startswith(f"adam/{name}/"):
                _, _, number, what = key.split("/")
                moments.setdefault(int(number), {})[what] = values
        for index, parameter in enumerate(parameters_of(optimizer)):
            state = optimizer.state[parameter]
            shapes = {what: moment.shape for what, moment in state.items()}
            if {what: moment.shape for what, moment in moments.get(index, {}).items()} != shapes:
                raise ValueError(f"the moments of parameter {index} of the {name} do not fit")
            for what, moment in moments[index].items():
                state[what].copy_(moment)


@contextmanager
def watching(observer: Observer) -> Iterator[None]:
    """Let ``observer`` follow all training inside the block, live, whatever it is that trains.

    Blocks inside one another add up: all their observers are called, the outermost first. What other threads train is
    not followed. Following costs a GPU the time it takes to wait for each epoch's numbers; results are the same.

    Parameters
    ----------
    observer : callable
        Given after each epoch the stage's name, the epoch's number from 1 and its row of ``history_``, without the
        epoch: losses and, where ``fit`` was given test rows, the scores ``acc_unseen``, ``acc_seen``, ``h`` and
        ``acc_zsl``. It owns the row.

        Stages are ``"generator"``, ``"classifier"`` and what else a method trains; those of a fold, where a setting is
        ``"auto"``, are ``"fold 1/classifier"`` and so on. Epochs that were restored from a checkpoint are told again
        when training goes on. A value is a number, or, of several models trained at once (:func:`~dgz.fit_many`), a
        list with one number for each of them, in their order. Where ``evaluate_every`` has a classifier trained after
        an epoch of the generator, all its rows are in that epoch's row as ``"classifier"``.

        It may raise, which ends the training: the error comes out of ``fit`` as it is, and the model is not fitted.
        (:func:`~dgz.fit_many` takes a ``DGZError`` for a training that broke, and goes on with the others.)

    Examples
    --------
    >>> from dgz import DGZ, load_numbers
    >>> data, found = load_numbers(0), []
    >>> with watching(lambda stage, epoch, row: found.append((stage, epoch, *row))):
    ...     model = DGZ.without_generator(n_epochs=1, generator__n_epochs=2)
    ...     model = model.fit(data.x_train, data.y_train, data.attributes)
    >>> found
    [('generator', 1, 'loss'), ('generator', 2, 'loss'), ('classifier', 1, 'loss')]
    """
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Tell observers that what is trained inside the block is only a part of the whole, such as ``"fold 1"``."""
    token = _parts.set((*_parts.get(), name))
    try:
        yield
    finally:
        _parts.reset(token)


@contextmanager
def _unwatched() -> Iterator[None]:
    """Train without observers inside the block."""
    token = _observers.set(())
    try:
        yield
    finally:
        _observers.reset(token)


def _tell(observers: Sequence[Observer], stage: str, trainee: Trainee, row: Row) -> None:
    """Give a row of the history to all observers, each a copy of its own."""
    for observer in observers:
        known = {name: _as_given(value, trainee.places) for name, value in row.items() if name != "epoch"}
        observer("/".join((*_parts.get(), stage)), row["epoch"], known)


def _as_given(value: Any, places: Sequence[int]) -> Any:
    """What is known of one of several trained at once, or of each in the order they were given in."""
    if not isinstance(value, list) or len(value) != len(places):
        return copy.deepcopy(value)
    return value[0] if len(value) == 1 else [value[places.index(k)] for k in range(len(value))]


def train(
    stage: str,
    trainee: Trainee,
    n_epochs: int,
    *,
    after_epoch: Callable[[int], Row] | None = None,
    checkpoints: Checkpoints | None = None,
    verbose: bool = False,
) -> list[Row]:
    """Train for ``n_epochs`` epochs, or for those that are left of them; see :func:`watching` to follow it.

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
    on_gpu = trainee.rng.device.type == "cuda"
    if on_gpu:
        # Autograd's own thread has no CUDA context before its first kernel, and cuBLAS would warn about that.
        one = torch.ones(1, device=trainee.rng.device, requires_grad=True)
        torch.autograd.grad(one.exp(), one)
    patience = min(_PATIENCE, checkpoints.every) if checkpoints else _PATIENCE  # only what was read is kept
    observers = _observers.get()
    unread: list[tuple[_Numbers, Row, Row]] = []
    read_at = time.monotonic()
    with Progress(stage, total=n_epochs, unit="epochs") if verbose else nullcontext() as progress:
        if progress:
            progress.advance(len(history))
        for row in history:
            _tell(observers, stage, trainee, row)
        for epoch in range(len(history) + 1, n_epochs + 1):
            trainee.begin_epoch(epoch)
            numbers = _epoch(trainee)
            with _unwatched():  # what is trained in there is in this epoch's row
                unread.append((numbers, {"epoch": epoch}, {} if after_epoch is None else after_epoch(epoch)))
            # Reading waits for the device, so a GPU is left to run ahead for a while, unless someone waits for it too.
            if on_gpu and not observers and epoch < n_epochs and time.monotonic() - read_at < patience:
                continue
            for read in _read(unread):
                _require_finite(stage, read, checkpoints)
                history.append(read)
            if checkpoints:
                checkpoints.save(stage, trainee, history, is_last=epoch == n_epochs)
            if progress:
                progress.advance(len(unread), note=_note(history[-1]))
            if observers:  # then nothing but this epoch was unread
                _tell(observers, stage, trainee, history[-1])
            unread, read_at = [], time.monotonic()
    return history


def _read(unread: list[tuple[_Numbers, Row, Row]]) -> list[Row]:
    """A history's rows; what is on the device is read all at once."""
    read = torch.stack([numbers.values for numbers, _, _ in unread]).tolist()
    return [
        {
            **epoch,
            **dict(zip(numbers.names, values, strict=True)),
            **{name: value.tolist() if isinstance(value, Tensor) else value for name, value in after.items()},
        }
        for (numbers, epoch, after), values in zip(unread, read, strict=True)
    ]


def _require_finite(stage: str, row: Row, checkpoints: Checkpoints | None) -> None:
    """Stop where a loss or the state is no finite number any more; of members trained at once, where none is left."""
    sound = row.pop(SOUND)  # the last step may break a network whose loss was still sound
    broken = [name for name, value in row.items() if name.endswith("loss") and not np.isfinite(value).any()]
    broken = broken or ([] if np.any(sound) else ["state"])
    if broken:
        kept = checkpoints.path(stage) if checkpoints else None
        hint = f" The state before is kept in {kept}." if kept and kept.exists() else ""
        raise BrokenTrainingError(
            f"Training the {stage} stopped in epoch {row['epoch']}: its {' and '.join(broken)} is no finite number any "
            f"more; a smaller learning rate or other scaling may help.{hint}"
        )


def _note(row: Row) -> str:
    """A history's row as a progress note: losses, and H in percent where it is known."""
    numbers = [f"{name} {np.mean(value):.3g}" for name, value in row.items() if name.endswith("loss")]
    tested = row["classifier"][-1] if row.get("classifier") else row  # of a generator: the classifier trained on it
    return "  ".join([*numbers, *([f"test H {100 * np.mean(tested['h']):.1f}"] if "h" in tested else [])])
