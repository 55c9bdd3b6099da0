"""What all methods have in common that are trained by torch: scaling, device, seeds, test rows, and their files.

Right of the estimator's face, which it is one more layer of; left of the methods. In come checked arrays; out comes a
:class:`~dgz.task.Task` on the device, and after training a model that can be written and read.
"""

from abc import abstractmethod
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from dgz.data import AttributeScaler, FeatureScaler
from dgz.data.dataset import Floats, Ints
from dgz.data.scaling import AttributeScaling, FeatureScaling, VectorScaling, choose_scaling
from dgz.errors import DGZError, require_choice
from dgz.estimator import Arrays, GZSLClassifier, restore_scaler, scaler_arrays
from dgz.metrics import class_ids
from dgz.task import Task, TestParts
from dgz.training import Precision, fingerprint, pick_device


class TrainedMethod(GZSLClassifier):
    """A method whose networks are trained on scaled rows and class vectors.

    Attributes
    ----------
    seed_ : int
        What all its random numbers come from.
    device_ : str
        What it was trained on.
    history_ : list of dict
        A row per epoch of each stage: losses, and test scores where ``fit`` was given test rows.
    """

    learns_in_use: ClassVar[bool] = False  # whether something is trained for the rows that are asked about
    feature_scaling: FeatureScaling
    attribute_scaling: AttributeScaling
    device: str
    precision: Precision
    random_state: int
    verbose: bool

    @abstractmethod
    def _networks(self) -> Mapping[str, nn.Module]:
        """Everything learned, by the names of its parts in a file."""

    @abstractmethod
    def _build(self, n_classes: int, d_a: int, d_x: int) -> None:
        """Make the networks, for values that are then read from a file."""

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""
        require_choice(self.feature_scaling, FeatureScaling, "feature_scaling")
        require_choice(self.attribute_scaling, AttributeScaling, "attribute_scaling")
        require_choice(self.precision, Precision, "precision")
        pick_device(self.device)

    # --- Before training.
    def _prepare(self, X: Floats, positions: Ints, test: Any = None) -> Task:
        """Learn the scaling, and put everything that training reads on the device."""
        device = pick_device(self.device)
        self.seed_ = self._draw_seed()
        self.device_ = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self.scaler_ = FeatureScaler(self.feature_scaling).fit(X)
        scaling = choose_scaling(self.attribute_scaling, self.attributes_)
        self.attribute_scaler_ = AttributeScaler(scaling).fit(self.attributes_)
        return self._task(X, positions, device, test)

    def _task(self, X: Floats, positions: Ints, device: torch.device, test: Any = None) -> Task:
        seen = torch.as_tensor(self.seen_, device=device)
        x, y = self._on(device, self.scaler_.transform(X)), torch.as_tensor(positions, device=device)
        return Task(x, y, self._vectors(device), seen, None if test is None else self._test(test, device))

    def _test(self, test: Any, device: torch.device) -> TestParts:
        if not len(test.x_test_seen) or not len(test.x_test_unseen):
            raise DGZError("test needs rows of seen and of unseen classes.")
        columns = torch.argsort(class_ids(self.classes_, test)).to(device)  # of each class id
        x_seen, x_unseen = (
            self._on(device, self.scaler_.transform(part)) for part in (test.x_test_seen, test.x_test_unseen)
        )
        y_seen, y_unseen = (
            columns[torch.tensor(np.asarray(part), device=device)] for part in (test.y_test_seen, test.y_test_unseen)
        )
        return x_seen, y_seen, x_unseen, y_unseen

    def _draw_seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def _fingerprint(self, X: Floats, positions: Ints, circumstances: list[Any]) -> str:
        """What a checkpoint belongs to: every setting, every value trained on, and the ``circumstances``."""
        settings = {**self.settings(), "random_state": self.seed_, "device": None, "verbose": None}
        return fingerprint([settings, circumstances, self.classes_.tolist()], X, positions, self.attributes_)

    @staticmethod
    def _on(device: torch.device, values: Floats) -> Tensor:
        return torch.tensor(values, device=device)

    def _vectors(self, device: torch.device | str) -> Tensor:
        """Scaled class vectors of all classes."""
        return torch.tensor(self.attribute_scaler_.transform(self.attributes_), device=device)

    # --- After training.
    @property
    def attribute_scaling_(self) -> VectorScaling:
        """How class vectors are scaled, whatever ``attribute_scaling`` left open."""
        return self.attribute_scaler_.method

    def count_parameters(self) -> int:
        """How many numbers its networks have learned."""
        return sum(values.numel() for net in self._networks().values() for values in net.parameters())

    def _settings_in_use(self) -> dict[str, Any]:
        settings = super()._settings_in_use()
        settings["feature_scaling"] = self.scaler_.method
        if self.attribute_scaling != "auto":
            settings["attribute_scaling"] = self.attribute_scaling_
        if not isinstance(self.random_state, Integral | None):
            settings["random_state"] = self.seed_  # a stream has moved on, its number has not
        return settings

    def _learned(self) -> tuple[dict[str, Any], Arrays]:
        arrays = scaler_arrays("scaler", self.scaler_) | scaler_arrays("attribute_scaler", self.attribute_scaler_)
        for part, net in self._networks().items():
            arrays |= {f"{part}/{key}": values.cpu().numpy() for key, values in net.state_dict().items()}
        header = {"seed": self.seed_, "device": self.device_, "history": self.history_}
        return {**header, "attribute_scaling": self.attribute_scaling_}, arrays

    def _relearn(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        self.seed_ = int(header["seed"])
        self.device_, self.history_ = str(header["device"]), list(header["history"])
        n_classes, d_a = self.attributes_.shape
        d_x = self.n_features_in_
        self.scaler_ = restore_scaler("scaler", FeatureScaler(self.feature_scaling), d_x, arrays)
        # What "auto" stood for is not asked again: classes may have been added since.
        is_open = self.attribute_scaling == "auto"
        scaling: Any = header["attribute_scaling"] if is_open else self.attribute_scaling
        vectors = AttributeScaler(scaling)
        self.attribute_scaler_ = restore_scaler("attribute_scaler", vectors, d_a, arrays)
        self._build(n_classes, d_a, d_x)
        for part, net in self._networks().items():
            prefix = f"{part}/"
            state = {key.removeprefix(prefix): values for key, values in arrays.items() if key.startswith(prefix)}
            net.load_state_dict({key: torch.from_numpy(values) for key, values in state.items()})
            net.eval()
