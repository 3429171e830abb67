"""Task: the objective of a training as one value. The trainer calls a task and has no code for particular tasks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from sarlite.comm import Communicator
from sarlite.command import suggestion
from sarlite.errors import ConfigError
from sarlite.minibatch.batch import FixedBatch, FullBatch
from sarlite.minibatch.loader import NeighborLoader
from sarlite.tape import Tensor
from sarlite.tasks.class_losses import ClassWeights, checked_weights, class_counts, scaled_weights
from sarlite.tasks.loss_table import find_loss
from sarlite.tasks.metric_table import NamedMetric, find_metric
from sarlite.tasks.metrics import Metric
from sarlite.tasks.outcome_counts import OutcomeCounts
from sarlite.tasks.target_forms import Splits, TargetForm
from sarlite.tasks.task_losses import Loss, mean_over_rows
from sarlite.types import Array


class InputRows(Protocol):
    """Input rows of a training, which a task may change from step to step.

    Attributes
    ----------
    tensor : Tensor, or dict of Tensor by node type
        What the model takes beside the graph, with a row each source row.
    """

    tensor: Any

    def to_train(self, batches: Iterator[Any], step: int) -> Iterator[Any]:
        """Yield the batches of an epoch with their input rows, from the global step `step` on. Collective."""
        ...

    def to_score(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of an evaluation with their input rows."""
        ...


class ConstantRows:
    """Input rows that are the same in every step."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def to_train(self, batches: Iterator[Any], step: int) -> Iterator[Any]:
        """Return `batches`."""
        return batches

    def to_score(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over `batches`."""
        return iter(batches)


class Targets:
    """Targets of a run, which replace the labels that the data set has for nodes.

    Parameters
    ----------
    identity : dict
        Entries that the targets add to the identity of a run's data, which a resumed run compares.
    apply : callable
        part -> the part with the task's graph, targets and splits. Collective.
    """

    def __init__(self, identity: dict[str, Any] | None = None, apply: Callable[[Any], Any] = lambda part: part) -> None:
        self.identity, self.apply = identity or {}, apply


UserLoss = Callable[[Tensor, Array], Tensor]
"""(output, targets) -> scalar Tensor, the mean over the rows that it is given."""


