import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgz.data import load_numbers
from dgz.errors import DataError
from dgz.experiments import run
from dgz.peers import CenterRidge
from dgz.records import (
    Record,
    is_finished,
    last,
    oracle,
    read_record,
    read_record_file,
    rows_of_curve,
    validation,
    write_record_file,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(
        CenterRidge(seen_penalty=0.01, random_state=4),
        load_numbers(4, n_train=8, n_test=4),
        folder,
        selection="validation",
    )
    return folder


def test_a_record_is_read_back_as_it_was_written(folder: Path) -> None:
    record = read_record(folder)
    assert isinstance(record, Record)
    assert json.loads((folder / "record.json").read_text()) == {"format": "dgz-record", "version": 1, **asdict(record)}


def test_a_record_says_what_ran_on_what_and_how_it_was_chosen(folder: Path) -> None:
    record = read_record(folder)
    data = load_numbers(4, n_train=8, n_test=4)
    assert (record.method, record.seed, record.selection) == ("CenterRidge", 4, "validation")
    assert record.params["seen_penalty"] == 0.01
    assert set(record.chosen) == {"alpha", "bandwidth"}
    assert record.data["hashes"] == data.hashes
    assert record.unseen == data.unseen.tolist()
    assert record.seconds["fit"] > 0
    assert {"python", "torch", "numpy", "scikit-learn", "dgz"} <= set(record.versions)
    assert "unknown" not in record.versions.values()


def test_the_recorded_scores_are_the_models(folder: Path) -> None:
    from dgz.metrics import gzsl_scores

    data = load_numbers(4, n_train=8, n_test=4)
    model = CenterRidge(seen_penalty=0.01, random_state=4).fit(data.x_train, data.y_train, data.attributes)
    scores = json.dumps(gzsl_scores(model, data).to_dict(max_points=100))
    assert read_record(folder).scores == json.loads(scores, parse_float=lambda text: round(float(text), 6))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "other"}, "is not of a record"),
        ({"version": 9}, "is of a record of version 9, but this dgz reads 1"),
        ({"surprise": 1}, "broken: surprise should or should not be there"),
    ],
)
def test_foreign_records_are_refused(folder: Path, tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    content = json.loads((folder / "record.json").read_text())
    (tmp_path / "record.json").write_text(json.dumps(content | change))
    with pytest.raises(DataError, match=sentence):
        read_record(tmp_path)


def test_a_record_from_before_there_were_curves_is_still_read(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "record.json").read_text())
    for name in ("oracle", "curve", "observed", "quick"):
        del content[name]
    assert not is_finished(tmp_path)
    (tmp_path / "record.json").write_text(json.dumps(content))
    assert is_finished(tmp_path)
    assert read_record(tmp_path) == read_record(folder)


def curve(*hs: float) -> list[dict[str, Any]]:
    """A curve with a generator's epoch, which is not tested, and classifier epochs with these H."""
    rows = [
        {"stage": "classifier", "generator_epoch": 7, "epoch": i, "loss": 1.0}
        | {"acc_unseen": h / 2, "acc_seen": h / 3, "h": h, "acc_zsl": h / 4}
        for i, h in enumerate(hs, start=1)
    ]
    return [{"stage": "generator", "epoch": 1, "loss": 2.0}, *rows]


def test_the_last_row_is_picked_blindly_and_the_oracle_by_its_test_score() -> None:
    expected = {"acc_unseen": 0.3, "acc_seen": 0.2, "h": 0.6, "acc_zsl": 0.15, "generator_epoch": 7, "n_candidates": 4}
    assert last(curve(0.2, 0.8, 0.7, 0.6)) == pytest.approx({**expected, "epoch": 4})
    assert oracle(curve(0.2, 0.6, 0.5, 0.6)) == pytest.approx({**expected, "epoch": 2})


def test_a_curve_without_test_scores_has_nothing_to_pick() -> None:
    assert last(curve()) is oracle(curve()) is last([]) is oracle([]) is None


def test_a_place_that_cannot_be_written_fails_before_the_work() -> None:
    model = CenterRidge()
    with pytest.raises(NotADirectoryError):
        run(model, load_numbers(0, n_train=2, n_test=2), "/dev/null/run")
    assert not hasattr(model, "classes_")


def test_a_record_is_one_line_for_each_of_its_parts(folder: Path, tmp_path: Path) -> None:
    record = read_record(folder)
    first, *lines, last_line = (folder / "record.json").read_text().splitlines()
    assert (first, last_line) == ("{", "}")
    parts = [json.loads(f"{{{line.removesuffix(',')}}}") for line in lines]
    assert [name for part in parts for name in part] == ["format", "version", *asdict(record)]
    # Under any other name it is the same.
    write_record_file(record, tmp_path / "any.json")
    assert (tmp_path / "any.json").read_bytes() == (folder / "record.json").read_bytes()
    assert read_record_file(tmp_path / "any.json") == record
    assert not is_finished(tmp_path)


