"""Correct and Smooth after training: its options, and what a run makes of its best model's output."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import numpy as np

from sarlite.data import node_rows
from sarlite.errors import ConfigError
from sarlite.propagation import NORMALIZATIONS, CorrectAndSmooth
from sarlite.tape import Tensor, no_grad, ops

_S = CorrectAndSmooth
OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "correct-and-smooth": (False, bool, "after training, correct and smooth the best model's output (Huang et al.)"),
    "correct-alpha": (None, float, f"share of an iteration that comes from neighbours, of errors [{_S.correct_alpha}]"),
    "correct-iterations": (None, int, f"iterations; 0 does not correct [{_S.correct_iterations}]"),
    "correct-normalization": (None, NORMALIZATIONS, f"D^-1/2 A D^-1/2, D^-1 A or A D^-1 [{_S.correct_normalization}]"),
    "correct-scale": (None, float, "what errors are multiplied by [automatic, by row]"),
    "smooth-alpha": (None, float, f"as --correct-alpha, of what is smoothed [{_S.smooth_alpha}]"),
    "smooth-iterations": (None, int, f"iterations; 0 does not smooth [{_S.smooth_iterations}]"),
    "smooth-normalization": (None, NORMALIZATIONS, f"as --correct-normalization [{_S.smooth_normalization}]"),
}
METAVARS = {"correct-alpha": "SHARE", "correct-iterations": "N", "correct-scale": "FACTOR", "smooth-alpha": "SHARE",
            "smooth-iterations": "N"}  # fmt: skip
PREDICTIONS = "predictions.npy"
_FIELDS = {name.replace("-", "_"): name.replace("-", "_") for name in OPTIONS if name != "correct-and-smooth"} | {"correct_scale": "scale"}


def fitting(options: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return options in which those of Correct and Smooth fit together; raises ConfigError where one that is given does not.

    Parameters
    ----------
    options : dict
        Of all options; it is changed.
    given : dict
        What was given, by option: how it was.
    """
    for name in _FIELDS:
        if not options["correct_and_smooth"]:
            if name in given and options[name] is not None:
                raise ConfigError(f"{given[name]} means nothing without --correct-and-smooth")
            options[name] = None
    if options["correct_and_smooth"]:
        made(Namespace(**options))
    return options


def made(config: Namespace) -> CorrectAndSmooth:
    """Return what the options say."""
    return CorrectAndSmooth(**{field: value for name, field in _FIELDS.items() if (value := getattr(config, name)) is not None})


def after_training(trainer: Any, best: Any, config: Namespace, folder: Any) -> dict[str, Any]:
    """Correct and smooth the best model's output, and write what comes out into the run's folder. Collective.

    It is kept where the validation accuracy is not lower than before; else the model's probabilities stay what they were. So the file
    holds the smoothed scores, or the probabilities, in the data's node order. The trainer's model is the best one from here on.

    Returns
    -------
    dict
        Accuracies of the smoothed scores by split, None of an empty one, and "kept", a bool.

    Raises
    ------
    SarliteError
        On every rank: the file cannot be written, or as `CorrectAndSmooth`.
    """
    if best.state:
        trainer.model.load_state_dict(best.state)
    graph, train = trainer.graph, trainer.rows["train"]
    logits = trainer.predict()
    with no_grad():
        probabilities = ops.softmax(Tensor(logits)).data
    with graph.profile.span("correct and smooth"), graph.profile.phase("smoothing"):
        scores = made(config)(graph, probabilities, trainer.labels, train)
    before, after = _accuracies(trainer, probabilities), _accuracies(trainer, scores)
    kept = before["val_accuracy"] is None or after["val_accuracy"] >= before["val_accuracy"]
    node_rows.write(trainer.comm, folder.path / PREDICTIONS, graph.dst_ids, scores if kept else probabilities, graph.n_nodes)
    return {**after, "kept": bool(kept)}


def _accuracies(trainer, scores):
    hits = [np.count_nonzero(scores[rows].argmax(1) == trainer.labels[rows]) for rows in trainer.rows.values()]
    sums = trainer.comm.allreduce(np.array(hits))
    return {f"{name}_accuracy": int(n) / count if count else None for n, (name, count) in zip(sums, trainer.counts.items())}
