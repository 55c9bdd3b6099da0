"""Settings that leak-free folds like best, found by Optuna, on one machine or on many."""

from dgz.tuning.search import Tuned, as_text, tune
from dgz.tuning.space import Choice, Range, Space, default_space, parse_space

__all__ = ["Choice", "Range", "Space", "Tuned", "as_text", "default_space", "parse_space", "tune"]
