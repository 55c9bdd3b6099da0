"""Claims: what the paper says, decided by the scores of finished runs.

Specs and records come in; out comes, for every claim and data set, whether it holds, with the numbers that say so. The
scores are those of the rule ``last``, as fractions. Pure functions, no torch.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dgz.paper.spec import Claim, Spec
from dgz.paper.store import Block, Item
from dgz.records import Record

Verdict = Literal["holds", "does not hold", "not tested"]
Runs = Mapping[str, Sequence[Record]]  # the finished runs of each row
MISSING_DATA, MISSING_RUNS, QUICK = "data set missing", "runs missing", "quick run"
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One test of a claim, done.

    Attributes
    ----------
    contrast : dict
        Weight of each row.
    metric : str
        The score that is compared.
    above, within : float, optional
        What the interval must lie above, or how far it may reach to either side of 0: one of the two.
    n_seeds : int
        How many seeds all of the rows have.
    mean, low, high : float, optional
        The contrast's mean over these seeds and its 95 % interval; None with fewer than two of them.
    reason : str
        Why there is no interval.
    """

    contrast: dict[str, float]
    metric: str
    above: float | None
    within: float | None
    n_seeds: int = 0
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the interval lies where it should; None where there is none."""
        if self.low is None or self.high is None:
            return None
        if self.above is not None:
            return self.low > self.above
        return self.within is not None and -self.within <= self.low and self.high <= self.within


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of a claim on a data set.

    Attributes
    ----------
    claim : Claim
    item : str
        Name of the spec that has it.
    data : str
        The data set, or several of them where rows of several are compared.
    verdict : str
    reason : str
        Why it was not tested.
    outcomes : tuple of Outcome
        One for each of its tests, as far as there was something to test.
    """

    claim: Claim
    item: str
    data: str
    verdict: Verdict
    reason: str = ""
    outcomes: tuple[Outcome, ...] = ()


def decide_all(spec: Spec, item: Item | None, runs: Sequence[Runs]) -> list[Decision]:
    """Decide every claim of a spec on every data set it is about.

    Parameters
    ----------
    spec : Spec
    item : Item, optional
        What is planned; None where nothing was started.
    runs : sequence of mappings
        The finished runs of each of the item's blocks, by row.

    Returns
    -------
    list of Decision
        Claim by claim. One that compares rows of several data sets is decided once.
    """
    return [decision for claim in spec.claims for decision in _decisions(claim, spec, item, runs)]


def decide(claim: Claim, spec: Spec, block: Block | None, runs: Runs, others: Mapping[str, Runs]) -> Decision:
    """Decide a claim on one data set.

    Parameters
    ----------
    claim : Claim
    spec : Spec
        The one that has it.
    block : Block, optional
        The data set; none is needed where every row names its own.
    runs : mapping
        The block's finished runs, by row.
    others : mapping
        Those of every data set, by its name (``AWA2``) and by its name with the class vectors (``AWA2/att``).
    """
    named = _data_named(claim)
    data = ", ".join(named) if named or block is None else block.title
    if strangers := [name for name in named if name not in others]:
        reason = f"{MISSING_DATA}: {', '.join(strangers)}"
        return Decision(claim=claim, item=spec.name, data=data, verdict="not tested", reason=reason)
    outcomes = tuple(_test(test, runs, others) for test in claim.tests)
    reasons = dict.fromkeys(outcome.reason for outcome in outcomes if outcome.reason)
    verdict: Verdict = "holds" if all(outcome.holds for outcome in outcomes) else "does not hold"
    return Decision(
        claim=claim,
        item=spec.name,
        data=data,
        verdict="not tested" if reasons else verdict,
        reason="; ".join(reasons),
        outcomes=outcomes,
    )


