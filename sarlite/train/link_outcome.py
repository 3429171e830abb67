"""Comparison of the best link model with popularity, a baseline that ranks destinations by number of training links."""

from sarlite.numerics import using
from sarlite.tape import no_grad
from sarlite.tasks.metric_table import find_metric
from sarlite.tasks.popularity import Popularity
from sarlite.train.loop import Trainer
from sarlite.train.outcome import best_parameters
from sarlite.train.stopping import Best
from sarlite.types import Array

SPLITS = ("val", "test")
TOP = 10
"""Length k of top-k lists if the task's metric does not set k."""


def link_outcome(trainer: Trainer, best: Best) -> dict[str, dict[str, dict[str, float | None]]]:
    """Compare the best model with the baseline `Popularity`, which scores a link by the number of training links to its destination. Return
    a dict by metric; each entry is {"model": values, "popularity": values}, where values are by split, both on the same links. Collective.

    Parameters
    ----------
    trainer : Trainer
        Trainer of a `LinkTask` on a graph of `link_data.split_links`.
    best : Best
        The best epoch, with the model's state.

    Returns
    -------
    dict
        metric -> {"model" or "popularity" -> {"val" or "test" -> value}}, None for a split without links. The metrics
        are the task's metric, and mrr, hits@k, recall@k, ndcg@k and coverage@k if all destinations are ranked. k is the
        k of the task's metric, or 10. The coverage is the share of destinations in the top k of any source.

    Notes
    -----
    Cost: two evaluations, and if all destinations are ranked the top k of each source with links in a split. The
    trainer's model has the same parameters before and after.
    """
    task, graph = trainer.task, trainer.graph
    ranked = task.metric_kind.takes != "outputs" and graph.ranking is not None
    k = int(task.metric.rpartition("@")[2]) if "@" in task.metric else TOP
    names = [task.metric, *(("mrr", f"hits@{k}", f"recall@{k}", f"ndcg@{k}") if ranked else ())]
    compared: dict[str, dict[str, dict[str, float | None]]] = {name: {} for name in names}
    popularity = Popularity(graph, trainer.rows["train"])
    with (best_parameters(trainer, best), graph.profile.phase("evaluation"), using(trainer.numerics), no_grad()):
        for who, model in (("model", trainer.model.eval()), ("popularity", popularity)):
            with trainer.buffers:
                _, metric_input = task.outputs(model, graph, trainer.x)
                for name in compared:
                    compared[name][who] = {split: _value(trainer, name, metric_input, split) for split in SPLITS}
        if ranked:
            compared[f"coverage@{k}"] = {}
            for who, model in (("model", trainer.model), ("popularity", popularity)):
                with trainer.buffers:
                    h = model.encoder(graph.nodes, trainer.x).data
                    compared[f"coverage@{k}"][who] = graph.ranking.coverage(model.decoder, h, k)
    return compared


def _value(trainer: Trainer, name: str, metric_input: Array, split: str) -> float | None:
    """Return the metric called `name` on the links of `split`, None if the split has no links. `metric_input` has a row for each link of
    all splits: its scores or, for a metric of ranks, its rank among all destinations or its negatives. Collective.
    """
    metric = find_metric("link", name).make()
    metric.add(metric_input[trainer.rows[split]], trainer.labels[trainer.rows[split]])
    value = metric.value(trainer.comm.allreduce(metric.counts().copy()), trainer.comm)
    return value if trainer.counts[split] else None
