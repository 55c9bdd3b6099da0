"""People's own data: arrays of features, labels and a table of classes become a GZSLData.

In come ``.npy``, ``.npz``, CSV or Parquet files with one row per sample, and a CSV with one row per class (name, split,
vector columns). Out comes a GZSLData, ready for ``save_bundle``. Files are read without pickle. Words in a class table
are read here too, and become vectors in ``dgz.words``.
"""

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from operator import not_
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dgz.data.dataset import Floats, GZSLData, Ints, as_floats, listing
from dgz.data.folds import hold_out_rows
from dgz.errors import DataError, DGZError, one_line
from dgz.files import MAX_DEFLATE_RATIO, write_whole

_NAME_COLUMNS = ("name", "class", "class_name")
_LABEL_COLUMNS = ("label", "labels", "y", "class", "class_name")
_FEATURE_KEYS = ("x", "features")
_WORD_COLUMN = re.compile(r"(description|gloss|phrases)(_\d+)?")
_WORD_HINT = "words belong in columns called description, gloss or phrases, of which 'dgz data words' makes vectors"


@dataclass(frozen=True)
class ClassTable:
    """Names, vectors and, where given, the group ("seen" or "unseen") of every class."""

    names: tuple[str, ...]
    vectors: Floats
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ClassColumns:
    """All that a class table holds: names, groups where given, cells of words by column, and columns of numbers."""

    names: tuple[str, ...]
    groups: tuple[str, ...] | None
    words: Mapping[str, tuple[str, ...]]
    headings: tuple[str, ...]
    numbers: Floats | None


@dataclass(frozen=True)
class Rows:
    """Samples as a file holds them: features (n, d_x), and labels and splits where the file has them."""

    features: Floats
    labels: npt.NDArray[Any] | None = None
    splits: tuple[str, ...] | None = None


def read_class_table(path: str | Path) -> ClassTable:
    """Read a CSV with a header: ``name`` (or ``class``), optionally ``split``, and one column per vector entry."""
    table = read_class_columns(path)
    if table.words and table.numbers is not None:
        raise DataError(
            f"{path} holds both words ({listing(list(table.words))}) and numbers ({listing(list(table.headings))}): "
            "leave one kind out, or let 'dgz data words --from-attributes' speak the numbers."
        )
    if table.words:
        raise DataError(f"{path} holds words ({listing(list(table.words))}): 'dgz data words' makes vectors of them.")
    if table.numbers is None:
        raise DataError(f"{path} has no vector columns beside name and split: {_WORD_HINT}.")
    return ClassTable(table.names, table.numbers, table.groups)


def read_class_columns(path: str | Path) -> ClassColumns:
    """Read a class table whose columns, beside ``name`` and ``split``, hold numbers or words.

    Words are in ``description``, ``gloss`` and ``phrases``, each of which may be there several times with a number
    (``description_1``, ``description_2``); all other columns hold numbers.
    """
    path = Path(path)
    with _csv_rows(path) as (header, _):
        words = [column.lower() for column in header if _WORD_COLUMN.fullmatch(column.lower())]
        known = (*_NAME_COLUMNS, "split", *words)
        headings = tuple(column for column in header if column.lower() not in known)
    texts, numbers = _read_csv(path, known, needed=_NAME_COLUMNS, hint=_WORD_HINT)
    names = tuple(next(values for column, values in texts.items() if column in _NAME_COLUMNS))
    groups = tuple(group.lower() for group in texts["split"]) if "split" in texts else None
    for name, group in zip(names, groups or (), strict=groups is not None):
        if group not in ("seen", "unseen"):
            raise DataError(f"{path}: split must be seen or unseen, found {group!r} for class {name!r}.")
    return ClassColumns(names, groups, {column: tuple(texts[column]) for column in words}, headings, numbers)


