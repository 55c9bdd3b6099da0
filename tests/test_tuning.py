"""Tuning: what is chosen is what folds of the training rows say, and nothing done is lost or done twice."""

import builtins
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dgz import DGZ, GZSLData, gzsl_scores, load_numbers
from dgz.data import validation_folds
from dgz.data.synthetic import make_synthetic
from dgz.engines import LocalEngine, LostWorkError, open_engine
from dgz.errors import DGZError
from dgz.generators import CenterMapper
from dgz.many import fit_many
from dgz.metrics import best_penalty, mean_penalty
from dgz.peers import CN, METHODS, CenterRidge, make_method
from dgz.records import read_record
from dgz.tuning import Choice, Range, default_space, parse_space, search, tune

optuna = pytest.importorskip("optuna")
STATES = optuna.trial.TrialState


def tiny_model(**overrides: Any) -> DGZ:
    settings: dict[str, Any] = {"generator": CenterMapper(n_epochs=3, hidden=(16, 8)), "distribution": "statistical"}
    settings |= {"n_per_class": 20, "d_hidden": 8, "n_epochs": 3, "learning_rate": 0.01, "device": "cpu"}
    return DGZ(**settings).set_params(**overrides)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return make_synthetic(12, 3, n_attributes=4, n_features=8, n_samples=180, random_state=0)


SPACE = {"lambda_1": Range(0.01, 10.0, is_log=True), "n_per_class": Range(5, 40, is_whole=True)}


def study_of(folder: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna.load_study(study_name="dgz", storage=JournalStorage(JournalFileBackend(str(folder / "study.jsonl"))))


# --- What is chosen.
def test_the_best_settings_are_those_with_the_highest_mean_h_on_folds(data: GZSLData, tmp_path: Path) -> None:
    tuned = tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=6)
    trials = study_of(tmp_path).trials
    ended = [trial for trial in trials if trial.state == STATES.COMPLETE]
    assert len(trials) == tuned.n_trials == 6
    assert tuned.h_on_folds == max(trial.value for trial in ended)
    best = max(ended, key=lambda trial: trial.value)
    # The same again by hand: folds, a fair share of pseudo rows, the best penalty on each fold.
    found = []
    for fold in validation_folds(data, 3):
        share = len(data.unseen) / len(data.x_train) * len(fold.x_train) / len(fold.unseen)
        settings = {**best.params, "n_per_class": max(round(share * best.params["n_per_class"]), 1)}
        twin = tiny_model(**settings).fit(fold.x_train, fold.y_train, fold.attributes)
        found.append(best_penalty(gzsl_scores(twin, fold).curve))
    assert np.mean([h for _, h in found]) == pytest.approx(best.value, abs=1e-3)
    assert tuned.settings == {**best.params, "seen_penalty": best.user_attrs["seen_penalty"]}
    assert tuned.settings["seen_penalty"] == pytest.approx(mean_penalty(found), abs=1e-3)


def test_the_best_is_refitted_on_all_training_rows_and_recorded_as_chosen_by_validation(
    data: GZSLData, tmp_path: Path
) -> None:
    tuned = tune(tiny_model(), data, tmp_path / "t", space=SPACE, n_trials=3, n_members=2)
    assert tuned.record.selection == "validation"
    kept = read_record(tmp_path / "t")
    assert (kept.selection, kept.scores, kept.params["lambda_1"]) == (
        "validation",
        tuned.record.scores,
        tuned.settings["lambda_1"],
    )
    assert kept.params["n_members"] == 2
    names = np.array(data.class_names)
    vectors = dict(zip(names, data.attributes, strict=True))
    again = tiny_model(**tuned.settings, n_members=2).fit(data.x_train, names[data.y_train], vectors)
    assert gzsl_scores(again, data).h == pytest.approx(kept.scores["h"], abs=1e-6)
    summary = json.loads((tmp_path / "t" / "tuning.json").read_text())
    assert summary == kept.observed["tuning"]
    assert summary["settings"] == tuned.settings
    assert summary["space"] == {"lambda_1": [0.01, 10.0, "log"], "n_per_class": [5, 40, "linear"]}
    assert DGZ.load(tmp_path / "t" / "model").seen_penalty == tuned.settings["seen_penalty"]


