"""ZLA (Chen et al., IJCAI 2022): logits adjusted by the priors of seen and unseen classes, on a Wasserstein GAN.

DGZ's forerunner by the same authors. In DGZ's terms: the generator has one hidden layer, the classifier's weights are
mapped from class vectors, and its loss is plain cross-entropy of logits to which the classes' log priors were added.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from dgz.classifier import Weights
from dgz.composed import ComposedMethod
from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.generators import WGANGP, ClassGenerator
from dgz.instances import Distribution
from dgz.losses import Gate, Loss
from dgz.training import Precision


class ZLA(ComposedMethod):
    """ZLA: a cosine classifier that is told in training how much likelier seen classes are than unseen ones.

    Faithful to the released code: networks, loss, learning rates, the classifier's schedule, scaling. What differs: the
    generator has 200 epochs, where theirs has up to 2000, with a classifier and its test scores after each of them for
    the reader to pick from; the final weights are used; and batches of the generator are drawn with replacement.

    Parameters
    ----------
    generator, distribution, n_per_class, small_std, large_std
        See :class:`~dgz.DGZ`.
    seen_ratio : float
        How much likelier the seen classes are, together, than the unseen ones (r). A large one keeps rows of seen
        classes from pushing unseen classes away. Published values are from 30 to 1000, and the default lies between.
    temperature, d_hidden, n_epochs, learning_rate, lr_step, lr_factor, weight_decay, batch_size
        See :class:`~dgz.classifier.CosineClassifier`.
    feature_scaling, attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = ZLA(generator=WGANGP(n_epochs=1, hidden=1), n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape
    (1600,)
    """

    # r of the released scripts; that of CUB with attributes is the author's answer to issue 1 of the repository.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {"seen_ratio": 1000.0},
        "CUB": {"seen_ratio": 30.0},
        "CUB/att": {"seen_ratio": 45.0},
        "SUN": {"seen_ratio": 60.0},
        "APY": {"seen_ratio": 300.0},
    }
    weights: Weights = "mapped"
    loss: Loss = "adjusted"
    gate: Gate = "argmax_all"
    lambda_1 = lambda_2 = 1.0
    resample = False

    def __init__(
        self,
        *,
        generator: ClassGenerator | None = None,
        distribution: Distribution = "generated",
        n_per_class: int = 10,
        small_std: float = 0.1,
        large_std: float = 10.0,
        seen_ratio: float = 100.0,
        temperature: float = 0.04,
        d_hidden: int = 1024,
        n_epochs: int = 60,
        learning_rate: float = 1e-4,
        lr_step: int | None = 30,
        lr_factor: float = 0.5,
        weight_decay: float = 1e-4,
        batch_size: int = 512,
        feature_scaling: FeatureScaling = "minmax",
        attribute_scaling: AttributeScaling = "auto",
        device: str = "auto",
        precision: Precision = "tf32",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.generator = generator
        self.distribution = distribution
        self.n_per_class = n_per_class
        self.small_std = small_std
        self.large_std = large_std
        self.seen_ratio = seen_ratio
        self.temperature = temperature
        self.d_hidden = d_hidden
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.lr_step = lr_step
        self.lr_factor = lr_factor
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    @staticmethod
    def _default_generator() -> ClassGenerator:
        return WGANGP(n_epochs=200, attribute_noise=0.0, hidden=1)
