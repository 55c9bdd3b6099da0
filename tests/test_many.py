"""Many models fitted at once: each is what it would have become alone, and none spoils another."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dgz.many
from conftest import tiny_parts
from dgz import DGZ, fit_many, gzsl_scores, load_numbers
from dgz.data import GZSLData, validation_folds
from dgz.errors import DGZError
from dgz.frame import Frame
from dgz.generators import CVAE, WGANGP, AlignedVAEs, CenterMapper, ContrastiveWGANGP
from dgz.generators.center import _CenterTraining
from dgz.generators.wgan import WGANTraining
from dgz.many import generator_key, pseudo_rows_on
from dgz.peers import CADAVAE, CEGZSL, FCLSWGAN
from dgz.training import Checkpoints, watching

PARTS: dict[str, Any] = tiny_parts()
X, Y, VECTORS = PARTS["x_train"], PARTS["y_train"], PARTS["attributes"]
TEST_ROWS = np.concatenate([PARTS["x_test_seen"], PARTS["x_test_unseen"]])
NAMES = np.array(PARTS["class_names"])

MAPPER = CenterMapper(n_epochs=3, hidden=(16, 8))
GAN = WGANGP(n_epochs=2, hidden=(16, 8), critic_hidden=16, batch_size=8)
AUTOENCODER = CVAE(n_epochs=2, hidden=(16, 8), batch_size=8)
# No loss survives this λ1: it is no number of single precision.
BROKEN = {"lambda_1": 1e39}

Settings = list[dict[str, Any]]


def tiny_model(**overrides: Any) -> DGZ:
    settings = {"generator": clone(MAPPER), "distribution": "statistical", "n_per_class": 5, "d_hidden": 8}
    settings |= {"n_epochs": 3, "learning_rate": 0.01, "batch_size": 6, "device": "cpu"}
    return DGZ(**settings).set_params(**overrides)  # type: ignore[no-any-return]


def assert_same(together: DGZ, alone: DGZ, rows: np.ndarray = TEST_ROWS) -> None:
    """The two learned the same on the way and in the end."""
    np.testing.assert_allclose(together.weights_, alone.weights_, rtol=0, atol=1e-4)
    assert together.predict(rows).tolist() == alone.predict(rows).tolist()
    assert len(together.history_) == len(alone.history_)
    for one, other in zip(together.history_, alone.history_, strict=True):
        assert one["stage"] == other["stage"]
        assert {**one, "stage": 0} == pytest.approx({**other, "stage": 0}, rel=1e-3, abs=1e-4)


def fit_both(settings: Settings, **options: Any) -> tuple[list[DGZ], list[DGZ]]:
    """Models of these settings fitted at once, and one after the other."""
    together = fit_many([tiny_model(**one) for one in settings], X, Y, VECTORS, **options)
    return together, [tiny_model(**one).fit(X, Y, VECTORS, **options) for one in settings]


def vary(name: str, *values: Any) -> Settings:
    return [{name: value} for value in values]


VARIANTS: dict[str, Settings] = {
    "lambda_1": vary("lambda_1", 0.0, 0.5, 4.0),
    "lambda_2": [{"loss": "incremental", "lambda_2": value} for value in (0.1, 3.0)],
    "gate": vary("gate", "argmax_all", "above_true", "always"),
    "seeds": vary("random_state", 0, 1, 7),
    "temperature": vary("temperature", 0.04, 0.1, 1.0),
    "rows per class": vary("n_per_class", 1, 40, 5),  # between 10 and 18 steps in an epoch
    "distributions": [{"distribution": "statistical"}, {"distribution": "small"}, {"small_std": 0.3}],
    "everything that may vary in a batch": [
        {"lambda_1": 2.0, "gate": "always", "random_state": 3, "n_per_class": 30, "temperature": 0.1},
        {"lambda_1": 0.1, "gate": "above_true", "random_state": 4, "n_per_class": 2, "temperature": 0.05},
        {"lambda_1": 1.0, "gate": "argmax_all", "random_state": 5, "n_per_class": 9, "temperature": 0.04},
    ],
    "generators": [
        {"generator": MAPPER},
        {"generator": GAN, "distribution": "generated"},
        {"generator": AUTOENCODER, "distribution": "generated"},
        {"generator": GAN, "distribution": "generated", "random_state": 1},
        {"generator": clone(MAPPER).set_params(n_epochs=1)},
    ],
    "scalings": [
        {"feature_scaling": "minmax"},
        {"feature_scaling": "none", "attribute_scaling": "unit"},
        {"attribute_scaling": "standard"},
        {"feature_scaling": "minmax", "random_state": 1},
    ],
    "weights": vary("weights", "mapped", "free", "class_normalised", "linear"),
    "a batch of free weights": [{"weights": "free", "random_state": seed} for seed in range(2)],
    "a batch of normalised weights": [{"weights": "class_normalised", "random_state": seed} for seed in range(2)],
    "a batch of linear weights": [{"weights": "linear", "random_state": seed} for seed in range(2)],
    "losses": vary("loss", "revised", "plain", "incremental"),
    "shapes": [
        {},
        {"d_hidden": 12},
        {"n_epochs": 5},
        {"learning_rate": 0.002},
        {"lr_step": 1},
        {"lr_step": None},
        {"batch_size": 100},
        {"resample": True},
        {"resample": True, "random_state": 1},
        {"lambda_1": 3.0},  # in the first one's batch, though not beside it
    ],
    "precisions": vary("precision", "float32", "tf32"),
    "members": [{"n_members": 2}, {}, {"n_members": 2, "lambda_1": 3.0, "n_per_class": 9}, {"n_members": 3}],
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_each_becomes_what_it_would_have_become_alone(settings: Settings) -> None:
    together, alone = fit_both(settings)
    for one, other in zip(together, alone, strict=True):
        assert one.get_params()["random_state"] == other.random_state
        assert one.settings() == other.settings()
        assert one.seed_ == other.seed_
        assert one.device_ == "cpu"
        assert_same(one, other)


def test_what_is_open_is_found_for_each() -> None:
    settings: Settings = [
        {"seen_penalty": "auto", "lambda_1": 0.1},
        {},
        {"seen_penalty": "auto", "random_state": 1},
        {"lambda_1": "auto"},
        {"lambda_1": "auto", "seen_penalty": "auto"},
    ]
    together, alone = fit_both(settings)
    for one, other in zip(together, alone, strict=True):
        assert one.seen_penalty_ == pytest.approx(other.seen_penalty_, abs=1e-4)
        assert one.lambda_1_ == pytest.approx(other.lambda_1_, rel=1e-3)
    assert together[1].seen_penalty_ == together[3].seen_penalty_ == 0
    assert [one.lambda_1_ for one in together[:3]] == [0.1, 1.0, 1.0]
    assert len({one.seen_penalty_ for one in together[:3]}) == 3


def test_scores_on_the_way_have_each_models_own_penalty(tiny: GZSLData) -> None:
    # Those with more rows are put first in training; penalties must follow them.
    settings: Settings = [{"n_per_class": 2}, {"seen_penalty": 0.5}, {"seen_penalty": -0.5, "n_per_class": 40}]
    together, alone = fit_both(settings, test=tiny)
    for model in (*together, *alone):
        final = gzsl_scores(model, tiny)
        for name in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
            assert model.history_[-1][name] == pytest.approx(getattr(final, name))
    assert [together[1].history_[-1]["acc_seen"], together[2].history_[-1]["acc_unseen"]] == [0, 0]
    assert together[0].history_[-1]["acc_seen"] > 0


@pytest.mark.parametrize("name", ["lambda_1", "gate", "seeds", "temperature", "rows per class", "scalings"])
def test_what_varies_tells_the_models_apart(name: str) -> None:
    models = fit_many([tiny_model(**one) for one in VARIANTS[name]], X, Y, VECTORS)
    for one, other in itertools.combinations(models, 2):
        assert np.abs(one.weights_ - other.weights_).max() > 1e-3


def test_the_embedded_numbers_are_learned_as_well_together() -> None:
    data = load_numbers(0, n_train=10)
    changes = [{"lambda_1": value, "random_state": seed} for value in (0.5, 2.0) for seed in (0, 1)]
    small = {"d_hidden": 64, "n_epochs": 4, "learning_rate": 1e-3, "generator__n_epochs": 4, "device": "cpu"}
    models = [DGZ.without_generator(**small, **change) for change in changes]
    fit_many(models, data.x_train, data.y_train, data.attributes, test=data)
    for model in models:
        alone = clone(model).fit(data.x_train, data.y_train, data.attributes, test=data)
        assert_same(model, alone, data.x_test_unseen)
        assert gzsl_scores(model, data).h > 0.3  # of 100 classes, after so little training


def test_the_models_themselves_are_fitted_and_given_back_in_order() -> None:
    models = [tiny_model(lambda_1=1), tiny_model(weights="free"), tiny_model(lambda_1=2)]
    found = fit_many(iter(models), X, Y, VECTORS)
    assert [id(model) for model in found] == [id(model) for model in models]


def test_no_models_are_no_work() -> None:
    assert fit_many([], X, Y, VECTORS) == []


def test_a_model_may_be_there_twice() -> None:
    model, other = tiny_model(random_state=1), tiny_model()
    assert fit_many([other, model, model], X, Y, VECTORS) == [other, model, model]
    assert_same(model, tiny_model(random_state=1).fit(X, Y, VECTORS))
    assert_same(other, tiny_model().fit(X, Y, VECTORS))


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_crowd_is_trained_in_several_batches(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dgz.many, "_MOST_MEMBERS", most)
    settings: Settings = [{"random_state": seed, "n_per_class": 3 + 5 * seed} for seed in range(5)]
    for one, other in zip(*fit_both(settings), strict=True):
        assert_same(one, other)


@pytest.fixture
def generators_trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the generators that were trained."""
    seeds = []
    for kind in (CenterMapper, WGANGP):

        def fit(self: Any, *arguments: Any, fit: Callable[..., Any] = kind.fit, **options: Any) -> Any:
            seeds.append(options["seed"])
            return fit(self, *arguments, **options)

        monkeypatch.setattr(kind, "fit", fit)
    return seeds