def test_test_rows_and_unseen_classes_have_no_say(data: GZSLData, tmp_path: Path) -> None:
    """Other test rows, and other vectors of unseen classes, change nothing that is chosen."""
    vectors = data.attributes.copy()
    vectors[data.unseen] = 1 - vectors[data.unseen]
    parts = {
        name: getattr(data, name) for name in ("x_train", "y_train", "y_test_seen", "y_test_unseen", "class_names")
    }
    other = GZSLData(
        **parts, attributes=vectors, x_test_seen=1 - data.x_test_seen, x_test_unseen=1 - data.x_test_unseen
    )
    chosen = [
        tune(tiny_model(), one, tmp_path / str(k), space=SPACE, n_trials=4) for k, one in enumerate((data, other))
    ]
    assert chosen[0].settings == chosen[1].settings
    assert chosen[0].h_on_folds == chosen[1].h_on_folds
    assert chosen[0].record.scores != chosen[1].record.scores


def test_the_methods_own_settings_are_the_first_trial(data: GZSLData, tmp_path: Path) -> None:
    tune(tiny_model(lambda_1=0.123, n_per_class=7), data, tmp_path / "in", space=SPACE, n_trials=2)
    assert study_of(tmp_path / "in").trials[0].params == {"lambda_1": 0.123, "n_per_class": 7}
    tune(tiny_model(lambda_1=99.0), data, tmp_path / "out", space=SPACE, n_trials=2)
    assert study_of(tmp_path / "out").trials[0].params["lambda_1"] <= 10


def test_without_calibration_the_penalty_stays_as_it_was(data: GZSLData, tmp_path: Path) -> None:
    tuned = tune(tiny_model(seen_penalty=0.05), data, tmp_path, space=SPACE, n_trials=2, calibrate=False)
    assert "seen_penalty" not in tuned.settings
    assert tuned.model.seen_penalty_ == 0.05
    first = study_of(tmp_path).trials[0]
    fold = validation_folds(data, 3)[0]
    share = len(data.unseen) / len(data.x_train) * len(fold.x_train) / len(fold.unseen)
    twin = tiny_model(seen_penalty=0.05, n_per_class=round(20 * share)).fit(fold.x_train, fold.y_train, fold.attributes)
    assert gzsl_scores(twin, fold).h == pytest.approx(first.user_attrs["h"][0], abs=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_space_that_it_can_take(name: str) -> None:
    model = make_method(name)
    space = default_space(model)
    assert space
    for end in (0, 1):
        changed = clone(model).set_params(**{key: part.ends[end] for key, part in space.items()})
        changed.check()
    assert default_space(model, list(space)) == {}


def test_other_methods_are_tuned_too(data: GZSLData, tmp_path: Path) -> None:
    ridge = tune(
        CenterRidge(bandwidth=1.0), data, tmp_path / "ridge", space={"alpha": Range(1e-3, 1.0, True)}, n_trials=3
    )
    assert set(ridge.settings) == {"alpha"}  # its penalty is its own business
    assert ridge.record.params["seen_penalty"] == "auto"
    norm = (
        CN(n_epochs=2, batch_size=16, d_hidden=8, device="cpu") if "d_hidden" in CN().get_params() else CN(n_epochs=2)
    )
    found = tune(norm, data, tmp_path / "cn", space={"learning_rate": Range(1e-4, 1e-2, True)}, n_trials=2)
    assert 1e-4 <= found.settings["learning_rate"] <= 1e-2


# --- Going on.
def test_a_study_is_gone_on_with(data: GZSLData, tmp_path: Path) -> None:
    first = tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=3)
    before = [trial.params for trial in study_of(tmp_path).trials]
    more = tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=5)
    trials = study_of(tmp_path).trials
    assert [trial.params for trial in trials[:3]] == before
    assert len(trials) == more.n_trials == 5
    assert more.h_on_folds >= first.h_on_folds
    assert len({tuple(trial.params.values()) for trial in trials}) == 5  # nothing is proposed twice
    same = tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=5)
    assert (same.settings, same.n_trials) == (more.settings, 5)


