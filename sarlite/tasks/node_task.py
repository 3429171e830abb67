"""NodeTask: labels of nodes."""

from typing import Any, ClassVar

from sarlite.errors import ConfigError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.minibatch import NeighborLoader
from sarlite.tasks.shown_labels import LabelInputs, ShownLabels
from sarlite.tasks.target_forms import FORMS, Splits
from sarlite.tasks.task import InputRows, Task, one_of
from sarlite.types import Array


class NodeTask(Task):
    """Labels of the nodes of a graph or of a node type.

    Parameters
    ----------
    form : {"classify", "multilabel", "regress"}
        Labels: classes from 0, (n,) integers; 0 or 1, (n, n_labels); numbers, (n,) or (n, n_values).
    loss : str, optional
        By default cross entropy; binary cross entropy with logits; squared error.
    metric : str, optional
        By default accuracy; ROC-AUC; RMSE.
    label_inputs : LabelInputs, optional
        Show labels of training rows to the model, whose input is then n_features + n_classes wide. The features are
        copied.

    Raises
    ------
    ConfigError
        An argument is unknown, or label inputs are given for labels that are no classes.
    """

    graph_types: ClassVar[tuple[type, ...]] = (Graph, NodeType)

    def __init__(self, form: str = "classify", loss: str | None = None, metric: str | None = None, *,
                 label_inputs: LabelInputs | None = None) -> None:
        super().__init__(FORMS[one_of("task", form, FORMS)], loss, metric)
        if label_inputs is not None and not isinstance(label_inputs, LabelInputs):
            raise ConfigError(f"label_inputs is {label_inputs!r}, but must be LabelInputs(share, n_classes)")
        if label_inputs is not None and form != "classify":
            raise ConfigError(f"label_inputs are classes, but the task is {form}")
        self.label_inputs = label_inputs

    def check_arguments(self, graph: Any, model: Any, x: Any, batches: Any, scoring: Any) -> None:
        super().check_arguments(graph, model, x, batches, scoring)
        if self.label_inputs is None:
            return
        if hasattr(model, "powers"):
            raise ConfigError("label_inputs: the model has powers, so it trains on features that were propagated "
                              "before, without labels")
        if isinstance(x, dict):
            raise ConfigError("label_inputs: x is a dict by node type, but labels are shown beside the features of one "
                              "graph's nodes")
        if not getattr(batches, "fresh", True):
            raise ConfigError("label inputs: a loader without caches is needed, as their rows were made while other "
                              "labels were shown")

    def input_rows(self, graph: Any, tensor: Any, targets: Array, rows: Splits, seed: int) -> InputRows:
        if self.label_inputs is None:
            return super().input_rows(graph, tensor, targets, rows, seed)
        return ShownLabels.of(self.label_inputs, graph, tensor.data, targets, rows, seed)

    @classmethod
    def of_run(cls, name: str, training: Any, n_outputs: int) -> Task:
        shown = LabelInputs(training.label_inputs, n_outputs) if training.label_inputs else None
        return cls(name, training.loss, training.metric, label_inputs=shown)

    @classmethod
    def n_more_inputs(cls, training: Any, n_outputs: int) -> int:
        return n_outputs if training.label_inputs else 0

    @classmethod
    def make_loader(cls, sampling: Any, graph: Any, x: Any, targets: Any, train: Any, **options: Any) -> Any:
        return NeighborLoader(graph, x, targets, train, fanouts=sampling.fanouts, remote=sampling.at_remote(),
                              sampler=sampling.sampler, sample_ahead=sampling.sample_ahead, **options)
