"""LinkTask: prediction of links between nodes."""

from typing import Any

from sarlite.comm import together
from sarlite.errors import ConfigError
from sarlite.nn.decoders import LinkPredictor
from sarlite.tape import Tensor
from sarlite.tasks.link_splits import digest
from sarlite.tasks.metric_table import find_metric
from sarlite.tasks.pair_task import PairTask, linked_of, with_links
from sarlite.tasks.ranking import ranked_among_negatives
from sarlite.tasks.target_forms import LinkForm
from sarlite.tasks.task import DataPart, RunSettings, Targets, Task, TrainingChoices, UserLoss
from sarlite.tasks.time_split import time_split_of
from sarlite.types import Array

RANKING_LOSS = "cross-entropy"
"""Default loss of a task whose metric is computed from positions by score, such as "mrr"."""


class LinkTask(PairTask):
    """Prediction of links: the task to score each link of a `LinkGraph` (graph with a list of links) above its negatives, node pairs that
    are not links.

    Parameters
    ----------
    loss : str, optional
        "bce" is the binary cross entropy, the mean over links and negatives. "cross-entropy" is the cross entropy of a
        link among its candidates. "bpr" and "margin" are the means over negatives of log(1 + exp(d)) and max(0, 1 + d),
        where d is the score of a negative minus the score of its link. The default is "cross-entropy" for a metric of
        ranks, otherwise "bce".
    metric : str, optional
        "roc-auc", the default, and "ap" compare all links with all negatives. "mrr" and "hits@k" are means over links,
        computed from the rank of each link: among all destinations if the graph has a `ranking`, otherwise among the
        link's negatives. "recall@k" and "ndcg@k" are means over sources, and need a `ranking`.

    Raises
    ------
    ConfigError
        The loss or the metric is unknown.

    Notes
    -----
    Metrics compare the bits of scores. In fast numerics, scores that are equal up to rounding may tie on one number of
    ranks and not on another. In exact numerics the metrics have the same bits on any number of ranks.

    Examples
    --------
    >>> from sarlite.tasks.link_task import LinkTask
    >>> task = LinkTask(metric="hits@10")
    >>> task.metric_kind.takes, task.loss.__name__
    ('ranks', 'contrastive')
    """

    def __init__(self, loss: str | UserLoss | None = None, metric: str | None = None) -> None:
        if loss is None and is_ranked(metric):
            loss = RANKING_LOSS
        super().__init__(LinkForm(), loss, metric)

    def check_arguments(self, graph: Any, model: object, x: object, batches: object, scoring: object) -> None:
        super().check_arguments(graph, model, x, batches, scoring)
        metric, takes = self.make_metric(), self.metric_kind.takes
        if scoring is not None and graph.ranking is not None:
            raise ConfigError("eval_negatives \"all\": all destinations are ranked on the full graph, but batches are sampled "
                              "in time: give a number of negatives, such as 100", "eval_negatives")
        if takes == "rankings" and graph.ranking is None:
            raise ConfigError(f"metric {self.metric}: ranks all destinations, so eval_negatives must be \"all\"", "metric")
        if takes != "outputs" and graph.ranking is not None:
            if not isinstance(model, LinkPredictor):
                raise ConfigError(f"metric {self.metric}: ranks all destinations, so the model must be an nn.LinkPredictor, "
                                  f"but is a {type(model).__name__}", "model")
            k = int(self.metric.partition("@")[2] or 0)
            least = min(ends.n for ends in graph.ranking.destinations)
            if k >= least:
                raise ConfigError(f"metric {self.metric}: there are {least} destinations, so each link would be among the "
                                  f"first {k}", "metric")
            return
        if metric and graph.n_candidates <= metric.least:
            raise ConfigError(f"metric {self.metric}: needs {metric.least} negatives of each link, but in evaluation "
                              f"there are {graph.n_candidates - 1}", "metric")

    def outputs(self, model: Any, graph: Any, x: object) -> tuple[Tensor, Array]:
        if self.metric_kind.takes == "outputs":
            return super().outputs(model, graph, x)
        if graph.ranking is None:
            output, scores = super().outputs(model, graph, x)
            return output, ranked_among_negatives(scores)
        h = model.encoder(graph.nodes, x)
        return graph.score(model.decoder, h), graph.ranking(model.decoder, h.data)

    @classmethod
    def of_run(cls, name: str, training: TrainingChoices, n_outputs: int) -> Task:
        return cls(training.loss, training.metric)

    @classmethod
    def read_targets(cls, run: RunSettings, part: DataPart) -> Targets:
        comm, training, linked = part.graph.comm, run.training, linked_of(run, part)
        split = together(comm, lambda: time_split_of(run, part))
        splits, samplers = run.links.splits(linked, split), run.links.samplers(linked)
        identity = {"links": digest(comm, *splits), "negatives": digest(comm, *samplers)}
        if linked.several:
            identity["relations"] = ", ".join(linked.several)  # in the order of the decoder's rows

        def apply(part):
            links = run.links.of_graph(linked, splits, samplers, training.seed)
            return with_links(part, links)

        return Targets(identity, apply)


def is_ranked(metric: str | None) -> bool:
    """Return True if `metric` names a metric of links that uses the position of a link by score, such as "mrr"; False for None."""
    return metric is not None and find_metric("link", metric).kind.takes != "outputs"
