"""Tables of scores: what runs have in common, what tells them apart, and their means over seeds."""

import json
from typing import Any

import pytest

from dgz.records import Record
from dgz.report.tables import (
    HEADINGS,
    MEAN_HEADINGS,
    mean_rows,
    method_names,
    oracle_repeats,
    oracle_rows,
    repeats,
    score_rows,
    varied_settings,
)

SCORES = {"acc_unseen": 0.5, "acc_seen": 0.6, "h": 0.54, "acc_zsl": 0.7, "ausuc": 0.4}


def record(seed: int = 0, *, h: float = 0.54, method: str = "DGZ", oracle: Any = None, **changes: Any) -> Record:
    params = {"lambda_1": 1.0, "gate": "always", "generator": {"kind": "CenterMapper", "n_epochs": 3, "hidden": [8]}}
    params |= changes.pop("params", {}) | {"random_state": seed, "verbose": bool(seed % 2)}
    parts = {"data": {"name": "numbers", "hashes": {"split": "ab"}}, "selection": "last", "seconds": {"fit": 1.25}}
    return Record(
        method=method,
        params=params,
        seed=seed,
        scores=SCORES | {"h": h},
        oracle=oracle,
        **{"class_names": {}, "unseen": [], "device": "CPU", "versions": {}, **parts, **changes},
    )


def generator(kind: str, **settings: Any) -> dict[str, Any]:
    return {"generator": {"kind": kind, **settings}}


def test_means_and_sample_deviations_are_over_seeds_of_the_same_settings() -> None:
    records = [
        record(seed, h=h, params={"lambda_1": value})
        for seed, value, h in [(0, 0.5, 0.60), (0, 2.0, 0.30), (1, 0.5, 0.64), (4, 0.5, 0.68), (1, 2.0, 0.30)]
    ]
    first, second = repeats(records)
    assert (first.settings, first.seeds, first.method, first.data) == ({"lambda_1": 0.5}, [0, 1, 4], "DGZ", "numbers")
    assert (second.settings, second.seeds) == ({"lambda_1": 2.0}, [0, 1])
    assert first.mean["h"] == pytest.approx(0.64)
    assert first.std["h"] == pytest.approx(0.04)  # divided by n − 1; by n it would be 0.033
    assert second.std == pytest.approx(dict.fromkeys(SCORES, 0.0))
    assert mean_rows([first, second]) == [
        ("DGZ (lambda_1=0.5)", "numbers", "50.0 ± 0.0", "60.0 ± 0.0", "64.0 ± 4.0", "70.0 ± 0.0", "40.0 ± 0.0", "last", "3"),
        ("DGZ (lambda_1=2.0)", "numbers", "50.0 ± 0.0", "60.0 ± 0.0", "30.0 ± 0.0", "70.0 ± 0.0", "40.0 ± 0.0", "last", "2"),
    ]  # fmt: skip
    assert MEAN_HEADINGS == ("Method", "Data", "U", "S", "H", "T1", "AUSUC", "Selection", "Seeds")


def test_a_single_run_has_no_deviation() -> None:
    (alone,) = repeats([record()])
    assert alone.std == dict.fromkeys(SCORES)
    assert mean_rows([alone]) == [("DGZ", "numbers", "50.0", "60.0", "54.0", "70.0", "40.0", "last", "1")]
    assert repeats([]) == []
    json.dumps(vars(alone), allow_nan=False)


@pytest.mark.parametrize(
    "other",
    [
        {"method": "Other"},
        {"selection": "validation"},
        {"data": {"name": "numbers", "hashes": {"split": "cd"}}},
        {"params": {"gate": "argmax_all"}},
        {"params": generator("CenterMapper", n_epochs=4, hidden=[8])},
    ],
    ids=str,
)
def test_runs_of_different_things_have_no_mean(other: dict[str, Any]) -> None:
    assert [group.seeds for group in repeats([record(0), record(1, **other), record(2)])] == [[0, 2], [1]]


def test_a_record_is_the_same_before_and_after_it_was_a_file() -> None:
    fresh = record(0, params=generator("CenterMapper", n_epochs=3, hidden=(8,)) | {"lambda_1": 1})
    assert len(repeats([fresh, record(1)])) == 1  # 1 and 1.0, a tuple and a list
    assert varied_settings([fresh, record(1)]) == [{}, {}]


def test_runs_are_called_by_what_tells_them_apart() -> None:
    assert method_names([record(0), record(1)]) == ["DGZ", "DGZ"]
    changes: list[dict[str, Any]] = [{"lambda_1": 2, "gate": "above_true"}, {"gate": "above_true"}, {}]
    assert method_names([record(params=change) for change in changes]) == [
        "DGZ (lambda_1=2, gate=above_true)",
        "DGZ (lambda_1=1.0, gate=above_true)",
        "DGZ (lambda_1=1.0, gate=always)",
    ]


def test_settings_are_compared_within_a_method_and_a_kind_of_part() -> None:
    records = [
        record(params=generator("CenterMapper", n_epochs=3, hidden=[8])),
        record(params=generator("CVAE", n_epochs=30, kl_weight=1.0, hidden=[8])),
        record(params=generator("CVAE", n_epochs=30, kl_weight=0.5, hidden=[8])),
        record(params={"generator": None}),
        record(method="Other", params={"lambda_1": 7.0}),
    ]
    assert method_names(records) == [
        "DGZ (generator=CenterMapper)",
        "DGZ (generator=CVAE, generator.kl_weight=1.0)",
        "DGZ (generator=CVAE, generator.kl_weight=0.5)",
        "DGZ (generator=None)",
        "Other",
    ]


def test_rows_of_single_runs_say_what_they_are_of() -> None:
    rows = score_rows([record(0), record(1, params={"lambda_1": 2.0})])
    assert dict(zip(HEADINGS, rows[1], strict=True)) == {
        "Method": "DGZ (lambda_1=2.0)",
        "Data": "numbers",
        "U": "50.0",
        "S": "60.0",
        "H": "54.0",
        "T1": "70.0",
        "AUSUC": "40.0",
        "Selection": "last",
        "Seed": "1",
        "Train": "1.2 s",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ({"fit": 1.94, "evaluate": 0.1}, "1.9 s"),
        ({"fit_together": 1.94, "fitted_together": 16, "evaluate": 0.1}, "1.9 s / 16"),
        ({"fit_resumed": 1.94, "evaluate": 0.1}, "–"),
    ],
)
def test_a_time_that_many_share_is_no_ones_own(seconds: dict[str, float], text: str) -> None:
    assert score_rows([record(seconds=seconds)])[0][-1] == text


def test_an_oracles_means_are_labelled_and_apart() -> None:
    def best(h: float) -> dict[str, Any]:
        scores = {name: value for name, value in SCORES.items() if name != "ausuc"}
        return {**scores, "h": h, "generator_epoch": 3, "epoch": 7, "n_candidates": 60}

    records = [record(0, h=0.1, oracle=best(0.5)), record(1, h=0.2, oracle=best(0.6)), record(2, h=0.3)]
    (row,) = mean_rows(oracle_repeats(records))
    assert row == (
        "DGZ", "numbers", "50.0 ± 0.0", "60.0 ± 0.0", "55.0 ± 7.1", "70.0 ± 0.0", "–", "oracle (best of 60)", "2",
    )  # fmt: skip
    assert [(each[4], each[7]) for each in oracle_rows(records)] == [
        ("50.0", "oracle (best of 60)"),
        ("60.0", "oracle (best of 60)"),
    ]
    assert mean_rows(repeats(records))[0][4] == "20.0 ± 10.0"
    assert oracle_repeats([record()]) == []
