"""Tracking: the curve of a run, shown live where people already look, in TensorBoard or MLflow.

Right of the training loop, which it observes, and of the records, whose scores it shows in the end; left of the
experiments. In come settings, an epoch's numbers and a record; out go event files or requests. Neither library is
needed, or loaded, unless it is asked for.
"""

import json
import math
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from dgz.errors import DGZError, DGZWarning, one_line
from dgz.records import Record
from dgz.settings import leaves
from dgz.training import Row, watching

_KINDS = "tensorboard:FOLDER, mlflow:FOLDER or mlflow:URI"
_FLUSH_SECONDS = 2.0  # between two requests to MLflow: a GPU trains hundreds of epochs a second
_MOST_METRICS, _MOST_PARAMS, _LONGEST = 1000, 100, 500  # of one request, and of one text, by MLflow's own limits
_ANSWER_SECONDS = 5.0  # within which a server must answer before training starts
# A switch that is set already stays as it is. MLflow reports its use to its makers unless told otherwise, and tries for
# minutes to reach a server that is gone, while the training waits.
_SWITCHES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_EXPERIMENT = "dgz"  # unless MLflow's own MLFLOW_EXPERIMENT_NAME says otherwise


class Tracker(ABC):
    """A sink that one run is shown in; :func:`open_tracker` makes them.

    As a context manager it begins the run, follows all training inside the block, and ends the run. Once training has
    begun, nothing that goes wrong with the sink breaks it: one warning, and the sink is left alone from then on.

    Parameters
    ----------
    where : str
        As it was asked for, for messages.
    name : str
        What the run is called.
    known : mapping
        What is known beforehand, such as settings and facts of the data.
    """

    def __init__(self, where: str, name: str, known: Mapping[str, Any]) -> None:
        self.where, self.name = where, name
        self.known = {key: _plain(value) for key, value in leaves(known)}
        self._is_lost = False
        self._watch = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except Exception as error:
            raise DGZError(f"{self.where} cannot be used: {_reason(error)}.") from error
        self._is_lost = False
        self._watch.enter_context(watching(self.observe))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._watch.close()
        self._attempt(lambda: self._end(kind))

    def observe(self, stage: str, epoch: int, row: Row) -> None:
        """Show the numbers of an epoch: what :func:`~dgz.training.watching` calls."""
        self._attempt(lambda: self._log(dict(_numbers(stage, row)), epoch))

    def conclude(self, record: Record) -> None:
        """Show what came out: scores by the name of the rule that picked them, those of the oracle as ``oracle/…``."""
        found = {record.selection: record.scores, "oracle": record.oracle or {}, "seconds": record.seconds}
        numbers = {
            _tag(f"{rule}/{name}"): float(value)
            for rule, values in found.items()
            for name, value in values.items()
            if _is_number(value)
        }
        facts = {"selection": record.selection, "device": record.device, "n_parameters": record.n_parameters}
        words = leaves(facts | {"chosen": record.chosen, "versions": record.versions})
        self._attempt(lambda: self._conclude(numbers, {key: _plain(value) for key, value in words}))

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do what the sink is for, unless it failed before; where it fails now, say so once."""
        if self._is_lost:
            return
        try:
            work()
        except Exception as error:
            self._is_lost = True
            warnings.warn(
                f"{self.where} takes no more numbers of {self.name} ({_reason(error)}); the run goes on without it.",
                DGZWarning,
                stacklevel=3,
            )

    @abstractmethod
    def _begin(self) -> None:
        """Start a run in the sink, with all that is known beforehand."""

    @abstractmethod
    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Show the numbers of an epoch."""

    @abstractmethod
    def _conclude(self, numbers: Mapping[str, float], words: Mapping[str, Any]) -> None:
        """Show what came out."""

    @abstractmethod
    def _end(self, kind: type[BaseException] | None) -> None:
        """End the run, perhaps with an error of some kind."""


