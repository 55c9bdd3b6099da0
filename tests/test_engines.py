"""Engines: the same results wherever pieces run, whatever dies meanwhile, and sentences before any work.

All of Ray is on 127.0.0.1. Its nodes are processes of one machine here, which share files and cores.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT
from dgz import reproduce as module
from dgz.cli import main
from dgz.data import make_synthetic, save_bundle
from dgz.engines import LocalEngine, LostWorkError, RayEngine, on_loopback, open_engine
from dgz.errors import DGZError, DGZWarning
from dgz.images import Backbone, PhotoError, extract
from dgz.paper import Store
from dgz.records import read_record_file
from dgz.reproduce import compare
from images.making import save_photo, tiny_backbone, tiny_onnx

pytest.importorskip("ray")
# It has every core, and one cluster serves all tests: `make test` runs these in one process, after the others.
on_ray = [pytest.mark.alone, pytest.mark.filterwarnings("ignore::ResourceWarning")]


# --- Without a cluster.
def test_the_local_engine_takes_one_piece_after_the_other() -> None:
    order: list[str] = []

    def pieces() -> Iterator[int]:
        for piece in (3, 4):
            order.append(f"looked at {piece}")
            yield piece

    def work(piece: int) -> int:
        order.append(f"did {piece}")
        return piece**2

    with open_engine() as engine:
        assert isinstance(engine, LocalEngine)
        engine.check_nodes(lambda about: order.append("asked"), 0)
        for index, result in engine.run(work, pieces()):
            order.append(f"{index}: {result}")
    assert order == ["looked at 3", "did 3", "0: 9", "looked at 4", "did 4", "1: 16"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "spark"}, "engine must be one of local, ray, found 'spark'."),
        ({"name": "ray", "n_workers": 0}, "n_workers must be a whole number from 1 up, found 0."),
        ({"name": "ray", "threads_per_worker": 0}, "threads_per_worker must be a whole number from 1 up, found 0."),
        ({"address": "127.0.0.1:6379"}, "An address is that of a Ray cluster, so it needs the engine ray"),
        ({"n_workers": 2}, "The local engine takes one piece after the other: several workers need --engine ray."),
        ({"name": "ray", "address": "here"}, "must be HOST:PORT or auto, found 'here'."),
        ({"name": "ray", "address": "127.0.0.1:port"}, "must be HOST:PORT or auto, found '127.0.0.1:port'."),
        ({"name": "ray", "address": "127.0.0.1:1"}, "No Ray cluster can be reached at 127.0.0.1:1: "),
        ({"name": "ray", "address": "no.such.host.invalid:6379"}, "No Ray cluster can be reached at no.such.host"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options: dict[str, Any], sentence: str) -> None:
    start = time.monotonic()
    with pytest.raises(DGZError) as error:
        open_engine(**options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert time.monotonic() - start < 15


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DGZError, match=r'^The engine ray needs Ray: pip install "dgz\[ray\]"\.$'):
        open_engine("ray")


def test_a_server_that_is_no_ray_cluster_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgz.engines._KNOCK", 0.5)
    sentence = r"^No Ray cluster answers at 127\.0\.0\.1:\d+ within 0\.5 s\.$"
    with on_loopback(), socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DGZError, match=sentence):
        open_engine("ray", address=f"127.0.0.1:{silent.getsockname()[1]}")

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with on_loopback(), HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(DGZError, match=r"^What answers at 127\.0\.0\.1:\d+ is no Ray cluster\.$"):
            open_engine("ray", address=f"127.0.0.1:{server.server_port}")


@pytest.mark.parametrize(
    "command",
    [
        "compare --data numbers --methods nearest-prototype --out out",
        "reproduce table4 --quick --out out",
        "data from-images photos --classes classes.csv --backbone tiny.onnx --out out",
    ],
)
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--engine ray --address 127.0.0.1:1", "No Ray cluster can be reached at 127.0.0.1:1: Connection refused."),
        ("--engine dask", "engine must be one of local, ray, found 'dask'."),
        ("--address auto", "An address is that of a Ray cluster, so it needs the engine ray (--engine ray)."),
        ("--engine ray --workers 0", "n_workers must be a whole number from 1 up, found 0."),
    ],
)
def test_every_command_refuses_in_a_sentence_before_any_work(
    command: str,
    options: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_photo(tmp_path / "photos" / "ant" / "0.png", (1, 2, 3))
    (tmp_path / "classes.csv").write_text("name,split,a,b\nant,seen,1,0\nbee,unseen,0,1\n")
    (tmp_path / "tiny.onnx").write_bytes(tiny_onnx())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "argv", ["dgz", *command.split(), *options.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr() == ("", f"Error: {sentence}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("n_workers", "gpus", "wants_gpu", "share", "n_at_once"),
    [
        (None, [0, 0], False, None, 16),  # twice as many pieces as can run
        (None, [2, 0], False, None, 16),
        (None, [2, 0], True, 1, 4),  # a piece for each GPU, and as many waiting
        (1, [2, 0], True, 1, 1),
        (3, [2, 0], True, 1 / 2, 3),  # two pieces share one
        (4, [2, 2], True, 1, 4),
        (9, [2, 2], True, 1 / 2, 9),  # more than there are CPUs, on the nodes that have GPUs
    ],
)
def test_pieces_share_gpus(
    n_workers: int | None,
    gpus: list[int],
    wants_gpu: bool,
    share: float | None,
    n_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = RayEngine(None, n_workers, 1)
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0, **({"GPU": float(n)} if n else {})}} for n in gpus]
    monkeypatch.setattr(engine, "_ray", type("Fake", (), {"nodes": staticmethod(lambda: nodes)}))
    monkeypatch.setattr(engine, "_task", lambda **needs: needs)
    needs, found = engine._for_pieces(wants_gpu)
    assert (needs.get("num_gpus"), found) == (share, n_at_once)


def test_a_cluster_of_small_machines_is_told_from_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RayEngine(None, None, 8)
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]
    monkeypatch.setattr(engine, "_ray", type("Fake", (), {"nodes": staticmethod(lambda: nodes)}))
    with pytest.raises(DGZError, match=r"^A piece needs 8 CPU\(s\) of one machine, which none of the 1 of the Ray"):
        engine._nodes()
    with pytest.raises(DGZError, match=r"^A piece needs 8 CPU\(s\) and a GPU of one machine"):
        engine._nodes(wants_gpu=True)


# --- On a cluster of several nodes.
@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each on 127.0.0.1; tests may add others, and kill them."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with on_loopback(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args=head)
        found.add_node(num_cpus=1, node_ip_address="127.0.0.1")
        yield found
        found.shutdown()


@pytest.fixture
def engine(cluster: Any) -> Iterator[RayEngine]:
    """The engine on that cluster."""
    with open_engine("ray", address=cluster.address) as opened:
        assert isinstance(opened, RayEngine)
        yield opened


class Keeping:
    """Work that keeps something in its worker."""

    def __init__(self) -> None:
        self.n_done = 0

    def do(self, piece: int) -> tuple[int, int, int]:
        self.n_done += 1
        return piece**2, os.getpid(), self.n_done


def by_value() -> None:
    """Let Ray send what this file defines as a whole: its workers cannot import tests."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class TestCluster:
    pytestmark = on_ray

    def test_every_piece_is_answered_once_and_workers_keep_what_they_were_given(self, engine: RayEngine) -> None:
        by_value()
        keeping = Keeping()
        looked_at: list[int] = []
        most_ahead = 0

        def pieces() -> Iterator[int]:
            for piece in range(60):
                looked_at.append(piece)
                yield piece

        found: dict[int, tuple[int, int, int]] = {}
        for index, result in engine.run(keeping.do, pieces()):
            assert index not in found
            assert not isinstance(result, LostWorkError)
            found[index] = result
            most_ahead = max(most_ahead, len(looked_at) - len(found))
        assert {index: result[0] for index, result in found.items()} == {piece: piece**2 for piece in range(60)}
        assert most_ahead <= 4  # two for each CPU
        assert keeping.n_done == 0
        of_workers: dict[int, list[int]] = {}
        for _, process, n_done in found.values():
            of_workers.setdefault(process, []).append(n_done)
        assert os.getpid() not in of_workers
        assert all(sorted(counts) == list(range(1, len(counts) + 1)) for counts in of_workers.values())

    def test_warnings_come_back_and_threads_are_as_many_as_asked_for(self, engine: RayEngine) -> None:
        def work(piece: int) -> str | None:
            warnings.warn("Something odd.", DGZWarning, stacklevel=1)
            warnings.warn("Something of another library.", UserWarning, stacklevel=1)
            return os.environ.get("OMP_NUM_THREADS")

        with pytest.warns(DGZWarning, match=r"^Something odd\.$") as caught:
            assert list(engine.run(work, [0])) == [(0, "1")]
        assert len(caught) == 1

    def test_an_error_of_the_work_is_what_it_was_and_is_not_tried_again(
        self, engine: RayEngine, tmp_path: Path
    ) -> None:
        def work(piece: int) -> int:
            (tmp_path / f"{piece}-{time.time_ns()}").touch()
            if piece == 1:
                raise DGZError("It is tired.")
            raise KeyError("lost")

        with pytest.raises(DGZError, match=r"^It is tired\.$") as error:
            list(engine.run(work, [1]))
        assert type(error.value) is DGZError
        with pytest.raises(KeyError, match="lost"):
            list(engine.run(work, [2]))
        assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["1", "2"]

    def test_a_worker_that_dies_costs_time_and_one_that_always_dies_its_piece_alone(
        self, engine: RayEngine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def work(piece: int) -> int:
            tries = len(list(tmp_path.glob(f"{piece}-*")))
            (tmp_path / f"{piece}-{tries}").touch()
            if piece == 7 or (piece == 3 and tries == 0):
                os._exit(1)
            return piece

        found = dict(engine.run(work, range(10)))
        lost = found.pop(7)
        assert isinstance(lost, LostWorkError)
        assert str(lost).startswith("The worker of this piece was lost 4 times: WorkerCrashedError: ")
        assert found == {piece: piece for piece in range(10) if piece != 7}
        assert [len(list(tmp_path.glob(f"{piece}-*"))) for piece in (2, 3, 7)] == [1, 2, 4]
        assert capfd.readouterr().out == ""  # of Ray's remarks, which would spoil --json

    def test_a_connection_of_the_program_around_it_is_used_and_left(self, cluster: Any) -> None:
        import ray

        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        try:
            with open_engine("ray") as engine:
                assert list(engine.run(abs, [-1])) == [(0, 1)]
            assert ray.is_initialized()
            with (
                open_engine("ray", address=cluster.address) as engine,
                pytest.raises(DGZError, match=r"connected to a Ray cluster already: leave the address out to use it\."),
            ):
                list(engine.run(abs, [-1]))
            assert ray.is_initialized()
        finally:
            ray.shutdown()

    def test_what_is_left_in_the_middle_is_cancelled(self, engine: RayEngine, tmp_path: Path) -> None:
        def work(piece: int) -> int:
            (tmp_path / str(piece)).touch()
            time.sleep(60 if piece else 0)
            return piece

        start = time.monotonic()
        for index, _ in engine.run(work, range(10)):
            assert index == 0
            break
        assert dict(engine.run(abs, [-1, -2])) == {0: 1, 1: 2}  # workers are free for it
        assert time.monotonic() - start < 60
        assert len(list(tmp_path.iterdir())) <= 4

    def test_a_node_that_lacks_something_is_named(self, cluster: Any, engine: RayEngine) -> None:
        def check(about: str) -> None:
            if about in os.environ:
                raise DGZError("The folder animals is not there.")

        engine.check_nodes(check, "DGZ_TEST_LACKING")
        odd = cluster.add_node(
            num_cpus=1, node_ip_address="127.0.0.1", env_vars={"DGZ_TEST_LACKING": "1", **os.environ}
        )
        try:
            sentence = (
                r"^Node .+ \(127\.0\.0\.1, (\w{8})\) of the Ray cluster cannot be used: The folder animals is not"
            )
            with pytest.raises(DGZError, match=sentence) as error:
                engine.check_nodes(check, "DGZ_TEST_LACKING")
            assert odd.node_id[:8] in str(error.value)

            def import_what_is_missing(about: str) -> None:
                if about in os.environ:
                    import no_such_package  # noqa: F401

            with pytest.raises(
                DGZError, match=r"cannot be used: ModuleNotFoundError: No module named 'no_such_package'"
            ):
                engine.check_nodes(import_what_is_missing, "DGZ_TEST_LACKING")

            def die(about: str) -> None:
                if about in os.environ:
                    os._exit(1)

            with pytest.raises(DGZError, match=r"^Node .* cannot be used: The worker of this piece was lost 4 times: "):
                engine.check_nodes(die, "DGZ_TEST_LACKING")
        finally:
            cluster.remove_node(odd)

    def test_a_node_that_left_a_moment_ago_is_not_asked(
        self, engine: RayEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(about: str) -> None:
            raise DGZError("Nobody can be used.")

        engine.check_nodes(len, "nothing")
        nodes = engine._nodes()
        gone = {**nodes[0], "NodeID": "0123456789abcdef" * 3 + "01234567"}  # Ray lists those that died for some seconds
        monkeypatch.setattr(engine, "_nodes", lambda: [gone, *nodes])
        engine.check_nodes(len, "nothing")
        with pytest.raises(DGZError, match=r"^Node .* cannot be used: Nobody can be used\.$"):
            engine.check_nodes(refuse, "nothing")

    # --- Runs.
    def test_records_are_those_of_the_local_engine_though_a_node_is_killed_half_way(
        self, cluster: Any, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        methods = ["dgz-without-generator", "center-ridge"]
        options: dict[str, Any] = {"seeds": 5, "quick": True, "device": "cpu"}
        compare(methods, str(bundle), tmp_path / "local", **options)
        expected = records_in(tmp_path / "local")
        doomed = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
        doomed_id = doomed.node_id
        written: list[str] = []
        write, make = Store.write, module._Workshop.make
        begun = tmp_path / "begun"
        begun.mkdir()

        def marks(is_doomed: bool) -> dict[str, int]:
            """Runs that were begun on the node that is to die, or on the others, with the processes that were at them."""
            found = [path.name.split("@") for path in begun.iterdir()]
            return {name: int(process) for name, node, process in found if (node == doomed_id) == is_doomed}

        def count(self: Store, run: str, record: Any) -> None:
            written.append(run)
            write(self, run, record)
            in_flight = marks(True).keys() - set(written)
            if doomed in cluster.worker_nodes and in_flight:
                for process in set(marks(True).values()):  # as a machine dies: at once, with all that it is at
                    os.kill(process, signal.SIGKILL)
                cluster.remove_node(doomed, allow_graceful=False)

        def mark(self: Any, runs: Any) -> Any:
            import ray

            node = ray.get_runtime_context().get_node_id()
            (begun / f"{runs[0].name}@{node}@{os.getpid()}").touch()
            end = time.monotonic() + 120
            # The one that is to die is at work when the first of the others has finished, however slowly it starts.
            while time.monotonic() < end and (node == doomed_id or not list(begun.glob(f"*@{doomed_id}@*"))):
                time.sleep(0.05)
            return make(self, runs)

        monkeypatch.setattr(Store, "write", count)
        monkeypatch.setattr(module._Workshop, "make", mark)
        # Work is sent by name, so that workers have the unchanged method; sent as a whole, it is the changed one.
        monkeypatch.setattr(module._Workshop, "__reduce__", lambda self: (rebuild, (mark, self.planned)), raising=False)
        by_value()
        with open_engine("ray", address=cluster.address) as engine:
            compare(methods, str(bundle), tmp_path / "ray", engine=engine, **options)
        found = records_in(tmp_path / "ray")
        assert sorted(written) == sorted(found) == sorted(expected)  # nothing lost, nothing twice
        assert len(found) == 10
        for name, record in expected.items():
            for field, value in asdict(record).items():
                if field != "seconds":
                    assert asdict(found[name])[field] == value, (name, field)
            assert found[name].seconds.keys() == record.seconds.keys()
        assert doomed not in cluster.worker_nodes
        assert marks(True).keys() & marks(False).keys()  # what the dead node was at was begun anew elsewhere
        assert {path.name for path in (tmp_path / "ray").iterdir()} == {"items", "records"}

    def test_a_node_without_the_data_is_refused_before_any_work(
        self, engine: RayEngine, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = module._plan

        def plan_and_lose(*arguments: Any) -> Any:
            found = plan(*arguments)
            bundle.rename(tmp_path / "gone")
            return found

        with monkeypatch.context() as patch:
            patch.setattr(module, "_plan", plan_and_lose)
            with pytest.raises(DGZError, match=r"^Node .* cannot be used: .*small is neither a folder nor the name"):
                compare(["nearest-prototype"], str(bundle), tmp_path / "out", engine=engine)
        assert not (tmp_path / "out").exists()
        other = make_synthetic(8, 2, n_attributes=6, n_features=12, n_samples=160, random_state=2)
        save_bundle(other, bundle)
        with monkeypatch.context() as patch:
            load = module.load_data
            (tmp_path / "here").mkdir()
            (tmp_path / "gone").rename(tmp_path / "here" / "small")
            patch.setattr(module, "load_data", lambda source, *rest: load(tmp_path / "here" / "small", *rest))
            with pytest.raises(DGZError, match="holds another data set there than on the machine that gave the work"):
                compare(["nearest-prototype"], str(bundle), tmp_path / "out", engine=engine)
        assert not (tmp_path / "out").exists()

    # --- Photos.
    def test_features_are_those_of_the_local_engine(
        self, engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DGZ_CACHE", str(tmp_path / "cache"))
        paths = [save_photo(tmp_path / "photos" / f"{i:02}.png", (6 * i, 255 - 6 * i, i)) for i in range(40)]
        backbone = tiny_backbone()
        here = extract(paths, backbone, cache=False)
        away = extract(paths, backbone, engine=engine)
        assert (away.features == here.features).all()
        assert (away.digests, away.refused, away.n_cached) == (here.digests, {}, 0)
        monkeypatch.setattr(Backbone, "run", None)  # nothing is left to compute, here or there
        again = extract(paths[::-1], backbone, engine=engine)
        assert again.n_cached == 40
        assert (again.features == here.features[::-1]).all()
        monkeypatch.undo()

        paths[30].write_bytes(b"")
        paths[31].write_bytes(paths[31].read_bytes()[:-30])
        paths[12].write_bytes(paths[12].read_bytes()[:-30])
        with pytest.raises(PhotoError, match=r"12\.png cannot be decoded"):
            extract(paths, backbone, cache=False, engine=engine)
        skipped = extract(paths, backbone, bad="skip", cache=False, engine=engine)
        local = extract(paths, backbone, bad="skip", cache=False)
        assert skipped.refused == local.refused
        assert list(skipped.refused) == [12, 30, 31]
        assert (skipped.features == local.features).all()
        np.testing.assert_array_equal(skipped.kept, local.kept)

    def test_a_node_without_the_photos_is_refused_before_any_work(
        self, engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = [save_photo(tmp_path / "photos" / f"{i}.png", (i, i, i)) for i in range(5)]
        check = engine.check_nodes

        def lose_and_check(*arguments: Any) -> None:
            paths[3].rename(tmp_path / "gone.png")
            check(*arguments)

        monkeypatch.setattr(engine, "check_nodes", lose_and_check)
        monkeypatch.setattr(engine, "run", None)
        with pytest.raises(
            DGZError, match=r"^Node .*: 1 of 5 photos are not there or not the same, such as .*3\.png\.$"
        ):
            extract(paths, tiny_backbone(), cache=False, engine=engine)

    # --- The command line.
    def test_the_command_line_starts_ray_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(secrets.token_hex(32))  # of Ray, which would keep one in the home folder
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
            "RAY_AUTH_MODE": "token",
            "TMPDIR": "/tmp",  # noqa: S108 (a long one has no room for Ray's sockets)
            "PYTHONPATH": str(ROOT / "src"),
        }
        before = {path.name for path in Path("/tmp").glob("dgz-ray-*")}  # noqa: S108
        command = [
            "compare",
            "--data",
            "numbers",
            "--methods",
            "nearest-prototype",
            "--seeds",
            "2",
            "--quick",
            "--json",
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "dgz", *command, "--out", "out", "--engine", "ray", "--workers", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        listening: set[str] = set()
        while process.poll() is None:
            listening |= listened_to(before)
            time.sleep(0.2)
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert [one["method"] for one in json.loads(out)["methods"]] == ["nearest-prototype"]
        assert all(line.startswith(("1 of 2 runs", "2 of 2 runs")) for line in err.splitlines()), err
        assert listening == {"127.0.0.1"}
        assert {path.name for path in Path("/tmp").glob("dgz-ray-*")} == before  # noqa: S108
        assert own_processes(before) == []


def rebuild(make: Callable[..., Any], planned: Any) -> Any:
    """A workshop of a test, in a worker."""
    workshop = module._Workshop(planned)
    workshop.make = lambda runs: make(workshop, runs)  # type: ignore[method-assign]
    return workshop


def records_in(folder: Path) -> dict[str, Any]:
    return {path.stem: read_record_file(path) for path in sorted((folder / "records").glob("*.json"))}


def own_processes(before: set[str]) -> list[int]:
    """Processes of a cluster that the engine started: its folder is among their arguments."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if "/dgz-ray-" in command and not any(name in command for name in before):
            found.append(int(place.name))
    return found


def listened_to(before: set[str]) -> set[str]:
    """Addresses on which processes of a cluster that the engine started listen."""
    sockets = set()
    for process in own_processes(before):
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets.add(str(link.readlink()))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:  # it listens
                number = fields[1].partition(":")[0][-8:]
                found.add(socket.inet_ntoa(bytes.fromhex(number)[::-1]))
    return found


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    save_bundle(make_synthetic(8, 2, n_attributes=6, n_features=12, n_samples=160, random_state=1), tmp_path / "small")
    return tmp_path / "small"
