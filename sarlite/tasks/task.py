"""Task: targets, loss and metric of a training. The trainer calls a task, and has no code for particular tasks."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from sarlite.comm import Communicator
from sarlite.command import suggestion
from sarlite.data.names import Names
from sarlite.data.part import OwnedRows
from sarlite.errors import ConfigError
from sarlite.minibatch import HEC
from sarlite.minibatch.batch import Features, FixedBatch, FullBatch, TrainingBatch
from sarlite.minibatch.loader import Loader, NeighborLoader
from sarlite.nn import Module, Random
from sarlite.tape import Tensor
from sarlite.tasks.class_losses import ClassWeights, checked_weights, class_counts, scaled_weights
from sarlite.tasks.loss_table import find_loss
from sarlite.tasks.metric_table import NamedMetric, find_metric
from sarlite.tasks.metrics import Metric
from sarlite.tasks.outcome_counts import OutcomeCounts
from sarlite.tasks.target_forms import Splits, TargetForm
from sarlite.tasks.task_losses import Loss, mean_over_rows
from sarlite.types import Array, ArrayLike

Inputs = Tensor | Mapping[str, Tensor]
"""Argument x of a model: input rows, or a dict of input rows by node type."""


class InputRows(Protocol):
    """Protocol of the input rows of a model, which a task may change from step to step.

    Attributes
    ----------
    tensor : Tensor, or dict of Tensor by node type
        Argument x of the model, with one row for each source row of the graph.
    """

    @property
    def tensor(self) -> Inputs: ...

    def to_train(self, batches: Iterator[TrainingBatch], step: int) -> Iterator[TrainingBatch]:
        """Yield the training batches `batches`, each with the input rows of its nodes. Their global steps are `step`, `step` + 1, and so
        on. Collective.
        """
        ...

    def to_score(self, batches: Iterable[TrainingBatch]) -> Iterator[TrainingBatch]:
        """Yield the evaluation batches `batches`, each with the input rows of its nodes."""
        ...


class ConstantRows:
    """Input rows that are the same in every step."""

    def __init__(self, tensor: Inputs) -> None:
        self.tensor = tensor

    def to_train(self, batches: Iterator[TrainingBatch], step: int) -> Iterator[TrainingBatch]:
        """Return `batches` unchanged, because they contain the same input rows in every step."""
        return batches

    def to_score(self, batches: Iterable[TrainingBatch]) -> Iterator[TrainingBatch]:
        """Return an iterator over the unchanged `batches`, because they contain their input rows."""
        return iter(batches)


class Targets:
    """Labels and splits of a run that replace the stored ones of its data set. A task makes them.

    Parameters
    ----------
    identity : dict
        Entries for the identity of the run's data. A resumed run compares them.
    apply : callable
        Function from a `load.Shard` to the Shard with the task's graph, targets and splits. Collective.
    """

    def __init__(self, identity: Mapping[str, object] | None = None, apply: Callable[[Any], Any] = lambda part: part) -> None:
        self.identity, self.apply = identity or {}, apply


UserLoss = Callable[[Tensor, Array], Tensor]
"""Function (output, targets) -> scalar Tensor, the mean over its rows."""


class TrainingChoices(Protocol):
    """Protocol of the options of a run that decide about the task: loss, metric, class weights, positive class and label inputs."""

    @property
    def loss(self) -> str | None: ...
    @property
    def metric(self) -> str | None: ...
    @property
    def class_weights(self) -> ClassWeights | None: ...
    @property
    def positive(self) -> str | None: ...
    @property
    def label_inputs(self) -> float | None: ...
    @property
    def task(self) -> str | None: ...
    @property
    def time_split(self) -> str | None: ...
    @property
    def seed(self) -> int: ...


class SamplingChoices(Protocol):
    """Protocol of the options of a run that decide about its minibatches, such as `cli.options.MinibatchOptions`."""

    @property
    def fanouts(self) -> Any: ...
    @property
    def eval_fanouts(self) -> Sequence[int] | None: ...
    @property
    def sampler(self) -> str: ...
    @property
    def sample_ahead(self) -> int: ...
    @property
    def temporal(self) -> str | None: ...
    def at_remote(self) -> "str | HEC": ...


class RunSettings(Protocol):
    """Protocol of the settings of a run that tasks read, such as `cli.settings.Settings`."""

    @property
    def training(self) -> TrainingChoices: ...
    @property
    def batches(self) -> SamplingChoices | None: ...
    @property
    def model(self) -> Any: ...
    @property
    def links(self) -> Any: ...
    @property
    def graphs(self) -> Any: ...


class DataPart(Protocol):
    """Protocol of a rank's part of the data, from which a task reads the targets, such as `load.Shard`."""

    @property
    def graph(self) -> Any: ...
    @property
    def names(self) -> Mapping[str, Names]: ...
    @property
    def time_kind(self) -> str | None: ...


