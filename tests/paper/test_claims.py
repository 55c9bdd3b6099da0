"""Claims: what decides them, at the edges of what decides them, and what leaves them undecided."""

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dgz.paper import Block, Item, Spec
from dgz.paper.claims import Decision, Runs, decide, decide_all, interval, score_of
from dgz.paper.spec import parse_spec
from dgz.records import Record

ROWS = """
title = "t"
place = "p"
kind = "table"
data = ["AWA2/att", "CUB/sent"]
row = [{name = "full", method = "dgz"}, {name = "less", method = "dgz"}]
"""


def spec(tests: str, *, data: str = "") -> Spec:
    """A spec with two rows and a claim of these tests."""
    return parse_spec("table9", f'{ROWS}\n[[claim]]\ntext = "It helps."\nplace = "here"\n{data}\ntests = [{tests}]')


def record(seed: int, **scores: Any) -> Record:
    parts: dict[str, Any] = {"params": {}, "selection": "last", "data": {}, "class_names": {}, "unseen": []}
    observed = scores.pop("observed", {})
    return Record(
        method="DGZ", seed=seed, scores=scores, observed=observed, seconds={}, device="CPU", versions={}, **parts
    )


def runs(**rows: dict[int, float]) -> dict[str, list[Record]]:
    """Runs of rows from H by seed."""
    return {name: [record(seed, h=h) for seed, h in by_seed.items()] for name, by_seed in rows.items()}


def item(*names: str, quick: bool = False) -> Item:
    blocks = [Block(data=data, semantics=semantics, features="", rows={}, folds={}) for data, semantics in
              (name.split("/") for name in names)]  # fmt: skip
    return Item(name="table9", quick=quick, blocks=blocks, missing=[])


def decided(tests: str, found: Runs) -> Decision:
    """The only claim's decision on AWA2."""
    one = spec(tests)
    return decide(one.claims[0], one, item("AWA2/att").blocks[0], found, {})


GAIN = '{contrast = {"full" = 1, "less" = -1}, above = 0}'


# --- Intervals.
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30).filter(lambda values: statistics.stdev(values) > 1e-9))
def test_the_interval_is_students(values: list[float]) -> None:
    mean, low, high = interval(values)
    expected = stats.t.interval(
        0.95, len(values) - 1, loc=statistics.fmean(values), scale=statistics.stdev(values) / math.sqrt(len(values))
    )
    assert mean == statistics.fmean(values)
    assert (low, high) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_values_without_spread_have_an_interval_without_width() -> None:
    assert interval([0.25, 0.25, 0.25]) == (0.25, 0.25, 0.25)


# --- One test.
def test_a_contrast_is_taken_seed_by_seed() -> None:
    # The rows spread widely, but together: taken as two samples, nothing could be said of them.
    found = runs(full={0: 0.31, 1: 0.52, 2: 0.73}, less={2: 0.70, 0: 0.30, 1: 0.50})
    (outcome,) = decided(GAIN, found).outcomes
    assert (outcome.n_seeds, outcome.mean) == (3, pytest.approx(0.02))
    assert (outcome.low, outcome.high) == pytest.approx(stats.t.interval(0.95, 2, 0.02, 0.01 / math.sqrt(3)))
    assert decided(GAIN, found).verdict == "does not hold"  # 0.02 ± 0.0248: two seeds more would do
    found = runs(full={s: 0.3 + s / 5 + 0.02 + s % 2 / 100 for s in range(5)}, less={s: 0.3 + s / 5 for s in range(5)})
    assert decided(GAIN, found).verdict == "holds"


def test_only_seeds_that_all_rows_have_count() -> None:
    found = runs(full={0: 0.6, 1: 0.61, 2: 0.99}, less={1: 0.5, 0: 0.5, 7: 0.01})
    (outcome,) = decided(GAIN, found).outcomes
    assert (outcome.n_seeds, outcome.mean) == (2, pytest.approx(0.105))