def test_a_shared_generator_is_trained_once(generators_trained: list[int]) -> None:
    models = [
        tiny_model(lambda_1=value, random_state=seed, weights=weights, distribution=distribution)
        for seed in (3, 4)
        for value in (0.5, 2.0)
        for weights, distribution in (("mapped", "statistical"), ("free", "small"))
    ]
    fit_many(models, X, Y, VECTORS)
    assert generators_trained == [3, 4]
    assert len({id(model.generator_) for model in models[:4]}) == 1
    assert models[0].generator_ is not models[4].generator_


@pytest.mark.parametrize(
    "change",
    [{"generator__n_epochs": 2}, {"generator": GAN}, {"random_state": 1}, {"attribute_scaling": "unit"}],
    ids=["settings", "kind", "seed", "numbers"],
)
def test_a_generator_that_differs_is_not_shared(change: dict[str, Any], generators_trained: list[int]) -> None:
    fit_many([tiny_model(), tiny_model().set_params(**change)], X, Y, VECTORS)
    assert len(generators_trained) == 2


@pytest.mark.parametrize("form", [dict, pd.DataFrame], ids=["mapping", "table"])
def test_labels_may_be_names(form: Any) -> None:
    order = np.array([3, 5, 0, 2, 4, 1])
    vectors = dict(zip(NAMES[order], VECTORS[order], strict=True))
    attributes = vectors if form is dict else pd.DataFrame.from_dict(vectors, orient="index")
    by_number = fit_many([tiny_model(random_state=seed) for seed in range(2)], X, Y, VECTORS)
    by_name = fit_many([tiny_model(random_state=seed) for seed in range(2)], X, NAMES[Y], attributes)
    for named, numbered in zip(by_name, by_number, strict=True):
        assert named.classes_.tolist() == NAMES.tolist()
        assert named.predict(TEST_ROWS).tolist() == NAMES[numbered.predict(TEST_ROWS)].tolist()


