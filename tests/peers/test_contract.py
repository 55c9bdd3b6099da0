"""What every method has in common, whatever it is: fit, predict, decision_function, save, load, seeds, presets."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dgz.data import GZSLData, load_numbers
from dgz.errors import DataError, DGZError
from dgz.estimator import GZSLClassifier
from dgz.experiments import run
from dgz.metrics import gzsl_scores
from dgz.model import DGZ
from dgz.peers import CADAVAE, FCLSWGAN, METHODS, TFVAEGAN, load_model, make_method
from dgz.peers.softmax import with_defaults
from dgz.reproduce import shortened
from dgz.settings import configure
from dgz.trained import TrainedMethod

NAMES = sorted(METHODS)


@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=8, n_test=3)


@pytest.fixture(scope="module")
def fitted(numbers: GZSLData) -> dict[str, GZSLClassifier]:
    """Every method, fitted when it is first asked for."""

    class Fitted(dict[str, GZSLClassifier]):
        def __missing__(self, name: str) -> GZSLClassifier:
            self[name] = fit(quick(name), numbers)
            return self[name]

    return Fitted()


def quick(name: str, **overrides: Any) -> GZSLClassifier:
    return shortened(make_method(name)).set_params(**overrides)


def fit(model: GZSLClassifier, data: GZSLData, **options: Any) -> GZSLClassifier:
    if isinstance(model, TrainedMethod):
        model.set_params(device="cpu")
    return model.fit(data.x_train, data.y_train, data.attributes, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_scores_every_row_for_every_class(
    name: str, fitted: dict[str, GZSLClassifier], numbers: GZSLData
) -> None:
    model = fitted[name]
    scores = model.decision_function(numbers.x_test_unseen)
    assert scores.shape == (len(numbers.x_test_unseen), 100)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(model.predict(numbers.x_test_unseen), scores.argmax(axis=1))
    np.testing.assert_array_equal(np.flatnonzero(~model.seen_), numbers.unseen)
    np.testing.assert_allclose(model.predict_proba(numbers.x_test_seen).sum(axis=1), 1, rtol=1e-4)
    # One row at a time gives what all at once give.
    few = model.decision_function(numbers.x_test_unseen[:3])
    np.testing.assert_allclose(few, scores[:3], rtol=1e-3, atol=1e-4)
    assert gzsl_scores(model, numbers).acc_seen > 0
    assert model.count_parameters() > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_method_is_the_same_method(
    name: str, fitted: dict[str, GZSLClassifier], numbers: GZSLData, tmp_path: Path
) -> None:
    model = fitted[name]
    model.save(tmp_path / "model")
    twin = load_model(tmp_path / "model")
    assert type(twin) is type(model)
    assert twin.settings() == json.loads(json.dumps(model.settings()))
    np.testing.assert_array_equal(
        twin.decision_function(numbers.x_test_seen), model.decision_function(numbers.x_test_seen)
    )
    assert twin.count_parameters() == model.count_parameters()
    np.testing.assert_array_equal(twin.seen_, model.seen_)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.json", "model.safetensors"}
    with pytest.raises(DGZError, match="exists"):
        model.save(tmp_path / "model")
    header = json.loads((tmp_path / "model" / "model.json").read_text())
    (tmp_path / "model" / "model.json").write_text(json.dumps({**header, "n_features": 7}))
    with pytest.raises(DataError, match="is broken"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_decides_everything(name: str, fitted: dict[str, GZSLClassifier], numbers: GZSLData) -> None:
    again = fit(clone(fitted[name]), numbers)
    expected = fitted[name].decision_function(numbers.x_test_seen)
    np.testing.assert_array_equal(again.decision_function(numbers.x_test_seen), expected)
    if isinstance(again, TrainedMethod):
        other = fit(clone(fitted[name]).set_params(random_state=1), numbers)
        assert (other.decision_function(numbers.x_test_seen) != expected).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_recorded_with_its_curve(name: str, numbers: GZSLData, tmp_path: Path) -> None:
    model = quick(name)
    if isinstance(model, TrainedMethod):
        model.set_params(device="cpu")
    record = run(model, numbers, tmp_path / "run")
    assert {"acc_unseen", "acc_seen", "h", "acc_zsl", "ausuc"} <= set(record.scores)
    assert record.n_parameters == model.count_parameters()
    assert record.seconds["fit"] > 0
    if isinstance(model, TrainedMethod):
        curve = record.curve["classifier"]
        assert curve["h"]
        # The last row of the curve is the model that is scored.
        assert curve["h"][-1] == pytest.approx(record.scores["h"], abs=2e-3)
        assert curve["acc_zsl"][-1] == pytest.approx(record.scores["acc_zsl"], abs=2e-3)
    twin = load_model(tmp_path / "run" / "model")
    names = np.array(numbers.class_names)
    np.testing.assert_array_equal(twin.predict(numbers.x_test_seen), model.predict(numbers.x_test_seen))
    assert set(twin.classes_) == set(names)


@pytest.mark.parametrize("name", [name for name in NAMES if issubclass(METHODS[name], TrainedMethod)])
def test_test_rows_change_nothing_that_is_learned(
    name: str, fitted: dict[str, GZSLClassifier], numbers: GZSLData
) -> None:
    watched = fit(quick(name), numbers, test=numbers)
    np.testing.assert_array_equal(
        watched.decision_function(numbers.x_test_unseen), fitted[name].decision_function(numbers.x_test_unseen)
    )


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_settings_that_can_be_used(name: str) -> None:
    kind = METHODS[name]
    for key in kind.presets:
        data, _, semantics = key.partition("/")
        model = make_method(name, data, semantics)
        assert isinstance(model, kind)
        assert json.loads(json.dumps(model.settings()))
        if isinstance(model, TrainedMethod):
            model.check()
    with pytest.raises(DGZError, match="preset must be one of"):
        kind.preset("nothing")


@pytest.mark.parametrize("name", NAMES)
def test_a_method_says_what_is_faithful_and_what_is_not(name: str) -> None:
    text = METHODS[name].__doc__ or ""
    assert "Parameters" in text
    assert METHODS[name] is DGZ or "aithful" in text or "approximat" in text or "baseline" in text.lower()


def test_unknown_methods_are_named(tmp_path: Path) -> None:
    with pytest.raises(DGZError, match=r"method must be one of .*zla.*, found 'magic'"):
        make_method("magic")
    (tmp_path / "model.json").write_text(json.dumps({"format": "dgz-model", "version": 1, "method": "Magic"}))
    with pytest.raises(DGZError, match="'Magic', which is not known here"):
        load_model(tmp_path)


def test_defaults_that_a_method_changes_are_its_signatures() -> None:
    assert inspect.signature(CADAVAE).parameters["n_per_class"].default == 400
    assert CADAVAE().get_params()["n_per_class"] == clone(CADAVAE()).n_per_class == 400
    assert CADAVAE(n_per_class=3).n_per_class == 3
    assert FCLSWGAN().n_per_class == 300  # which shares the constructor behind it
    assert TFVAEGAN().attribute_scaling == "unit"  # inherited
    assert configure(CADAVAE(), ["n_epochs=3"]).n_epochs == 3
    with pytest.raises(DGZError, match="n_epochs must be a whole number"):
        configure(CADAVAE(), ["n_epochs=many"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_epoch'"):
        CADAVAE(n_epoch=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="FCLSWGAN has no setting n_rows"):
        with_defaults(n_rows=3)(FCLSWGAN)
