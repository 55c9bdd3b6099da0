"""Engines: independent pieces of work in, their results out as they are finished, each of them once.

The local engine takes one piece after the other in this process. The Ray engine hands them to the workers of a Ray
cluster, its own on this machine or one that is there already, and has those done again whose worker or machine died.
Only the process that asks sees results, so that it alone writes files and nothing is counted twice.
"""

import contextlib
import itertools
import logging
import math
import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from dgz.errors import DGZError, DGZWarning, one_line, require_choice, require_count

Name = Literal["local", "ray"]
Piece = TypeVar("Piece")
Result = TypeVar("Result")

# How often a piece is begun again when its worker or the whole machine dies under it.
_RETRIES = 3
# Seconds within which a cluster must answer a knock, and a machine of it a question.
_KNOCK, _QUESTION = 5.0, 300.0
# After so long without a result it is looked whether there is still a machine that could give one.
_PATIENCE = 30.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Ray speaks HTTP/2, where both sides begin with their settings, those of the caller after a line that is fixed.
_SETTINGS = b"\x04"
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0" + b"\0\0\0\0"
# Paths of Unix sockets have 107 bytes at most, of which Ray's own names take about 65.
_LONGEST_FOLDER = 40


class LostWorkError(DGZError):
    """The worker of a piece died each time that the piece was tried; given in place of its result."""


def open_engine(
    name: Name = "local",
    *,
    address: str | None = None,
    n_workers: int | None = None,
    threads_per_worker: int = 1,
) -> "LocalEngine | RayEngine":
    """Choose where independent pieces of work run.

    Parameters
    ----------
    name : {"local", "ray"}
        ``"ray"`` needs the extra ``ray``.
    address : str, optional
        Of a Ray cluster that is there already: ``HOST:PORT``, or ``auto`` for the one that runs on this machine or that
        ``RAY_ADDRESS`` names. Without it, the engine starts a cluster of this machine alone, and ends it.
    n_workers : int, optional
        How many pieces run at once; by default as many as the cluster has CPUs for, or GPUs where pieces want one.
    threads_per_worker : int
        Threads that a piece computes with on Ray, and the number of CPUs that it asks for.

    Returns
    -------
    LocalEngine or RayEngine
        To be used in a ``with`` statement, which ends what the engine started. Nothing is started before it is needed.

    Raises
    ------
    DGZError
        When Ray is not installed, or there is nothing at the address.

    Examples
    --------
    >>> with open_engine() as engine:
    ...     list(engine.run(lambda piece: piece**2, [3, 4]))
    [(0, 9), (1, 16)]
    """
    require_choice(name, Name, "engine")
    require_count(threads_per_worker=threads_per_worker)
    if n_workers is not None:
        require_count(n_workers=n_workers)
    if name == "ray":
        return RayEngine(address, n_workers, threads_per_worker)
    if address is not None:
        raise DGZError("An address is that of a Ray cluster, so it needs the engine ray (--engine ray).")
    if n_workers not in (None, 1):
        raise DGZError("The local engine takes one piece after the other: several workers need --engine ray.")
    return LocalEngine()


