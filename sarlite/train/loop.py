"""The Trainer: a training loop over batches of a graph, with evaluation and prediction."""

import time
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any, NoReturn, Protocol

import numpy as np

from sarlite import kernels, nn
from sarlite.comm import agree, together
from sarlite.errors import ConfigError, DataError, check_int, raise_together
from sarlite.minibatch.batch import Batch, FixedBatch, FullBatch
from sarlite.minibatch.loader import Loader
from sarlite.numerics import using
from sarlite.numerics.exact_sum import Exact, named
from sarlite.optim import Factor, Optimizer, plateau_of
from sarlite.tape import Tensor, no_grad
from sarlite.tape.tensor import as_array
from sarlite.tasks.custom_loss import CustomLoss
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.task import Task
from sarlite.train.epochs import fit
from sarlite.train.step import TrainingStep
from sarlite.train.stopping import Best, Scores, Stopping
from sarlite.train.trainer_arguments import (
    check_arguments,
    check_loaders,
    check_numerics,
    check_output,
    check_takes,
    checked_loss,
    each_x,
    rows_of,
)
from sarlite.types import Array, ArrayLike, JsonDict

RowChoice = ArrayLike | slice
"""Rows of a split: a mask, row numbers or a slice."""


class Counter(Protocol):
    """Protocol of an object, such as a metric, that counts the rows of a split, one batch after another."""

    def add(self, output: Array, labels: Array) -> None:
        """Count the rows of a batch, given the model's output for the rows and their labels."""
        ...


