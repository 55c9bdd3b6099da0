"""The paper, run again: specs and data in, records of every run and an account of every item out.

A run is named by what it is: method, settings, seed and data. So a run that several items share is made once, one that
is finished is not made again, and what was broken off goes on. Runs that share a trained generator are made together.
"""

import contextlib
import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from sklearn.base import clone

from dgz.composed import ComposedMethod
from dgz.data import GZSLData, load_data, validation_folds
from dgz.data.checks import load_same, require_same
from dgz.data.dataset import Ints, listing, says_fine_tuned
from dgz.engines import LOCAL, Engine, LostWorkError
from dgz.errors import DGZError, require_choice, require_count
from dgz.estimator import GZSLClassifier
from dgz.experiments import BrokenRunsError, run, run_many
from dgz.files import locked
from dgz.many import generator_key
from dgz.observations import toy
from dgz.paper import Block, Item, Row, Spec, Store, comparison_spec, load_spec, paper_items
from dgz.peers import METHODS, make_method
from dgz.peers.closed_form import ClosedForm
from dgz.progress import Progress
from dgz.records import Record
from dgz.settings import configure
from dgz.trained import TrainedMethod
from dgz.training import one_thread, pick_device, watching

_TOY, _TOY_EPOCHS = "toy", 600
# Settings that methods and generators did not have when the first runs were named, with the values that those runs had.
_ADDED_LATER = {"seen_penalty": 0.0, "n_members": 1}
_ADDED_LATER_TO_GENERATORS = {"freeze_refiner": True}
_QUICK = {"generator_epochs": 1, "steps": 4, "seeds": 2, "folds": 2}
# The most of each setting, where a method or its generator has it. Of rows in a step, f-CLSWGAN has n_per_class by
# default; contrastive generators compare all pairs of a step, so that large steps are slow.
_QUICK_METHOD = {"n_epochs": 2, "n_per_class": 10, "batch_size": 1024, "n_steps": 10, "steps_per_epoch": 10}
_QUICK_METHOD |= {"n_episode_epochs": 1, "n_episodes": 10, "n_unseen_epochs": 2, "n_unseen_per_class": 10}
_QUICK_METHOD |= {"n_row_epochs": 1, "row_batch_size": 1024}
_QUICK_GENERATOR = {"n_epochs": 1, "batch_size": 256, "n_critic": 1, "n_contrasts": 2}
Method = TypeVar("Method", bound=GZSLClassifier)


class BrokenReproductionError(DGZError):
    """Some runs broke; all others are finished."""


def reproduce(
    names: Sequence[str],
    source: str | Path | None,
    out: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    rows: Sequence[str] | None = None,
    features: str | None = None,
    device: str = "auto",
    shared_device: bool = False,
    engine: Engine = LOCAL,
    say: Callable[[str], None] = lambda line: None,
) -> list[Item]:
    """Make all runs that items of the paper are made of, or those of them that are not there yet.

    Parameters
    ----------
    names : sequence of str
        Items, as :func:`~dgz.paper.item_names` lists them; ``all`` are those of the paper, without ``peers``.
    source : str or Path, optional
        Folder with a folder for each data set (``CUB``, ``AWA2``, …) in the layout of xlsa17. Those that are missing
        are said to be, and the others are run.
    out : str or Path
        Gets ``records/`` and ``items/``, see :class:`~dgz.paper.Store`.
    quick : bool
        Run everything on the embedded data, with a few steps of each training: to see that it works. Such records say
        what they are, and never share a folder with others.
    seeds : int, optional
        How many, instead of the number that each item has.
    rows : sequence of str, optional
        Names of rows of the items: their runs alone are made, and the others are missing until they are, too.
    features : str, optional
        Which features file to use where a data set has several; ``res101`` by default, or the only one there is.
    device : str
        See :class:`~dgz.DGZ`.
    shared_device : bool
        Other work is done on the device meanwhile: what training takes is kept as ``fit_on_shared_device``, and counts
        in no comparison of times.
    engine : Engine
        Where runs are made, see :func:`~dgz.engines.open_engine`; one group after the other in this process by default.
    say : callable
        Given a line of text about each group of runs that is finished.

    Returns
    -------
    list of Item
        What the items are made of, whether or not all of it could be run.

    Raises
    ------
    BrokenReproductionError
        When some runs broke, after all others were made.
    DGZError
        Before any run, when something cannot be meant so.
    """
    wanted = list(dict.fromkeys(name for given in names for name in (paper_items() if given == "all" else [given])))
    specs = [load_spec(name) for name in wanted]
    if seeds is not None:
        require_count(seeds=seeds)
    library = _Library(source, features, quick)
    with Progress("runs", log_every=60.0) as progress:
        return _carry_out(
            specs,
            library,
            Store(out),
            progress,
            engine,
            quick=quick,
            seeds=seeds,
            rows=rows,
            device=device,
            shared_device=shared_device,
            say=say,
        )