def test_what_was_under_way_when_the_process_died_is_done_again(data: GZSLData, tmp_path: Path) -> None:
    class Dying(LocalEngine):
        def run(self, work: Any, pieces: Any, **options: Any) -> Any:
            (_, number), *_ = pieces
            if number == 1:
                raise KeyboardInterrupt
            yield from super().run(work, pieces)

    with pytest.raises(KeyboardInterrupt):
        tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=4, engine=Dying())
    with (tmp_path / "study.jsonl").open("a") as file:
        file.write('{"op_code":5,"worker')  # a line that was cut off
    tuned = tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=4)
    ended = [trial for trial in study_of(tmp_path).trials if trial.state == STATES.COMPLETE]
    assert len(ended) == 4
    assert all(len(trial.user_attrs["h"]) == 3 for trial in ended)
    assert tuned.n_failed == 4  # those that were broken off


@pytest.mark.parametrize("change", ["data", "method", "settings", "folds", "space", "calibrate"])
def test_a_study_of_something_else_is_refused_before_any_work(change: str, data: GZSLData, tmp_path: Path) -> None:
    tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    other = replace(data, x_train=1 - data.x_train) if change == "data" else data
    model: Any = CN(device="cpu") if change == "method" else tiny_model(d_hidden=9 if change == "settings" else 8)
    space = {"temperature": Range(0.01, 0.1)} if change in ("space", "method") else SPACE
    options: dict[str, Any] = {"folds": {"n_folds": 2}, "calibrate": {"calibrate": False}}.get(change, {})
    with pytest.raises(DGZError, match=rf"^The study in .* is another one: it differs in .*{change}.*another folder"):
        tune(model, other, tmp_path, space=space, n_trials=2, **options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_a_run_that_is_not_of_a_study_is_left_alone(data: GZSLData, tmp_path: Path) -> None:
    from dgz.experiments import run

    run(CenterRidge(alpha=0.1, bandwidth=1.0), data, tmp_path)
    with pytest.raises(DGZError, match="holds a run that comes of no study"):
        tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=1)


@pytest.mark.parametrize("content", ["{", "nothing\n", "\x00\x01\n", '{"op_code": 99}\n'])
def test_a_file_that_is_no_study_is_named(content: str, data: GZSLData, tmp_path: Path) -> None:
    (tmp_path / "study.jsonl").write_text(content)
    with pytest.raises(DGZError, match=r"study.jsonl holds no study that can be gone on with"):
        tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=1)
    assert (tmp_path / "study.jsonl").read_text() == content


# --- What does not work out.
def test_trials_that_break_are_counted_and_the_others_go_on(data: GZSLData, tmp_path: Path) -> None:
    space = {"lambda_1": Choice((1.0, 1e39))}  # no loss survives the second
    tuned = tune(tiny_model(), data, tmp_path, space=space, n_trials=6)
    assert tuned.settings["lambda_1"] == 1.0
    assert 0 < tuned.n_failed < 6
    failed = [trial for trial in study_of(tmp_path).trials if trial.state == STATES.FAIL]
    assert all("Training broke" in trial.user_attrs["reason"] for trial in failed)


def test_when_all_break_the_reason_is_said(data: GZSLData, tmp_path: Path) -> None:
    with pytest.raises(DGZError, match=r"^No trial came to its end: .*broke"):
        tune(tiny_model(), data, tmp_path, space={"lambda_1": Choice((1e39, 2e39))}, n_trials=3)


