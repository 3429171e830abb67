"""Counts of the best model's rows by split, for a run's page."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.numerics import using
from sarlite.tasks.outcome_counts import SummedCounts
from sarlite.train.stopping import Best


def outcome(trainer: Any, best: Best, n_classes: int, names: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Count the best model's rows by split, as the task counts them. Collective.

    Returns
    -------
    dict or None
        JSON-able: the task's description of its counts, and "splits" with the counts of each split that has rows. None
        if the task counts nothing, as for more than `MOST_CLASSES` classes.

    Notes
    -----
    Leaves the best model's state in the trainer's model. Takes one evaluation.
    """
    comm = trainer.comm
    found = trainer.task.outcome_counts(trainer.labels, trainer.rows, comm, n_classes, names)
    if found is None:
        return None
    if best.state:
        trainer.model.load_state_dict(best.state)
    metrics = {name: SummedCounts(found.count_rows) for name in trainer.rows}
    with trainer.graph.profile.phase("evaluation"), using(trainer.numerics):
        trainer.score(metrics)
    sums = comm.allreduce(np.stack([metric.counts() for metric in metrics.values()]).astype(np.float64))
    splits = {name: counts.astype(int).tolist() for name, counts in zip(metrics, sums) if counts.any()}
    return {**found.description, "splits": splits}