@pytest.mark.parametrize(("above", "verdict"), [(-0.001, "holds"), (0.0, "does not hold"), (0.001, "does not hold")])
def test_the_whole_interval_must_lie_above(above: float, verdict: str) -> None:
    shift = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)  # the lower bound is 0, up to rounding
    found = runs(full={s: 0.5 + shift + d for s, d in enumerate((-0.01, 0, 0.01))}, less=dict.fromkeys(range(3), 0.5))
    decision = decided(f'{{contrast = {{"full" = 1, "less" = -1}}, above = {above + 1e-12}}}', found)
    assert decision.outcomes[0].low == pytest.approx(0, abs=1e-12)
    assert decision.verdict == verdict


@pytest.mark.parametrize(
    ("shift", "within", "verdict"),
    [
        (0.0, 0.0249, "holds"),
        (0.0, 0.0248, "does not hold"),
        (0.005, 0.0299, "holds"),
        (0.005, 0.0298, "does not hold"),
        (-0.005, 0.0299, "holds"),
        (-0.005, 0.0298, "does not hold"),
    ],
)
def test_the_whole_interval_must_lie_within(shift: float, within: float, verdict: str) -> None:
    found = runs(full={s: 0.5 + shift + d for s, d in enumerate((-0.01, 0, 0.01))}, less=dict.fromkeys(range(3), 0.5))
    assert decided(f'{{contrast = {{"full" = 1, "less" = -1}}, within = {within}}}', found).verdict == verdict


def test_an_interval_that_touches_its_bound_is_within_but_not_above() -> None:
    found = runs(full={0: 0.75, 1: 0.75}, less={0: 0.5, 1: 0.5})
    assert decided('{contrast = {"full" = 1, "less" = -1}, within = 0.25}', found).verdict == "holds"
    assert decided('{contrast = {"full" = 1, "less" = -1}, above = 0.25}', found).verdict == "does not hold"


def test_weights_and_metrics_are_those_of_the_spec() -> None:
    found = {
        "full": [record(s, h=0.1, acc_zsl=0.8) for s in range(2)],
        "less": [record(s, h=0.9, acc_zsl=0.5) for s in range(2)],
    }
    decision = decided('{contrast = {"full" = 0.5, "less" = -0.7}, metric = "acc_zsl", above = 0.04}', found)
    assert decision.outcomes[0].mean == pytest.approx(0.05)
    assert decision.verdict == "holds"


def test_a_claim_holds_where_all_of_its_tests_do() -> None:
    found = runs(full={0: 0.6, 1: 0.6}, less={0: 0.5, 1: 0.5})
    loss = '{contrast = {"less" = 1, "full" = -1}, above = 0}'
    assert decided(f"{GAIN}, {GAIN}", found).verdict == "holds"
    assert [outcome.holds for outcome in decided(f"{GAIN}, {loss}", found).outcomes] == [True, False]
    assert decided(f"{GAIN}, {loss}", found).verdict == "does not hold"


# --- What is not tested.
@pytest.mark.parametrize(
    "found",
    [
        {},
        runs(full={0: 0.6, 1: 0.6}),
        runs(full={0: 0.6, 1: 0.6}, less={0: 0.5}),
        runs(full={0: 0.6, 1: 0.6}, less={2: 0.5, 3: 0.5}),
        runs(full={0: 0.6, 1: 0.6}, less={0: 0.5, 1: float("nan")}),
        {"full": runs(full={0: 0.6, 1: 0.6})["full"], "less": [record(0, acc_zsl=0.5), record(1, h=None)]},
    ],
)
def test_fewer_than_two_pairs_decide_nothing(found: Runs) -> None:
    decision = decided(GAIN, found)
    assert decision.verdict == "not tested"
    assert decision.reason.startswith("runs missing: fewer than 2 ")
    assert decision.outcomes[0].holds is decision.outcomes[0].mean is None


def test_a_test_that_cannot_be_done_leaves_the_claim_open() -> None:
    found = runs(full={0: 0.6, 1: 0.6}, less={0: 0.5, 1: 0.5})
    decision = decided(f'{GAIN}, {{contrast = {{"full" = 1, "less" = -1}}, metric = "cmmd", above = 0}}', found)
    assert [outcome.holds for outcome in decision.outcomes] == [True, None]
    assert decision.verdict == "not tested"