def test_a_trial_that_falls_behind_is_given_up_after_a_fold(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search._Folds, "outcomes", lambda self, proposals, number, observer=None: [
        search._Outcome(proposal["lambda_1"] / 10, 0.1) for proposal in proposals
    ])  # fmt: skip
    monkeypatch.setattr(search, "_together", lambda model: 4)
    tuned = tune(tiny_model(), data, tmp_path, space={"lambda_1": Range(0.1, 10.0)}, n_trials=24)
    trials = study_of(tmp_path).trials
    given_up = [trial for trial in trials if trial.state == STATES.PRUNED]
    assert len(given_up) == tuned.n_pruned > 0
    assert max(trial.params["lambda_1"] for trial in given_up) < max(trial.params["lambda_1"] for trial in trials)
    assert all(len(trial.intermediate_values) < 3 for trial in given_up)
    assert all(trial.number >= 8 for trial in given_up)


def test_a_trial_alone_is_given_up_in_the_middle_of_its_training(data: GZSLData, tmp_path: Path) -> None:
    model = tiny_model(n_epochs=10, learning_rate=0.02, lr_step=None)
    space = {"temperature": Choice((0.04, 1e6))}  # with the second, nothing is learned
    tuned = tune(model, data, tmp_path, space=space, n_trials=24, at_once=1)
    given_up = [trial for trial in study_of(tmp_path).trials if trial.state == STATES.PRUNED]
    assert given_up
    assert len(given_up) == tuned.n_pruned
    steps = [max(trial.intermediate_values) for trial in given_up]
    assert any(step % search.FOLD for step in steps)  # not at the end of a fold
    assert min(steps) >= search.FOLD // 2


# --- Spaces.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lambda_1=0.01..10", Range(0.01, 10, is_log=True)),
        ("lambda_1=1..5", Range(1, 5)),
        ("lambda_1=0..5", Range(0, 5)),
        ("lambda_1=1..100:linear", Range(1, 100)),
        ("lambda_1=1..5:log", Range(1, 5, is_log=True)),
        ("n_per_class=5..40", Range(5, 40, is_whole=True)),
        ("n_per_class=5..400", Range(5, 400, is_log=True, is_whole=True)),
        ("generator.n_epochs=5..9", Range(5, 9, is_whole=True)),
        ("gate=argmax_all, always", Choice(("argmax_all", "always"))),
        ("resample=true,false", Choice((True, False))),
        ("lr_step=10,none", Choice((10, None))),
    ],
)
def test_a_space_is_written_like_this(text: str, expected: Range | Choice) -> None:
    assert parse_space(tiny_model(), [text]) == {text.partition("=")[0]: expected}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["lambda1=0.1..1"], "There is no setting 'lambda1'; did you mean 'lambda_1'?"),
        (["generator.nonsense=1..2"], "There is no setting 'generator.nonsense'"),
        (["lambda_1"], "is written key=low..high or key=value,value"),
        (["lambda_1="], "is written key=low..high or key=value,value"),
        (["lambda_1=5..1"], "two numbers, the lower first"),
        (["lambda_1=a..b"], "lambda_1 must be"),
        (["gate=argmax_all..always"], "two numbers, the lower first"),
        (["lambda_1=0..1:log"], "lies above 0"),
        (["lambda_1=1..2:cubic"], "The scale of a range is log or linear, found 'cubic'"),
        (["gate=always,sometimes"], "gate must be"),
        (["lambda_1=1..2", "lambda_1=1..3"], "lambda_1 is in the space twice"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(texts: list[str], words: str) -> None:
    with pytest.raises(DGZError) as caught:
        parse_space(tiny_model(), texts)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"space": {"nonsense": Range(0, 1)}}, "There is no setting 'nonsense'"),
        ({"space": {"temperature": Range(-1.0, 1.0)}}, "temperature must be a number from"),
        ({"space": {}}, "There is nothing to tune"),
        ({"n_trials": 0}, "n_trials must be a whole number from 1 up"),
        ({"at_once": 0}, "at_once must be a whole number from 1 up"),
        ({"n_folds": 1}, "n_folds must be from 2"),
        ({"n_folds": 99}, "n_folds must be from 2 to the number of seen classes"),
        ({"n_members": 0}, "n_members must be a whole number from 1 up"),
    ],
)
def test_bad_options_are_refused_before_any_work(
    options: dict[str, Any], words: str, data: GZSLData, tmp_path: Path
) -> None:
    with pytest.raises(DGZError) as caught:
        tune(tiny_model(), data, tmp_path / "t", **{"space": SPACE, **options})
    assert words in str(caught.value)
    assert not (tmp_path / "t").exists()


