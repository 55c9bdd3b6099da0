"""Engines: answers are those of the model, changes are whole, kept, and never seen half."""

import asyncio
import copy
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgz import DGZ, GZSLData
from dgz.errors import DataError, DGZError
from dgz.peers import CenterRidge, make_method
from dgz.reproduce import shortened
from dgz.serve.engine import Batcher, ConflictError, Engine, Limits, NoSuchClassError, open_engine


def by_name(data: GZSLData) -> dict[str, Any]:
    return dict(zip(data.class_names, data.attributes, strict=True))


@pytest.fixture(scope="module")
def model(data: GZSLData) -> DGZ:
    names = np.array(data.class_names)
    known = {name: vector for name, vector in by_name(data).items() if name != names[data.unseen[0]]}
    return DGZ.without_generator(n_epochs=2, generator__n_epochs=2).fit(data.x_train, names[data.y_train], known)


@pytest.fixture
def missing(data: GZSLData) -> tuple[str, Any]:
    """The class that the model was trained without, and its vector."""
    return data.class_names[data.unseen[0]], data.attributes[data.unseen[0]]


def test_answers_are_those_of_the_model(model: DGZ, data: GZSLData) -> None:
    snapshot, scores = Engine(model).scores(data.x_test_seen[:7])
    np.testing.assert_array_equal(scores, model.decision_function(data.x_test_seen[:7]))
    assert snapshot.names == tuple(model.classes_)
    assert snapshot.kinds == tuple("seen" if seen else "unseen" for seen in model.seen_)


def test_a_class_is_added_for_all_that_come_after(model: DGZ, data: GZSLData, missing: tuple[str, Any]) -> None:
    engine, (name, vector) = Engine(model), missing
    before = engine.snapshot
    rows = data.x_test_unseen[data.y_test_unseen == data.unseen[0]]
    assert engine.add_class(f" {name} ", vector=vector) is engine.snapshot
    assert engine.snapshot.revision == 1
    assert dict(zip(engine.snapshot.names, engine.snapshot.kinds, strict=True))[name] == "added"
    grown = copy.deepcopy(model).add_classes([name], vector[None])
    np.testing.assert_array_equal(engine.scores(rows)[1], grown.decision_function(rows))
    # Whoever holds the old one, and the model itself, notice nothing.
    assert name not in before.names
    assert before.model.decision_function(rows).shape[1] == 99
    assert name not in model.classes_


def test_a_class_is_removed(model: DGZ, missing: tuple[str, Any]) -> None:
    engine, (name, vector) = Engine(model), missing
    engine.add_class(name, vector=vector)
    engine.remove_class(name)
    engine.remove_class("17")
    assert set(engine.snapshot.names) == set(model.classes_) - {"17"}
    with pytest.raises(NoSuchClassError, match="no class called '17'"):
        engine.remove_class("17")


def test_changes_survive_a_restart(model: DGZ, data: GZSLData, missing: tuple[str, Any], tmp_path: Path) -> None:
    name, vector = missing
    first = Engine(model, journal=tmp_path / "classes.json")
    first.remove_class("17")
    first.add_class(name, vector=vector)
    first.add_class("gone", vector=vector)
    first.remove_class("gone")
    second = Engine(model, journal=tmp_path / "classes.json")
    assert second.snapshot.names == first.snapshot.names
    assert second.snapshot.kinds == first.snapshot.kinds
    rows = data.x_test_unseen[:9]
    np.testing.assert_array_equal(second.scores(rows)[1], first.scores(rows)[1])
    # One that was removed may come back, as what it then is.
    second.add_class("17", vector=vector)
    third = Engine(model, journal=tmp_path / "classes.json")
    assert dict(zip(third.snapshot.names, third.snapshot.kinds, strict=True))["17"] == "added"


def test_a_change_that_cannot_be_kept_is_not_made(model: DGZ, missing: tuple[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    engine = Engine(model)
    engine.journal = tmp_path / "file" / "classes.json"  # a file is in the way
    before = engine.snapshot
    with pytest.raises(OSError, match="file"):
        engine.add_class(missing[0], vector=missing[1])
    assert engine.snapshot is before


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": "dgz-classes", "version": 1}',
        '{"format": "dgz-classes", "version": 1, "removed": [], "added": {"x": [1]}}',
    ],
)
def test_a_broken_journal_is_named(model: DGZ, tmp_path: Path, content: str) -> None:
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(DataError, match=r"classes\.json"):
        Engine(model, journal=tmp_path / "classes.json")


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("00", {"vector": np.ones(30)}, "There is a class called '00' already."),
        ("", {"vector": np.ones(30)}, "1 to 200 characters in one line"),
        ("a\nb", {"vector": np.ones(30)}, "1 to 200 characters in one line"),
        ("x" * 201, {"vector": np.ones(30)}, "1 to 200 characters in one line"),
        ("new", {"vector": np.ones(29)}, r"must have the shape \(1, 30\), found \(1, 29\)"),
        ("new", {"vector": np.full(30, np.nan)}, "must be finite"),
        ("new", {}, "either a vector or a description"),
        ("new", {"vector": np.ones(30), "description": "x"}, "either a vector or a description"),
        ("new", {"description": "round and red"}, "known by vectors of 30 numbers, not by words"),
    ],
)
def test_a_class_that_makes_no_sense_is_refused(model: DGZ, name: str, given: dict[str, Any], sentence: str) -> None:
    engine = Engine(model)
    with pytest.raises(DGZError, match=sentence):
        engine.add_class(name, **given)
    assert engine.snapshot.revision == 0