def planned(test: Mapping[str, Any]) -> Outcome:
    """A test as a spec has it, with nothing found out yet."""
    return Outcome(
        contrast=dict(test["contrast"]),
        metric=test.get("metric", "h"),
        above=test.get("above"),
        within=test.get("within"),
    )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of at least two values and its 95 % interval: Student's t with n - 1 degrees of freedom.

    Examples
    --------
    >>> [round(bound, 3) for bound in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    from scipy.special import stdtrit  # not at the top: most who read specs and records decide nothing

    mean = statistics.fmean(values)
    quantile = float(stdtrit(len(values) - 1, (1 + _LEVEL) / 2))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def score_of(record: Record, metric: str) -> float | None:
    """A score of a run by the rule ``last``, or a number that was observed of it; None where it has no such."""
    for found in (record.scores, *(one for one in record.observed.values() if isinstance(one, Mapping))):
        value = found.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


def _decisions(claim: Claim, spec: Spec, item: Item | None, runs: Sequence[Runs]) -> Iterator[Decision]:
    """A claim's decisions: one for each data set with runs, in the item's order, then one for all without."""
    wanted = claim.data or spec.data

    def untested(data: str, reason: str) -> Decision:
        return Decision(claim=claim, item=spec.name, data=data, verdict="not tested", reason=reason)

    if item is None:
        yield untested(", ".join(wanted), f"{MISSING_RUNS}: not run yet")
        return
    if item.quick:  # all of it is on embedded data: what is missing does not matter
        yield from (untested(block.title, QUICK) for block in item.blocks)
        return
    places = [k for k, block in enumerate(item.blocks) if not claim.data or _is_among(block, claim.data)]
    if _data_named(claim):  # decided once, and the decision says itself which data set is missing
        block, own = (item.blocks[places[0]], runs[places[0]]) if places else (None, {})
        yield decide(claim, spec, block, own, _by_name(item.blocks, runs))
        return
    for k in places:
        yield decide(claim, spec, item.blocks[k], runs[k], {})
    if missing := [name for name in wanted if not any(_is_among(block, [name]) for block in item.blocks)]:
        yield untested(", ".join(missing), MISSING_DATA)


def _test(test: Mapping[str, Any], runs: Runs, others: Mapping[str, Runs]) -> Outcome:
    """Do one test: the contrast seed by seed, over the seeds that all of its rows have."""
    asked = planned(test)
    scores = {}
    for name in asked.contrast:
        data, row = _split(name)
        found = (others[data] if data else runs).get(row, ())
        known = {record.seed: score_of(record, asked.metric) for record in found}
        scores[name] = {seed: value for seed, value in known.items() if value is not None}
    seeds = sorted(set.intersection(*(set(of_row) for of_row in scores.values())))
    if len(seeds) < 2:  # one run has no spread, and so no interval
        lacking = [name for name, of_row in scores.items() if len(of_row) < 2]
        what = f"of {', '.join(lacking)}" if lacking else "with seeds in common"
        return replace(asked, n_seeds=len(seeds), reason=f"{MISSING_RUNS}: fewer than 2 {what}")
    values = [sum(weight * scores[name][seed] for name, weight in asked.contrast.items()) for seed in seeds]
    mean, low, high = interval(values)
    return replace(asked, n_seeds=len(seeds), mean=mean, low=low, high=high)


def _split(name: str) -> tuple[str, str]:
    """Data set and row of a row's name in a contrast; no data set where it is the block's own."""
    data, mark, row = name.partition(": ")
    return (data, row) if mark else ("", name)


def _data_named(claim: Claim) -> list[str]:
    """Data sets that a claim's rows are said to be of."""
    return sorted({_split(name)[0] for test in claim.tests for name in test["contrast"]} - {""})


def _by_name(blocks: Sequence[Block], runs: Sequence[Runs]) -> dict[str, Runs]:
    """Runs by every name that a contrast may call their data set; of several of one name, the first."""
    found: dict[str, Runs] = {}
    for block, own in zip(blocks, runs, strict=True):
        for name in _names(block):
            found.setdefault(name, own)
    return found


def _names(block: Block) -> tuple[str, str]:
    return block.data, f"{block.data}/{block.semantics}"


def _is_among(block: Block, names: Sequence[str]) -> bool:
    return any(name in names for name in _names(block))