def test_a_claim_is_decided_on_each_data_set_and_the_missing_ones_are_named() -> None:
    good, bad = runs(full={0: 0.6, 1: 0.6}, less={0: 0.5, 1: 0.5}), runs(full={0: 0.4, 1: 0.4}, less={0: 0.5, 1: 0.5})
    one = spec(GAIN)

    def found(where: Item | None, *blocks: Runs) -> list[tuple[str, str, str]]:
        return [(decision.data, decision.verdict, decision.reason) for decision in decide_all(one, where, blocks)]

    assert found(item("AWA2/att", "CUB/sent"), good, bad) == [
        ("AWA2, att", "holds", ""),
        ("CUB, sent", "does not hold", ""),
    ]
    assert found(item("CUB/sent"), bad) == [
        ("CUB, sent", "does not hold", ""),
        ("AWA2/att", "not tested", "data set missing"),
    ]
    assert found(None) == [("AWA2/att, CUB/sent", "not tested", "runs missing: not run yet")]
    assert found(item("AWA2/att", "CUB/sent", quick=True), good, good) == [
        ("AWA2, att", "not tested", "quick run"),
        ("CUB, sent", "not tested", "quick run"),
    ]


def test_a_claim_may_be_about_some_data_sets_only() -> None:
    good = runs(full={0: 0.6, 1: 0.6}, less={0: 0.5, 1: 0.5})
    for name in ("CUB", "CUB/sent"):
        one = spec(GAIN, data=f'data = ["{name}"]')
        assert [d.data for d in decide_all(one, item("AWA2/att", "CUB/sent"), [{}, good])] == ["CUB, sent"]
        (missing,) = decide_all(one, item("AWA2/att"), [good])
        assert (missing.data, missing.verdict, missing.reason) == (name, "not tested", "data set missing")


ACROSS = '{contrast = {"AWA2: full" = 1, "AWA2: less" = -1, "CUB: full" = -1, "CUB: less" = 1}, above = 0}'


def test_rows_of_two_data_sets_are_compared_once() -> None:
    awa2 = runs(full={0: 0.8, 1: 0.81}, less={0: 0.5, 1: 0.5})
    cub = runs(full={0: 0.6, 1: 0.6}, less={0: 0.5, 1: 0.5})
    (decision,) = decide_all(spec(ACROSS), item("AWA2/att", "CUB/sent"), [awa2, cub])
    assert (decision.data, decision.verdict) == ("AWA2, CUB", "holds")
    assert decision.outcomes[0].mean == pytest.approx(0.205)
    (decision,) = decide_all(spec(ACROSS), item("CUB/sent", "AWA2/att"), [awa2, cub])  # the other way round
    assert decision.verdict == "does not hold"


def test_rows_of_a_data_set_that_is_missing_are_not_compared() -> None:
    (decision,) = decide_all(spec(ACROSS), item("AWA2/att"), [runs(full={0: 0.8, 1: 0.8}, less={0: 0.5, 1: 0.5})])
    assert (decision.data, decision.verdict) == ("AWA2, CUB", "not tested")
    assert decision.reason == "data set missing: CUB"


@pytest.mark.parametrize("tests", [GAIN, ACROSS])
def test_a_quick_run_is_on_other_data_and_decides_nothing(tests: str) -> None:
    good = runs(full={0: 0.8, 1: 0.8}, less={0: 0.5, 1: 0.5})
    (decision,) = decide_all(spec(tests, data='data = ["CUB"]'), item("numbers/strokes", quick=True), [good])
    assert (decision.data, decision.verdict, decision.reason) == ("numbers, strokes", "not tested", "quick run")


def test_of_two_blocks_of_a_data_set_one_can_be_meant() -> None:
    att, sent = runs(full={0: 0.4, 1: 0.4}), runs(full={0: 0.6, 1: 0.6})
    one = spec('{contrast = {"CUB/sent: full" = 1, "CUB: full" = -1}, above = 0.1}')
    (decision,) = decide_all(one, item("CUB/att", "CUB/sent"), [att, sent])
    assert decision.outcomes[0].mean == pytest.approx(0.2)


def test_what_was_observed_can_be_tested_too() -> None:
    one = record(0, h=0.5, observed={"gradients": {"pull": 0.25, "h": 9.0}, "note": "text"})
    assert score_of(one, "pull") == 0.25
    assert score_of(one, "h") == 0.5  # a score comes first
    assert score_of(one, "push") is None