def write_class_table(table: ClassTable, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a CSV that :func:`read_class_table` reads back as the same table, bit for bit.

    Parameters
    ----------
    table : ClassTable
        Its vectors go to the columns ``v0``, ``v1``, …
    path : str or Path
    overwrite : bool
        Replace what is there; without it, that is an error.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "classes.csv"
    >>> write_class_table(ClassTable(("cat", "fox"), np.float32([[0.1], [1.0]]), ("seen", "unseen")), path)
    >>> path.read_text().split()
    ['name,split,v0', 'cat,seen,0.100000001', 'fox,unseen,1']
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise DGZError(f"{path} exists already; choose another place or pass --overwrite (overwrite=True).")
    groups = [()] * len(table.names) if table.groups is None else [(group,) for group in table.groups]
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    split = () if table.groups is None else ("split",)
    rows.writerow(["name", *split, *(f"v{i}" for i in range(table.vectors.shape[1]))])
    for name, group, vector in zip(table.names, groups, table.vectors, strict=True):
        # Nine digits are off by less than a sixth of a float32's rounding interval: enough to come back as the same
        # one, also by way of the double that they are read as.
        rows.writerow([name, *group, *(f"{value:.9g}" for value in vector.tolist())])
    with write_whole(path) as file:
        file.write(text.getvalue().encode())


def read_rows(path: str | Path) -> Rows:
    """Read samples from ``.npy``, ``.npz``, ``.csv`` or ``.parquet``.

    ``.npz`` holds ``X`` (or ``features``) and optionally ``y`` (or ``labels``) and ``split``; tables may have a column
    ``label`` (or ``class``) and a column ``split``, and all others are features.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], Rows]] = {
        ".npy": lambda path: Rows(as_floats(_read_npy(path), str(path))),
        ".npz": _rows_from_npz,
        ".csv": lambda path: _rows_from_table(path, *_read_csv(path, (*_LABEL_COLUMNS, "split"))),
        ".parquet": lambda path: _rows_from_table(path, *_read_parquet(path, (*_LABEL_COLUMNS, "split"))),
    }
    return readers[_ending(path, readers)](path)


def read_labels(path: str | Path) -> npt.NDArray[Any]:
    """Read one label per row from ``.npy`` (whole numbers or text), or from the column ``label`` of a CSV."""
    path = Path(path)
    if _ending(path, (".npy", ".csv")) == ".npy":
        return _read_npy(path)
    texts, _ = _read_csv(path, _LABEL_COLUMNS, needed=_LABEL_COLUMNS)
    return _labels(next(iter(texts.values())))


def import_files(
    features: str | Path, classes: str | Path | ClassTable, labels: str | Path | None = None, **options: Any
) -> GZSLData:
    """Make a data set from a file of samples (:func:`read_rows`) and a CSV of classes (:func:`read_class_table`).

    Parameters
    ----------
    features : str or Path
        The samples.
    classes : str, Path or ClassTable
        The classes, or what was read or made of them.
    labels : str or Path, optional
        A third (:func:`read_labels`), where the samples' file has no labels.
    **options
        Of :func:`import_arrays`.
    """
    rows = read_rows(features)
    found = rows.labels if labels is None else read_labels(labels)
    if found is None:
        raise DGZError(f"{features} holds no labels: give them a column or key called label, or a file of their own.")
    named = {"features_name": Path(features).stem, **options}
    table = classes if isinstance(classes, ClassTable) else read_class_table(classes)
    return import_arrays(rows.features, found, table, splits=rows.splits, **named)


def import_arrays(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    classes: ClassTable,
    *,
    splits: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    random_state: int = 0,
    name: str = "imported",
    features_name: str = "features",
    semantics: str = "att",
) -> GZSLData:
    """Make a data set from arrays and a table of classes.

    Parameters
    ----------
    features : array of shape (n, d_x)
        One row per sample.
    labels : array of shape (n,)
        Class names, or whole numbers: row numbers of the table from 0, unless they are its names.
    classes : ClassTable
        A vector for every class. Without its ``groups``, the classes without training rows are unseen.
    splits : sequence of {"train", "test"}, optional
        Of each row. Without it, ``test_fraction`` of each seen class's rows, drawn by ``random_state``, are test rows
        (a class's only row stays in training). Rows of unseen classes are test rows in any case.

    Examples
    --------
    >>> table = ClassTable(("cat", "dog", "fox"), np.eye(3), ("seen", "seen", "unseen"))
    >>> import_arrays(np.eye(5), ["cat", "cat", "dog", "dog", "fox"], table).unseen
    array([2])
    """
    x = as_floats(features, "features")
    y = _class_ids(np.asarray(labels), classes.names)
    if len(x) != len(y):
        raise DataError(f"There are {len(x)} rows of features but {len(y)} labels.")
    if splits is not None and len(splits) != len(y):
        raise DataError(f"There are {len(y)} rows of features but {len(splits)} entries of split.")
    is_train = np.ones(len(y), dtype=bool) if splits is None else _train_rows(splits)
    if classes.groups is not None:
        unseen = np.flatnonzero(np.array(classes.groups) == "unseen")
    else:
        unseen = np.setdiff1d(np.arange(len(classes.names)), y[is_train])
    of_unseen = np.isin(y, unseen)
    if splits is None:
        of_seen = np.flatnonzero(~of_unseen)
        is_train = ~of_unseen
        is_train[of_seen[hold_out_rows(y[of_seen], test_fraction, np.random.default_rng(random_state))]] = False
    elif (wrong := np.flatnonzero(of_unseen & is_train)).size:
        raise DataError(
            f"Rows of unseen classes must be test rows, found {len(wrong)} training row(s), the first at {wrong[0]} "
            f"(class {classes.names[y[wrong[0]]]!r})."
        )
    index = {
        "train": np.flatnonzero(is_train),
        "test_seen": np.flatnonzero(~is_train & ~of_unseen),
        "test_unseen": np.flatnonzero(of_unseen),
    }
    parts: dict[str, Any] = {f"x_{split}": x[rows] for split, rows in index.items()}
    parts |= {f"y_{split}": y[rows] for split, rows in index.items()}
    parts |= {f"{split}_index": rows for split, rows in index.items()}
    return GZSLData(
        **parts,
        attributes=classes.vectors,
        class_names=classes.names,
        seen=np.setdiff1d(np.arange(len(classes.names)), unseen),
        unseen=unseen,
        name=name,
        features=features_name,
        semantics=semantics,
    )


def _class_ids(labels: npt.NDArray[Any], names: tuple[str, ...]) -> Ints:
    labels = labels.ravel()
    if labels.dtype.kind not in "iubUO":
        raise DataError(f"labels must be class names or whole numbers, found {labels.dtype}.")
    row_of = {name: row for row, name in enumerate(names)}
    distinct = [str(label) for label in np.unique(labels.astype(str))]
    strangers = [label for label in distinct if label not in row_of]
    if not strangers:
        return np.array([row_of[str(label)] for label in labels], dtype=np.int64)
    # Numbers are row numbers only where none is a name: with names 1 to 5 and labels 0 to 4, four would match, wrongly.
    if labels.dtype.kind not in "iu" or len(strangers) < len(distinct):
        raise DataError(f"Every class needs a vector, found {len(strangers)} label(s) without: {listing(strangers)}.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(names):
        off = " (are they counted from 1?)" if low >= 1 and high == len(names) else ""
        raise DataError(f"Number labels must be rows 0 to {len(names) - 1} of the table, found {low} to {high}{off}.")
    return labels.astype(np.int64)


def _train_rows(splits: Sequence[str]) -> npt.NDArray[np.bool_]:
    values = np.char.lower(np.char.strip(np.asarray(splits, dtype=str)))
    wrong = np.flatnonzero((values != "train") & (values != "test"))
    if len(wrong):
        raise DataError(f"split must be train or test, found {str(values[wrong[0]])!r} in row {wrong[0]}.")
    return values == "train"  # type: ignore[no-any-return]


def _ending(path: Path, known: Any) -> str:
    ending = path.suffix.lower()
    if ending not in known:
        raise DGZError(f"{path} must end in {', '.join(known)}, found {ending or 'no ending'!r}.")
    return ending


def _read_npy(path: Path) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        return _npy(file, path.stat().st_size, str(path))


def _npy(file: IO[bytes], size: int, what: str) -> npt.NDArray[Any]:
    """One array in numpy's format, its claimed shape held against the bytes that are there before memory is taken."""
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        needed = np.prod(shape, dtype=float) * dtype.itemsize
        if not dtype.hasobject and needed > size:
            raise DataError(f"{what} is broken: it claims the shape {shape} in {size} bytes.")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    except DataError:
        raise
    except Exception as error:  # hostile bytes raise many kinds; each means the same to a person
        raise DataError(f"{what} cannot be read as a numpy array: {one_line(error)}.") from error


def _rows_from_npz(path: Path) -> Rows:
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {}
            for member in archive.infolist():
                if member.file_size > MAX_DEFLATE_RATIO * max(member.compress_size, 1):
                    raise DataError(f"{path} is refused: {member.filename} claims {member.file_size} bytes.")
                with archive.open(member) as file:
                    key = member.filename.removesuffix(".npy")
                    arrays[key] = _npy(file, member.file_size, f"{path}:{key}")
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy each have their own
        raise DataError(f"{path} cannot be read as an npz archive: {one_line(error)}.") from error
    features = next((arrays[key] for key in arrays if key.lower() in _FEATURE_KEYS), None)
    if features is None:
        raise DataError(f"{path} must hold an array X (or features), found {listing(list(arrays)) or 'nothing'}.")
    labels = next((arrays[key] for key in arrays if key.lower() in _LABEL_COLUMNS), None)
    splits = arrays.get("split")
    return Rows(as_floats(features, f"{path}:X"), labels, None if splits is None else tuple(map(str, splits.ravel())))


def _rows_from_table(path: Path, texts: dict[str, list[str]], features: Floats | None) -> Rows:
    if features is None:
        raise DataError(f"{path} has no feature columns.")
    splits = texts.pop("split", None)
    labels = next((_labels(values) for values in texts.values()), None)
    return Rows(features, labels, None if splits is None else tuple(splits))


def _labels(texts: list[str]) -> npt.NDArray[Any]:
    """Labels as whole numbers where all are, as text otherwise."""
    # "07" is a name: read as the number 7 it would no longer be found in the class table.
    if all(text.isascii() and text.isdigit() and str(int(text)) == text and len(text) < 19 for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)
    return np.array(texts, dtype=str)


def _read_csv(
    path: Path, text_columns: Collection[str], needed: Sequence[str] = (), hint: str = ""
) -> tuple[dict[str, list[str]], Floats | None]:
    """Text columns of a CSV by their names in its header, one ``needed``, and all others as one matrix of numbers."""
    with _csv_rows(path) as (header, rows):
        if needed and not any(column.lower() in needed for column in header):
            raise DataError(f"{path} must have a column called {' or '.join(needed)}, found {listing(header)}.")
        is_text = [column.lower() in text_columns for column in header]
        names = [column.lower() for column in compress(header, is_text)]
        if repeated := _repeated(names):
            raise DataError(f"{path} has more than one column called {listing(repeated)}, whatever their case.")
        texts: list[list[str]] = []
        numbers: list[Floats] = []
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(f"{path}, line {rows.line_num}: expected {len(header)} values, found {len(row)}.")
            texts.append([value.strip() for value in compress(row, is_text)])
            # Row by row, as text takes ten times the memory of the numbers.
            values = compress(row, map(not_, is_text))
            try:
                numbers.append(np.fromiter(map(float, values), np.float64).astype(np.float32))
            except ValueError as error:
                problem = _not_a_number(header, row, is_text) + (f" ({hint})" if hint else "")
                raise DataError(f"{path}, line {rows.line_num}: {problem}.") from error
    if not texts:
        raise DataError(f"{path} has a header but no rows.")
    by_name = dict(zip(names, map(list, zip(*texts, strict=True)), strict=True))
    return by_name, as_floats(np.stack(numbers), str(path)) if not all(is_text) else None


@contextmanager
def _csv_rows(path: Path) -> Iterator[tuple[list[str], Any]]:
    """The header of a CSV, whose names differ, and the rows after it; what is no CSV is said in one sentence."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = [column.strip() for column in next(rows, [])]
            if not header:
                raise DataError(f"{path} is empty; expected a header line.")
            if repeated := _repeated(header):
                raise DataError(f"{path} has more than one column called {listing(repeated)}.")
            yield header, rows
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV: {one_line(error)}.") from error


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _not_a_number(header: list[str], row: list[str], is_text: list[bool]) -> str:
    for column, value, text in zip(header, row, is_text, strict=True):
        try:
            float(value if not text else 0)
        except ValueError:
            return f"column {column!r} must hold numbers, found {value!r}"
    return "a column must hold numbers"


def _read_parquet(path: Path, text_columns: Collection[str]) -> tuple[dict[str, list[str]], Floats | None]:
    """The same from a Parquet table, where one column may also hold lists of numbers."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DGZError(f"Reading {path} needs pyarrow: install dgz[parquet].") from error
    try:
        table = parquet.read_table(path, memory_map=False)
        columns = {column: table.column(column).to_numpy() for column in table.column_names}
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {one_line(error)}.") from error
    texts, numbers = {}, []
    for column, values in columns.items():
        if column.lower() in text_columns:
            texts[column.lower()] = [str(value).strip() for value in values]
            continue
        try:
            rows = np.stack(list(values)) if values.dtype == object else values
            with np.errstate(over="ignore"):
                numbers.append(rows.astype(np.float32).reshape(len(values), -1))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}: column {column!r} must hold numbers, or lists of one length.") from error
    return texts, as_floats(np.concatenate(numbers, axis=1), str(path)) if numbers else None
