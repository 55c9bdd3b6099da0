"""What a reproduction has done so far: its folder in; specs, finished runs and decided claims out, item by item."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dgz.paper.claims import Decision, decide_all
from dgz.paper.spec import COMPARISON, Spec, comparison_spec, item_names, load_spec
from dgz.paper.store import Block, Item, Store
from dgz.records import Record


@dataclass(frozen=True, kw_only=True)
class Part:
    """A block with the records of its finished runs.

    Attributes
    ----------
    block : Block
        What is planned.
    rows, folds : dict
        Records of each row, and of each row on folds.
    """

    block: Block
    rows: dict[str, list[Record]]
    folds: dict[str, list[Record]]

    @property
    def records(self) -> list[Record]:
        """All finished runs on the whole data set."""
        return [record for found in self.rows.values() for record in found]

    def planned(self, row: str) -> int:
        """How many runs of a row there will be."""
        return len(self.block.rows.get(row, ()))


@dataclass(frozen=True, kw_only=True)
class ItemRuns:
    """An item of the paper: its spec, what is planned of it (None: nothing yet), what is finished and what it says."""

    spec: Spec
    item: Item | None
    parts: list[Part]
    decisions: list[Decision]

    @property
    def is_quick(self) -> bool:
        """Whether its runs are shortened ones: no results."""
        return bool(self.item and self.item.quick) or any(
            record.quick for part in self.parts for record in part.records
        )

    @property
    def progress(self) -> tuple[int, int]:
        """Runs that are finished, and that are planned, with those on folds."""
        blocks = [part.block for part in self.parts]
        done = [len(found) for part in self.parts for found in (*part.rows.values(), *part.folds.values())]
        planned = [len(ids) for block in blocks for ids in (*block.rows.values(), *block.folds.values())]
        return sum(done), sum(planned)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Everything a folder holds.

    Attributes
    ----------
    items : list of ItemRuns
        In the order of the paper; those that were not started too.
    records : dict
        Every finished run once, though several items may be made of it.
    unknown : list of str
        Items of the folder that have no spec here.
    """

    items: list[ItemRuns]
    records: dict[str, Record]
    unknown: list[str]

    @property
    def is_quick(self) -> bool:
        """Whether any of it is no result."""
        return any(one.is_quick for one in self.items)


def read_runs(folder: str | Path, specs: Mapping[str, Spec] | None = None) -> Reproduction:
    """Read the folder of a reproduction, at whatever point it is.

    Parameters
    ----------
    folder : str or Path
        See :mod:`dgz.paper.store`.
    specs : mapping, optional
        The items to look for, in order; those of the paper by default, or that of a comparison.
    """
    store = Store(folder)
    found = {item.name: item for item in store.items()}
    if specs is None:
        ours = found.get(COMPARISON)
        specs = {COMPARISON: _as_run(ours)} if ours else {name: load_spec(name) for name in item_names()}
    records: dict[str, Record] = {}
    items = [_item_runs(spec, found.get(name), store, records) for name, spec in specs.items()]
    return Reproduction(items=items, records=records, unknown=[name for name in found if name not in specs])


def _as_run(item: Item) -> Spec:
    """The spec of a comparison, which has no file: its rows are named after their methods."""
    (block,) = item.blocks
    n_seeds, n_folds = (max(map(len, runs.values()), default=0) for runs in (block.rows, block.folds))
    return comparison_spec(list(block.rows), f"{block.data}/{block.semantics}", n_seeds, n_folds)


def _item_runs(spec: Spec, item: Item | None, store: Store, records: dict[str, Record]) -> ItemRuns:
    """What is there of an item; ``records`` gets every record that was read."""
    parts = [
        Part(
            block=block,
            rows={name: list(_finished(ids, store, records)) for name, ids in block.rows.items()},
            folds={name: list(_finished(ids, store, records)) for name, ids in block.folds.items()},
        )
        for block in (item.blocks if item else [])
    ]
    return ItemRuns(spec=spec, item=item, parts=parts, decisions=decide_all(spec, item, [part.rows for part in parts]))


def _finished(ids: list[str], store: Store, records: dict[str, Record]) -> Iterator[Record]:
    for run in ids:
        if run not in records and store.is_finished(run):
            records[run] = store.read(run)
        if run in records:
            yield records[run]