def open_tracker(where: str, name: str = "run", known: Mapping[str, Any] | None = None) -> Tracker:
    """Make a sink ready for one run, and raise where it cannot be used.

    Parameters
    ----------
    where : str
        ``tensorboard:FOLDER``, ``mlflow:FOLDER``, or ``mlflow:`` with any address that MLflow knows, such as
        ``http://localhost:5000``.
    name : str
        What the run is called. TensorBoard's folder of it gets a number where another run has that name.
    known : mapping, optional
        What is known beforehand, such as settings and facts of the data.

    Returns
    -------
    Tracker

    Raises
    ------
    DGZError
        When the package is missing, a folder cannot be written to, or a server does not answer within seconds.

    Examples
    --------
    >>> import tempfile
    >>> from dgz import DGZ, load_numbers
    >>> data, folder = load_numbers(0), tempfile.mkdtemp()
    >>> model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1)
    >>> with open_tracker(f"tensorboard:{folder}", "first try", model.settings()):
    ...     model = model.fit(data.x_train, data.y_train, data.attributes)
    >>> [path.name for path in Path(folder).iterdir()]
    ['first_try']
    """
    kind, colon, place = where.partition(":")
    if kind not in _SINKS or not colon or not place.strip():
        raise DGZError(f"A run is tracked in {_KINDS}, found {where!r}.")
    return _SINKS[kind](where, name, known or {}, place)