def test_members_are_of_methods_that_have_them(data: GZSLData, tmp_path: Path) -> None:
    with pytest.raises(DGZError, match="There is no setting 'n_members'"):
        tune(CN(device="cpu"), data, tmp_path, n_members=3)


def test_without_optuna_a_sentence_says_what_to_install(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] == "optuna":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DGZError, match=r'pip install "dgz\[tune\]"'):
        tune(tiny_model(), data, tmp_path)


# --- At once.
def test_trials_are_trained_together(data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(models: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(models))
        return fit_many(models, *args, **options)

    monkeypatch.setattr(search, "fit_many", counted)
    tune(tiny_model(), data, tmp_path / "four", space=SPACE, n_trials=6)
    assert sizes == [4, 4, 4, 2, 2, 2]
    sizes.clear()
    tune(tiny_model(), data, tmp_path / "six", space=SPACE, n_trials=6, at_once=6)
    assert sizes == [4, 2] * 3


def test_on_numbers_tuning_is_as_good_as_the_defaults(tmp_path: Path) -> None:
    numbers = load_numbers(0, n_train=20, n_test=5)
    model = DGZ.without_generator(schedule="short", device="cpu", lambda_1=0.01)
    tuned = tune(model, numbers, tmp_path, space=parse_space(model, ["lambda_1=0.01..10"]), n_trials=4)
    plain = clone(model).fit(numbers.x_train, numbers.y_train, numbers.attributes)
    assert math.isfinite(tuned.h_on_folds)
    assert tuned.record.scores["h"] > gzsl_scores(plain, numbers).h


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_on_ray_the_same_is_found(data: GZSLData, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    options: dict[str, Any] = {"space": SPACE, "n_trials": 8, "at_once": 8}
    here = tune(tiny_model(), data, tmp_path / "here", **options)
    with open_engine("ray", n_workers=2) as engine:
        there = tune(tiny_model(), data, tmp_path / "there", **options, engine=engine)
    one, other = (study_of(tmp_path / name).trials for name in ("here", "there"))
    assert [trial.params for trial in one] == [trial.params for trial in other]
    assert [trial.value for trial in one] == pytest.approx([trial.value for trial in other], abs=1e-3)
    assert there.settings == pytest.approx(here.settings, abs=1e-3)
    assert there.record.scores["h"] == pytest.approx(here.record.scores["h"], abs=1e-3)


def test_pieces_whose_workers_died_are_trials_that_broke(data: GZSLData, tmp_path: Path) -> None:
    class Losing(LocalEngine):
        is_local = False

        def run(self, work: Any, pieces: Any, **options: Any) -> Any:
            for index, result in super().run(work, pieces):
                yield index, LostWorkError("The worker was lost.") if index == 1 else result

    tuned = tune(tiny_model(), data, tmp_path, space=SPACE, n_trials=8, at_once=8, engine=Losing())
    assert (tuned.n_failed, tuned.n_trials) == (4, 8)