def compare(
    methods: Sequence[str],
    source: str,
    out: str | Path,
    *,
    features: str = "res101",
    semantics: str = "att",
    seeds: int = 5,
    folds: int = 0,
    quick: bool = False,
    device: str = "auto",
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> Item:
    """Train methods on one data set, each with several seeds, or those of the runs that are not there yet.

    Parameters
    ----------
    methods : sequence of str
        Keys of :data:`~dgz.peers.METHODS`. Each has the settings published for a data set of this name, or its own
        defaults where there are none.
    source : str
        See :func:`~dgz.data.load_data`.
    out : str or Path
        Gets ``records/`` and ``items/``, see :class:`~dgz.paper.Store`; of one data set and one choice of methods.
    features, semantics : str
        See :func:`~dgz.data.load_data`.
    seeds : int
        How many, from 0 on.
    folds : int
        Leak-free folds of the training rows on which methods are trained once more, so that the rule ``validation``
        can say how good they are at the epoch that is best there.
    quick : bool
        With a few steps of each training: to see that it works.
    device : str
        See :class:`~dgz.DGZ`.
    engine : Engine
        Where runs are made, see :func:`~dgz.engines.open_engine`; one group after the other in this process by default.
    progress : Progress, optional
        What is told of finished runs; a bar by default.

    Returns
    -------
    Item
        Which runs the comparison is made of.

    Examples
    --------
    >>> import tempfile
    >>> item = compare(["center-ridge"], "numbers", tempfile.mkdtemp(), seeds=1)
    >>> item.blocks[0].data, list(item.blocks[0].rows)
    ('numbers', ['center-ridge'])
    """
    if not methods:
        raise DGZError("A comparison needs at least one method.")
    for method in methods:
        require_choice(method, tuple(METHODS), "method")
    require_count(seeds=seeds)
    data = load_data(source, features, semantics)
    if folds and folds not in range(2, len(data.seen) + 1):
        raise DGZError(f"folds must be 0, or from 2 to the number of seen classes ({len(data.seen)}), found {folds}.")
    if not len(data.x_test_seen) or not len(data.x_test_unseen):
        raise DGZError(f"{source} has no test rows of seen and of unseen classes, by which methods could be compared.")
    found = _Source(data.name, data.semantics, data.features, str(source))
    library = _OneDataSet(found, data)
    spec = comparison_spec(list(dict.fromkeys(methods)), f"{found.data}/{found.semantics}", seeds, folds)
    for known in Store(out).items():
        block = known.blocks[0] if known.name == spec.name else None
        if block is None or [block.data, block.semantics, block.features] != [data.name, data.semantics, data.features]:
            what = f"{known.name} on {block.title}" if block else known.name
            raise DGZError(f"{out} holds results of something else ({what}): choose another folder.")
    with progress or Progress("runs", log_every=60.0) as shown:
        (item,) = _carry_out([spec], library, Store(out), shown, engine, quick=quick, seeds=seeds, device=device)
    return item


def _carry_out(
    specs: Sequence[Spec],
    library: "_Library | _OneDataSet",
    store: Store,
    progress: Progress,
    engine: Engine,
    *,
    quick: bool,
    seeds: int | None,
    device: str,
    shared_device: bool = False,
    rows: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Item]:
    """Plan the runs of specs, say so in the store, and make those that are not there."""
    names = tuple(dict.fromkeys(row.name for spec in specs for row in spec.rows))
    for row in rows or ():
        require_choice(row, names, "row")
    if odd := [item.name for item in store.items() if item.quick != quick]:
        kind = "a quick reproduction" if not quick else "results"
        raise DGZError(
            f"{store.folder} holds {kind} ({listing(odd)}), which are not to be mixed: choose another folder."
        )
    planned = [_plan(spec, library, quick, seeds, device) for spec in specs]
    runs = {run.name: run for _, found in planned for run in found if rows is None or run.row.name in rows}
    if not runs:
        sentences = sorted({sentence for item, _ in planned for sentence in item.missing})
        items = listing([spec.name for spec in specs])
        raise DGZError(f"There is no data to run {items} on. {' '.join(sentences)}")
    left = [run for run in runs.values() if not store.is_finished(run.name)]
    workshop = _Workshop({run.source: library.load(run.source).record() for run in left if run.source is not None})
    if left:  # before anything is written: a machine that lacks the data could not make its part
        engine.check_nodes(require_same, list(map(workshop.known, workshop.planned)))
    for item, _ in planned:
        store.write_item(item)
    progress.total = len(left)
    _make(left, store, progress, say, engine, workshop, wants_gpu=device != "cpu", shared_device=shared_device)
    return [item for item, _ in planned]


# --- What data there is.
@dataclass(frozen=True)
class _Source:
    """A data set that was found, and is read when it is first needed."""

    data: str
    semantics: str
    features: str
    folder: str

    def load(self) -> GZSLData:
        return load_data(self.folder, self.features, self.semantics)


class _Library:
    """Where specs get their data from; each data set is read once."""

    def __init__(self, folder: str | Path | None, features: str | None, quick: bool) -> None:
        self.folder = None if folder is None else Path(folder)
        self.features, self.quick = features, quick
        self._loaded: dict[_Source, GZSLData] = {}
        if self.folder is not None and not self.folder.is_dir():
            raise DGZError(f"{folder} is no folder.")

    def find(self, spec: Spec) -> tuple[list[_Source], list[str]]:
        """The data sets of a spec that are there, and a sentence about each of the others."""
        if self.quick and spec.data:
            return [_EMBEDDED], []
        found = []
        missing: dict[str, list[str]] = {}
        for name in spec.data:
            data, _, semantics = name.partition("/")
            source = _EMBEDDED if data == _EMBEDDED.data else self._look_for(data, semantics)
            if isinstance(source, str):
                missing.setdefault(source, []).append(name)
            else:
                found.append(source)
        return found, [f"{', '.join(of)}: {reason}" for reason, of in missing.items()]

    def _look_for(self, data: str, semantics: str) -> "_Source | str":
        """A data set, or why there is none."""
        name = data.removesuffix("*")
        tuned = data.endswith("*")
        if self.folder is None:
            return "no folder was given (--data)."
        folder = self.folder / name
        files = sorted(path.stem for path in folder.glob("*.mat") if not path.stem.endswith("_splits"))
        fitting = [stem for stem in files if says_fine_tuned(stem) == tuned]
        asked = [stem for stem in fitting if stem == self.features] if self.features and not tuned else fitting
        if tuned and not asked:
            return "no features of a fine-tuned backbone were found; the package fetches none."
        if not asked or not (folder / f"{semantics}_splits.mat").is_file():
            wanted = f"features {self.features}" if self.features else "features"
            what = "class vectors and splits" if asked else wanted
            return f"no {what} were found; 'dgz data download xlsa17 --to DIR' fetches the field's standard files."
        if len(asked) > 1 and "res101" not in asked:
            way_out = "leave one of them there" if tuned else "choose with --features"
            return f"features {', '.join(asked)} were found, and none is called res101; {way_out}."
        chosen = "res101" if "res101" in asked else asked[0]
        return _Source(data, semantics, chosen, str(folder))

    def load(self, source: _Source) -> GZSLData:
        """A data set that was found."""
        if source not in self._loaded:
            self._loaded[source] = source.load()
        return self._loaded[source]


class _OneDataSet:
    """Where a comparison gets its data from: one data set that was read already."""

    def __init__(self, source: _Source, data: GZSLData) -> None:
        self.source, self.data = source, data

    def find(self, spec: Spec) -> tuple[list[_Source], list[str]]:
        return [self.source], []

    def load(self, source: _Source) -> GZSLData:
        return self.data


_EMBEDDED = _Source("numbers", "strokes", "pixels", "numbers")


# --- What is to be run.
@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run, not yet made."""

    name: str
    row: Row
    model: GZSLClassifier | None  # None is the toy
    seed: int
    source: _Source | None
    library: "_Library | _OneDataSet | _Workshop | None"  # none on its way to another machine
    fold: tuple[int, int] | None  # number, and of how many
    quick: bool

    @property
    def data(self) -> GZSLData:
        data = cast("_Library | _OneDataSet | _Workshop", self.library).load(cast(_Source, self.source))
        if self.fold is None:
            return data
        number, n_folds = self.fold
        return validation_folds(data, n_folds)[number]

    @cached_property
    def group(self) -> str:
        """The same for runs that can be made together: those that share a generator, trained on the same rows."""
        if not isinstance(self.model, ComposedMethod) or self.row.evaluate_every or self.row.alone:
            return self.name
        known = [str(self.source), self.fold, self.row.subset, generator_key(self.model, self.seed)]
        known += [self.model.feature_scaling, self.model.attribute_scaling]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def _plan(
    spec: Spec, library: "_Library | _OneDataSet", quick: bool, seeds: int | None, device: str
) -> tuple[Item, list[_Run]]:
    """The runs of an item on all data sets that there are."""
    sources, missing = library.find(spec)
    runs: list[_Run] = []
    blocks = []
    nothing_to_read: list[_Source | None] = [None]
    for source in sources if spec.data else nothing_to_read:
        rows: dict[str, list[str]] = {}
        folds: dict[str, list[str]] = {}
        for row in spec.rows:
            n_seeds = seeds or (min(row.seeds or spec.seeds, _QUICK["seeds"]) if quick else row.seeds or spec.seeds)
            own = [_run(row, source, seed, None, library, quick, device) for seed in range(n_seeds)]
            n_folds = min(spec.folds, _QUICK["folds"]) if quick else spec.folds
            if row.method in METHODS and issubclass(METHODS[row.method], ClosedForm):
                n_folds = 0  # it has no epochs to choose from
            held_out = [_run(row, source, 0, (k, n_folds), library, quick, device) for k in range(n_folds)]
            rows[row.name] = [run.name for run in own]
            if held_out:
                folds[row.name] = [run.name for run in held_out]
            runs += [*own, *held_out]
        known = source or _Source(_TOY, "", "", "")
        blocks.append(
            Block(data=known.data, semantics=known.semantics, features=known.features, rows=rows, folds=folds)
        )
    return Item(name=spec.name, quick=quick, blocks=blocks, missing=missing), runs


def _as_first_named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings without those that were added later, where they are what they were before."""
    named = {name: value for name, value in settings.items() if (name, value) not in _ADDED_LATER.items()}
    if inner := named.get("generator"):
        later = _ADDED_LATER_TO_GENERATORS.items()
        named["generator"] = {name: value for name, value in inner.items() if (name, value) not in later}
    return named


def _run(
    row: Row,
    source: _Source | None,
    seed: int,
    fold: tuple[int, int] | None,
    library: "_Library | _OneDataSet",
    quick: bool,
    device: str,
) -> _Run:
    """A run with its name, which says what it is to people, and by a hash of everything to machines."""
    model = None
    if source is not None:
        model = _model(row, source, library, quick).set_params(random_state=seed)
        if isinstance(model, TrainedMethod):
            model.set_params(device=device)
        model.check()
    if quick:
        row = replace(row, evaluate_every=min(row.evaluate_every, 1))
    settings = None if model is None else {**model.settings(), "device": None, "verbose": None}
    known = {
        "method": row.method,
        "settings": _as_first_named(settings) if settings else row.set,
        "data": None if source is None else library.load(source).record()["hashes"],
        "fold": fold,
        "subset": row.subset,
        "observe": row.observe,
        "evaluate_every": row.evaluate_every,
        "quick": quick,
        **({"alone": True} if row.alone else {}),  # one that shared its training has no time of its own
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:10]
    where = _TOY if source is None else f"{source.data}-{source.semantics}".replace("*", "-tuned").lower()
    held_out = "" if fold is None else f"-fold{fold[0]}"
    return _Run(
        name=f"{where}-{row.method}-{digest}{held_out}-{seed}",
        row=row,
        model=model,
        seed=seed,
        source=source,
        library=library,
        fold=fold,
        quick=quick,
    )


def _model(row: Row, source: _Source, library: "_Library | _OneDataSet", quick: bool) -> GZSLClassifier:
    """The unfitted model of a row: the method as published for the data set, and the row's settings."""
    model = make_method(row.method, source.data.removesuffix("*"), source.semantics)
    configure(model, [f"{key}={value}" for key, value in row.set.items()])
    if row.subset:
        n_steps = min(row.subset["n_steps"], _QUICK["steps"]) if quick else row.subset["n_steps"]
        n_rows = len(_subset(row, library.load(source), 0))
        model.set_params(
            generator__n_epochs=math.ceil(n_steps / math.ceil(n_rows / model.get_params()["generator__batch_size"]))
        )
    return shortened(model) if quick else model


def shortened(model: Method) -> Method:
    """A method that trains for a few steps alone, in place: to see that everything works."""
    settings = _QUICK_METHOD | {f"generator__{name}": most for name, most in _QUICK_GENERATOR.items()}
    known = model.get_params()
    shorter = {
        name: most if known[name] is None else min(known[name], most)
        for name, most in settings.items()
        if name in known
    }
    return model.set_params(**shorter)  # type: ignore[no-any-return]


def _subset(row: Row, data: GZSLData, seed: int) -> Ints:
    """The rows that the generator of a row learns from (Fig. A.1): some of the classes, some rows of each."""
    rng = np.random.default_rng(seed)
    n_classes = round(len(data.seen) * row.subset.get("share_of_classes", 1.0))
    classes = rng.permutation(data.seen)[: max(n_classes, 1)]
    total = row.subset.get("n_rows")
    chosen: list[Ints] = []
    for k, label in enumerate(classes):
        # Evenly, as far as whole numbers can be: the first classes have the rows that are left over.
        n = row.subset["n_rows_per_class"] if total is None else total // len(classes) + (k < total % len(classes))
        chosen.append(rng.permutation(np.flatnonzero(data.y_train == label))[:n])
    return np.sort(np.concatenate(chosen))


# --- Making runs.
@dataclass(frozen=True)
class _Made:
    """What came of a group of runs: for each its record, or none, and the sentence about those that broke."""

    records: Sequence[Record | None]
    sentence: str = ""
    seconds: float = 0.0


class _Workshop:
    """Where groups of runs are made and get their data from, on the machines of an engine.

    Each worker has its own, and reads there what it needs: the data sets that were planned with, in the same folders.
    """

    def __init__(self, planned: dict[_Source, dict[str, Any]]) -> None:
        self.planned = planned
        self._loaded: dict[_Source, GZSLData] = {}

    def known(self, source: _Source) -> tuple[str, str, str, dict[str, Any]]:
        """Where a data set is on every machine, and what it must be."""
        is_embedded = source.folder == _EMBEDDED.folder
        folder = source.folder if is_embedded else str(Path(source.folder).absolute())
        return folder, source.features, source.semantics, self.planned[source]

    def load(self, source: _Source) -> GZSLData:
        """A data set, which must be the one that was planned with: this machine may have joined the others since."""
        if source not in self._loaded:
            self._loaded = {source: load_same(*self.known(source))}  # one: all workers of a machine share its memory
        return self._loaded[source]

    def make(self, runs: Sequence[_Run]) -> _Made:
        """Make runs that share a generator. States of an unfinished training end with the worker."""
        with tempfile.TemporaryDirectory() as folder:
            return _make_group([replace(one, library=self) for one in runs], Path(folder) / "unfinished")


def _make(
    runs: Sequence[_Run],
    store: Store,
    progress: Progress,
    say: Callable[[str], None],
    engine: Engine,
    workshop: _Workshop,
    *,
    wants_gpu: bool,
    shared_device: bool,
) -> None:
    """Make runs, group by group; a group that another process is at is left to it until nothing else is left to do."""
    groups: dict[str, list[_Run]] = {}
    for one in runs:
        groups.setdefault(one.group, []).append(one)
    broken: list[str] = []

    def make_here(todo: Sequence[_Run]) -> _Made:
        with _followed(todo, progress):
            return _make_group(todo, store.folder / ".unfinished" / todo[0].group)

    def make_all(left: Sequence[str], wait: bool) -> list[str]:
        """Make groups, but for those that another process is at: these are given back."""
        passed_over: list[str] = []
        begun: list[tuple[contextlib.ExitStack, list[_Run], list[_Run]]] = []

        def begin() -> Iterator[list[_Run]]:
            for k, name in enumerate(left):
                members, lock = groups[name], contextlib.ExitStack()
                # Whoever waits holds nothing that another one may be waiting for.
                if not lock.enter_context(locked(store.folder / ".locks" / name, wait=wait and k == 0)):
                    lock.close()
                    passed_over.append(name)
                    continue
                todo = [run for run in members if not store.is_finished(run.name)]  # by another process, meanwhile
                if todo:
                    begun.append((lock, members, todo))
                    yield todo if engine.is_local else [replace(one, library=None) for one in todo]
                else:
                    progress.advance(len(members), note=members[0].name)
                    lock.close()

        try:
            work = make_here if engine.is_local else workshop.make
            for index, made in engine.run(work, begin(), wants_gpu=wants_gpu):
                lock, members, todo = begun[index]
                if isinstance(made, LostWorkError):
                    made = _Made([None] * len(todo), str(made))
                with lock:
                    broken.extend(_keep(todo, made, store, shared_device))
                    progress.advance(len(members), note=members[0].name)
                say(f"{made.seconds:6.1f} s  {len(todo):3d} x {todo[0].name}")
        finally:
            for lock, _, _ in begun:
                lock.close()
        return passed_over

    left, wait = list(groups), False
    while left:
        left, wait = make_all(left, wait), True
    for left_behind in (store.folder / ".locks").glob("*"):  # by a process that was killed, unless it is held
        with locked(left_behind, wait=False):
            pass
    with contextlib.suppress(OSError):  # not empty: another process is at work, and may be about to keep a state
        (store.folder / ".locks").rmdir()
        (store.folder / ".unfinished").rmdir()
    if broken:
        sentence = f"{len(broken)} of {len(runs)} runs broke, the others are finished: {listing(broken)}."
        raise BrokenReproductionError(sentence)


@contextlib.contextmanager
def _followed(runs: Sequence[_Run], progress: Progress) -> Iterator[None]:
    """Say in ``progress`` which runs are being made inside the block, and how far their training has come.

    Not how far on a GPU, which would have to wait after every epoch: seconds of records are not to hang on who looks.
    """
    first, others = runs[0], f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    held_out = f", fold {first.fold[0] + 1} of {first.fold[1]}" if first.fold else ""
    label = f"{first.row.name}{held_out}, seed {first.seed}{others}"
    progress.advance(0, note=label)
    model: Any = first.model
    if not isinstance(model, TrainedMethod) or pick_device(model.device).type != "cpu":
        yield
        return
    generator = model._new_generator() if hasattr(model, "_new_generator") else None
    n_epochs = {"generator": getattr(generator, "n_epochs", None), "classifier": getattr(model, "n_epochs", None)}

    def follow(stage: str, epoch: int, row: dict[str, Any]) -> None:
        of = n_epochs.get(stage.rpartition("/")[2])
        progress.advance(0, note=f"{label}: {stage}, epoch {epoch}{f' of {of}' if of else ''}")

    with watching(follow):
        yield


def _make_group(runs: Sequence[_Run], unfinished: Path) -> _Made:
    """Make runs that share a generator."""
    start = time.perf_counter()
    records: Sequence[Record | None]
    sentence = ""
    try:
        with one_thread() if runs[0].quick else contextlib.nullcontext():
            records = list(_records(runs, unfinished))
    except BrokenRunsError as error:
        records, sentence = _in_place(runs, error.records), str(error)
    except DGZError as error:
        records, sentence = [None] * len(runs), str(error)
    return _Made(records, sentence, time.perf_counter() - start)


def _records(runs: Sequence[_Run], unfinished: Path) -> Iterator[Record | None]:
    first = runs[0]
    if first.model is None:
        yield from (_toy_record(one) for one in runs)
        return
    data = first.data
    options = {"projection": {"n_classes": 3, "n_rows": 4}} if first.quick else {}
    observe = [{name: options.get(name, {}) for name in ("generation", *one.row.observe)} for one in runs]
    if first.row.evaluate_every:
        for one, wanted in zip(runs, observe, strict=True):
            yield run(clone(one.model), data, evaluate_every=one.row.evaluate_every, observe=wanted)
        return
    rows = _subset(first.row, data, first.seed) if first.row.subset else None
    models = [clone(one.model) for one in runs]  # what is learned goes when the records are there
    made = run_many(models, data, observe=observe, generator_rows=rows, checkpoint_folder=unfinished)
    about_rows = {} if rows is None else {"generator_rows": {**first.row.subset, "n": len(rows)}}
    yield from (replace(record, data={**record.data, **about_rows}) for record in made)


def _in_place(runs: Sequence[_Run], records: Sequence[Record]) -> list[Record | None]:
    """For each run, its record among those of the runs that did not break."""
    found: list[Record | None] = []
    left = list(records)
    for one in runs:
        settings = None if one.model is None else one.model.settings()
        mine = next((record for record in left if record.params == settings and record.seed == one.seed), None)
        if mine is not None:
            left.remove(mine)
        found.append(mine)
    return found


def _keep(runs: Sequence[_Run], made: _Made, store: Store, shared_device: bool) -> list[str]:
    """Keep the records of a group of runs; gives sentences about those that broke."""
    broken = []
    for one, record in zip(runs, made.records, strict=True):
        if record is None:
            broken.append(f"{one.name} ({made.sentence})")
        else:
            if shared_device:
                record = replace(record, seconds={_on_shared_device(name): s for name, s in record.seconds.items()})
            # Names of hundreds of classes in hundreds of files: the data set has them, and its hash is there.
            store.write(one.name, replace(record, quick=one.quick, class_names={}))
    if not broken:
        shutil.rmtree(store.folder / ".unfinished" / runs[0].group, ignore_errors=True)
    return broken


def _on_shared_device(part: str) -> str:
    """The name for the time of a part of a run that did not have the device to itself."""
    return "fit_on_shared_device" if part in {"fit", "fit_together"} else part


def _toy_record(one: _Run) -> Record:
    """The record of Fig. A.2's toy, which has no classes to recognise and so no scores."""
    start = time.perf_counter()
    noise = float(one.row.set["attribute_noise"])
    n_epochs = _QUICK["generator_epochs"] if one.quick else _TOY_EPOCHS
    observed = toy(noise, seed=one.seed, n_epochs=n_epochs)
    return Record(
        method="WGANGP",
        params={"generator": {"kind": "WGANGP", **one.row.set, "n_epochs": n_epochs}},
        seed=one.seed,
        selection="last",
        data={"name": _TOY, "hashes": {}},
        class_names={},
        unseen=[],
        scores={},
        observed={"toy": observed},
        seconds={"fit": time.perf_counter() - start},
        device="CPU",
    )
