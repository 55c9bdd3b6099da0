"""DGZ: the deconstructed generation-based zero-shot model, with its settings and those published for it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from dgz.classifier import Weights
from dgz.composed import ComposedMethod
from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.errors import DGZError, require_choice
from dgz.generators import WGANGP, CenterMapper, ClassGenerator
from dgz.instances import Distribution
from dgz.losses import Gate, Loss
from dgz.training import Precision

Source = Literal["paper", "released"]
Schedule = Literal["released", "short"]

_SCHEDULES: dict[Schedule, dict[str, Any]] = {
    "released": {},
    # Chosen on folds of CUB's training rows: benchmarks/schedule.py, docs/protocol.md.
    "short": {
        "generator__n_epochs": 20,
        "generator__learning_rate": 3e-4,
        "n_epochs": 35,
        "learning_rate": 1.7e-4,
        "lr_step": 15,
    },
}


class DGZ(ComposedMethod):
    """The deconstructed generation-based zero-shot model (Chen et al., AAAI 2023).

    A generator learns where classes lie in feature space, given their vectors; it, or a Gaussian around its centres,
    makes pseudo rows of the unseen classes; a cosine classifier whose weights are mapped from the class vectors learns
    from both by the revised cross-entropy.

    Parameters
    ----------
    generator : ClassGenerator, optional
        Class level: :class:`~dgz.generators.WGANGP` (default), :class:`~dgz.generators.CVAE`,
        :class:`~dgz.generators.CenterMapper` or :class:`~dgz.generators.ContrastiveWGANGP`, with its settings.
    distribution : {"generated", "small", "large", "statistical"}
        Instance level: see :func:`~dgz.instances.synthesise`.
    n_per_class : int
        Pseudo rows of each unseen class.
    small_std, large_std : float
        See :func:`~dgz.instances.synthesise`.
    weights, loss, gate, lambda_2, temperature, d_hidden
        Classifier: see :class:`~dgz.classifier.CosineClassifier`.
    n_epochs, learning_rate, lr_step, batch_size, resample
        How the classifier is trained: see there.
    n_members : int
        How many classifiers are trained, at once, each from a start and on pseudo rows of its own; a row's score is the
        mean of theirs. On a GPU a few cost about as much as one; a fitted model of several answers as fast as one.
    lambda_1 : float or "auto"
        Weight of the unseen classes in the loss (λ1). ``auto`` finds it by training on three leak-free folds of the
        training rows first, in which some seen classes play unseen: :func:`~dgz.many.choose_on_folds` says how.
    seen_penalty : float or "auto"
        Subtracted from the scores of seen classes (calibrated stacking): a higher one favours unseen classes. ``auto``
        finds it by training on three leak-free folds of the training rows first, in which some seen classes play
        unseen: the mean of the penalties that are best there. It costs about two trainings more, and pays where there
        are few training rows, on which a model is surer of itself than on new ones.
    feature_scaling : {"minmax_l2", "minmax", "none"}
        See :class:`~dgz.data.FeatureScaler`.
    attribute_scaling : {"auto", "none", "unit", "standard", "sqrt_d"}
        See :class:`~dgz.data.AttributeScaler`; ``auto`` is ``none`` where norms are usual (0.5 to 50) and ``unit``
        elsewhere. Presets have ``none``: their settings refer to the vectors as distributed.
    device : str
        ``"auto"`` is a GPU where there is one.
    precision : {"tf32", "float32", "bf16"}
        How matrices are multiplied in training: ``tf32`` is what GPUs do fast, with scores that cannot be told from
        those of ``float32``, and on a CPU it is ``float32``. ``bf16`` is faster and coarser, on any device.
    random_state : int
        The same number gives the same model; on the CPU, to the last bit.
    verbose : bool
        Show progress.

    Attributes
    ----------
    lambda_1_, seen_penalty_ : float
        λ1 and the penalty in use.
    classes_ : array of shape (n_classes,)
        All labels, sorted.
    seen_ : array of bool, shape (n_classes,)
        Which of them had training rows.
    weights_ : array of shape (n_classes, d_x)
        The classifier's weights, of unit norm; ``linear`` ones of any norm, with a column for the bias.
    generator_, classifier_ : fitted stages
    history_ : list of dict
        A row per epoch of each stage: losses, and test scores where ``fit`` was given test rows.
    device_ : str
        What it was trained on.

    Examples
    --------
    >>> from dgz import DGZ, gzsl_scores, load_numbers
    >>> data = load_numbers(0)
    >>> model = DGZ.without_generator().fit(data.x_train, data.y_train, data.attributes)
    >>> gzsl_scores(model, data).h > 0.8
    True
    """

    # λ1 of the paper ("Hyper-parameters") and of the released scripts, and generated rows per class.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {"paper": 0.005, "released": 0.005, "n_per_class": 100},
        "CUB": {"paper": 4.0, "released": 2.0, "n_per_class": 50},
        "SUN": {"paper": 0.8, "released": 0.8, "n_per_class": 50},
        "APY": {"paper": 0.04, "released": 0.04, "n_per_class": 50},
    }

    def __init__(
        self,
        *,
        generator: ClassGenerator | None = None,
        distribution: Distribution = "generated",
        n_per_class: int = 50,
        small_std: float = 0.1,
        large_std: float = 10.0,
        weights: Weights = "mapped",
        loss: Loss = "revised",
        gate: Gate = "argmax_all",
        lambda_1: float | Literal["auto"] = 1.0,
        lambda_2: float = 1.0,
        temperature: float = 0.04,
        d_hidden: int = 1024,
        n_epochs: int = 60,
        learning_rate: float = 1e-4,
        lr_step: int | None = 25,
        batch_size: int = 512,
        resample: bool = False,
        n_members: int = 1,
        seen_penalty: float | Literal["auto"] = 0.0,
        feature_scaling: FeatureScaling = "minmax_l2",
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
        self.weights = weights
        self.loss = loss
        self.gate = gate
        self.lambda_1 = lambda_1
        self.lambda_2 = lambda_2
        self.temperature = temperature
        self.d_hidden = d_hidden
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.lr_step = lr_step
        self.batch_size = batch_size
        self.resample = resample
        self.n_members = n_members
        self.seen_penalty = seen_penalty
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    @staticmethod
    def _default_generator() -> ClassGenerator:
        return WGANGP()

    # --- Ready-made settings.
    @classmethod
    def without_generator(cls, *, schedule: Schedule = "released", **overrides: Any) -> Self:
        """The paper's "w/o GM": class centres by a mapping net, Gaussian rows with the training rows' covariance.

        Parameters
        ----------
        schedule : {"released", "short"}
            How long to train: as long as the released code trains its parts, or ``short``, with fewer epochs and
            higher learning rates. docs/protocol.md says how it was chosen.
        **overrides
            The constructor's parameters, and its generator's as ``generator__n_epochs=…``.
        """
        require_choice(schedule, Schedule, "schedule")
        model = cls(generator=CenterMapper(), distribution="statistical")
        return model.set_params(**_SCHEDULES[schedule]).set_params(**overrides)  # type: ignore[no-any-return]

    @classmethod
    def preset(
        cls,
        name: str,
        *,
        source: Source = "released",
        without_generator: bool = False,
        schedule: Schedule = "released",
        **overrides: Any,
    ) -> Self:
        """The settings published for one of the paper's data sets.

        Parameters
        ----------
        name : {"AWA2", "CUB", "SUN", "APY"}
        source : {"released", "paper"}
            Where text and released code differ: λ1 on CUB (2 in the code, 4 in the paper), the gate (``argmax_all`` in
            the code, ``above_true`` in the text), and 2,000 GAN epochs in the code, of which the text says nothing.
            What the paper leaves open (scaling, learning rate schedule) is as released in both.
        without_generator : bool
            The paper's "w/o GM" variant.
        schedule : {"released", "short"}
            Of that variant, see :meth:`without_generator`.
        **overrides
            Other parameters, as in :meth:`without_generator`.

        Examples
        --------
        >>> DGZ.preset("CUB", source="paper").lambda_1
        4.0
        """
        require_choice(source, Source, "source")
        require_choice(name.upper(), tuple(cls.presets), "preset")
        chosen = cls.presets[name.upper()]
        if schedule != "released" and not without_generator:
            raise DGZError("A schedule other than 'released' is known for the variant without generator alone.")
        model = cls.without_generator(schedule=schedule) if without_generator else cls(generator=WGANGP())
        if source == "released" and not without_generator:
            model.set_params(generator__n_epochs=2000)
        gate = "argmax_all" if source == "released" else "above_true"
        model.set_params(lambda_1=chosen[source], n_per_class=int(chosen["n_per_class"]), gate=gate)
        model.attribute_scaling = "none"
        return model.set_params(**overrides)  # type: ignore[no-any-return]