def test_test_rows_are_scored_after_every_epoch_of_each(tiny: GZSLData) -> None:
    settings: Settings = [{"lambda_1": 0.1}, {"lambda_1": 9.0, "random_state": 1}, {"n_epochs": 2}]
    together, alone = fit_both(settings, test=tiny)
    assert "h" not in fit_many([tiny_model()], X, Y, VECTORS)[0].history_[-1]
    for one, other, n_epochs in zip(together, alone, (3, 3, 2), strict=True):
        assert_same(one, other)
        tested = [row for row in one.history_ if "h" in row]
        assert [(row["stage"], row["epoch"], row["generator_epoch"]) for row in tested] == [
            ("classifier", epoch, 3) for epoch in range(1, n_epochs + 1)
        ]
        scores = gzsl_scores(one, tiny)
        for name in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
            assert tested[-1][name] == pytest.approx(getattr(scores, name))
    without = fit_many([tiny_model(**one) for one in settings], X, Y, VECTORS)
    for one, other in zip(together, without, strict=True):  # nothing is chosen by them
        np.testing.assert_array_equal(one.weights_, other.weights_)


# --- What can go wrong.
@pytest.mark.parametrize("place", range(3))
def test_a_broken_training_leaves_the_others_fitted(place: int) -> None:
    settings: Settings = [{"random_state": 1}, {"random_state": 2}]
    settings.insert(place, {**BROKEN, "random_state": 3})
    models = [tiny_model(**one) for one in settings]
    models[place].set_params(lambda_1=1.0).fit(X, Y, VECTORS).set_params(**BROKEN)  # what it had learned is gone too
    with pytest.raises(DGZError) as caught:
        fit_many(models, X, Y, VECTORS)
    sentence = "Training broke for 1 of 3 models, the first with lambda_1=1e+39 and random_state=3: a smaller learning"
    assert str(caught.value).startswith(sentence)
    for k, model in enumerate(models):
        if k == place:
            with pytest.raises(NotFittedError):
                model.predict(TEST_ROWS)
        else:
            assert_same(model, tiny_model(**settings[k]).fit(X, Y, VECTORS))
    models[place].set_params(lambda_1=1.0).fit(X, Y, VECTORS)