def n_cores() -> int:
    """Cores this process may use, which can be fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # systems without it
        return os.cpu_count() or 1


class LocalEngine:
    """Pieces of work, one after the other in this process."""

    is_local = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def check_nodes(self, check: Callable[[Piece], object], about: Piece) -> None:
        """Nothing: there is no machine but this one."""

    def run(
        self, work: Callable[[Piece], Result], pieces: Iterable[Piece], *, wants_gpu: bool = False
    ) -> Iterator[tuple[int, Result]]:
        """Give the number of each piece and what came of it; the next piece is looked at when that has been taken."""
        for index, piece in enumerate(pieces):
            yield index, work(piece)


class RayEngine:
    """Pieces of work on the workers of a Ray cluster; see :func:`open_engine`."""

    is_local = False

    def __init__(self, address: str | None, n_workers: int | None, threads_per_worker: int) -> None:
        self.address, self.n_workers, self.threads_per_worker = address, n_workers, threads_per_worker
        self._ray = _import_ray()
        if address is not None:
            _knock(self._ray, address)
        self._has_begun = self._is_mine = False
        self._under_way: dict[Any, int] = {}
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._cancel(list(self._under_way))
        self._ending.close()
        self._has_begun = self._is_mine = False

    def check_nodes(self, check: Callable[[Piece], object], about: Piece) -> None:
        """Have every machine of the cluster look at something, such as whether it has the data.

        Parameters
        ----------
        check : callable
            Given ``about`` on every machine that may get pieces; raises a :class:`~dgz.errors.DGZError` where something
            is amiss. A cluster that the engine started is this machine, and is not asked.
        about : object

        Raises
        ------
        DGZError
            With the name of the first machine that cannot be used, and the sentence that says why.
        """
        self._begin()
        if self._is_mine:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kept = [self._ray.put(check)]
        asked = {}
        for node in self._nodes():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            # No CPU is asked for: a machine whose workers are busy answers at once all the same.
            task = self._task(num_cpus=0, scheduling_strategy=there)
            asked[task.remote(kept, about)] = _called(node)
        answered, silent = self._ray.wait(list(asked), num_returns=len(asked), timeout=_QUESTION)
        for task in answered:
            try:
                if isinstance(answer := self._result(task), LostWorkError):
                    if isinstance(answer.__cause__, self._ray.exceptions.TaskUnschedulableError):
                        continue  # it has left the cluster since it was listed, and gets no pieces
                    raise answer
            except Exception as error:
                is_ours = isinstance(error, DGZError)  # or of another library, such as a package that is missing there
                why = str(error) if is_ours else f"{type(error).__name__}: {one_line(error)}."
                raise DGZError(f"Node {asked[task]} of the Ray cluster cannot be used: {why}") from error
        if silent:
            self._cancel(silent)
            raise DGZError(f"Node {asked[silent[0]]} of the Ray cluster did not answer within {_QUESTION:g} s.")

    def run(
        self, work: Callable[[Piece], Result], pieces: Iterable[Piece], *, wants_gpu: bool = False
    ) -> Iterator[tuple[int, Result | LostWorkError]]:
        """Give the number of each piece and what came of it, in the order in which they are finished.

        Parameters
        ----------
        work : callable
            Each worker gets a copy of it once, before its first piece. So it may be a method of an object that keeps
            something for the pieces to come, such as data that was read.
        pieces : iterable
            Looked at when there is room for another one.
        wants_gpu : bool
            Whether pieces share the GPUs of the cluster, if it has any: with ``n_workers`` of them at once, or one for
            each GPU.

        Yields
        ------
        (int, object)
            A piece whose worker died each time gives a :class:`LostWorkError`. An error of the work itself is raised as
            what it was, and ends everything.
        """
        self._begin()
        wants_gpu = wants_gpu and any(node["Resources"].get("GPU") for node in self._nodes())
        task, n_at_once = self._for_pieces(wants_gpu)
        kept = [self._ray.put(work)]
        waiting = enumerate(pieces)
        mine: dict[Any, int] = {}
        try:
            while True:
                for index, piece in itertools.islice(waiting, n_at_once - len(mine)):
                    begun = task.remote(kept, piece)
                    mine[begun] = self._under_way[begun] = index
                if not mine:
                    return
                done, _ = self._ray.wait(list(mine), num_returns=1, timeout=_PATIENCE)
                if not done:
                    self._nodes(wants_gpu)
                for one in done:
                    index = mine.pop(one)
                    del self._under_way[one]
                    yield index, self._result(one)
        finally:
            self._cancel(list(mine))

    def _begin(self) -> None:
        """Start a cluster or join one, if that has not happened yet."""
        if self._has_begun:
            return
        ray = self._ray
        if ray.is_initialized():  # by the program around us, which also ends it
            if self.address is not None:
                raise DGZError("This process is connected to a Ray cluster already: leave the address out to use it.")
        else:
            self._start() if self.address is None else self._join()
        self._has_begun = True

    def _join(self) -> None:
        """Become part of a cluster that is there already."""
        try:
            with _quiet():
                self._connect(address=self.address)
        except Exception as error:  # of many kinds: no node on this machine, another version, a token that is missing
            raise DGZError(
                f"The Ray cluster at {self.address} cannot be joined ({one_line(error)}): it needs a node on this "
                "machine, the same versions of Python and Ray, and RAY_AUTH_MODE=token if the cluster asks for a token."
            ) from error

    def _start(self) -> None:
        """Start a cluster of this machine, which nobody else can reach."""
        n_workers = self.n_workers or max(n_cores() // self.threads_per_worker, 1)
        folder = tempfile.mkdtemp(prefix="dgz-ray-")
        self._ending.callback(shutil.rmtree, folder, ignore_errors=True)
        self._is_mine = True
        # Elsewhere Ray keeps its logs and sockets in a folder that all users of a machine share.
        place = {"_temp_dir": folder} if len(folder) <= _LONGEST_FOLDER else {}
        try:
            with _quiet(), on_loopback(), _environment(self._threads()):
                self._connect(
                    address="local",
                    num_cpus=n_workers * self.threads_per_worker,
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    **place,
                )
        except Exception as error:  # of many kinds: a full disk, a limit on processes
            raise DGZError(f"Ray cannot be started on this machine: {one_line(error)}.") from error

    def _connect(self, **options: Any) -> None:
        """Call Ray, whose remarks about workers that died would go to standard output, whatever it is told."""
        self._ending.enter_context(_swapped(self._ray._private.worker, "print_to_stdstream", lambda *a, **k: None))
        self._ending.callback(_shut_down, self._ray)
        self._ray.init(**options, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)

    def _threads(self) -> dict[str, str]:
        return dict.fromkeys(_THREADS, str(self.threads_per_worker))

    def _nodes(self, wants_gpu: bool = False) -> list[dict[str, Any]]:
        """The machines that can take pieces, of which there must be one."""
        needed = {"CPU": self.threads_per_worker, "GPU": 1 if wants_gpu else 0}
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        able = [node for node in alive if all(node["Resources"].get(kind, 0) >= n for kind, n in needed.items())]
        if not able:
            needs = f"{self.threads_per_worker} CPU(s){' and a GPU' if wants_gpu else ''}"
            raise DGZError(
                f"A piece needs {needs} of one machine, which none of the {len(alive)} of the Ray cluster has."
            )
        return able

    def _for_pieces(self, wants_gpu: bool) -> tuple[Any, int]:
        """The task that takes a piece, and how many of them may be under way."""
        nodes = self._nodes(wants_gpu)
        n_gpus = sum(int(node["Resources"].get("GPU", 0)) for node in nodes) if wants_gpu else 0
        needs: dict[str, Any] = {"num_cpus": self.threads_per_worker}
        n_places = sum(int(node["Resources"]["CPU"]) // self.threads_per_worker for node in nodes)
        if n_gpus:
            n_places = min(n_places, self.n_workers or n_gpus)
            needs["num_gpus"] = 1 / math.ceil(n_places / n_gpus)
        # Twice as many as can run: a worker that is done finds the next piece waiting.
        return self._task(**needs), self.n_workers or 2 * n_places

    def _task(self, **needs: Any) -> Any:
        # Workers of a cluster that was not started here have threads as they please, unless they are told.
        told = {} if self._is_mine else {"runtime_env": {"env_vars": self._threads()}}
        return self._ray.remote(_in_worker).options(max_retries=_RETRIES, **needs, **told)

    def _result(self, task: Any) -> Any:
        """What came of a piece; errors of the work are raised as what they were."""
        errors = self._ray.exceptions
        try:
            result, sentences = self._ray.get(task)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except errors.RayError as error:
            what = f"{type(error).__name__}: {one_line(error)}"
            lost = LostWorkError(f"The worker of this piece was lost {_RETRIES + 1} times: {what}.")
            lost.__cause__ = error
            return lost
        for sentence in sentences:
            warnings.warn(sentence, DGZWarning, stacklevel=3)
        return result

    def _cancel(self, tasks: Iterable[Any]) -> None:
        for task in tasks:
            self._under_way.pop(task, None)
            if self._ray.is_initialized():
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(task, force=True)


Engine = LocalEngine | RayEngine
LOCAL = LocalEngine()

# What this process does as a worker of a Ray cluster: the work it was last given, by the name Ray has for it.
_kept: dict[str, Callable[[Any], Any]] = {}


def _in_worker(where: list[Any], piece: Any) -> tuple[Any, list[str]]:
    """Do a piece of work, in a worker; give what came of it, and our warnings, which nobody would see here."""
    import ray

    name = where[0].hex()
    if name not in _kept:
        _kept.clear()
        _kept[name] = ray.get(where[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DGZWarning)
        result = _kept[name](piece)
    return result, [str(one.message) for one in caught if issubclass(one.category, DGZWarning)]


def _import_ray() -> Any:
    # Before the import, which reads it: Ray would count its users.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise DGZError('The engine ray needs Ray: pip install "dgz[ray]".') from error
    return ray


def _knock(ray: Any, address: str) -> None:
    """Raise unless something answers at an address as Ray does: Ray itself would try for minutes."""
    try:
        place = ray._private.services.canonicalize_bootstrap_address_or_die(address.removeprefix("ray://"))
    except ConnectionError as error:
        raise DGZError("No Ray cluster runs on this machine, and RAY_ADDRESS names none.") from error
    except Exception:  # of many kinds
        place = ""
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise DGZError(f"The address of a Ray cluster must be HOST:PORT or auto, found {address!r}.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK) as line:
            line.settimeout(_KNOCK)
            line.sendall(_GREETING)
            is_greeted = os.environ.get("RAY_USE_TLS") == "1" or line.recv(4)[3:] == _SETTINGS
    except TimeoutError as error:
        raise DGZError(f"No Ray cluster answers at {address} within {_KNOCK:g} s.") from error
    except OSError as error:
        raise DGZError(f"No Ray cluster can be reached at {address}: {error.strerror or one_line(error)}.") from error
    if not is_greeted:
        raise DGZError(f"What answers at {address} is no Ray cluster.")


def _called(node: Mapping[str, Any]) -> str:
    """What people call a machine of a cluster; the id tells those apart that run on the same one."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def _shut_down(ray: Any) -> None:
    with _quiet():
        ray.shutdown()


def on_loopback() -> contextlib.AbstractContextManager[None]:
    """Let Ray use 127.0.0.1 where it is told to: it would put an address in its place that others can reach."""
    from ray._private import ray_constants

    return _swapped(ray_constants, "ENABLE_RAY_CLUSTER", False)


@contextlib.contextmanager
def _swapped(module: Any, name: str, value: Any) -> Iterator[None]:
    """Give a name of another library's module another value in the block."""
    before = getattr(module, name, None)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that processes started in the block inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's remarks off the screen; what goes wrong is raised as well."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray's own code, which has some in every version
            yield
    finally:
        logger.setLevel(before)
