"""The paper run again: what a run is called, that each is made once, and that nothing finished is ever lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from dgz import reproduce as module
from dgz import training
from dgz.data import GZSLData, load_numbers, make_synthetic, save_bundle
from dgz.errors import DGZError
from dgz.experiments import run
from dgz.files import write_json
from dgz.paper import Item, Row, Spec, Store, item_names, load_spec, paper_items
from dgz.paper.spec import parse_spec
from dgz.records import Record, read_record_file
from dgz.report.paper_tables import training_seconds
from dgz.reproduce import _EMBEDDED, _Library, _model, _plan, _subset, compare, reproduce
from dgz.training import Checkpoints

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
ONE_THREAD = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
# Nets that are trained in a moment: without a generator, and with one.
MAPPED = {"n_epochs": 2, "d_hidden": 8, "learning_rate": 0.003, "generator.n_epochs": 2, "generator.hidden": [8]}
GENERATED = {**MAPPED, "generator.critic_hidden": 8, "generator.n_critic": 1}


def mapped(name: str, settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A row without a generator, as a spec has it."""
    return {"name": name, "method": "dgz-without-generator", "set": {**MAPPED, **(settings or {})}, **more}


def generated(name: str, settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A row with a generator."""
    return {"name": name, "method": "dgz", "set": {**GENERATED, **(settings or {})}, **more}


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml(key)} = {toml(one)}' for key, one in value.items())}}}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def text_of(*rows: dict[str, Any], **head: Any) -> str:
    """The text of a spec with these rows."""
    content = {"title": "T", "place": "P", "kind": "table", "data": ["numbers/strokes"], "seeds": 1, **head}
    return "\n".join(f"{key} = {toml(value)}" for key, value in {**content, "row": list(rows)}.items())


def spec(name: str, *rows: dict[str, Any], **head: Any) -> Spec:
    return parse_spec(name, text_of(*rows, **head))


TOY = spec("toys", {"name": "a", "method": "toy", "set": {"attribute_noise": 1}}, kind="toy", data=[])


@pytest.fixture(scope="module")
def small() -> GZSLData:
    return make_synthetic(8, 2, n_attributes=6, n_features=12, n_samples=160, random_state=1)


@pytest.fixture(scope="module")
def bundle(small: GZSLData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "small"
    save_bundle(small, folder)
    return folder


@pytest.fixture
def specs(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Spec]:
    """Specs by the names of items, to be filled by a test; the embedded data is a small made-up set."""
    found: dict[str, Spec] = {}
    monkeypatch.setattr(module, "_EMBEDDED", replace(_EMBEDDED, folder=str(bundle)))
    monkeypatch.setattr(module, "load_spec", found.__getitem__)
    monkeypatch.setattr(module, "paper_items", lambda: list(found))
    return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """The settings of the models of every group that was made, in order."""
    groups: list[list[dict[str, Any]]] = []
    alone, together = module.run, module.run_many

    def count_alone(model: Any, *arguments: Any, **options: Any) -> Record:
        groups.append([model.settings()])
        return alone(model, *arguments, **options)

    def count(models: Sequence[Any], *arguments: Any, **options: Any) -> list[Record]:
        groups.append([model.settings() for model in models])
        return together(models, *arguments, **options)

    monkeypatch.setattr(module, "run", count_alone)
    monkeypatch.setattr(module, "run_many", count)
    return groups


def runs_of(items: Sequence[Item]) -> list[str]:
    """Every run that items are made of, as often as they speak of it."""
    parts = [part for item in items for block in item.blocks for part in (block.rows, block.folds)]
    return [name for part in parts for names in part.values() for name in names]


def records_in(folder: Path) -> dict[str, Record]:
    """All records of a folder, whatever items say."""
    return {path.stem: read_record_file(path) for path in sorted((folder / "records").glob("*.json"))}


def marks_of(folder: Path) -> dict[str, tuple[int, int]]:
    """What changes when a record is written again."""
    found = (folder / "records").glob("*.json")
    return {path.stem: ((status := path.stat()).st_ino, status.st_mtime_ns) for path in found}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def without_times(record: Record) -> Record:
    return replace(record, seconds={})


# --- What a run is called.
def planned(one: Spec, *, quick: bool = False, seeds: int | None = None, device: str = "cpu") -> list[str]:
    item, found = _plan(one, _Library(None, None, quick), quick, seeds, device)
    assert sorted(runs_of([item])) == sorted(each.name for each in found)
    return runs_of([item])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lambda_1", 2), ("lambda_2", 2), ("temperature", 0.05), ("gate", "always"), ("loss", "plain"),
        ("weights", "free"), ("distribution", "large"), ("n_per_class", 51), ("large_std", 9), ("batch_size", 511),
        ("lr_step", 24), ("resample", True), ("feature_scaling", "minmax"), ("attribute_scaling", "unit"),
        ("precision", "bf16"), ("n_epochs", 3), ("generator.n_epochs", 3), ("generator.attribute_noise", 0.07),
        ("generator.prior", False), ("generator.batch_size", 500), ("generator.learning_rate", 2e-4),
        ("generator.l2", 0.1), ("generator.fgm", 0.1), ("generator", "CVAE"),
    ],
)  # fmt: skip
def test_a_run_of_another_setting_has_another_name(specs: dict[str, Spec], setting: str, value: Any) -> None:
    (before,) = planned(spec("a", {"name": "a", "method": "dgz"}))
    (after,) = planned(spec("a", {"name": "a", "method": "dgz", "set": {setting: value}}))
    assert before != after
    assert after.startswith("numbers-strokes-dgz-")


def test_a_runs_name_says_all_that_it_depends_on(
    specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch, small: GZSLData, tmp_path: Path
) -> None:
    plain = spec("a", generated("a"))
    (first, second) = planned(plain, seeds=2)
    assert (first[-2:], second[-2:]) == ("-0", "-1")
    folds = planned(replace(plain, folds=2))[1:]
    others = [
        [first],
        [second],
        folds,
        planned(replace(plain, folds=3))[1:],
        planned(spec("a", mapped("a"))),
        planned(plain, quick=True),
        planned(spec("a", generated("a", observe=["gradients"]))),
        planned(spec("a", generated("a", evaluate_every=1))),
        planned(spec("a", generated("a", subset={"n_rows_per_class": 3, "n_steps": 9}))),
        planned(spec("a", generated("a", subset={"n_rows_per_class": 4, "n_steps": 9}))),
        planned(spec("a", generated("a", subset={"n_rows": 20, "n_steps": 9}))),
        planned(spec("a", generated("a", subset={"n_rows": 20, "share_of_classes": 0.5, "n_steps": 9}))),
        planned(TOY),
        planned(TOY, quick=True),
        planned(replace(TOY, rows=(replace(TOY.rows[0], set={"attribute_noise": 0}),))),
    ]
    save_bundle(replace(small, attributes=small.attributes * 2), tmp_path / "other")
    monkeypatch.setattr(module, "_EMBEDDED", replace(_EMBEDDED, folder=str(tmp_path / "other")))
    others.append(planned(plain))
    names = [name for found in others for name in found]
    assert len(set(names)) == len(names) == 19
    assert all("-fold0-0" in a and "-fold1-0" in b for a, b in [folds])


def test_a_runs_name_depends_on_nothing_else(specs: dict[str, Spec]) -> None:
    one, other = (
        spec("a", generated("a"), mapped("b")),
        spec("b", mapped("another title"), generated("a", {"generator.n_epochs": 3})),
    )
    assert planned(one) == planned(one, device="auto") == planned(one, seeds=1)
    assert planned(one)[1] == planned(other)[0]  # whatever the row and its item are called, in whatever order
    assert planned(replace(one, rows=one.rows[::-1])) == planned(one)[::-1]


# --- Each run is made once.
def test_runs_that_items_share_are_made_once_and_finished_ones_never_again(
    specs: dict[str, Spec], made: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    specs["one"] = spec("one", mapped("a"), mapped("b", {"lambda_1": 2}), seeds=2)
    specs["two"] = spec("two", mapped("x", {"lambda_1": 2}), mapped("y", {"lambda_1": 3}), seeds=2)
    specs["three"] = spec("three", mapped("x", {"lambda_1": 2}), seeds=1)
    lines: list[str] = []
    items = reproduce(["two", "one", "three", "two"], None, tmp_path, device="cpu", say=lines.append)
    assert [item.name for item in items] == ["two", "one", "three"]
    assert len(runs_of(items)) == 9
    records = records_in(tmp_path)
    assert set(records) == set(runs_of(items))
    # Three settings share a generator, so that they are made together; another seed has another generator.
    assert [sorted(one["lambda_1"] for one in group) for group in made] == [[1, 2, 3], [1, 2, 3]]
    assert [{one["random_state"] for one in group} for group in made] == [{0}, {1}]
    assert [line.split()[2] for line in lines] == ["3", "3"]
    assert items[1].blocks[0].rows["b"] == items[0].blocks[0].rows["x"]
    assert list(Store(tmp_path).items()) == sorted(items, key=lambda item: item.name)
    assert names_in(tmp_path) == {"items", "records"}

    before = marks_of(tmp_path)
    assert reproduce(["all"], None, tmp_path, device="cpu") == [items[1], items[0], items[2]]
    assert len(made) == 2
    assert marks_of(tmp_path) == before
    # One that is gone, and more seeds: only those are made.
    lost = items[0].blocks[0].rows["y"][0]
    Store(tmp_path).record_path(lost).unlink()
    reproduce(["two"], None, tmp_path, seeds=3, device="cpu")
    assert [[(one["lambda_1"], one["random_state"]) for one in group] for group in made[2:]] == [
        [(2, 2), (3, 2)],
        [(3, 0)],
    ]
    after = marks_of(tmp_path)
    assert {name: mark for name, mark in after.items() if name in before and name != lost} == {
        name: mark for name, mark in before.items() if name != lost
    }
    assert without_times(records_in(tmp_path)[lost]) == without_times(records[lost])


def test_a_record_is_what_a_run_by_itself_would_have_given(
    specs: dict[str, Spec], small: GZSLData, tmp_path: Path
) -> None:
    rows = [
        generated("a", observe=["gradients"]),
        generated("b", {"lambda_1": 2}),
        generated("c", evaluate_every=1),
        mapped("d", {"n_per_class": 7}),
    ]
    specs["one"] = spec("one", *rows, seeds=2, folds=2)
    (item,) = reproduce(["one"], None, tmp_path, device="cpu")
    records = records_in(tmp_path)
    (block,) = item.blocks
    assert (block.data, block.semantics, block.features) == ("numbers", "strokes", "pixels")
    for row in specs["one"].rows:
        names = block.rows[row.name]
        assert [records[name].seed for name in names] == [0, 1]
        assert [name[-8:] for name in block.folds[row.name]] == ["-fold0-0", "-fold1-0"]
        source = module._EMBEDDED
        model = _model(row, source, _Library(None, None, False), False).set_params(random_state=1, device="cpu")
        alone = run(model, small, evaluate_every=row.evaluate_every, observe={"generation": {}})
        found = records[names[1]]
        assert found.params == alone.params | {"verbose": False}
        assert (found.data, found.unseen) == (alone.data, alone.unseen)
        assert found.scores["h"] == pytest.approx(alone.scores["h"], abs=1e-6)
        assert found.scores["cmmd"] == pytest.approx(alone.scores["cmmd"], rel=1e-3)
        assert found.scores["cacd"] == pytest.approx(alone.scores["cacd"], rel=1e-3)
        assert found.curve.keys() == alone.curve.keys()
        assert found.curve["generator"].keys() == alone.curve["generator"].keys()
        assert set(found.observed) == set(row.observe)
        assert not found.quick
        on_fold = records[block.folds[row.name][1]]
        assert on_fold.data["name"].endswith("(fold 2 of 2)")
    assert "cacd" in records[block.rows["c"][0]].curve["generator"]


def test_seeds_are_limited_everywhere(specs: dict[str, Spec], tmp_path: Path) -> None:
    specs["one"] = spec("one", mapped("a", seeds=4), mapped("b", {"lambda_1": 2}), seeds=3)
    (item,) = reproduce(["one"], None, tmp_path, seeds=1, device="cpu")
    assert [len(names) for names in item.blocks[0].rows.values()] == [1, 1]
    assert [len(planned(specs["one"], seeds=seeds)) for seeds in (None, 2)] == [7, 4]
    with pytest.raises(DGZError, match=r"seeds must be a whole number from 1 up, found 0\."):
        reproduce(["one"], None, tmp_path / "none", seeds=0)
    assert not (tmp_path / "none").exists()


def test_a_toy_says_how_long_it_was_trained(
    specs: dict[str, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs["toys"] = TOY
    asked: list[Any] = []

    def toy(noise: float, **options: Any) -> dict[str, Any]:
        asked.append((noise, options))
        return {"std": [1.0, 1.0]}

    monkeypatch.setattr(module, "toy", toy)
    for quick in (False, True):
        (item,) = reproduce(["toys"], None, tmp_path / str(quick), quick=quick)
        (record,) = records_in(tmp_path / str(quick)).values()
        assert (item.blocks[0].data, item.blocks[0].title, item.missing) == ("toy", "toy", [])
        assert (record.quick, record.scores, record.observed) == (quick, {}, {"toy": {"std": [1.0, 1.0]}})
        assert record.params["generator"]["n_epochs"] == asked[-1][1]["n_epochs"]
    assert asked == [(1.0, {"seed": 0, "n_epochs": 600}), (1.0, {"seed": 0, "n_epochs": 1})]


# --- Quick runs are no results.
@pytest.mark.parametrize("quick", [False, True])
def test_quick_and_full_runs_never_share_a_folder(
    specs: dict[str, Spec], made: list[list[dict[str, Any]]], tmp_path: Path, quick: bool
) -> None:
    specs["one"], specs["two"] = spec("one", mapped("a")), spec("two", mapped("b"))
    reproduce(["one"], None, tmp_path, quick=quick, device="cpu")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    made.clear()
    kind = "a quick reproduction" if quick else "results"
    for name in ("one", "two"):
        with pytest.raises(
            DGZError, match=rf"holds {kind} \(one\), which are not to be mixed: choose another folder\."
        ):
            reproduce([name], None, tmp_path, quick=not quick, device="cpu")
    assert made == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {record.quick for record in records_in(tmp_path).values()} == {quick}


def test_quick_runs_are_short_and_on_embedded_data_alone(specs: dict[str, Spec], tmp_path: Path) -> None:
    specs["one"] = spec(
        "one",
        generated("a", {"n_per_class": 400, "generator.n_epochs": 300}, evaluate_every=30),
        generated("b", {"generator.n_epochs": 300}, subset={"n_rows": 20, "n_steps": 2000}),
        data=["AWA2/att", "CUB*/sent"],
        seeds=10,
        folds=3,
    )
    (item,) = reproduce(["one"], tmp_path, tmp_path / "out", quick=True, device="cpu")  # whatever folder is given
    (block,) = item.blocks
    assert (item.quick, item.missing, block.data) == (True, [], "numbers")
    assert {len(names) for part in (block.rows, block.folds) for names in part.values()} == {2}
    for record in records_in(tmp_path / "out").values():
        assert record.quick
        assert record.params["n_epochs"] == 2
        assert record.params["n_per_class"] == 10
        assert record.params["generator"]["n_epochs"] == 1
        assert record.params["batch_size"] == 512
        assert record.params["generator"]["batch_size"] == 256
        assert record.params["generator"]["n_critic"] == 1


def test_no_result_in_this_repository_is_of_a_quick_run() -> None:
    folder = ROOT / "results"
    assert [item.name for item in Store(folder).items() if item.quick] == []
    assert [name for name, record in records_in(folder).items() if record.quick] == []


# --- What data there is.
def write_xlsa(folder: Path, data: GZSLData, features: Sequence[str], semantics: Sequence[str]) -> None:
    """A data set in the layout of xlsa17, with features and class vectors of these names."""
    folder.mkdir(parents=True)
    splits = {"trainval_loc": "train", "test_seen_loc": "test_seen", "test_unseen_loc": "test_unseen"}
    parts = [(getattr(data, f"x_{name}"), getattr(data, f"y_{name}")) for name in splits.values()]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    ends = np.cumsum([0, *(len(part) for _, part in parts)])
    index = {name: np.arange(ends[k], ends[k + 1])[:, None] + 1 for k, name in enumerate(splits)}
    names = np.array([[name] for name in data.class_names], dtype=object)
    for k, name in enumerate(features):
        scipy.io.savemat(folder / f"{name}.mat", {"features": (x * (k + 1)).T, "labels": y[:, None] + 1})
    for name in semantics:
        scipy.io.savemat(folder / f"{name}_splits.mat", {"att": data.attributes.T, "allclasses_names": names, **index})


def found_in(
    folder: Path | None, *data: str, features: str | None = None
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Data, class vectors and features of what was found, and the sentences about what was not."""
    one = spec("one", mapped("a"), data=list(data))
    found, missing = _Library(folder, features, False).find(one)
    return [(source.data, source.semantics, source.features) for source in found], missing


def test_the_features_file_is_chosen_by_name_where_there_are_several(small: GZSLData, tmp_path: Path) -> None:
    write_xlsa(tmp_path / "CUB", small, ["res50", "res101", "clip"], ["att", "sent"])
    write_xlsa(tmp_path / "AWA2", small, ["vgg"], ["att"])
    assert found_in(tmp_path, "CUB/sent", "CUB/att") == ([("CUB", "sent", "res101"), ("CUB", "att", "res101")], [])
    (tmp_path / "CUB" / "res101.mat").unlink()
    assert found_in(tmp_path, "CUB/sent") == (
        [],
        ["CUB/sent: features clip, res50 were found, and none is called res101; choose with --features."],
    )
    assert found_in(tmp_path, "CUB/sent", features="clip") == ([("CUB", "sent", "clip")], [])
    assert found_in(tmp_path, "AWA2/att") == ([("AWA2", "att", "vgg")], [])
    found, missing = found_in(tmp_path, "AWA2/att", "CUB/sent", features="res50")
    assert found == [("CUB", "sent", "res50")]
    assert missing == [
        "AWA2/att: no features res50 were found; 'dgz data download xlsa17 --to DIR' fetches the field's standard files."
    ]


@pytest.mark.parametrize(
    "name", ["res101_finetuned", "finetune_res101", "resnet_ft", "fine-tuned", "res101_fine_tuned"]
)
def test_fine_tuned_features_are_known_by_the_name_of_their_file(small: GZSLData, tmp_path: Path, name: str) -> None:
    write_xlsa(tmp_path / "CUB", small, ["res50", name], ["sent"])
    assert found_in(tmp_path, "CUB/sent", "CUB*/sent") == ([("CUB", "sent", "res50"), ("CUB*", "sent", name)], [])
    (tmp_path / "CUB" / "res50.mat").unlink()
    found, missing = found_in(tmp_path, "CUB/sent", "CUB*/sent", features="res101")
    assert found == [("CUB*", "sent", name)]  # there is but one, whatever the common ones are called
    assert len(missing) == 1
    assert missing[0].startswith("CUB/sent: no features res101 were found")


def test_what_is_missing_is_said_in_sentences(small: GZSLData, tmp_path: Path) -> None:
    write_xlsa(tmp_path / "CUB", small, ["res101"], ["att"])
    write_xlsa(tmp_path / "SUN", small, [], ["att"])
    found, missing = found_in(
        tmp_path, "AWA2/att", "CUB/sent", "CUB/att", "SUN/att", "APY/att", "AWA2*/att", "CUB*/sent"
    )
    assert found == [("CUB", "att", "res101")]
    fetched = "'dgz data download xlsa17 --to DIR' fetches the field's standard files."
    assert missing == [
        f"AWA2/att, SUN/att, APY/att: no features were found; {fetched}",
        f"CUB/sent: no class vectors and splits were found; {fetched}",
        "AWA2*/att, CUB*/sent: no features of a fine-tuned backbone were found; the package fetches none.",
    ]
    assert found_in(None, "AWA2/att", "numbers/strokes") == (
        [("numbers", "strokes", "pixels")],
        ["AWA2/att: no folder was given (--data)."],
    )


def test_what_there_is_is_run_and_what_is_not_is_kept_in_mind(
    specs: dict[str, Spec], small: GZSLData, tmp_path: Path
) -> None:
    write_xlsa(tmp_path / "data" / "CUB", small, ["res50", "res50_finetuned"], ["sent", "att"])
    specs["one"] = spec("one", mapped("a"), data=["AWA2/att", "CUB/sent", "CUB/att", "CUB*/sent"])
    out = tmp_path / "out"
    (item,) = reproduce(["one"], tmp_path / "data", out, device="cpu")
    titles = [block.title for block in item.blocks]
    assert titles == ["CUB, res50, sent", "CUB, res50, att", "CUB*, res50_finetuned, sent"]
    assert [sentence[:8] for sentence in item.missing] == ["AWA2/att"]
    assert next(Store(out).items()) == item
    names = [block.rows["a"][0] for block in item.blocks]
    assert [name.partition("-dgz")[0] for name in names] == ["cub-sent", "cub-att", "cub-tuned-sent"]
    records = records_in(out)
    assert [records[name].data["features"] for name in names] == ["res50", "res50", "res50_finetuned"]
    # The settings published for CUB, where the row has none of its own.
    assert {record.params["lambda_1"] for record in records.values()} == {4.0}


def test_without_any_data_nothing_is_begun(specs: dict[str, Spec], tmp_path: Path) -> None:
    specs["one"] = spec("one", mapped("a"), data=["AWA2/att"])
    specs["two"] = spec("two", mapped("a"), data=["AWA2/att", "CUB*/sent"])
    sentence = r"^There is no data to run one, two on\. AWA2/att, CUB\*/sent: no folder was given \(--data\)\."
    with pytest.raises(DGZError, match=sentence) as caught:
        reproduce(["one", "two"], None, tmp_path / "out")
    assert "\n" not in str(caught.value)
    with pytest.raises(DGZError, match=r"nowhere is no folder\."):
        reproduce(["one"], tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DGZError, match=r"There is no data to run two on\. .*CUB\*/sent: no features of a fine-tuned"):
        reproduce(["two"], tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_meant_is_refused_before_any_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(
        DGZError,
        match=r"item must be one of table1, figure2, .*figureA3, peers, found 'table9'; did you mean 'table\d'\?",
    ):
        reproduce(["table1", "table9"], None, out, quick=True)
    with pytest.raises(DGZError, match="device 'abacus' cannot be used here"):
        reproduce(["table4"], None, out, quick=True, device="abacus")
    with pytest.raises(DGZError, match=r"row must be one of .*, found 'GAN'\."):
        reproduce(["table4"], None, out, quick=True, rows=["GAN"])
    assert not out.exists()


# --- Rows that a generator learns from.
def of_shape(sizes: Sequence[int]) -> GZSLData:
    """Data with so many training rows of each of its seen classes, and one unseen class."""
    y = np.random.default_rng(3).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return GZSLData(
        x_train=np.zeros((len(y), 2), np.float32),
        y_train=y,
        attributes=np.eye(len(sizes) + 1),
        class_names=[f"c{i}" for i in range(len(sizes) + 1)],
    )


def subset_row(**subset: float) -> Row:
    return Row(name="a", method="dgz", subset={**subset, "n_steps": 1})


@pytest.mark.parametrize(("share", "n_classes"), [(0.25, 38), (0.5, 75), (0.75, 112), (1.0, 150)])
def test_shares_of_the_classes_of_cub_are_those_of_the_spec(share: float, n_classes: int) -> None:
    data = of_shape([47] * 150)
    rows = _subset(subset_row(share_of_classes=share, n_rows=600), data, 0)
    _, counts = np.unique(data.y_train[rows], return_counts=True)
    assert (len(counts), len(rows)) == (n_classes, 600)
    assert counts.max() - counts.min() <= 1


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=12),
    st.sampled_from([0.01, 0.25, 0.5, 0.75, 1.0]),
    st.integers(1, 60),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_subset_has_the_classes_and_rows_asked_for(
    sizes: list[int], share: float, n_rows: int, in_all: bool, seed: int
) -> None:
    data = of_shape(sizes)
    row = subset_row(share_of_classes=share, **{"n_rows" if in_all else "n_rows_per_class": n_rows})
    rows = _subset(row, data, seed)
    assert rows.tolist() == sorted(set(rows.tolist()))
    labels, counts = np.unique(data.y_train[rows], return_counts=True)
    n_classes = max(round(len(sizes) * share), 1)
    least, left_over = divmod(n_rows, n_classes) if in_all else (n_rows, 0)
    if least:
        assert len(labels) == n_classes
    assert len(labels) <= n_classes
    for label, count in zip(labels, counts, strict=True):  # never more than there are
        assert count in {min(least, sizes[label]), min(least + bool(left_over), sizes[label])}
    if min(sizes) > least:
        assert len(rows) == (n_rows if in_all else n_rows * n_classes)
    np.testing.assert_array_equal(rows, _subset(row, data, seed))


def test_a_subset_depends_on_the_seed() -> None:
    data = of_shape([20] * 10)
    drawn = [_subset(subset_row(share_of_classes=0.5, n_rows=20), data, seed) for seed in range(4)]
    assert len({rows.tobytes() for rows in drawn}) == 4
    assert len({np.unique(data.y_train[rows]).tobytes() for rows in drawn}) > 1
    everything = _subset(Row(name="a", method="dgz", subset={"n_rows_per_class": 99, "n_steps": 1}), data, 0)
    np.testing.assert_array_equal(everything, np.arange(200))


def test_a_generator_sees_its_subset_for_the_steps_asked_for_and_the_classifier_everything(
    specs: dict[str, Spec], small: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    together = module.run_many

    def look(models: Sequence[Any], data: GZSLData, **options: Any) -> list[Record]:
        seen.append((data, options["generator_rows"]))
        return together(models, data, **options)

    monkeypatch.setattr(module, "run_many", look)
    subset = {"n_rows": 20, "share_of_classes": 0.5, "n_steps": 10}
    row = generated("a", {"generator.batch_size": 7}, subset=subset)
    specs["one"] = spec("one", row, seeds=2)
    (item,) = reproduce(["one"], None, tmp_path, device="cpu")
    for seed, (data, rows) in enumerate(seen):
        assert len(data.x_train) == len(small.x_train)
        np.testing.assert_array_equal(rows, _subset(specs["one"].rows[0], small, seed))
    for name in runs_of([item]):
        record = records_in(tmp_path)[name]
        assert record.params["generator"]["n_epochs"] == 4  # of ceil(20 / 7) = 3 steps each: 10 at least
        assert record.data["generator_rows"] == {**subset, "n": 20}


# --- Runs that break.
def test_a_broken_run_loses_no_other_and_is_all_that_is_made_again(
    specs: dict[str, Spec], made: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    specs["one"] = spec(
        "one",
        mapped("a"),
        mapped("beyond single precision", {"lambda_1": 1e39}),
        mapped("b", {"lambda_1": 2}),
        mapped("a generator that flies apart", {"generator.learning_rate": 1e30}),
        mapped("alone", {"lambda_1": 1e39}, evaluate_every=1),
        mapped("c", {"lambda_1": 3}, evaluate_every=1),
    )
    for _ in range(2):
        with pytest.raises(DGZError) as caught:
            reproduce(["one"], None, tmp_path, device="cpu")
        (item,) = Store(tmp_path).items()
        rows = {name: names[0] for name, names in item.blocks[0].rows.items()}
        broken = [rows[name] for name in rows if name not in "abc"]
        assert set(records_in(tmp_path)) == {rows[name] for name in "abc"}
        sentence = str(caught.value)
        assert all(f"{name} (" in sentence for name in broken)
        assert not any(rows[name] in sentence for name in "abc")
        assert "a smaller learning rate or other scaling may help" in sentence
        assert not (tmp_path / ".locks").exists()
    assert "3 of 3 runs broke" in sentence
    assert [len(group) for group in made] == [3, 1, 1, 1, 1, 1, 1]
    assert [one["lambda_1"] for one in made[4]] == [1e39]  # of the first group, the broken one is left
    # What is mended is made, and the rest of the item is as it was.
    before = marks_of(tmp_path)
    specs["one"] = spec("one", mapped("a"), mapped("mended", {"lambda_1": 4}), mapped("b", {"lambda_1": 2}))
    reproduce(["one"], None, tmp_path, device="cpu")
    assert len(made) == 8
    assert {name: mark for name, mark in marks_of(tmp_path).items() if name in before} == before


def test_runs_that_are_alike_but_for_what_is_observed_get_their_own_records(
    specs: dict[str, Spec], tmp_path: Path
) -> None:
    specs["one"] = spec("one", mapped("a"), mapped("b", {"lambda_1": 1e39}), mapped("c", observe=["gradients"]))
    with pytest.raises(DGZError, match="1 of 3 runs broke, the others are finished"):
        reproduce(["one"], None, tmp_path, device="cpu")
    (item,) = Store(tmp_path).items()
    records, rows = records_in(tmp_path), item.blocks[0].rows
    assert [set(records[rows[name][0]].observed) for name in "ac"] == [set(), {"gradients"}]
    assert records[rows["a"][0]].scores == records[rows["c"][0]].scores


# --- Broken off and gone on with.
def break_off(monkeypatch: pytest.MonkeyPatch, after: int, work: Callable[[], object]) -> None:
    """Do work, with a state kept after every epoch, and press Ctrl-C when so many have been."""
    kept = [0]

    def save(self: Checkpoints, *arguments: Any, whole: Callable[..., None] = Checkpoints.save, **options: Any) -> None:
        whole(self, *arguments, **options)
        kept[0] += 1
        if kept[0] == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints.__init__, "__defaults__", (0.0,))
        patch.setattr(Checkpoints, "save", save)
        work()


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kind of trainee of every epoch that is trained."""
    trained: list[str] = []
    epoch = training._epoch

    def count(trainee: Any) -> Any:
        trained.append(type(trainee).__name__)
        return epoch(trainee)

    monkeypatch.setattr(training, "_epoch", count)
    return trained


def test_a_generator_goes_on_where_it_was_broken_off_and_ends_in_the_same_bits(
    specs: dict[str, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: list[str]
) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    rows = [generated(name, {"generator.n_epochs": 7, "lambda_1": k + 1}) for k, name in enumerate("ab")]
    specs["one"] = spec("one", *rows, generated("c", subset={"n_rows": 20, "n_steps": 9}))
    reproduce(["one"], None, whole, device="cpu")
    of_generator, n_unbroken = epochs[0], len(epochs)
    assert epochs[:7] == [of_generator] * 7
    epochs.clear()

    break_off(monkeypatch, 3, lambda: reproduce(["one"], None, broken, device="cpu"))
    assert epochs == [of_generator] * 3
    assert not (broken / "records").exists()
    (state,) = (broken / ".unfinished").rglob("*.safetensors")
    assert state.stem == "generator"
    reproduce(["one"], None, broken, device="cpu")
    assert len(epochs) == n_unbroken
    assert names_in(broken) == names_in(whole) == {"items", "records"}
    found, expected = records_in(broken), records_in(whole)
    assert len(found) == 3
    assert sorted(min(set(one.seconds) - {"evaluate"}) for one in found.values()) == [
        "fit",
        "fit_resumed",
        "fit_resumed",
    ]
    assert {name: without_times(one) for name, one in found.items()} == {
        name: without_times(one) for name, one in expected.items()
    }


def test_a_rival_without_a_generator_goes_on_too_and_its_time_is_not_taken_for_a_whole_one(
    specs: dict[str, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: list[str]
) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    settings = {"n_episode_epochs": 2, "n_episodes": 3, "n_epochs": 3, "batch_size": 16}
    specs["one"] = spec("one", {"name": "a", "method": "agzsl", "set": settings}, mapped("b"))
    reproduce(["one"], None, whole, device="cpu")
    stages = epochs[:5]
    assert stages == [stages[0]] * 2 + [stages[-1]] * 3
    epochs.clear()

    break_off(monkeypatch, 3, lambda: reproduce(["one"], None, broken, device="cpu"))
    assert epochs == stages[:3]
    reproduce(["one"], None, broken, device="cpu")
    assert epochs.count(stages[0]) == 2  # none again
    assert names_in(broken) == names_in(whole) == {"items", "records"}
    found, expected = records_in(broken), records_in(whole)
    assert {name: without_times(one) for name, one in found.items()} == {
        name: without_times(one) for name, one in expected.items()
    }
    (resumed,) = (one for one in found.values() if one.method == "AGZSL")
    assert training_seconds(resumed) is None
    assert all(training_seconds(one) for one in expected.values())


def test_times_on_a_device_that_does_other_work_are_kept_apart_and_nothing_else_changes(
    specs: dict[str, Spec], tmp_path: Path
) -> None:
    rows = [generated(name, {"lambda_1": k + 1}) for k, name in enumerate("ab")]
    specs["one"] = spec("one", *rows, mapped("c"))
    for name in ("shared", "alone"):
        reproduce(["one"], None, tmp_path / name, device="cpu", shared_device=name == "shared")
    shared, alone = records_in(tmp_path / "shared"), records_in(tmp_path / "alone")
    assert {name: without_times(one) for name, one in shared.items()} == {
        name: without_times(one) for name, one in alone.items()
    }
    assert all(training_seconds(one) for one in alone.values())
    assert [training_seconds(one) for one in shared.values()] == [None] * 3
    counts = sorted(one.seconds.get("fitted_together", 1) for one in shared.values())
    assert counts == [1, 2, 2]
    for one in shared.values():
        assert set(one.seconds) - {"fitted_together"} == {"fit_on_shared_device", "evaluate"}
        assert one.seconds["fit_on_shared_device"] > 0


def test_a_generator_goes_on_whichever_of_its_runs_comes_first(
    specs: dict[str, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: list[str]
) -> None:
    longer = {"generator.n_epochs": 7}
    specs["one"] = spec("one", generated("a", longer))
    specs["two"] = spec("two", generated("b", {**longer, "lambda_1": 2}), generated("a", longer))
    break_off(monkeypatch, 3, lambda: reproduce(["one"], None, tmp_path, device="cpu"))
    of_generator = epochs[0]
    reproduce(["two"], None, tmp_path, device="cpu")
    assert epochs.count(of_generator) == 7
    assert len(records_in(tmp_path)) == 2
    assert names_in(tmp_path) == {"items", "records"}


def test_a_state_of_something_else_is_left_alone_and_a_damaged_one_is_named(
    specs: dict[str, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs["one"] = spec("one", generated("a"), mapped("b"))
    broken_off = [tmp_path / name for name in ("other", "damaged")]
    states = []
    for folder in broken_off:
        break_off(monkeypatch, 1, lambda to=folder: reproduce(["one"], None, to, device="cpu"))
        states += (folder / ".unfinished").rglob("*.safetensors")
    for state in states:
        state.write_bytes(b"of no use here")
    states[0].parent.rename(states[0].parent.with_name("0123456789abcdef"))  # as that of another device would be
    reproduce(["one"], None, broken_off[0], device="cpu")
    assert len(records_in(broken_off[0])) == 2
    assert names_in(broken_off[0]) == {"items", "records"}
    for _ in range(2):
        with pytest.raises(DGZError, match=r"generator\.safetensors is not a whole checkpoint of this training"):
            reproduce(["one"], None, broken_off[1], device="cpu")
        assert len(records_in(broken_off[1])) == 1  # the other one
    states[1].unlink()
    reproduce(["one"], None, broken_off[1], device="cpu")
    assert len(records_in(broken_off[1])) == 2


# --- Processes that die, and processes at once.
DYING = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from dgz import files, reproduce as module
from dgz.paper.spec import parse_spec

text, bundle, folder, moment, count = sys.argv[1:]
module._EMBEDDED = replace(module._EMBEDDED, folder=bundle)
module.load_spec = lambda name: parse_spec(name, text)
left = [int(count)]

def die(when):
    left[0] -= when
    if when and not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

rename, remove, unlink = Path.replace, module.shutil.rmtree, Path.unlink
if moment == "before a file has its name":
    Path.replace = lambda self, target: (die(True), rename(self, target))
elif moment == "after a record is there":
    module.shutil.rmtree = lambda *a, **k: (die(True), remove(*a, **k))
elif moment == "while a lock is held":
    Path.unlink = lambda self, **k: (die(self.parent.name == ".locks"), unlink(self, **k))
module.reproduce(["one"], None, folder, device="cpu")
"""


@pytest.mark.slow
def test_a_process_may_die_at_any_moment(specs: dict[str, Spec], bundle: Path, tmp_path: Path) -> None:
    text = text_of(mapped("a"), mapped("b", {"lambda_1": 2}), seeds=3)
    specs["one"] = parse_spec("one", text)
    # The item is written first, then two records of each of three groups, and what a broken group lacks last of all.
    moments = [
        ("before a file has its name", 1, 0),
        ("before a file has its name", 3, 1),
        ("after a record is there", 1, 3),
        ("while a lock is held", 1, 5),
    ]
    before: dict[str, tuple[int, int]] = {}
    for moment, count, n_records in moments:
        arguments = [text, str(bundle), str(tmp_path), moment, str(count)]
        died = subprocess.run([sys.executable, "-c", DYING, *arguments], env=ONE_THREAD, timeout=120)
        assert died.returncode == -signal.SIGKILL
        after = marks_of(tmp_path)
        assert len(after) == n_records
        assert {name: mark for name, mark in after.items() if name in before} == before
        assert all(not record.quick for record in records_in(tmp_path).values())
        assert len(list(Store(tmp_path).items())) == (n_records > 0)
        before = after
    (item,) = reproduce(["one"], None, tmp_path, device="cpu")
    after = marks_of(tmp_path)
    assert set(after) == set(runs_of([item]))
    assert {name: mark for name, mark in after.items() if name in before} == before
    assert names_in(tmp_path) == {"items", "records"}  # the locks of the dead are gone too


def start(*arguments: object) -> subprocess.Popen[str]:
    """Begin a quick reproduction in a process of its own."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "dgz",
        "reproduce",
        *map(str, arguments),
        "--quick",
        "--device",
        "cpu",
    ]
    return subprocess.Popen(command, env=ONE_THREAD, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def planned_quickly(*names: str) -> set[str]:
    return {run for name in names for run in planned(load_spec(name), quick=True)}


@pytest.mark.slow
def test_a_killed_reproduction_goes_on_and_keeps_what_was_finished(tmp_path: Path) -> None:
    kept: dict[str, tuple[int, int]] = {}
    for more in (1, 2):
        with start("table2", "--out", tmp_path) as process:
            deadline = time.monotonic() + 60
            while len(marks_of(tmp_path)) < len(kept) + more:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.005)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        found = marks_of(tmp_path)
        assert {name: mark for name, mark in found.items() if name in kept} == kept
        assert all(record.quick for record in records_in(tmp_path).values())  # whole, each of them
        assert [item.name for item in Store(tmp_path).items()] == ["table2"]
        kept = found
    with start("table2", "--out", tmp_path) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    found = marks_of(tmp_path)
    assert set(found) == planned_quickly("table2")
    assert len(kept) < len(found)
    assert {name: mark for name, mark in found.items() if name in kept} == kept
    assert names_in(tmp_path) == {"items", "records", "index.html", "report.md"}


def groups_made(said: str) -> Iterator[tuple[int, str]]:
    """How many runs each group had that a process says it made, and the first of them."""
    for line in said.splitlines():
        words = line.split()
        if len(words) == 5 and words[1] == "s" and words[3] == "x":
            yield int(words[2]), words[4]


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path: Path) -> None:
    processes = [start("table2", "tableA3", "--out", tmp_path) for _ in range(2)]
    said = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    names = planned_quickly("table2", "tableA3")
    assert set(marks_of(tmp_path)) == names
    made = [group for one in said for group in groups_made(one)]
    assert sum(count for count, _ in made) == len(names)  # each was made by one of the two
    assert len({first for _, first in made}) == len(made)
    assert all(record.quick for record in records_in(tmp_path).values())
    assert names_in(tmp_path) == {"items", "records", "index.html", "report.md"}
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


def test_a_group_that_another_process_is_at_comes_last_and_is_not_made_again(
    specs: dict[str, Spec], made: list[list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs["one"] = spec("one", mapped("a"), seeds=3)
    (first, *_) = planned(specs["one"])
    asked: list[tuple[str, bool]] = []
    lock = module.locked

    @contextmanager
    def held_elsewhere(path: Path, *, wait: bool) -> Iterator[bool]:
        asked.append((path.name, wait))
        if len(asked) == 1:  # another process is at the first group, and has finished it when it is asked for again
            yield False
            return
        if wait:
            Store(tmp_path).write(first, next(iter(records_in(tmp_path).values())))
        with lock(path, wait=wait) as is_held:
            yield is_held

    monkeypatch.setattr(module, "locked", held_elsewhere)
    reproduce(["one"], None, tmp_path, device="cpu")
    assert [wait for _, wait in asked] == [False, False, False, True]
    assert asked[0][0] == asked[3][0]
    assert [group[0]["random_state"] for group in made] == [1, 2]


# --- Everything, quickly.
@pytest.mark.alone
def test_the_whole_paper_runs_quickly_from_end_to_end(tmp_path: Path) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "dgz", "reproduce", "all", "--quick", "--out", str(tmp_path)]
    answer = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=600)
    seconds = time.monotonic() - began
    slowest = sorted((line for line in answer.stderr.splitlines() if " x " in line), reverse=True)[:8]
    print(f"{seconds:.0f} s in all, most of it in:", *slowest, sep="\n")  # noqa: T201
    assert answer.returncode == 0, answer.stderr
    assert seconds < 300

    items = {item.name: item for item in Store(tmp_path).items()}
    records = records_in(tmp_path)
    assert sorted(items) == sorted(paper_items())
    assert set(runs_of(list(items.values()))) == set(records)
    assert f"{len(items)} items of {len(records)} runs in " in answer.stdout
    for name, item in items.items():
        one = load_spec(name)
        assert item.quick
        assert item.missing == []
        (block,) = item.blocks
        assert list(block.rows) == [row.name for row in one.rows]
        assert list(block.folds) == ([row.name for row in one.rows] if one.folds else [])

    everything = load_numbers(0)
    for record in records.values():
        assert record.quick
        assert record.params["generator"]["n_epochs"] == 1
        if "toy" in record.observed:
            continue
        assert record.params["n_epochs"] <= 2
        assert record.params["n_per_class"] <= 10
        assert "fold" in record.data["name"] or record.data["hashes"] == everything.hashes
        assert {"h", "acc_zsl", "acc_intra_seen", "acc_intra_unseen", "cmmd", "cacd"} <= set(record.scores)
        assert len(record.curve["classifier"]["h"]) == record.params["n_epochs"]
        assert record.oracle is not None
    # Everything that a spec can ask for is there, where it is asked for.
    for name, item in items.items():
        for row in load_spec(name).rows:
            for run_name in item.blocks[0].rows[row.name]:
                record = records[run_name]
                assert set(record.observed) == ({"toy"} if row.method == "toy" else set(row.observe))
                assert ("generator_rows" in record.data) == bool(row.subset)
                assert ("cacd" in record.curve.get("generator", {})) == bool(row.evaluate_every)
    assert {kind for record in records.values() for kind in record.observed} == {"projection", "gradients", "toy"}
    assert {record.method for record in records.values()} == {"DGZ", "FCLSWGAN", "CEGZSL", "WGANGP"}
    assert {record.params["generator"]["kind"] for record in records.values()} == {
        "WGANGP", "CenterMapper", "CVAE", "ContrastiveWGANGP",
    }  # fmt: skip

    page, text = (tmp_path / "index.html").read_text(), (tmp_path / "report.md").read_text()
    assert "Quick run: shortened training, no results" in page
    assert "**Quick run: shortened training, no results**" in text
    sections = {section.split(":", 1)[0]: section for section in text.split("\n### ") if ": " in section.split("\n")[0]}
    for name, item in items.items():
        facts = sections[name].splitlines()[2]
        assert facts in page
        assert facts.startswith(f"data {item.blocks[0].data} · ")
        assert " · generator epochs 1 · " in facts
        assert " · classifier epochs 2 · " in facts or name == "figureA2"  # which has none
        assert " · seeds 0, 1 · " in facts or " · seed 0 · " in facts
        assert " · quick run: shortened training, no results · " in facts
    verdicts = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| numbers") and "points" in line]
    assert len(verdicts) > 10
    assert set(verdicts) == {"not tested (quick run)"}
    n_claims = sum(len(load_spec(name).claims) for name in item_names())  # of comparisons too, which were not run
    assert f"Of all verdicts, one for each claim and data set: {n_claims} not tested." in text

    # Nothing is left to do the second time.
    before = marks_of(tmp_path)
    reproduce(["all"], None, tmp_path, quick=True)
    assert marks_of(tmp_path) == before
    assert names_in(tmp_path) == {"items", "records", "index.html", "report.md"}


def test_every_item_can_be_planned_and_most_runs_are_shared() -> None:
    library = _Library(None, None, True)
    found = {name: _plan(load_spec(name), library, True, None, "cpu")[1] for name in paper_items()}
    assert all(found.values())
    groups = {one.group for runs in found.values() for one in runs}
    names = {one.name for runs in found.values() for one in runs}
    assert len(groups) < len(names) < sum(map(len, found.values()))
    assert {one.name for one in found["table4"]} <= {one.name for one in found["table2"]}
    # Maps are of the generators of the first table.
    assert {one.group for one in found["figure2"]} <= {one.group for one in found["table1"]}


def test_a_broken_item_is_named_and_stays(specs: dict[str, Spec], tmp_path: Path) -> None:
    specs["one"] = spec("one", mapped("a"))
    write_json(tmp_path / "items" / "two.json", {"format": "dgz-item", "version": 1, "name": "two"})
    with pytest.raises(DGZError, match=r"two\.json is broken: blocks, missing, quick should or should not be there\."):
        reproduce(["one"], None, tmp_path, device="cpu")
    assert json.loads((tmp_path / "items" / "two.json").read_text())["name"] == "two"
    assert not (tmp_path / "records").exists()


def test_runs_of_a_comparison_have_a_time_of_their_own(tmp_path: Path) -> None:
    """They share no training with each other, and no record with items whose runs may share one."""
    methods = ["dgz-without-generator", "dgz"]
    item = compare(methods, "numbers", tmp_path, seeds=1, quick=True, device="cpu")
    found = records_in(tmp_path)
    assert sorted(name for names in item.blocks[0].rows.values() for name in names) == sorted(found)
    for record in found.values():
        assert record.seconds.get("fitted_together", 1) == 1
        assert record.n_parameters
    row = Row(name="x", method="dgz")
    library = _Library(None, None, quick=True)
    apart, shared = (
        _plan(spec_of(replace(row, alone=alone)), library, True, 1, "cpu")[1][0] for alone in (True, False)
    )
    assert apart.name != shared.name
    assert apart.group == apart.name
    assert shared.group != shared.name


def spec_of(row: Row) -> Spec:
    return Spec(name="one", title="T", place="P", kind="table", data=("numbers/strokes",), rows=(row,))