class Task:
    """Targets of rows, the loss, and the metric that evaluation reports of each split.

    A subclass names its graphs in `graph_types`. It writes `of_run` and `make_loader`, and each method that differs.

    Parameters
    ----------
    form : TargetForm
        What the targets are.
    loss : str or callable, optional
        As `find_loss` takes it, by default the first of `LOSSES[form.name]`. The loss is a mean over rows, and over
        columns of numbers. Or a function (output, targets) -> scalar Tensor, the mean over the rows that it is given.
    metric : str, optional
        As `find_metric` takes it, by default the first of `METRICS[form.name]`. The metric of the validation split
        decides the best epoch.
    class_weights : "balanced", sequence or dict of class to float, optional
        Factors of the loss by class, or of several labels by label where it is 1; see `scaled_weights`.
    positive : {0, 1}
        The positive one of two classes, which ap, precision, recall and F-beta are about.

    Attributes
    ----------
    loss : callable
        (output, targets, rows, count) -> this rank's share of the loss, a scalar Tensor, without weights of classes.
    metric : str
        The metric's name.
    metric_kind : MetricKind
    key : str
        The metric's name in records, behind "train_", "val_" or "test_".
    lower : bool
        True if a lower metric is better.
    graph_types : tuple of types
        Graphs whose rows have the targets.
    reads_labels : bool
        True if the targets are the labels that a data set has for nodes or graphs.
    needs_splits : bool
        True if the splits of a data set's nodes must be there.
    exact : bool
        True if the loss has the same bits on any number of ranks in exact numerics. A function of the user has not.

    Raises
    ------
    ConfigError
        The form has no such loss or metric, or the loss takes no weights of classes.
    """

    graph_types: ClassVar[tuple[type, ...]] = ()
    reads_labels: ClassVar[bool] = True
    needs_splits: ClassVar[bool] = True

    def __init__(self, form: TargetForm, loss: str | UserLoss | None = None, metric: str | None = None, *,
                 class_weights: ClassWeights | None = None, positive: int = 1) -> None:
        self.form, self.exact, self.class_weights = form, not callable(loss), checked_weights(class_weights)
        if callable(loss):
            self._make_loss: Callable[[Array | None], Loss] = lambda weights: mean_over_rows(loss)
            weighted, name = False, "of your own"
        else:
            kind, parameter = find_loss(form.name, loss)
            self._make_loss = lambda weights: kind.make(weights, parameter)
            weighted, name = kind.weighted, loss or f"of task {form.name}"
        if class_weights is not None and not weighted:
            raise ConfigError(f"class_weights: the loss {name} takes none: cross-entropy, bce and focal do",
                              "class_weights")
        if positive not in (0, 1):
            raise ConfigError(f"positive is {positive!r}, but must be 0 or 1, a class of two", "positive")
        self.loss, self.positive = self._make_loss(None), int(positive)
        self._metric: NamedMetric = find_metric(form.name, metric)
        self.metric, self.metric_kind = self._metric.name, self._metric.kind
        self.key, self.lower = self.metric.replace("-", "_"), self.metric_kind.lower

    # ---- what the trainer asks

    def check_arguments(self, graph: Any, model: Any, x: Any, batches: Any, scoring: Any) -> None:
        """Raise a ConfigError if the task does not go with an argument of the trainer."""
        if not isinstance(graph, self.graph_types):
            names = " or ".join(known.__name__ for known in self.graph_types)
            raise ConfigError(f"task: the rows of {type(self).__name__} are those of a {names}, but graph is a "
                              f"{type(graph).__name__}", "task")

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        """Raise an error that names the first row of a split whose target is wrong."""
        self.form.check(targets, rows, n_dst)

    def n_classes(self, targets: Array, rows: Splits) -> int:
        """Return the fewest columns that an output needs, by this rank's targets; 0 if the loss compares shapes."""
        return self.form.n_classes(targets, rows)

    def check_width(self, n_outputs: int) -> None:
        """Raise a ConfigError if the metric is undefined for `n_outputs` columns."""
        self.form.check_width(self._metric, n_outputs)

    def make_metric(self) -> Metric | None:
        """Return a metric without rows, or None if the task has no metric."""
        return self._metric.make(self.positive)

    def outputs(self, model: Any, graph: Any, x: Any) -> tuple[Tensor, Array]:
        """Return the model's output in evaluation, and the rows that metrics take, by default the output's. Collective."""
        output = model(graph, x)
        return output, output.data if isinstance(output, Tensor) else output

    def loss_over(self, targets: Array, rows: Array, comm: Communicator, n_classes: int) -> Loss:
        """Return the loss of a training on some rows, whose classes decide the weights. Collective.

        Parameters
        ----------
        targets : array
        rows : (k,) int64
            This rank's training rows.
        comm : Communicator
        n_classes : int
            The same on every rank; read for classes alone.
        """
        if self.class_weights is None:
            return self.loss
        several = self.form.name == "multilabel"
        counts = class_counts(comm, targets, rows, None if several else n_classes)
        n_rows = int(comm.allreduce(np.array([len(rows)], np.float64))[0])
        return self._make_loss(scaled_weights(self.class_weights, counts, n_rows, several))

    def input_rows(self, graph: Any, tensor: Any, targets: Array, rows: Splits, seed: int) -> InputRows:
        """Return the input rows of a training. Collective."""
        return ConstantRows(tensor)

    def full_batches(self, full: FullBatch) -> Any:
        """Return the source of batches of a training without a loader."""
        return FixedBatch(full)

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        """Return the counts of the best model's rows that a run's page shows, or None. Collective."""
        return self.form.outcome_counts(targets, rows, comm, n_classes, class_names)

    # ---- what a run of the command line asks

    @staticmethod
    def objective(training: Any) -> dict[str, Any]:
        """Return the arguments of the loss and the metric that a run's `TrainingOptions` give."""
        return {"loss": training.loss, "metric": training.metric, "class_weights": training.class_weights,
                "positive": 1 if training.positive is None else int(training.positive)}

    @classmethod
    def form_name(cls, name: str) -> str:
        """Return the name of the targets' form of the task that `--task` calls `name`."""
        return name

    @classmethod
    def of_run(cls, name: str, training: Any, n_outputs: int) -> "Task":
        """Return the task of a run, of its `TrainingOptions` and number of outputs."""
        raise NotImplementedError

    @classmethod
    def read_targets(cls, run: Any, part: Any) -> Targets:
        """Return the targets of a run's part, a `load.Shard`. Collective."""
        return Targets()

    @classmethod
    def n_more_inputs(cls, training: Any, n_outputs: int) -> int:
        """Return the number of columns that the model reads beside the features."""
        return 0

    @classmethod
    def make_model(cls, encoder: Callable[..., Any], run: Any, nodes: Any, n_outputs: int, rng: Any) -> Any:
        """Return the model of a run. `encoder(n_out)` makes the run's model of `nodes` with rows of width `n_out`."""
        return encoder(n_outputs, run.batches)

    @classmethod
    def make_loader(cls, sampling: Any, graph: Any, x: Any, targets: Any, train: Any, **options: Any) -> Any:
        """Return the loader of a run's minibatches, of its `MinibatchOptions`. Collective."""
        raise NotImplementedError

    @classmethod
    def make_scoring(cls, sampling: Any, graph: Any, x: Any, targets: Any, rows: Any, **options: Any) -> Any:
        """Return the loader of a run's evaluation, of the rows of all splits. Collective."""
        scored = sum(np.asarray(getattr(rows, name)) for name in ("train", "val", "test")) > 0
        return NeighborLoader(graph, x, targets, scored, fanouts=sampling.eval_fanouts or sampling.fanouts, **options)

    @classmethod
    def summary(cls, counts: dict[str, int]) -> dict[str, Any]:
        """Return further entries of a run's report. `counts` are the numbers of all ranks' rows by split."""
        return {}


def one_of(what: str, word: Any, known: Any) -> Any:
    """Return `word`, or raise a ConfigError that names `what` if `word` is not among `known`."""
    if word not in known:
        raise ConfigError(f"{what}: {word!r} is not one of {', '.join(known)}{suggestion(word, known)}",
                          what.split()[0])
    return word