def assert_only_broken(models: list[DGZ], broken: int) -> None:
    """All but one model are fitted by fit_many, which says so in a sentence."""
    with np.errstate(all="ignore"), pytest.raises(DGZError, match=f"broke for 1 of {len(models)} models"):
        fit_many(models, X, Y, VECTORS)
    assert [hasattr(model, "weights_") for model in models] == [k != broken for k in range(len(models))]


@pytest.mark.parametrize("place", range(3))
def test_a_broken_batch_leaves_the_others_fitted(place: int) -> None:
    models = [tiny_model(), tiny_model(random_state=1)]
    models.insert(place, tiny_model(learning_rate=1e38))
    assert_only_broken(models, place)


@pytest.mark.parametrize("place", range(3))
def test_a_broken_generator_leaves_the_others_fitted(place: int) -> None:
    models = [tiny_model(), tiny_model(random_state=1)]
    models.insert(place, tiny_model(generator__learning_rate=1e38))
    assert_only_broken(models, place)


@pytest.mark.parametrize("stage", ["generator", "classifier"])
def test_what_is_wrong_outside_of_training_is_not_called_a_broken_training(stage: str) -> None:
    def refuse(at: str, *_: object) -> None:
        if at == stage:
            raise DGZError("The disk is full.")

    models = [tiny_model(), tiny_model(random_state=1)]
    with watching(refuse), pytest.raises(DGZError, match=r"^The disk is full\.$"):
        fit_many(models, X, Y, VECTORS)
    assert not any(hasattr(model, "weights_") for model in models)


def test_where_all_break_none_is_fitted() -> None:
    models = [tiny_model(**BROKEN, random_state=seed) for seed in range(2)]
    with pytest.raises(DGZError, match=r"no finite number any more|Training broke for 2 of 2 models"):
        fit_many(models, X, Y, VECTORS)
    assert not any(hasattr(model, "weights_") for model in models)


def test_every_setting_is_checked_before_any_training(generators_trained: list[int]) -> None:
    models = [tiny_model(), tiny_model(lambda_1=-1)]
    with pytest.raises(DGZError, match="lambda_1 must be a number from 0 up, found -1"):
        fit_many(models, X, Y, VECTORS)
    assert generators_trained == []
    assert not hasattr(models[0], "classes_")


