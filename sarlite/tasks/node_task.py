"""NodeTask: prediction of labels of nodes."""

import sys
from typing import Any, ClassVar

import numpy as np

from sarlite.comm import together
from sarlite.command import show
from sarlite.data.targets import labelled
from sarlite.errors import ConfigError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.batch import Features
from sarlite.minibatch.loader import Loader
from sarlite.tape import Tensor
from sarlite.tasks.class_losses import ClassWeights
from sarlite.tasks.shown_labels import LabelInputs, ShownLabels
from sarlite.tasks.target_forms import FORMS, Splits
from sarlite.tasks.task import DataPart, InputRows, Inputs, RunSettings, SamplingChoices, Targets, Task, TrainingChoices, UserLoss, one_of
from sarlite.tasks.time_split import NAMES, TimeSplit, time_split_of
from sarlite.types import Array, ArrayLike, JsonDict


class NodeTask(Task):
    """Prediction of labels of the nodes of a `Graph`, or of a node type of a `HeteroGraph`.

    Parameters
    ----------
    form : {"classify", "multilabel", "regress"}
        Form of the labels. "classify": classes, (n,) integers from 0. "multilabel": several labels of 0 or 1,
        (n, n_labels). "regress": numbers, (n,) or (n, n_values).
    loss : str or callable, optional
        By default cross entropy, binary cross entropy with logits, or squared error. See `Task`.
    metric : str, optional
        By default accuracy, ROC-AUC or RMSE. See `metric_table.METRICS`.
    class_weights : "balanced", sequence or dict of class to float, optional
        Factors of the loss by class or label. "balanced" gives each class the same sum of weights.
    positive : {0, 1}
        The positive class of two, for the metrics ap, precision, recall and F-beta.
    label_inputs : LabelInputs, optional
        Shows labels of training rows to the model, whose input then has n_features + n_classes columns. The features are
        copied.

    Raises
    ------
    ConfigError
        The form, loss or metric is unknown, or label inputs are used with another form than "classify".

    Examples
    --------
    >>> from sarlite.tasks.node_task import NodeTask
    >>> task = NodeTask("classify", loss="focal:2", metric="recall@precision=0.9", class_weights="balanced")
    >>> task.key, task.lower
    ('recall@precision=0.9', False)
    """

    graph_types: ClassVar[tuple[type, ...]] = (Graph, NodeType)

    def __init__(self, form: str = "classify", loss: str | UserLoss | None = None, metric: str | None = None, *,
                 class_weights: ClassWeights | None = None, positive: int = 1,
                 label_inputs: LabelInputs | None = None) -> None:
        super().__init__(FORMS[one_of("task", form, FORMS)], loss, metric, class_weights=class_weights,
                         positive=positive)
        if label_inputs is not None and not isinstance(label_inputs, LabelInputs):
            raise ConfigError(f"label_inputs is {label_inputs!r}, but must be LabelInputs(share, n_classes)")
        if label_inputs is not None and form != "classify":
            raise ConfigError(f"label_inputs need labels that are classes, but the task is {form}")
        self.label_inputs = label_inputs

    def check_arguments(self, graph: object, model: object, x: object, batches: object, scoring: object) -> None:
        super().check_arguments(graph, model, x, batches, scoring)
        if self.label_inputs is None:
            return
        if hasattr(model, "powers"):
            raise ConfigError("label_inputs: the model has powers, so it trains on features that were propagated "
                              "before training, without labels")
        if isinstance(x, dict):
            raise ConfigError("label_inputs: x is a dict by node type, but labels can only be shown beside the features of "
                              "a graph without node types")
        if not getattr(batches, "fresh", True):
            raise ConfigError("label inputs: a loader without caches is needed, because cached rows were computed while "
                              "other labels were shown")

    def input_rows(self, graph: Any, tensor: Inputs, targets: Array, rows: Splits, seed: int) -> InputRows:
        if self.label_inputs is None or not isinstance(tensor, Tensor):
            return super().input_rows(graph, tensor, targets, rows, seed)
        return ShownLabels.of(self.label_inputs, graph, tensor.data, targets, rows, seed)

    @classmethod
    def of_run(cls, name: str, training: TrainingChoices, n_outputs: int) -> Task:
        shown = LabelInputs(training.label_inputs, n_outputs) if training.label_inputs else None
        return cls(name, label_inputs=shown, **cls.objective(training))

    @classmethod
    def n_more_inputs(cls, training: TrainingChoices, n_outputs: int) -> int:
        return n_outputs if training.label_inputs else 0

    @classmethod
    def read_targets(cls, run: RunSettings, part: DataPart) -> Targets:
        if run.training.time_split is None:
            return Targets()
        split: TimeSplit | None = together(part.graph.comm, lambda: time_split_of(run, part))

        def apply(part):
            """Return the rank's data `part` (a `load.Shard`) with splits by the times of its nodes. Nodes without a label are in no split.
            Collective.
            """
            comm, rows = part.graph.comm, part.rows
            if part.target not in part.times:
                raise ConfigError(f"time_split {split}: the nodes of type {part.target} have no times", "time_split")
            _warn_of_transforms(part, split)
            codes = np.where(labelled(rows.labels, part.task), split(part.times[part.target]), len(NAMES))
            split.check_counts(comm, codes, "node with a label")
            return part._replace(rows=rows._replace(**{name: codes == at for at, name in enumerate(NAMES)}))

        return Targets({"time_split": str(split)}, apply)

    @classmethod
    def make_loader(cls, sampling: SamplingChoices, graph: Any, x: Features, targets: Array, train: ArrayLike | slice,
                    **options: Any) -> Loader:
        return NeighborLoader(graph, x, targets, train, fanouts=sampling.fanouts, remote=sampling.at_remote(),
                              sampler=sampling.sampler, sample_ahead=sampling.sample_ahead, **options)


def _warn_of_transforms(part, split):
    """Warn on rank 0 if features of this rank's data `part` (a `load.Shard`) were scaled by statistics of rows that `split`, a `TimeSplit`,
    does not put into training. Collective.
    """
    transforms: JsonDict = next((entry[2] for entry in part.schema.get("nodes", ()) if entry[0] == part.target), None) or {}
    columns = [name for name, entry in transforms.get("columns", {}).items() if {*entry["statistics"]} - {"n", "width", "range"}]
    fitted = part.rows.train if transforms.get("on_training_rows") else np.ones(len(part.times[part.target]), bool)
    later = fitted & (split(part.times[part.target]) > 0)
    n = int(part.graph.comm.allreduce(np.array([np.count_nonzero(later)]))[0])
    if n and columns and part.graph.comm.rank == 0:
        show(f"warning: time_split {split}: the transforms of {', '.join(columns)} were fitted when the tables were converted, on rows of "
             f"which {n:,} are not for training in this split; a column split=COLUMN in the tables, by the same times, keeps later rows "
             "out of the features", sys.stderr)
