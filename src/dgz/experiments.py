"""Experiments: a method and a data set in, one finished run with its record out."""

import platform
import time
from pathlib import Path

from dgz.data import GZSLData
from dgz.estimator import GZSLClassifier
from dgz.metrics import gzsl_scores
from dgz.records import Record, write_record


def run(model: GZSLClassifier, data: GZSLData, folder: str | Path | None = None, *, selection: str = "last") -> Record:
    """Fit a method on the training rows, score it on the test rows, and record both.

    Parameters
    ----------
    model : GZSLClassifier
        An unfitted method; it is fitted in place.
    data : GZSLData
        What to train and test on.
    folder : str or Path, optional
        Where ``record.json`` goes; nothing is written without it.
    selection : str
        How the method picks the state that is scored.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> from dgz.peers import CenterRidge
    >>> record = run(CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01), load_numbers(0))
    >>> record.method, record.data["name"]
    ('CenterRidge', 'numbers')
    """
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)  # a place that cannot be written to must fail before the work
    start = time.perf_counter()
    model.fit(data.x_train, data.y_train, data.attributes)
    fitted = time.perf_counter()
    scores = gzsl_scores(model, data)
    seconds = {"fit": fitted - start, "evaluate": time.perf_counter() - fitted}
    params = model.get_params()
    record = Record(
        method=type(model).__name__,
        params=params,
        chosen={name: getattr(model, f"{name}_") for name, value in params.items() if value == "auto"},
        seed=params["random_state"],
        selection=selection,
        data=data.record(),
        class_names={str(i): name for i, name in enumerate(data.class_names)},
        unseen=data.unseen.tolist(),
        scores=scores.to_dict(),
        seconds=seconds,
        device=f"CPU ({platform.machine()})",
    )
    if folder is not None:
        write_record(record, folder)
    return record
