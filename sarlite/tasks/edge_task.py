"""EdgeTask: prediction of labels of edges, or of other pairs of nodes."""

from typing import Any

from sarlite.errors import ConfigError
from sarlite.tasks.class_losses import ClassWeights
from sarlite.tasks.pair_task import PairTask, linked_of, with_links
from sarlite.tasks.target_forms import FORMS
from sarlite.tasks.task import DataPart, RunSettings, Targets, Task, TrainingChoices, UserLoss, one_of


class EdgeTask(PairTask):
    """Prediction of labels of pairs of nodes. The pairs are the rows of a `LinkGraph`, a graph with a list of node pairs, made by
    `link_data.labelled_links`.

    Parameters
    ----------
    form, loss, metric, class_weights, positive
        See `NodeTask`.

    Raises
    ------
    ConfigError
        The form, loss or metric is unknown.

    Examples
    --------
    >>> from sarlite.tasks.edge_task import EdgeTask
    >>> task = EdgeTask("regress", metric="mae")
    >>> task.metric, task.lower
    ('mae', True)
    """

    def __init__(self, form: str = "classify", loss: str | UserLoss | None = None, metric: str | None = None, *,
                 class_weights: ClassWeights | None = None, positive: int = 1) -> None:
        super().__init__(FORMS[one_of("task", form, FORMS)], loss, metric, class_weights=class_weights,
                         positive=positive)

    def check_arguments(self, graph: Any, model: object, x: object, batches: object, scoring: object) -> None:
        super().check_arguments(graph, model, x, batches, scoring)
        if graph.n_candidates > 1:
            raise ConfigError("graph is a LinkGraph of links and negatives, so the task must be LinkTask(), or a loss "
                              "function", "task")

    @classmethod
    def of_run(cls, name: str, training: TrainingChoices, n_outputs: int) -> Task:
        return cls(name, **cls.objective(training))

    @classmethod
    def read_targets(cls, run: RunSettings, part: DataPart) -> Targets:
        linked = linked_of(run, part)
        labels = run.links.read_labels(linked, run.training.task, run.training.seed, run.training.time_split)
        in_time = run.batches is not None and run.batches.temporal is not None
        if in_time and labels.time_kind is not None and part.time_kind not in (None, labels.time_kind):
            raise ConfigError(f"edge_labels {run.links.edge_labels}: its times are {labels.time_kind}, but the times of the "
                              f"data are {part.time_kind}", "edge_labels")

        def apply(part):
            summary = {**part.summary, "classes": labels.n_outputs, "task": labels.task}
            return with_links(part, run.links.of_labels(linked, labels))._replace(
                task=labels.task, n_classes=labels.n_outputs, class_names=labels.class_names, summary=summary)

        return Targets({"classes": labels.n_outputs, "edge_labels": labels.digest(part.graph.comm)}, apply)