def test_rows_that_cannot_be_used_are_refused_in_a_sentence() -> None:
    with pytest.raises(DGZError, match="fit needs attributes"):
        fit_many([tiny_model()], X, Y)


def test_what_was_learned_from_other_rows_is_forgotten() -> None:
    table = pd.DataFrame(X, columns=[f"feature {i}" for i in range(X.shape[1])])
    models = [tiny_model(), tiny_model(random_state=1).fit(table, NAMES[Y], dict(zip(NAMES, VECTORS, strict=True)))]
    fit_many(models, X, Y, VECTORS)
    assert models[1].classes_.tolist() == list(range(6))
    assert_same(models[1], tiny_model(random_state=1).fit(X, Y, VECTORS))  # names of columns would be missed here


# --- Afterwards they are models like any other.
@pytest.fixture
def several() -> list[DGZ]:
    return fit_many([tiny_model(lambda_1=value) for value in (0.5, 1.0, 2.0)], X, Y, VECTORS)


def test_they_can_be_saved_and_loaded(several: list[DGZ], tmp_path: Path) -> None:
    for k, model in enumerate(several):
        model.save(tmp_path / str(k))
        twin = DGZ.load(tmp_path / str(k))
        np.testing.assert_array_equal(twin.decision_function(TEST_ROWS), model.decision_function(TEST_ROWS))
        assert twin.lambda_1 == model.lambda_1
        assert twin.history_ == model.history_


def test_one_can_be_refined_and_the_others_stay_as_they_are(several: list[DGZ]) -> None:
    before = [model.weights_.copy() for model in several]
    several[1].set_params(lambda_1=8.0, n_per_class=9).refine()
    alone = tiny_model(lambda_1=8.0, n_per_class=9).fit(X, Y, VECTORS)
    np.testing.assert_allclose(several[1].weights_, alone.weights_, rtol=0, atol=1e-5)
    for k in (0, 2):
        np.testing.assert_array_equal(several[k].weights_, before[k])
        several[k].refine()  # the same again
        np.testing.assert_allclose(several[k].weights_, before[k], rtol=0, atol=1e-4)


@pytest.mark.parametrize("refine", [False, True])
def test_one_can_take_on_classes_and_the_others_stay_as_they_are(several: list[DGZ], refine: bool) -> None:
    new = np.full(VECTORS.shape[1], 0.5)
    alone = tiny_model(lambda_1=1.0).fit(X, Y, VECTORS).add_classes(6, new, refine=refine)
    several[1].add_classes(6, new, refine=refine)
    np.testing.assert_allclose(several[1].weights_, alone.weights_, rtol=0, atol=1e-4)
    assert several[1].classes_.tolist() == list(range(7))
    several[2].remove_classes(0)
    assert several[2].classes_.tolist() == [1, 2, 3, 4, 5]
    assert several[0].classes_.tolist() == list(range(6))
    assert several[0].predict(TEST_ROWS).shape == (len(TEST_ROWS),)


# --- Other methods, and generators with a space of their own.
JUDGED = WGANGP(n_epochs=2, hidden=(16,), critic_hidden=16, batch_size=8, class_weight=0.1)
EMBEDDING = ContrastiveWGANGP(
    n_epochs=2, hidden=(16,), critic_hidden=16, batch_size=8, d_embedding=7, d_projection=4, d_comparator=6
)


def method(kind: type[DGZ], **overrides: Any) -> DGZ:
    settings = {"generator": clone(EMBEDDING if kind is CEGZSL else JUDGED), "n_per_class": 5, "device": "cpu"}
    return kind(**settings, n_epochs=3, learning_rate=0.01).set_params(**overrides)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [FCLSWGAN, CEGZSL])
