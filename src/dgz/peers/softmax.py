"""A generator of any kind with a linear softmax classifier: the frame of the methods before DGZ."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from dgz.classifier import CosineClassifier, Weights
from dgz.composed import ComposedMethod
from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.errors import require_count
from dgz.generators import ClassGenerator
from dgz.instances import Distribution
from dgz.losses import Gate, Loss
from dgz.training import Precision

Method = TypeVar("Method", bound=ComposedMethod)


def with_defaults(**defaults: Any) -> Callable[[type[Method]], type[Method]]:
    """Give the constructor that a method inherits other defaults, as if it had been written out with them.

    Examples
    --------
    >>> import inspect
    >>> @with_defaults(n_per_class=7)
    ... class Sevenfold(SoftmaxMethod): ...
    >>> inspect.signature(Sevenfold).parameters["n_per_class"].default
    7
    """

    def change(kind: type[Method]) -> type[Method]:
        inherited = kind.__init__
        known = inspect.signature(inherited)
        if odd := set(defaults) - set(known.parameters):
            raise TypeError(f"{kind.__name__} has no setting {', '.join(sorted(odd))}.")

        @functools.wraps(inherited)
        def construct(self: Any, **settings: Any) -> None:
            inherited(self, **{**defaults, **settings})

        parameters = [one.replace(default=defaults.get(name, one.default)) for name, one in known.parameters.items()]
        construct.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
        kind.__init__ = construct  # type: ignore[method-assign]
        return kind

    return change


class SoftmaxMethod(ComposedMethod):
    """A generator of any kind with a linear softmax classifier, which the methods before DGZ have in common.

    Parameters
    ----------
    generator, distribution, n_per_class, small_std, large_std
        See :class:`~dgz.DGZ`.
    n_epochs, learning_rate : int, float
        Of the softmax classifier.
    batch_size : int, optional
        Its rows per step; by default ``n_per_class``, as in the released scripts.
    feature_scaling, attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`.
    """

    # What makes the classifier a linear softmax: logits W x + b, plain cross-entropy, a steady learning rate.
    weights: Weights = "linear"
    loss: Loss = "plain"
    gate: Gate = "argmax_all"
    lambda_1 = lambda_2 = temperature = 1.0
    d_hidden = 1
    lr_step = None
    resample = False

    def __init__(
        self,
        *,
        generator: ClassGenerator | None = None,
        distribution: Distribution = "generated",
        n_per_class: int = 300,
        small_std: float = 0.1,
        large_std: float = 10.0,
        n_epochs: int = 25,
        learning_rate: float = 1e-3,
        batch_size: int | None = None,
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
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size  # type: ignore[assignment]
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        require_count(n_per_class=self.n_per_class)  # before it becomes the size of a batch
        super().check()

    def _settings_in_use(self) -> dict[str, Any]:
        settings = super()._settings_in_use()
        if self.batch_size is None and settings["batch_size"] == self.n_per_class:
            settings["batch_size"] = None  # it goes on following the number of rows
        return settings

    def _new_classifier(self) -> CosineClassifier:
        settings = {name: getattr(self, name) for name in CosineClassifier().get_params()}
        size = self.n_per_class if self.batch_size is None else self.batch_size
        return CosineClassifier(**{**settings, "batch_size": size})