class Task:
    """Objective of a training: the kind of targets, the loss, and the metric that judges each split.

    `NodeTask`, `EdgeTask`, `GraphTask` and `LinkTask` are the tasks of a user. A subclass sets `graph_types`, implements
    `of_run` and `make_loader`, and overrides the methods that differ.

    Parameters
    ----------
    form : TargetForm
        Form of the targets, such as `FORMS["classify"]`.
    loss : str or callable, optional
        Name of a loss, see `find_loss`; by default the first loss of `LOSSES[form.name]`. The loss is a mean over rows,
        and over columns of numbers. Or a function (output, targets) -> scalar Tensor, the mean over its rows.
    metric : str, optional
        Name of a metric, see `find_metric`; by default the first metric of `METRICS[form.name]`. The metric of the
        validation split decides the best epoch.
    class_weights : "balanced", sequence or dict of class to float, optional
        Factors of the loss by class, or for several labels factors of the loss of rows with 1; see `scaled_weights`.
    positive : {0, 1}
        The positive class of two, for the metrics ap, precision, recall and F-beta.

    Attributes
    ----------
    loss : callable
        Function (output, targets, rows, count) -> this rank's share of the loss, a scalar Tensor; without class weights.
    metric : str
        Name of the metric.
    metric_kind : MetricKind
        Entry of the metric in the table of metrics.
    key : str
        Name of the metric in records, after "train_", "val_" or "test_".
    lower : bool
        True if a lower metric is better.
    graph_types : tuple of types
        Types of graphs whose rows have the targets.
    reads_labels : bool
        True if the targets are the labels of nodes or graphs in the data set.
    needs_splits : bool
        True if the data set must have splits of its nodes.
    exact : bool
        True if the loss has an exact version, False for a loss function of the user.

    Raises
    ------
    ConfigError
        The form has no such loss or metric, or the loss does not take class weights.

    Examples
    --------
    >>> from sarlite.tasks.target_forms import FORMS
    >>> task = Task(FORMS["regress"], metric="mae")
    >>> task.metric, task.lower, task.exact
    ('mae', True, True)
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
            raise ConfigError(f"class_weights: the loss {name} takes no class weights; cross-entropy, bce and focal do",
                              "class_weights")
        if positive not in (0, 1):
            raise ConfigError(f"positive is {positive!r}, but must be 0 or 1, one of two classes", "positive")
        self.loss, self.positive = self._make_loss(None), int(positive)
        self._metric: NamedMetric = find_metric(form.name, metric)
        self.metric, self.metric_kind = self._metric.name, self._metric.kind
        self.key, self.lower = self.metric.replace("-", "_"), self.metric_kind.lower

    # ---- methods that the trainer calls

    def check_arguments(self, graph: object, model: object, x: object, batches: object, scoring: object) -> None:
        """Check that the task fits these arguments of the trainer: the graph, the model, the input rows x, and the batches for training and
        for scoring.

        Parameters
        ----------
        graph, model, x, batches, scoring
            Arguments of `Trainer`.

        Raises
        ------
        ConfigError
            The graph has the wrong type, or another argument does not fit. The error names the argument.
        """
        if not isinstance(graph, self.graph_types):
            names = " or ".join(graph_type.__name__ for graph_type in self.graph_types)
            raise ConfigError(f"task: {type(self).__name__} needs a {names}, but graph is a "
                              f"{type(graph).__name__}", "task")

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        """Raise an error unless the targets of the rows in all splits are valid for the task, such as class numbers for "classify"."""
        self.form.check(targets, rows, n_dst)

    def n_classes(self, targets: Array, rows: Splits) -> int:
        """Return the least number of output columns that fits this rank's `targets` in the splits `rows`, such as the largest class + 1; 0
        if the kind of targets sets no bound.
        """
        return self.form.n_classes(targets, rows)

    def check_width(self, n_outputs: int) -> None:
        """Raise a ConfigError if the metric is undefined for an output with `n_outputs` columns."""
        self.form.check_width(self._metric, n_outputs)

    def make_metric(self) -> Metric | None:
        """Create the metric of one split, which has no rows yet; return None if the task has no metric."""
        return self._metric.make(self.positive)

    def outputs(self, model: Callable[..., Tensor], graph: object, x: object) -> tuple[Tensor, Array]:
        """Run `model` on `graph` and the input rows x; return (the output, the array that metrics take: by default the output's values).
        Collective.

        Parameters
        ----------
        model : callable Module
        graph : Graph, or a batch
        x : Tensor, or dict of Tensor by node type

        Returns
        -------
        output : Tensor
            Output of the model, for the loss.
        metric_input : array
            Rows for `Metric.add`, by default the values of the output.
        """
        output = model(graph, x)
        return output, output.data if isinstance(output, Tensor) else output

    def loss_over(self, targets: Array, rows: Array, comm: Communicator, n_classes: int) -> Loss:
        """Return the loss function of a training. If the task has class weights, they are computed from the `targets` of all ranks'
        training rows, of which `rows` has this rank's row numbers. Collective.

        Parameters
        ----------
        targets : (n_dst, ...) array
        rows : (k,) int64
            This rank's training rows.
        comm : Communicator
        n_classes : int
            Number of classes, the same on every rank. Ignored for several labels.

        Returns
        -------
        Loss

        Examples
        --------
        >>> from sarlite import Solo
        >>> from sarlite.tasks.node_task import NodeTask
        >>> loss = NodeTask(class_weights="balanced").loss_over(np.array([0, 0, 0, 1]), np.arange(4), Solo(), 2)
        >>> round(loss(Tensor(np.zeros((4, 2))), np.array([0, 0, 0, 1]), np.arange(4), 4).item(), 4)
        0.6931
        """
        if self.class_weights is None:
            return self.loss
        several = self.form.name == "multilabel"
        counts = class_counts(comm, targets, rows, None if several else n_classes)
        n_rows = int(comm.allreduce(np.array([len(rows)], np.float64))[0])
        return self._make_loss(scaled_weights(self.class_weights, counts, n_rows, several))

    def input_rows(self, graph: object, tensor: Inputs, targets: Array, rows: Splits, seed: int) -> InputRows:
        """Return an object that gives each batch its input rows: by default the features `tensor` in every step. A task may change them
        from step to step, by random numbers from `seed`. Collective.

        Parameters
        ----------
        graph : Graph
        tensor : Tensor, or dict of Tensor by node type
            The features x.
        targets : (n_dst, ...) array
        rows : dict of str to (k,) int64
            This rank's row numbers by split.
        seed : int
            Seed of the model's `nn.Random`.
        """
        return ConstantRows(tensor)

    def full_batches(self, full: FullBatch) -> FixedBatch:
        """Return the source of batches for training without a loader; by default it yields the full batch `full`, of all training rows, in
        every step.
        """
        return FixedBatch(full)

    def outcome_counts(self, targets: Array, rows: Splits, comm: Communicator, n_classes: int,
                       class_names: Sequence[str] | None) -> OutcomeCounts | None:
        """Return what to count for a run's report page: an `OutcomeCounts` for a confusion matrix of classes or a histogram of predictions.
        None if there are too many classes. Collective.

        Parameters
        ----------
        targets : (n_dst, ...) array
        rows : dict of str to (k,) int64
            This rank's row numbers by split.
        comm : Communicator
        n_classes : int
            Number of the model's outputs.
        class_names : sequence of str, optional
        """
        return self.form.outcome_counts(targets, rows, comm, n_classes, class_names)

    # ---- methods that a run of the command line calls

    @staticmethod
    def objective(training: TrainingChoices) -> dict[str, Any]:
        """Return the options in `training` that decide about the objective as a dict of keyword arguments of a task: loss, metric,
        class_weights and positive.
        """
        return {"loss": training.loss, "metric": training.metric, "class_weights": training.class_weights,
                "positive": 1 if training.positive is None else int(training.positive)}

    @classmethod
    def form_name(cls, name: str) -> str:
        """Return the name of the kind of targets, such as "classify" or "link", of the task that the option --task calls `name`. Both names
        are the same for the tasks of sarlite.
        """
        return name

    @classmethod
    def of_run(cls, name: str, training: TrainingChoices, n_outputs: int) -> "Task":
        """Create the task of a run. `name` is the value of the option --task, `training` has the options for loss and metric, and
        `n_outputs` is the number of the model's outputs.

        Parameters
        ----------
        name : str
            Value of the option --task.
        training : cli.options.TrainingOptions
        n_outputs : int
            Number of the model's outputs.
        """
        raise NotImplementedError

    @classmethod
    def read_targets(cls, run: RunSettings, part: DataPart) -> Targets:
        """Return the labels and splits that replace the stored ones of a rank's data `part`, as a `Targets`; by default none are replaced.
        `run` has the run's settings. Collective.

        Parameters
        ----------
        run : cli.settings.Settings
        part : load.Shard
            This rank's part of the data.
        """
        return Targets()

    @classmethod
    def n_more_inputs(cls, training: TrainingChoices, n_outputs: int) -> int:
        """Return the number of input columns that the task adds to the features, 0 by default. `training` are options of the run, and
        `n_outputs` is the model's number of outputs.
        """
        return 0

    @classmethod
    def make_model(cls, encoder: Callable[..., Module], run: RunSettings, nodes: object, n_outputs: int, rng: Random) -> Module:
        """Make a run's model with `n_outputs` outputs, by default encoder(n_outputs, run.batches). `encoder` is a function that makes a
        model of nodes; some tasks add layers whose parameters `rng` draws.

        Parameters
        ----------
        encoder : callable
            Function (n_out, batches) -> the run's model of nodes with `n_out` outputs, see `make_model`.
        run : cli.settings.Settings
        nodes : Graph or NodeType
            Graph that the encoder computes on.
        n_outputs : int
        rng : nn.Random
        """
        return encoder(n_outputs, run.batches)

    @classmethod
    def make_loader(cls, sampling: SamplingChoices, graph: Any, x: Features, targets: Array, train: ArrayLike | slice,
                    **options: Any) -> Loader:
        """Make the loader of training batches from this rank's graph, features `x`, `targets` and training rows `train`. `sampling` are the
        run's options for minibatches, and `options` are further keyword arguments of the loader. Collective.

        Parameters
        ----------
        sampling : cli.options.MinibatchOptions
        graph, x, targets, train
            Arguments of the loader class.
        **options
            Further keyword arguments of the loader class, such as batch_size.
        """
        raise NotImplementedError

    @classmethod
    def make_scoring(cls, sampling: SamplingChoices, graph: Any, x: Features, targets: Array, rows: OwnedRows, **options: Any) -> Loader:
        """Make the loader of evaluation batches, whose seeds are the rows of all splits in `rows`. `sampling` are the run's options for
        minibatches, and `options` are further keyword arguments of the loader. Collective.

        `rows` has the masks or row numbers train, val and test.
        """
        scored = sum(np.asarray(getattr(rows, name)) for name in ("train", "val", "test")) > 0
        return NeighborLoader(graph, x, targets, scored, fanouts=sampling.eval_fanouts or sampling.fanouts, **options)

    @classmethod
    def summary(cls, counts: dict[str, int]) -> dict[str, object]:
        """Return the entries that the task adds to a run's report; `counts` are the numbers of rows of all ranks by split."""
        return {}


def one_of(what: str, word: str, choices: Collection[str]) -> str:
    """Return `word` if it is one of `choices`; otherwise raise a ConfigError whose message begins with `what`, the name of the argument."""
    if word not in choices:
        raise ConfigError(f"{what}: {word!r} is not one of {', '.join(choices)}{suggestion(word, choices)}",
                          what.split()[0])
    return word
