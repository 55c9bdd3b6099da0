"""FREE: its settings, and that it recognises classes without training rows."""

from dgz.data import load_numbers
from dgz.generators import RefiningVAEGAN
from dgz.metrics import gzsl_scores
from dgz.peers import FREE


def test_settings_are_those_of_the_released_scripts() -> None:
    one = FREE()
    assert (one.n_epochs, one.learning_rate, one.feature_scaling, one.attribute_scaling) == (25, 1e-3, "minmax", "unit")
    generator = one._new_generator()
    assert isinstance(generator, RefiningVAEGAN)
    assert (generator.n_critic, generator.batch_size, generator.refining_weight) == (1, 64, 0.001)
    cub, awa, sun = (FREE.preset(name) for name in ("CUB", "AWA2", "SUN"))
    assert isinstance(cub.generator, RefiningVAEGAN)
    assert isinstance(awa.generator, RefiningVAEGAN)
    assert isinstance(sun.generator, RefiningVAEGAN)
    assert (cub.n_per_class, cub.generator.n_epochs, cub.generator.margin, cub.generator.balance) == (
        700,
        501,
        200,
        0.8,
    )
    assert (awa.n_per_class, awa.generator.n_epochs, awa.generator.margin, awa.generator.other) == (
        4600, 401, 50, "nearest"
    )  # fmt: skip
    assert (sun.generator.margin, sun.generator.refining_weight, sun.generator.batch_size) == (120, 0.1, 512)
    assert sun.learning_rate == 5e-4
    assert [one.generator.gan_weight for one in (cub, awa, sun)] == [10, 10, 1]
    assert [one.generator.learning_rate for one in (cub, awa, sun)] == [1e-4, 1e-5, 2e-4]
    assert [one.generator.freeze_refiner for one in (cub, awa, sun)] == [True, True, False]
    assert not generator.freeze_refiner


def test_it_recognises_classes_without_training_rows() -> None:
    data = load_numbers(0, n_train=20, n_test=5)
    generator = RefiningVAEGAN(n_epochs=30, hidden=(128,), d_refined=64, learning_rate=1e-3, refining_rate=1e-3)
    model = FREE(generator=generator, n_per_class=50, n_epochs=8, learning_rate=0.01, device="cpu")
    scores = gzsl_scores(model.fit(data.x_train, data.y_train, data.attributes), data)
    assert scores.acc_zsl > 0.5  # of 20 classes
    assert scores.acc_seen > 0.4  # of 100
