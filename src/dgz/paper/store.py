"""The folder that a reproduction fills: one file per run, and one per item that says which runs it is made of.

``records/ID.json`` is written when a run ends, ``items/NAME.json`` before its runs begin; both whole or not at all. So
whatever is there is sound, at any moment and with any number of processes at work, and a report can be made of it.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dgz.errors import DataError
from dgz.files import read_document, write_json
from dgz.records import Record, read_record_file, write_record_file

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Block:
    """The part of an item that is of one data set.

    Attributes
    ----------
    data : str
        Name of the data set, as published numbers are listed under.
    semantics, features : str
        Which class vectors and which features of it.
    rows : dict
        Ids of the runs of each row, a run for each seed, in the order of seeds.
    folds : dict
        Ids of the runs of a row on leak-free folds of the training rows.
    """

    data: str
    semantics: str
    features: str
    rows: dict[str, list[str]]
    folds: dict[str, list[str]]

    @property
    def title(self) -> str:
        """The data set with features and class vectors, for people."""
        return ", ".join(part for part in (self.data, self.features, self.semantics) if part)


@dataclass(frozen=True, kw_only=True)
class Item:
    """Which runs an item of the paper is made of.

    Attributes
    ----------
    name : str
        That of its spec.
    quick : bool
        Whether its runs are shortened ones, which show that everything works and nothing else.
    blocks : list of Block
    missing : list of str
        A sentence about each data set that was not found.
    """

    name: str
    quick: bool
    blocks: list[Block]
    missing: list[str]


class Store:
    """A folder of records and items.

    Examples
    --------
    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.write_item(Item(name="table1", quick=False, blocks=[], missing=["AWA2 was not found."]))
    >>> [item.name for item in store.items()]
    ['table1']
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def record_path(self, run: str) -> Path:
        """Where the record of a run is, or will be."""
        return self.folder / "records" / f"{run}.json"

    def is_finished(self, run: str) -> bool:
        """Whether a run's record is there."""
        return self.record_path(run).is_file()

    def read(self, run: str) -> Record:
        """The record of a finished run."""
        return read_record_file(self.record_path(run))

    def write(self, run: str, record: Record) -> None:
        """Keep the record of a run, which is finished by that."""
        write_record_file(record, self.record_path(run))

    def write_item(self, item: Item) -> None:
        """Keep which runs an item is made of."""
        content = {"format": "dgz-item", "version": _VERSION, **asdict(item)}
        write_json(self.folder / "items" / f"{item.name}.json", content)

    def items(self) -> Iterator[Item]:
        """All items, by name."""
        for path in sorted((self.folder / "items").glob("*.json")):
            content: dict[str, Any] = read_document(path, "item", _VERSION)
            for kind, part in ((Item, content), *((Block, block) for block in content.get("blocks", []))):
                if odd := {one.name for one in fields(kind)}.symmetric_difference(part):
                    raise DataError(f"{path} is broken: {', '.join(sorted(odd))} should or should not be there.")
            yield Item(**{**content, "blocks": [Block(**block) for block in content["blocks"]]})