# --- The rule validation.
Epochs = dict[tuple[int, int], float]  # H of each tested epoch of a classifier, by that of the generator and its own


def columns(epochs: Epochs) -> dict[str, dict[str, list[Any]]]:
    """A record's curve with these epochs."""
    hs = list(epochs.values())
    tested = {
        "generator_epoch": [generator_epoch for generator_epoch, _ in epochs],
        "epoch": [epoch for _, epoch in epochs],
        "acc_unseen": [h / 2 for h in hs],
        "acc_seen": [h / 3 for h in hs],
        "h": hs,
        "acc_zsl": [h / 4 for h in hs],
    }
    return {"classifier": tested, "generator": {"epoch": [1, 2], "loss": [2.0, 1.0]}}


def when(picked: dict[str, Any] | None) -> tuple[int, int] | None:
    return None if picked is None else (picked["generator_epoch"], picked["epoch"])


def test_the_rows_of_a_curve_are_its_columns() -> None:
    assert rows_of_curve(columns({(5, 1): 0.6, (5, 2): 0.3})) == [
        {"generator_epoch": 5, "epoch": 1, "acc_unseen": 0.3, "acc_seen": 0.6 / 3, "h": 0.6, "acc_zsl": 0.15},
        {"generator_epoch": 5, "epoch": 2, "acc_unseen": 0.15, "acc_seen": 0.3 / 3, "h": 0.3, "acc_zsl": 0.075},
    ]
    assert rows_of_curve({}) == rows_of_curve({"generator": {"epoch": [1]}}) == rows_of_curve(columns({})) == []
    with pytest.raises(ValueError, match="zip"):
        rows_of_curve({"classifier": {"epoch": [1, 2], "h": [0.5]}})


def test_folds_choose_the_epoch_and_its_test_scores_are_given() -> None:
    tested = columns({(5, 1): 0.9, (5, 2): 0.4, (9, 1): 0.5, (9, 2): 0.6})
    folds = [
        columns({(5, 1): 0.1, (5, 2): 0.8, (9, 1): 0.3, (9, 2): 0.5}),
        columns({(5, 1): 0.1, (5, 2): 0.2, (9, 1): 0.3, (9, 2): 0.6}),
    ]
    picked = validation(tested, folds)
    assert picked == pytest.approx(
        {
            "acc_unseen": 0.3,
            "acc_seen": 0.2,
            "h": 0.6,
            "acc_zsl": 0.15,
            "generator_epoch": 9,
            "epoch": 2,
            "n_candidates": 4,
        }
    )
    assert when(validation(tested, folds[:1])) == (5, 2)
    # Of equals the first.
    assert when(validation(tested, [columns({(5, 1): 0.2, (5, 2): 0.7, (9, 1): 0.7, (9, 2): 0.1})])) == (5, 2)


def test_only_epochs_that_all_have_can_be_chosen() -> None:
    tested = columns({(1, 1): 0.5, (1, 2): 0.5, (1, 3): 0.5})
    folds = [columns({(1, 1): 0.2, (1, 2): 0.9, (1, 4): 1.0}), columns({(1, 3): 0.9, (1, 1): 0.1, (2, 2): 1.0})]
    picked = validation(tested, folds)
    assert when(picked) == (1, 1)
    assert picked is not None
    assert picked["n_candidates"] == 1
    assert validation(tested, [*folds, columns({(1, 2): 0.5})]) is None


def test_without_folds_nothing_is_chosen() -> None:
    tested = columns({(1, 1): 0.5})
    assert validation(tested, []) is None
    assert validation(tested, [{}]) is None
    assert validation({}, [tested]) is None
    assert validation({}, []) is None


HS = st.floats(0, 1)
KEYS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(st.data(), st.dictionaries(KEYS, HS, min_size=1), st.lists(st.dictionaries(KEYS, HS), min_size=1, max_size=3))
def test_test_scores_have_no_say_in_what_folds_choose(draw: st.DataObject, tested: Epochs, folds: list[Epochs]) -> None:
    picked = validation(columns(tested), [columns(fold) for fold in folds])
    changed = {key: draw.draw(HS) for key in tested}
    other = validation(columns(changed), [columns(fold) for fold in folds])
    assert when(picked) == when(other)
    common = [key for key in tested if all(key in fold for fold in folds)]
    if not common:
        assert picked is None
        return
    assert picked is not None
    assert other is not None
    assert other["h"] == changed[(other["generator_epoch"], other["epoch"])]
    means = {key: sum(fold[key] for fold in folds) for key in common}
    assert when(picked) == max(common, key=means.__getitem__)
    assert picked["n_candidates"] == len(common)
