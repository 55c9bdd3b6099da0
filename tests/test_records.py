import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dgz.data import load_numbers
from dgz.errors import DataError
from dgz.experiments import run
from dgz.peers import CenterRidge
from dgz.records import Record, is_finished, last, oracle, read_record


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
    assert read_record(folder).scores == json.loads(json.dumps(gzsl_scores(model, data).to_dict()))


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
    del content["oracle"]
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