def test_other_methods_become_what_they_would_have_become_alone(
    kind: type[DGZ], tiny: GZSLData, generators_trained: list[int]
) -> None:
    changes: Settings = [
        {"distribution": "generated"},
        {"distribution": "statistical"},
        {"distribution": "small", "small_std": 0.5},
        {"distribution": "large", "random_state": 3},
        {"distribution": "generated", "random_state": 3},
        {"n_per_class": 9},  # in batches of another size
        {"n_per_class": 9, "batch_size": 5},  # in those of the first
    ]
    together = fit_many([method(kind, **change) for change in changes], X, Y, VECTORS, test=tiny)
    assert generators_trained == [0, 3]  # one for each seed
    assert {id(model.generator_) for model in together} == {id(together[k].generator_) for k in (0, 3)}
    for model, change in zip(together, changes, strict=True):
        alone = method(kind, **change).fit(X, Y, VECTORS, test=tiny)
        assert_same(model, alone)
        assert model.weights_.shape == (6, 8 if kind is CEGZSL else 6)
        assert model.history_[-1]["h"] == pytest.approx(gzsl_scores(model, tiny).h)
        np.testing.assert_allclose(model.embed(TEST_ROWS), alone.embed(TEST_ROWS), atol=1e-6)
    for one, other in itertools.combinations(together, 2):
        assert np.abs(one.weights_ - other.weights_).max() > 1e-4


def test_models_of_different_methods_are_fitted_in_one_call() -> None:
    makers: list[Callable[[], DGZ]] = [
        tiny_model,
        lambda: method(CEGZSL),
        lambda: tiny_model(generator=clone(EMBEDDING), distribution="generated", feature_scaling="minmax"),
        lambda: method(FCLSWGAN),
        lambda: tiny_model(feature_scaling="minmax"),  # in the same scaling as the others, in the features' space
        lambda: method(CEGZSL, random_state=1),
        lambda: tiny_model(generator=clone(JUDGED), distribution="small", feature_scaling="minmax", weights="linear"),
    ]
    models = fit_many([make() for make in makers], X, Y, VECTORS)
    for model, make in zip(models, makers, strict=True):
        alone = make()
        assert type(model) is type(alone)
        assert_same(model, alone.fit(X, Y, VECTORS))
    assert [model.weights_.shape[1] for model in models] == [5, 8, 7, 6, 5, 8, 6]


def test_a_generator_is_shared_across_methods(generators_trained: list[int]) -> None:
    as_dgz = tiny_model(generator=clone(EMBEDDING), feature_scaling="minmax")
    models = fit_many([as_dgz, method(CEGZSL), method(CEGZSL, distribution="small")], X, Y, VECTORS)
    assert generators_trained == [0]
    assert len({id(model.generator_) for model in models}) == 1
    assert generator_key(models[0], 0) == generator_key(models[1], 0)


def test_generators_that_would_be_the_same_have_the_same_key() -> None:
    default = FCLSWGAN()
    spelled_out = FCLSWGAN(generator=default._new_generator(), n_per_class=7, n_epochs=1)
    assert generator_key(default, 1) == generator_key(spelled_out, 1)
    assert generator_key(default, 1) != generator_key(default, 2)
    for other in (DGZ(), CEGZSL(), FCLSWGAN.preset("CUB")):
        assert generator_key(default, 1) != generator_key(other, 1)


def test_a_broken_embedding_leaves_the_others_fitted() -> None:
    models = [method(CEGZSL), method(CEGZSL, generator__learning_rate=1e38), method(CEGZSL, random_state=1)]
    assert_only_broken(models, 1)
    assert_same(models[2], method(CEGZSL, random_state=1).fit(X, Y, VECTORS))


# --- Rows that generators learn from.
FEW = np.concatenate([np.flatnonzero(c == Y)[:3] for c in range(4)])


