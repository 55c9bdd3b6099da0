"""Studies: what Optuna knows of the trials of one search, in a file from which another process can go on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgz.data.dataset import listing
from dgz.errors import DGZError, one_line
from dgz.estimator import GZSLClassifier
from dgz.tuning.space import Choice, Range, Space

FOLD = 100  # steps of a trial's curve that a fold has, however many epochs
_FIRST_TRIALS = 8  # that run to their end: later ones are measured against them


def import_optuna() -> Any:
    """The library, or a sentence that says how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise DGZError('Tuning needs Optuna: pip install "dgz[tune]".') from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # progress is shown here
    return optuna


def open_study(optuna: Any, path: Path, about: Mapping[str, Any]) -> Any:
    """The study of a file, which is made where there is none, and must be of the same things where there is one."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    is_new = not path.exists() or path.stat().st_size == 0
    try:
        storage = JournalStorage(JournalFileBackend(str(path)))
        known_as: dict[str, Any] = {"study_name": "dgz", "storage": storage}
        if is_new:
            optuna.create_study(**known_as, direction="maximize")
        # Another seed for each continuation: the same one would propose the same again.
        n_before = len(optuna.load_study(**known_as).trials)
        seed = int(about["settings"].get("random_state") or 0) + n_before
        study = optuna.load_study(
            **known_as,
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=_FIRST_TRIALS),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_FIRST_TRIALS, n_warmup_steps=FOLD // 2),
        )
    except Exception as error:  # of many kinds: the file is a stranger's
        raise DGZError(f"{path} holds no study that can be gone on with: {one_line(error)}.") from error
    _end_cleanly(path)
    known = study.user_attrs.get("about")
    if known is None:
        study.set_user_attr("about", about)
    elif odd := sorted(name for name in {*known, *about} if known.get(name) != about.get(name)):
        raise DGZError(
            f"The study in {path} is another one: it differs in {listing(odd)}. Choose another folder for this one."
        )
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # its process is gone, and nothing is known of it
    return study


def _end_cleanly(path: Path) -> None:
    """Take away a last line that a killed process wrote half of: what is written next would be lost in it."""
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def distribution(optuna: Any, part: Range | Choice) -> Any:
    """A part of a space as Optuna has it."""
    if isinstance(part, Choice):
        return optuna.distributions.CategoricalDistribution(part.values)
    if part.is_whole:
        return optuna.distributions.IntDistribution(int(part.low), int(part.high), log=part.is_log)
    return optuna.distributions.FloatDistribution(part.low, part.high, log=part.is_log)


def enqueue_defaults(study: Any, model: GZSLClassifier, space: Space) -> None:
    """Make the method's own settings the first trial, where the space has them: nothing found is to be worse."""
    params = model.get_params()
    own = {name: params[name.replace(".", "__")] for name in space}
    if not study.get_trials(deepcopy=False) and all(part.has(own[name]) for name, part in space.items()):
        study.enqueue_trial(own)
