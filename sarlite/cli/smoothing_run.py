"""Correct and Smooth, applied to the best model's output after training."""

from pathlib import Path

import numpy as np

from sarlite.data import node_rows
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.numerics import using
from sarlite.tape import Tensor, no_grad, ops
from sarlite.train.loop import Trainer
from sarlite.train.stopping import Best
from sarlite.types import Array


def after_training(trainer: Trainer, best: Best, smooth: CorrectAndSmooth, path: Path) -> dict[str, float | bool | None]:
    """Apply Correct and Smooth, `smooth`, to the outputs of the best model. Write the smoothed predictions to `path` if their validation
    accuracy is not lower than the model's, otherwise the model's predictions. Return a dict: the smoothed accuracy of each split under
    names such as "val_accuracy", and "kept", True if the smoothed predictions were written. Collective.

    The file has the smoothed scores if the validation accuracy is not lower than before smoothing, else the model's
    probabilities, in the data's node order.

    Parameters
    ----------
    trainer : Trainer
        The trainer's model has the best parameters afterwards.
    best : Best
    smooth : CorrectAndSmooth
    path : Path
        The .npy file to write.

    Returns
    -------
    dict
        "train_accuracy", "val_accuracy" and "test_accuracy" of the smoothed scores, None for an empty split; and
        "kept", True if the file has the smoothed scores.

    Raises
    ------
    SarliteError
        On every rank: the file cannot be written, or the graph does not suit `CorrectAndSmooth`.
    """
    if best.state:
        trainer.model.load_state_dict(best.state)
    graph = trainer.graph
    with graph.profile.phase("evaluation"):
        logits = trainer.predict()
    probabilities, scores, before, after = smoothed(trainer, smooth, logits)
    is_better = (after["val_accuracy"] or 0.0) >= (before["val_accuracy"] or 0.0)
    node_rows.write(trainer.comm, path, graph.dst_ids, scores if is_better else probabilities, graph.n_nodes)
    return {**after, "kept": bool(is_better)}


Accuracies = dict[str, float | None]


def smoothed(trainer: Trainer, smooth: CorrectAndSmooth, logits: Array) -> tuple[Array, Array, Accuracies, Accuracies]:
    """Apply Correct and Smooth, `smooth`, to the model's outputs `logits`, (n_local, n_classes). Return (probabilities before smoothing,
    smoothed scores, accuracies before, accuracies after); accuracies are dicts by split. Collective.
    """
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