@pytest.mark.parametrize("rows", [FEW, FEW.tolist(), torch.tensor(FEW)], ids=["array", "list", "tensor"])
@pytest.mark.parametrize("make", [tiny_model, lambda: method(FCLSWGAN), lambda: method(CEGZSL)])
def test_generators_learn_from_some_rows_and_classifiers_from_all(make: Callable[[], DGZ], rows: Any) -> None:
    (model,) = fit_many([make()], X, Y, VECTORS, generator_rows=rows)
    scaled = torch.tensor(model.scaler_.transform(X))
    alone = model._new_generator().fit(scaled[FEW], torch.tensor(Y[FEW]), torch.tensor(model.attributes_), seed=0)
    for name, net in alone.networks().items():
        for ours, theirs in zip(model.generator_.networks()[name].parameters(), net.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    (on_all,) = fit_many([make()], X, Y, VECTORS)
    assert not torch.equal(on_all.generator_.net_.first.bias, model.generator_.net_.first.bias)
    # Refining trains a classifier with all rows, whatever the generator learned from.
    before = model.weights_.copy()
    np.testing.assert_allclose(model.refine().weights_, before, rtol=0, atol=1e-4)
    assert np.abs(model.refine(X[FEW], Y[FEW]).weights_ - before).max() > 1e-3


def test_all_rows_are_what_generators_learn_from_otherwise() -> None:
    (plain,), (spelled_out,) = (
        fit_many([tiny_model()], X, Y, VECTORS, generator_rows=rows) for rows in (None, np.arange(len(X)))
    )
    assert_same(spelled_out, plain)


# --- Checkpoints.
@pytest.fixture
def keep_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every epoch took half a minute."""
    monkeypatch.setattr(dgz.many, "Checkpoints", functools.partial(Checkpoints, every=0))


def two_generators() -> list[DGZ]:
    return [tiny_model(), tiny_model(random_state=1), tiny_model(lambda_1=4.0)]


class InterruptionError(Exception):
    """Stands for Ctrl-C, which would end the tests too."""


def break_at(patch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Interrupt a step of center mappers in training; gives the numbers of the steps made."""
    made: list[int] = []
    original = _CenterTraining.step

    def counting(self: _CenterTraining) -> dict[str, torch.Tensor]:
        if len(made) + 1 == step:
            raise InterruptionError
        made.append(len(made) + 1)
        return original(self)

    patch.setattr(_CenterTraining, "step", counting)
    return made


def test_nothing_is_kept_of_short_trainings(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    kept = fit_many(two_generators(), X, Y, VECTORS, checkpoint_folder=folder)
    assert not folder.exists() or not list(folder.rglob("*.safetensors"))
    for one, other in zip(kept, fit_many(two_generators(), X, Y, VECTORS), strict=True):
        np.testing.assert_array_equal(one.weights_, other.weights_)


@pytest.mark.usefixtures("keep_everything")
def test_what_is_kept_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fit_many(two_generators(), X, Y, VECTORS, checkpoint_folder=tmp_path)
    assert len(list(tmp_path.rglob("generator.safetensors"))) == 2  # one for each generator
    made = break_at(monkeypatch, step=0)
    again = fit_many(two_generators(), X, Y, VECTORS, checkpoint_folder=tmp_path)
    assert made == []  # none is left to be made
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.weights_, other.weights_)
        assert one.history_ == other.history_


@pytest.mark.usefixtures("keep_everything")
def test_a_broken_call_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = fit_many(two_generators(), X, Y, VECTORS)
    per_epoch = CenterMapper().steps_per_epoch
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, step=5 * per_epoch)  # in the second epoch of the second generator, of three each
        with pytest.raises(InterruptionError):
            fit_many(two_generators(), X, Y, VECTORS, checkpoint_folder=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        made = break_at(patch, step=0)
        resumed = fit_many(two_generators(), X, Y, VECTORS, checkpoint_folder=tmp_path)
    assert len(made) == 2 * per_epoch
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(one.weights_, other.weights_)
        assert one.history_ == other.history_


@pytest.mark.usefixtures("keep_everything")
def test_a_model_killed_in_a_fold_goes_on_there(tmp_path: Path) -> None:
    open_model = {"seen_penalty": "auto", "lambda_1": "auto"}
    whole = tiny_model(**open_model).fit(X, Y, VECTORS)
    per_epoch = CenterMapper().steps_per_epoch
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, step=5 * per_epoch)  # in the second fold's second epoch, of three each
        with pytest.raises(InterruptionError):
            tiny_model(**open_model).fit(X, Y, VECTORS, checkpoint_folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fold-0", "fold-1"]
    with pytest.MonkeyPatch.context() as patch:
        made = break_at(patch, step=0)
        resumed = tiny_model(**open_model).fit(X, Y, VECTORS, checkpoint_folder=tmp_path)
    assert len(made) == (2 + 3 + 3) * per_epoch  # what was left of the second fold, the third, and all rows
    assert (resumed.lambda_1_, resumed.seen_penalty_) == (whole.lambda_1_, whole.seen_penalty_)
    np.testing.assert_array_equal(resumed.weights_, whole.weights_)


@pytest.mark.usefixtures("keep_everything")
def test_methods_with_an_embedding_go_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> list[DGZ]:
        return [method(kind, random_state=seed) for kind in (FCLSWGAN, CEGZSL) for seed in (0, 1)]

    first = fit_many(make(), X, Y, VECTORS, checkpoint_folder=tmp_path)
    monkeypatch.setattr(WGANTraining, "step", None)  # calling it would break
    for one, other in zip(first, fit_many(make(), X, Y, VECTORS, checkpoint_folder=tmp_path), strict=True):
        np.testing.assert_array_equal(one.weights_, other.weights_)
        np.testing.assert_array_equal(one.embed(TEST_ROWS), other.embed(TEST_ROWS))


@pytest.mark.usefixtures("keep_everything")
@pytest.mark.parametrize("change", ["rows", "labels", "vectors", "generator_rows"])
def test_checkpoints_of_other_data_are_not_used(tmp_path: Path, change: str) -> None:
    fit_many([tiny_model()], X, Y, VECTORS, checkpoint_folder=tmp_path)
    arguments: dict[str, Any] = {"X": X, "y": Y, "attributes": VECTORS}
    arguments |= {
        "rows": {"X": X + np.float32(0.1) * (np.arange(len(X)) == 3)[:, None]},
        "labels": {"y": Y[::-1].copy()},
        "vectors": {"attributes": VECTORS + 0.1},
        "generator_rows": {"generator_rows": FEW},
    }[change]
    (resumed,) = fit_many([tiny_model()], **arguments, checkpoint_folder=tmp_path)
    (alone,) = fit_many([tiny_model()], **arguments)
    assert resumed.weights_.tobytes() == alone.weights_.tobytes()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("keep_everything")
def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    fit_many([tiny_model()], X, Y, VECTORS, checkpoint_folder=tmp_path)
    (kept,) = tmp_path.rglob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-9])
    with pytest.raises(DGZError, match="is not a whole checkpoint of this training"):
        fit_many([tiny_model()], X, Y, VECTORS, checkpoint_folder=tmp_path)