def test_there_is_a_limit_to_classes(model: DGZ) -> None:
    engine = Engine(model, limits=Limits(classes=100))
    engine.add_class("one", vector=np.ones(30))
    with pytest.raises(ConflictError, match="100 classes, and no more are allowed"):
        engine.add_class("two", vector=np.ones(30))


def test_a_method_that_takes_no_classes_says_so(data: GZSLData) -> None:
    ridge = CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01)
    engine = Engine(ridge.fit(data.x_train, np.array(data.class_names)[data.y_train], by_name(data)))
    with pytest.raises(ConflictError, match="A CenterRidge takes on and gives up no classes"):
        engine.add_class("new", vector=np.ones(30))


def test_free_weights_lose_a_class_without_the_model_noticing(data: GZSLData) -> None:
    model: Any = shortened(make_method("f-clswgan"))
    model.fit(data.x_train, np.array(data.class_names)[data.y_train], by_name(data))
    n_before = sum(values.numel() for values in model.classifier_.net_.parameters())
    engine = Engine(model)
    engine.remove_class("17")
    engine.remove_class("18")
    assert len(engine.snapshot.names) == 98
    assert sum(values.numel() for values in model.classifier_.net_.parameters()) == n_before


def test_photos_are_refused_where_no_one_knows_what_made_the_features(model: DGZ) -> None:
    with pytest.raises(ConflictError, match="takes no photos"):
        Engine(model).features(b"", "x")


def test_many_threads_ask_while_classes_come_and_go(model: DGZ, data: GZSLData) -> None:
    engine, rows, wrong, done = Engine(model), data.x_test_seen[:20], [], threading.Event()
    # What a twin that no one else asks says at every revision, of every class that there is then.
    twin = Engine(model)
    expected = [twin.scores(rows)]

    def change(one: Engine) -> Iterator[None]:
        for k in range(20):
            one.add_class(f"new {k}", vector=np.random.default_rng(k).random(30))
            yield
            if k % 3 == 2:
                one.remove_class(f"new {k}")
                yield

    for _ in change(twin):
        expected.append(twin.scores(rows))

    def ask() -> None:
        while not done.is_set():
            snapshot, scores = engine.scores(rows)
            then, known = expected[snapshot.revision]
            if snapshot.names != then.names or not np.array_equal(scores, known):
                wrong.append(snapshot)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in change(engine):
            pass
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert engine.snapshot.revision == 26


def test_an_engine_is_opened_from_a_run_or_from_its_model(model: DGZ, tmp_path: Path) -> None:
    model.save(tmp_path / "run" / "model")
    for place in (tmp_path / "run", tmp_path / "run" / "model"):
        engine = open_engine(place)
        assert engine.backbone is None
        assert engine.encoder is None
        assert engine.journal == place / "served_classes.json"
    engine.add_class("new", vector=np.ones(30))
    assert set(json.loads(engine.journal.read_text())["added"]) == {"new"}


# --- Batches.
def test_requests_that_come_meanwhile_are_answered_together() -> None:
    sizes: list[int] = []

    def compute(rows: Any) -> tuple[str, Any]:
        sizes.append(len(rows))
        threading.Event().wait(0.05)
        return "common", rows * 2

    async def ask() -> list[Any]:
        batcher = Batcher(compute, rows=10)
        return await asyncio.gather(*(batcher.submit(np.full((3, 2), k, dtype=np.float32)) for k in range(8)))

    answers = asyncio.run(ask())
    for k, (common, found) in enumerate(answers):
        assert common == "common"
        np.testing.assert_array_equal(found, np.full((3, 2), 2 * k))
    assert sum(sizes) == 24
    assert max(sizes) == 9  # three requests; a fourth would be too many
    assert len(sizes) < 8


def test_a_request_larger_than_a_batch_is_answered_alone() -> None:
    async def ask() -> Any:
        batcher = Batcher(lambda rows: (len(rows), rows), rows=2)
        return await asyncio.gather(
            batcher.submit(np.zeros((5, 1), np.float32)), batcher.submit(np.ones((1, 1), np.float32))
        )

    (five, _), (one, rows) = asyncio.run(ask())
    assert (five, one) == (5, 1)
    np.testing.assert_array_equal(rows, [[1]])


def test_an_error_is_told_to_all_it_concerns_and_the_next_are_answered() -> None:
    def compute(rows: Any) -> tuple[None, Any]:
        if rows.max() > 1:
            raise ValueError("too large")
        return None, rows

    async def ask() -> None:
        batcher = Batcher(compute, rows=10)
        with pytest.raises(ValueError, match="too large"):
            await batcher.submit(np.full((1, 1), 2, np.float32))
        _, found = await batcher.submit(np.ones((1, 1), np.float32))
        assert found.item() == 1

    asyncio.run(ask())


def test_one_who_gives_up_keeps_no_one_else_waiting() -> None:
    async def ask() -> Any:
        def compute(rows: Any) -> tuple[None, Any]:
            threading.Event().wait(0.05)
            return None, rows

        batcher = Batcher(compute, rows=10)
        first = asyncio.create_task(batcher.submit(np.zeros((1, 1), np.float32)))
        second = asyncio.create_task(batcher.submit(np.ones((1, 1), np.float32)))
        await asyncio.sleep(0.01)
        first.cancel()
        return await second

    assert asyncio.run(ask())[1].item() == 1
