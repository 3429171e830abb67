"""LinkTask: which pairs of nodes are linked."""

from typing import Any

from sarlite.errors import ConfigError
from sarlite.tasks.link_splits import digest
from sarlite.tasks.pair_task import PairTask, linked_of, with_links
from sarlite.tasks.target_forms import LinkForm
from sarlite.tasks.task import Targets, Task, UserLoss


class LinkTask(PairTask):
    """Links among negatives: the rows of the `LinkGraph` that `link_data.split_links` makes.

    Parameters
    ----------
    loss : str, optional
        By default binary cross entropy, the mean over links and negatives. "cross-entropy" is the cross entropy of the
        link among its candidates. "bpr" and "margin" are the means of log(1 + exp(d)) and max(0, 1 + d), where d is a
        negative's score less the score of its link.
    metric : str, optional
        By default ROC-AUC. It compares all links with all negatives, as "ap" does. "mrr" and "hits@k" are computed from
        each link's rank among its own negatives.

    Notes
    -----
    Metrics compare scores as they are. In fast numerics, scores that are equal up to rounding may tie on one number of
    ranks and not on another; in exact numerics the metrics have the same bits on any number of ranks.
    """

    def __init__(self, loss: str | UserLoss | None = None, metric: str | None = None) -> None:
        super().__init__(LinkForm(), loss, metric)

    def check_arguments(self, graph: Any, model: Any, x: Any, batches: Any, scoring: Any) -> None:
        super().check_arguments(graph, model, x, batches, scoring)
        metric = self.make_metric()
        if metric and graph.n_candidates <= metric.least:
            raise ConfigError(f"metric {self.metric}: needs {metric.least} negatives of each link, but in evaluation "
                              f"there are {graph.n_candidates - 1}", "metric")

    @classmethod
    def of_run(cls, name: str, training: Any, n_outputs: int) -> Task:
        return cls(training.loss, training.metric)

    @classmethod
    def read_targets(cls, run: Any, part: Any) -> Targets:
        comm, training, linked = part.graph.comm, run.training, linked_of(run, part)
        splits, samplers = run.links.splits(linked), run.links.samplers(linked, training.metric)
        identity = {"links": digest(comm, *splits), "negatives": digest(comm, *samplers)}
        if linked.several:
            identity["relations"] = ", ".join(linked.several)  # in the order of the decoder's rows

        def apply(part):
            links = run.links.of_graph(linked, splits, samplers, training.metric, training.seed)
            return with_links(part, links)

        return Targets(identity, apply)
