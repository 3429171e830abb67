"""Correct and Smooth after training, applied to the best model's output."""

from pathlib import Path
from typing import Any

import numpy as np

from sarlite.data import node_rows
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.numerics import using
from sarlite.tape import Tensor, no_grad, ops
from sarlite.types import Array


def after_training(trainer: Any, best: Any, smooth: CorrectAndSmooth, path: Path) -> dict[str, Any]:
    """Correct and smooth the best model's output, and write what comes out into the run's folder. Collective.

    The smoothed scores are kept where the validation accuracy is not lower than before; else the model's probabilities
    stay. So the file holds the smoothed scores, or the probabilities, in the data's node order. The trainer's model is
    the best one from here on.

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
    graph = trainer.graph
    with graph.profile.phase("evaluation"):
        logits = trainer.predict()
    probabilities, scores, before, after = smoothed(trainer, smooth, logits)
    kept = before["val_accuracy"] is None or after["val_accuracy"] >= before["val_accuracy"]
    node_rows.write(trainer.comm, path, graph.dst_ids, scores if kept else probabilities, graph.n_nodes)
    return {**after, "kept": bool(kept)}


def smoothed(trainer: Any, smooth: CorrectAndSmooth, logits: Array) -> tuple[Array, Array, Any, Any]:
    """Return the probabilities of a trainer's output, the smoothed scores, and the accuracies of both. Collective."""
    graph = trainer.graph
    spans = graph.profile.span("correct and smooth"), graph.profile.phase("smoothing")
    with trainer.buffers, no_grad(), using(trainer.numerics), spans[0], spans[1]:
        probabilities = ops.softmax(Tensor(logits)).data
        scores = smooth(graph, probabilities, trainer.labels, trainer.rows["train"])
    return probabilities, scores, _accuracies(trainer, probabilities), _accuracies(trainer, scores)


def _accuracies(trainer, scores):
    hits = [np.count_nonzero(scores[rows].argmax(1) == trainer.labels[rows]) for rows in trainer.rows.values()]
    sums = trainer.comm.allreduce(np.array(hits))
    return {f"{name}_accuracy": int(n) / count if count else None
            for n, (name, count) in zip(sums, trainer.counts.items())}