@pytest.mark.usefixtures("keep_everything")
def test_what_is_kept_of_a_generator_serves_whichever_classifiers_come(tmp_path: Path) -> None:
    fit_many([tiny_model(), tiny_model(lambda_1=4.0)], X, Y, VECTORS, checkpoint_folder=tmp_path)
    fit_many([tiny_model(lambda_1=4.0), tiny_model()], X, Y, VECTORS, checkpoint_folder=tmp_path)


@pytest.mark.usefixtures("keep_everything")
def test_a_generator_in_two_scalings_has_two_files(tmp_path: Path) -> None:
    models = [tiny_model(), tiny_model(feature_scaling="minmax")]
    fit_many(models, X, Y, VECTORS, checkpoint_folder=tmp_path)


def test_folds_have_the_balance_of_real_and_pseudo_rows_that_there_will_be_in_the_end() -> None:
    data = load_numbers(0, n_train=5)
    fold = validation_folds(data, 3)[0]
    sizes = (len(data.x_train), len(data.seen), len(data.unseen))

    def balances(model: Frame) -> list[float]:
        """Pseudo rows for each row that the classifier learns from: in the end, and on the fold."""
        rows = model._new_generator().n_training_rows
        on_fold = pseudo_rows_on(fold, model, *sizes) * len(fold.unseen) / rows(len(fold.x_train), len(fold.seen))
        return [model.n_per_class * sizes[2] / rows(*sizes[:2]), on_fold]

    in_the_end, on_fold = balances(DGZ.without_generator(n_per_class=40))
    assert in_the_end == 2.0
    assert on_fold == pytest.approx(in_the_end, rel=0.02)
    # CADA-VAE's classifier learns from so many rows of each seen class, however many there are.
    in_the_end, on_fold = balances(CADAVAE(generator=AlignedVAEs(n_per_seen=100), n_per_class=200))
    assert in_the_end == 0.5
    assert on_fold == pytest.approx(in_the_end, rel=0.02)