class _TensorBoard(Tracker):
    """Event files in a folder, one subfolder for each run."""

    def __init__(self, where: str, name: str, known: Mapping[str, Any], place: str) -> None:
        super().__init__(where, name, known)
        try:
            import torch.utils.tensorboard as tensorboard
        except ImportError as error:
            raise DGZError(f"{where} needs tensorboard: pip install 'dgz[track]'.") from error
        self._library: Any = tensorboard
        self.folder = _writable(Path(place), where)

    def _begin(self) -> None:
        self._writer = self._library.SummaryWriter(str(_new_folder(self.folder, self.name)), flush_secs=2)
        # The first of the three would fix the columns of all runs in the folder to those of this one.
        _, start, self._finish = self._library.summary.hparams(dict(self.known), {})
        self._writer.file_writer.add_summary(start)
        self._writer.add_text("known", _table(self.known))
        self._writer.flush()

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, epoch)

    def _conclude(self, numbers: Mapping[str, float], words: Mapping[str, Any]) -> None:
        self._log(numbers, 0)
        self._writer.add_text("record", _table(words))

    def _end(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            self._writer.file_writer.add_summary(self._finish)
        # Before closing: only a flush says whether everything was written.
        self._writer.flush()
        self._writer.close()


class _MLflow(Tracker):
    """Runs of an experiment, in a folder of files or on a server."""

    def __init__(self, where: str, name: str, known: Mapping[str, Any], place: str) -> None:
        super().__init__(where, name, known)
        for switch, value in _SWITCHES.items():
            os.environ.setdefault(switch, value)
        try:
            from mlflow import MlflowClient, entities
        except ImportError as error:
            raise DGZError(f"{where} needs mlflow-skinny: pip install 'dgz[track]'.") from error
        self._entities = entities
        scheme = urlsplit(place).scheme
        if scheme.partition("+")[0] in _DATABASES and find_spec("sqlalchemy") is None:
            raise DGZError(f"{where} is a database, which takes the whole of MLflow: pip install mlflow.")
        if len(scheme) < 2 or scheme == "file":  # one letter is a drive of Windows
            # MLflow prefers a database, which takes the whole of it; files do without, and need to be asked for.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            folder = Path(unquote(urlsplit(place).path) if scheme == "file" else place)
            place = _writable(folder, where).resolve().as_uri()
        self._client = _answered(where, scheme, lambda: self._ask(MlflowClient(tracking_uri=place)))
        self._waiting: list[Any] = []

    def _ask(self, client: Any) -> Any:
        client.get_experiment_by_name(self._experiment)
        return client

    @property
    def _experiment(self) -> str:
        return os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT

    def _begin(self) -> None:
        found = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self._run: str = self._client.create_run(number, run_name=self.name).info.run_id
        self._waiting, self._sent_at = [], time.monotonic()
        params = [self._entities.Param(_tag(key), str(value)[:_LONGEST]) for key, value in self.known.items()]
        for some in _slices(params, _MOST_PARAMS):
            self._client.log_batch(self._run, params=some)

    def _log(self, numbers: Mapping[str, float], epoch: int) -> None:
        now = round(1000 * time.time())
        self._waiting += [self._entities.Metric(name, value, now, epoch) for name, value in numbers.items()]
        if time.monotonic() - self._sent_at >= _FLUSH_SECONDS:
            self._send()

    def _send(self) -> None:
        for some in _slices(self._waiting, _MOST_METRICS):
            self._client.log_batch(self._run, metrics=some)
        self._waiting, self._sent_at = [], time.monotonic()

    def _conclude(self, numbers: Mapping[str, float], words: Mapping[str, Any]) -> None:
        self._log(numbers, 0)
        tags = [self._entities.RunTag(_tag(key), str(value)[:_LONGEST]) for key, value in words.items()]
        for some in _slices(tags, _MOST_PARAMS):
            self._client.log_batch(self._run, tags=some)

    def _end(self, kind: type[BaseException] | None) -> None:
        self._send()
        failed = "KILLED" if kind is not None and not issubclass(kind, Exception) else "FAILED"
        self._client.set_terminated(self._run, "FINISHED" if kind is None else failed)


_SINKS: dict[str, Callable[[str, str, Mapping[str, Any], str], Tracker]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
}


def _answered(where: str, scheme: str, ask: Callable[[], Any]) -> Any:
    """What ``ask`` gives; raises where it fails, or where a server does not answer for seconds."""
    outcome: dict[str, Any] = {}

    def attempt() -> None:
        try:
            outcome["answer"] = ask()
        except Exception as error:
            outcome["error"] = error

    # In a thread, since no limit of a request counts the time that the search for the server's name takes.
    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS if scheme.startswith("http") else None)
    if "answer" in outcome:
        return outcome["answer"]
    error = outcome.get("error")
    if error is None:
        raise DGZError(f"{where} cannot be used: no answer within {_ANSWER_SECONDS:g} seconds.")
    raise DGZError(f"{where} cannot be used: {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    """What went wrong: of a request, how the connection failed, which is three errors down."""
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(earlier)
    return one_line(next((one for one in reversed(chain) if isinstance(one, OSError)), error))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of an epoch's row, by their names in a sink.

    Of a classifier that was trained after the epoch, those of its last epoch; of several models trained at once, each.
    """
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        yield from _numbers(name, value[-1])
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}/{key}", inner)
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            yield from _numbers(f"{name}/{k}", inner)
    elif _is_number(value):
        yield _tag(name), float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _tag(name: str) -> str:
    """A name as both sinks take it."""
    return re.sub(r"[^\w./-]", "_", name)


def _plain(value: Any) -> bool | int | float | str:
    """A setting as both sinks take it."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _table(words: Mapping[str, Any]) -> str:
    rows = (f"| {key} | {str(value).replace('|', ' ')} |" for key, value in words.items())
    return "\n".join(["| name | value |", "| --- | --- |", *rows])


def _slices(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _writable(folder: Path, where: str) -> Path:
    """The folder, made where there was none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DGZError(f"{where} cannot be used: {one_line(error)}.") from error
    if not os.access(folder, os.W_OK):
        raise DGZError(f"{where} cannot be used: no permission to write there.")
    return folder


def _new_folder(folder: Path, name: str) -> Path:
    """A new subfolder with the name, or with the name and a number."""
    start = re.sub(r"[^\w.+-]", "_", name).strip(".") or "run"
    for number in range(1, 10_000):
        path = folder / (start if number == 1 else f"{start}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise DGZError(f"{folder} holds too many runs called {name}.")