class Trainer:
    """Training of a model on this rank's part of a graph, with optimizer steps, evaluation and prediction. Methods are collective.

    Construction is collective, too.

    Parameters
    ----------
    graph : Graph, NodeType, GraphSet or LinkGraph
        This rank's part. Its output rows have the targets of the task. A `NodeTask` takes a `Graph`, or the node type
        `graph.of(name)` of a `HeteroGraph`.
    model : callable Module
        Function model(graph, x) -> output, such as logits of shape (n_dst, n_classes). Every rank makes the model from
        an `nn.Random` with the same seed, so that the replicated parameters are equal.
    x : (n_src, n_features) array, or dict of arrays by node type
        Features of this rank's rows, in the order of `graph.src_ids`. For a node type of a `HeteroGraph` the features
        are a dict. The trainer does not copy x, and x must not change. If the first layer aggregates x
        without a dropout before, the sums are stored, another (n_src, n_features) array, and are computed only once.
    labels : (n_dst, ...) array
        Targets of the rows: by default classes, integers from 0. Labels outside the splits are not read.
    train, val, test : (n_dst,) array of bools, slice, or (k,) array of row numbers
        This rank's rows of each split. A rank may have no rows of a split.
    optimizer : callable
        Function from the model's parameters, an `nn.Flat`, to an optimizer, such as
        `lambda flat: optim.Adam(flat, 0.01)`.
    rng : nn.Random
        The source of random numbers that the model was made with. The trainer sets its `step` before each step.
    batches : Loader or Batch, optional
        Batches to train on, made from the same graph, x, labels and training rows. A loader yields the batches of an
        epoch. A `Batch` from `message_flow` is the only step of every epoch. By default a step takes all rows.
    scoring : Loader or Batch, optional
        Batches to evaluate on, made from the same graph, x and labels. They contain each row of the splits once. A
        loader begins again at step 0 in each evaluation, so it samples the same batches. By default an evaluation takes
        all rows, and batch norms then use exact moments (`nn.exact_moments`) if `batches` is a loader.
    schedule : callable
        Function epoch -> factor of the learning rate. Epoch e begins at global step e * len(batches).
    loss : callable, optional
        Function (output, labels) -> scalar Tensor, the mean over its rows. It takes the place of a task: labels are not
        checked, and there is no metric. `NodeTask(loss=function)` has both a loss function and a metric.
    task : Task, optional
        Form of the targets, loss and metric. By default `NodeTask()`: classes, cross entropy, accuracy.
    clip_norm : float above 0, optional
        Upper bound of the norm of all gradients together. Larger gradients are scaled down to this norm.
    numerics : {"fast", "exact"} or Exact
        In "exact", losses, gradients, parameters and outputs have the same bits for any number of ranks, mode, division
        among ranks, order of rows, prefetch, number of threads and instruction set. Computations that have no exact
        version raise an error.

    Attributes
    ----------
    rows : dict of str to (k,) int64
        This rank's row numbers of each split.
    counts : dict of str to int
        Number of rows of each split, over all ranks.
    training_step : TrainingStep
        The step, with the learning rate and `n_steps`, the number of steps so far.
    own_seconds : array of float
        Seconds of each step on this rank: waiting for the batch, and computing until this rank had its gradients.

    Raises
    ------
    SarliteError
        On every rank together, naming the argument. An argument has a wrong type, or x or labels do not have the
        graph's number of rows. The model expects another number of features, or the targets do not fit the task. A
        loader has another graph, other rows or no labels. No rank has a training row, or the ranks differ in the width
        or dtype of x or in a replicated parameter.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Trainer, nn, optim
    >>> from sarlite.models import GCN
    >>> graph = Graph.from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], 6)  # two rings of three nodes
    >>> x, labels = np.eye(6, dtype=np.float32), np.array([0, 0, 0, 1, 1, 1])
    >>> rng = nn.Random(0)
    >>> model = GCN(6, 2, layers=2, hidden=8, dropout=0.0, rng=rng)
    >>> trainer = Trainer(graph, model, x, labels, train=[0, 3], val=[1, 4], test=[2, 5],
    ...                   optimizer=lambda flat: optim.Adam(flat, 0.05), rng=rng)
    >>> best = trainer.fit(30)
    >>> trainer.evaluate()["test_accuracy"]
    1.0
    >>> trainer.predict().shape
    (6, 2)

    On two ranks, here two threads, each rank has a part of the graph and its rows:

    >>> from sarlite.comm import threads
    >>> def work(comm):
    ...     part, rng = graph.shard(comm, [0, 0, 0, 1, 1, 1]), nn.Random(0)
    ...     ids = part.node_ids
    ...     model = GCN(6, 2, layers=2, hidden=8, dropout=0.0, rng=rng)
    ...     trainer = Trainer(part, model, x[ids], labels[ids], train=[0], val=[1], test=[2],
    ...                       optimizer=lambda flat: optim.Adam(flat, 0.05), rng=rng)
    ...     trainer.fit(30)
    ...     return trainer.predict().shape, trainer.evaluate()["test_accuracy"]
    >>> threads.run(2, work)
    [((3, 2), 1.0), ((3, 2), 1.0)]
    """

    def __init__(self, graph: Any, model: Any, x: ArrayLike | Mapping[str, ArrayLike], labels: ArrayLike, train: RowChoice,
                 val: RowChoice = (), test: RowChoice = (), *,
                 optimizer: Callable[[nn.Flat], Optimizer], rng: nn.Random,
                 batches: Loader | Batch | None = None, scoring: Loader | Batch | None = None,
                 schedule: Factor = lambda epoch: 1.0, loss: Callable[[Tensor, Array], Tensor] | None = None,
                 task: Task | None = None, clip_norm: float | None = None, numerics: str | Exact = "fast") -> None:
        if not hasattr(graph, "comm"):
            raise ConfigError(f"graph is a {type(graph).__name__}, but must be a Graph")
        self.graph: Any = graph
        self.comm, self.model = graph.comm, model
        self.x, self.labels = together(self.comm, lambda: (_constants(x), as_array(labels)))
        sources = {"batches": batches, "scoring": scoring}
        together(self.comm, lambda: check_arguments(graph, model, rng, optimizer, schedule, loss, task, clip_norm,
                                                    sources))
        self.task = (task or NodeTask()) if loss is None else CustomLoss(loss)
        together(self.comm, lambda: self.task.check_arguments(graph, model, self.x, batches, scoring))
        together(self.comm, lambda: check_numerics(numerics, self.comm, self.task, *sources.values()))
        self.numerics = named(numerics, self.comm) if isinstance(numerics, str) else numerics
        splits = {"train": train, "val": val, "test": test}
        self.rows = together(self.comm, lambda: rows_of(graph, self.x, self.labels, self.task, splits))
        together(self.comm, lambda: check_loaders(graph, self.rows, sources))
        counts = self.comm.allreduce(np.array([len(rows) for rows in self.rows.values()]))
        self.counts = dict(zip(self.rows, counts.tolist()))
        if not self.counts["train"]:
            raise_together(self.comm, DataError("the training split is empty on every rank"))
        self.inputs = self.task.input_rows(graph, self.x, self.labels, self.rows, rng.seed)
        self.x = self.inputs.tensor
        together(self.comm, lambda: check_takes(model, self.x))
        self.flat = together(self.comm, lambda: nn.flatten(model))
        widths = [(name, x.shape[1:], str(x.dtype)) for name, x in each_x(self.x)]
        agree(self.comm, widths, "x: number of features and dtype")
        agree(self.comm, (self.flat.replicated.names, self.flat.data), "model: values of the replicated parameters")
        self.full_batch = FullBatch(graph, self.x, self.labels, self.rows["train"], self.counts["train"])
        self.batches = self.task.full_batches(self.full_batch) if batches is None else source_of(batches)
        self.scoring = source_of(self.full_batch if scoring is None else scoring)
        self.n_classes = max(self.comm.allgather(self.task.n_classes(self.labels, self.rows)))
        self.task.check_width(max(self.n_classes, 2))  # with fewer classes, an output may still have 2 columns
        loss_over_rows = self.task.loss_over(self.labels, self.rows["train"], self.comm, self.n_classes)
        self.loss = checked_loss(loss_over_rows, type(model).__name__, self.n_classes)
        self.left_out: dict[str, str] = {}  # by split: a note about rows or labels that the metric leaves out
        self.optimizer = together(self.comm, lambda: optimizer(self.flat))
        if not isinstance(self.optimizer, Optimizer):
            raise ConfigError(f"optimizer returned a {type(self.optimizer).__name__}, but must return an optimizer, such as "
                              "optim.Adam(flat, 0.01)")
        n_steps, self.schedule = len(self.batches), schedule
        self.training_step = TrainingStep(model, self.optimizer, rng, self.comm, profile=graph.profile,
                                          schedule=lambda step: schedule(step // n_steps), clip_norm=clip_norm)
        self.buffers, self.riders = self.training_step.buffers, self.training_step.riders
        self.own_seconds = array("d")
        self._remaining: Any = None  # iterator over the remaining batches of the current epoch
        self._next_step = -1  # the global step of the next batch; -1 before the first epoch

    def __repr__(self) -> str:
        rows = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        model = f"{type(self.model).__name__} of {self.model.n_parameters:,} values"
        inputs = ", ".join(f"{name} {x.dtype} {x.shape}" for name, x in each_x(self.x)) or "no features"
        return (f"Trainer({model}, {self.graph!r}, {inputs}, rows of all ranks: {rows}; {self.optimizer!r}, "
                f"step {self.training_step.n_steps})")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Trainer cannot be copied or pickled, because its optimizer updates the arrays of its model and "
                        "its batches come from a loader. To copy the model, use copy.deepcopy(trainer.model) or "
                        "trainer.model.state_dict(). To save the whole state, use train.checkpoint.write(path, "
                        "trainer, {}); checkpoint.restore_state puts the state into another Trainer")

    def step(self, epoch: int | None = None) -> float:
        """Take one optimizer step and return its loss: the next step if `epoch` is None, otherwise the first step of the epoch with this
        number, from 0. Collective.

        Parameters
        ----------
        epoch : int, optional
            Take the first step of this epoch, counted from 0. By default take the next step.

        Returns
        -------
        float
            The mean loss over the batch's rows of all ranks, before the update.

        Raises
        ------
        DivergenceError
            On every rank: the loss, or with `clip_norm` the norm of the gradients, is not finite. No parameter has changed.
        SarliteError
            On every rank: the model's output does not fit the graph or the labels, or a feature is not finite.

        Notes
        -----
        Bytes sent: the messages of the model's aggregations, and one allreduce of all gradients. After the first step
        no large array is allocated. After a failed step, and after `restore_state`, the next step is the global step
        `training_step.n_steps`.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Trainer, nn, optim
        >>> from sarlite.models import SAGE
        >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
        >>> model = SAGE(3, 2, layers=1, rng=rng)
        >>> trainer = Trainer(graph, model, np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1, 2],
        ...                   optimizer=lambda flat: optim.SGD(flat, 0.5), rng=rng)
        >>> first, second = trainer.step(), trainer.step()
        >>> second < first, trainer.training_step.n_steps
        (True, 2)
        """
        if epoch is not None:
            self._begin(check_int("epoch", epoch) * len(self.batches))
        elif self._next_step != self.training_step.n_steps:
            self._begin(self.training_step.n_steps)
        batch = next(self._remaining, None)
        if batch is None:
            self._begin(self.training_step.n_steps)
            batch = next(self._remaining)
        self._next_step += 1
        return self._step(batch, time.perf_counter())

    def epoch(self, epoch: int, on_step: Callable[[int, float], object] = lambda done, loss: None) -> float:
        """Train the epoch with the number `epoch`, counted from 0, and return its mean loss. `on_step` is called after each step as
        on_step(n_steps_done, loss). Collective.

        Parameters
        ----------
        epoch : int
            Number of the epoch, counted from 0.
        on_step : callable
            Called as `on_step(n_steps_done, loss)` after each step of the epoch.

        Returns
        -------
        float
            The mean of the steps' losses, weighted by the number of training rows of each step.

        Raises
        ------
        SarliteError
            As `step`.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Trainer, nn, optim
        >>> from sarlite.minibatch import NeighborLoader
        >>> from sarlite.models import SAGE
        >>> graph, x, rng = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4), np.eye(4, dtype=np.float32), nn.Random(0)
        >>> loader = NeighborLoader(graph, x, [0, 1, 0, 1], slice(4), fanouts=[2], batch_size=2)
        >>> model = SAGE(4, 2, layers=1, rng=rng)
        >>> trainer = Trainer(graph, model, x, [0, 1, 0, 1], train=slice(4), batches=loader,
        ...                   optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)
        >>> loss = trainer.epoch(0, on_step=lambda done, loss: print("step", done))
        step 1
        step 2
        """
        n_steps, step = len(self.batches), self.training_step
        self._begin(check_int("epoch", epoch) * n_steps)
        total = n_rows = loss = 0.0
        begin = time.perf_counter()
        with closing(self._remaining) as batches:
            for batch in batches:
                loss = self._step(batch, begin)
                total, n_rows = total + loss * batch.n_global, n_rows + batch.n_global
                del batch
                on_step(step.n_steps - epoch * n_steps, loss)
                begin = time.perf_counter()
        return loss if n_steps == 1 else total / n_rows

    def fit(self, epochs: int, *, patience: int | None = None, eval_every: int = 1,
            callbacks: Sequence[Callable[[JsonDict], object]] = ()) -> Best:
        """Train until `epochs` epochs are done in total, and return the best epoch. Training ends early if `patience` epochs in a row bring
        no better one; None means never. `callbacks` are called with each epoch's record. Collective.

        Epochs before the call count. Training that diverges ends with a RuntimeWarning on rank 0; the model then has
        the best epoch's parameters.

        Parameters
        ----------
        epochs : int
            Total number of epochs.
        patience : int, optional
            Training ends after this number of epochs without a better epoch on the validation rows, counted from this
            call on.
        eval_every : int
            Number of epochs from one evaluation to the next. The last epoch is evaluated too.
        callbacks : sequence of callables
            Each is called after every epoch with the epoch's record, a dict: "epoch", counted from 1, "loss",
            "seconds", "lr", and the entries that `evaluate` returns, None if the epoch was not evaluated. Training ends
            if a callback returns True. All ranks must return the same.

        Returns
        -------
        Best
            The best epoch, its scores and the model's state. `trainer.model.load_state_dict(best.state)` restores the
            state.

        Raises
        ------
        ConfigError
            On every rank: `epochs`, `patience` or `eval_every` is not a valid number, or a callback is not callable.
        DivergenceError
            On every rank: the loss is not finite before any epoch was evaluated.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Trainer, nn, optim
        >>> from sarlite.models import SAGE
        >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
        >>> model = SAGE(3, 2, layers=1, rng=rng)
        >>> trainer = Trainer(graph, model, np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1], val=[2],
        ...                   optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)
        >>> best = trainer.fit(4, eval_every=2, callbacks=[lambda record: print(record["epoch"], record["val_loss"] is None)])
        1 True
        2 False
        3 True
        4 False
        >>> best.epoch in (2, 4), sorted(best.scores)
        (True, ['test_accuracy', 'train_accuracy', 'val_accuracy', 'val_loss'])
        """
        if not all(map(callable, callbacks)):
            raise ConfigError(f"callbacks: {callbacks!r} are not all callable")

        def on_epoch(record):
            return any([callback(record) is True for callback in callbacks])  # a list: every callback is called

        def on_divergence(text):
            if self.comm.rank == 0:
                warnings.warn(text, RuntimeWarning, stacklevel=3)

        return fit(self, epochs, start=self.training_step.n_steps // len(self.batches), eval_every=eval_every,
                   stopping=Stopping(patience, plateau_of(self.schedule)), on_epoch=on_epoch,
                   on_divergence=on_divergence)

    def _begin(self, step):
        """Make an iterator over the training batches from the global step `step` to the end of its epoch, and set the number of the next
        step to `step`. Raise a ConfigError if the model has a parameter that it did not have when the trainer was made.
        """
        new = next((name for name, p in self.model.named_parameters() if p.flat is None or p.flat() is not self.flat), None)
        if new is not None:
            raise ConfigError(f"parameter {new!r} was added to the model after the Trainer was made, so no step would change it: "
                              "make a new Trainer, or assign values by load_state_dict")
        if self._remaining is not None:
            self._remaining.close()  # ends the sampling thread, which may communicate
        self.training_step.n_steps = self.batches.step = self._next_step = step
        self._remaining = self.inputs.to_train(iter(self.batches), step)

    def _step(self, batch, begin):
        """Take one optimizer step on a batch and return the loss over all ranks. `begin` is the time when this rank began to wait for the
        batch. The rank's own seconds are appended to `own_seconds`.
        """
        step, compute_begin = self.training_step, time.perf_counter()
        with self.graph.profile.span(f"step {step.n_steps + 1}"):
            with using(self.numerics):
                loss = step(batch, self.loss)
        self.own_seconds.append(compute_begin - begin + step.own_seconds)
        return loss

    def evaluate(self) -> Scores:
        """Return a dict with the task's metric of each split, such as "val_accuracy", and with "val_loss", computed over the rows of all
        ranks. Collective.

        Returns
        -------
        dict of str to (float or None)
            "train_KEY", "val_KEY" and "test_KEY", where KEY is the name of the task's metric, by default "accuracy",
            and "val_loss". An entry is None if the split has no rows. The metrics are None if the trainer has a `loss`
            in place of a task.

        Raises
        ------
        SarliteError
            On every rank: the model's output does not fit the graph or the labels.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Trainer, nn, optim
        >>> from sarlite.models import SAGE
        >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
        >>> model = SAGE(3, 2, layers=1, rng=rng)
        >>> trainer = Trainer(graph, model, np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1], val=[2],
        ...                   optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)
        >>> scores = trainer.evaluate()
        >>> sorted(scores), scores["test_accuracy"]
        (['test_accuracy', 'train_accuracy', 'val_accuracy', 'val_loss'], None)
        """
        metrics = {name: self.task.make_metric() for name in self.rows}
        with using(self.numerics):
            loss = self.score(metrics)
        counts = [np.zeros(0) if metric is None else metric.counts() for metric in metrics.values()]
        sums = self.riders.allreduce(self.comm, [*np.concatenate(counts), loss])
        split_sums = np.split(sums[:-1], np.cumsum([len(values) for values in counts])[:-1])
        scores = {f"{name}_{self.task.key}": metric.value(values, self.comm) if metric and self.counts[name] else None
                  for (name, metric), values in zip(metrics.items(), split_sums)}
        self.left_out = {name: metric.note for name, metric in metrics.items() if metric and metric.note}
        return {**scores, "val_loss": float(sums[-1]) if self.counts["val"] else None}

    def score(self, metrics: Mapping[str, Counter | None]) -> float:
        """Evaluate the model: for each split, call the method `add` of metrics[split] with the outputs and labels of this rank's rows of
        the split. A split whose entry is None is skipped. Return this rank's summand of the validation loss: the sum over ranks is the
        loss. Collective.

        Parameters
        ----------
        metrics : dict of str to (Metric or None)
            Metric of each split to evaluate. A metric is any object with a method `add(output, labels)`.

        Returns
        -------
        float
            This rank's share of the validation loss; the sum of the shares over ranks is the loss.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Trainer, nn, optim
        >>> from sarlite.models import SAGE
        >>> class Shapes:
        ...     def add(self, output, labels):
        ...         print(output.shape, labels.shape)
        >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
        >>> model = SAGE(3, 2, layers=1, rng=rng)
        >>> trainer = Trainer(graph, model, np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1],
        ...                   optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)
        >>> trainer.score({"train": Shapes()})
        (2, 2) (2,)
        0.0
        """
        self.scoring.step, loss = 0, 0.0
        for batch in self.inputs.to_score(iter(self.scoring)):
            with self.buffers, no_grad():
                (output, metric_input), rows = self._output(batch), self._split_rows(batch)
                for name, metric in metrics.items():
                    if metric is not None:
                        metric.add(metric_input[rows[name]], batch.labels[rows[name]])
                if self.counts["val"]:  # counted over all ranks, as a loss in exact numerics is collective
                    loss += self.loss(output, batch.labels, rows["val"], max(self.counts["val"], 1)).item()
                del output, metric_input
        return loss

    def _split_rows(self, batch):
        """Return {split: row numbers in the output of `batch`} for the rows that belong to each split."""
        if batch.outputs is None:
            return self.rows
        split_rows, numbers = {}, np.arange(len(batch.outputs))
        for name, rows in self._ascending.items():
            first, last = (np.searchsorted(rows, batch.outputs, side) for side in ("left", "right"))
            split_rows[name] = np.repeat(numbers, last - first)
        return split_rows

    @cached_property
    def _ascending(self):
        return {name: np.sort(rows) for name, rows in self.rows.items()}

    def predict(self) -> Array:
        """Return the model's output for all of this rank's rows, computed in evaluation mode. Collective.

        Returns
        -------
        (n_dst, n_outputs) array
            A new array, such as logits.

        Raises
        ------
        ConfigError
            On every rank: the training batches are sampled in time, so the full graph has later edges.
        SarliteError
            On every rank: the model's output does not fit the graph or the labels.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Trainer, nn, optim
        >>> from sarlite.models import SAGE
        >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
        >>> model = SAGE(3, 2, layers=1, rng=rng)
        >>> trainer = Trainer(graph, model, np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1],
        ...                   optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)
        >>> trainer.predict().shape
        (3, 2)
        """
        if getattr(self.batches, "temporal", None):
            raise ConfigError("predict: the full graph has edges that are later than a row: use the batches of "
                              "batches.batch(rows), which are sampled in time")
        batch = next(self.inputs.to_score(iter([self.full_batch])))
        with self.buffers, no_grad(), using(self.numerics):
            output, _ = self._output(batch, exact=False)
        return output.data.copy()

    def _output(self, batch, exact=True):
        """Run the model on a batch in evaluation mode; return (its output, array that metrics take). If `exact`, the mean and variance of
        batch norm are first computed anew on the full graph, for a model trained on sampled batches.
        """
        self.model.eval()

        def run():
            return self.task.outputs(self.model, batch.graph, batch.x)

        exact = exact and self.batches.sampled and batch.outputs is None
        output, metric_input = nn.exact_moments(self.model, run) if exact else run()
        check_output(output, type(self.model).__name__, batch.graph.n_dst, self.n_classes)
        return output, metric_input

    def counted(self) -> dict[str, object]:
        """Return statistics of the batches by name, such as the number of steps and the hit rates of caches; {} for full-batch training.
        Collective.

        Returns
        -------
        dict of str to object
            Empty for full-batch training. For a loader: "steps", the number of steps, and "imbalance", the median over
            steps of the slowest rank's seconds divided by the mean over ranks. A loader with caches adds "hit_rate" and
            "rows_pushed" by layer, and "bytes_pushed", over all ranks and the whole run. For a message-flow batch:
            "message_flow", the sizes of its layers.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Trainer, nn, optim
        >>> from sarlite.models import SAGE
        >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
        >>> model = SAGE(3, 2, layers=1, rng=rng)
        >>> trainer = Trainer(graph, model, np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1],
        ...                   optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)
        >>> trainer.counted()
        {}
        """
        if not self.batches.sampled:
            return self.batches.counted(self.graph)
        seconds = np.array(self.own_seconds)
        largest, mean = self.comm.allreduce(seconds.copy(), "max"), self.comm.allreduce(seconds) / self.comm.size
        imbalance = float(np.median(largest / mean)) if len(seconds) else None
        return {"steps": len(seconds), "imbalance": imbalance, **self.batches.counted(self.graph)}


def source_of(batches: Loader | Batch | FullBatch) -> Any:
    """Return a loader unchanged. Wrap a single batch in a source of batches that yields it once in each epoch."""
    return FixedBatch(batches) if isinstance(batches, (Batch, FullBatch)) else batches


def _constants(x):
    if isinstance(x, dict):
        return {name: _constants(rows) for name, rows in x.items()}
    return Tensor(as_array(x), constant=True, placement="rows")


def set_threads(n: int) -> None:
    """Set the number of threads of this rank's kernels to `n`, and the number of BLAS threads to 1.

    The kernels compute a model's matrix products. NumPy calls BLAS for other products.

    Parameters
    ----------
    n : int
        1 or more.

    Examples
    --------
    >>> from sarlite.kernels.native import threads
    >>> set_threads(2)
    >>> threads()
    2
    >>> set_threads(1)
    """
    import threadpoolctl

    kernels.set_threads(n)
    threadpoolctl.threadpool_limits(1, user_api="blas")
