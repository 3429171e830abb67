"""The trainer, which takes steps and evaluates over whatever yields batches."""

import time
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

import numpy as np

from sarlite import kernels, nn
from sarlite.comm import agree, together
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.minibatch.batch import Batch, FixedBatch, FullBatch
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
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
    check_numerics,
    check_output,
    check_takes,
    checked_loss,
    each_x,
    rows_of,
)
from sarlite.types import Array


class Trainer:
    """Takes steps over batches of this rank's part of a graph, and evaluates over batches. Construction is collective.

    Parameters
    ----------
    graph : Graph, or another graph whose rows have the task's targets
        A `NodeTask` takes a `Graph` or, of a `HeteroGraph`, `graph.of(type)`.
    model : callable Module, model(graph, x) -> output, such as logits (n_dst, n_classes)
        The same replicated parameters on every rank: make it from the same `nn.Random` seed.
    x : (n_src, n_features) array, or of a node type of a `HeteroGraph` a dict of such by node type
        This rank's rows, in the order of `graph.src_ids`. Borrowed, and must not change: it is a constant tensor, so a
        first layer without dropout before it keeps the aggregated x, another (n_src, n_features), and aggregates and
        fetches only once.
    labels : (n_dst,) array of integers, or what else `loss` compares the output's rows with
        Targets of `task`, by default classes from 0. Values outside the splits are not read.
    train, val, test : (n_dst,) array of bools, slice, or (k,) array of row numbers
        This rank's rows of each split; a rank may have none.
    optimizer : callable
        Makes an optimizer from the model's `nn.flatten` result, such as `lambda flat: optim.Adam(flat, 0.01)`.
    rng : nn.Random
        The one that the model was made with; its `step` follows the steps.
    batches : loader, or Batch, optional
        Source of the batches that steps are taken over, of the same graph, x, labels and training rows. A loader yields
        the batches of an epoch. A `Batch`, as `message_flow` makes it, is the one step of every epoch. By default the
        full batch is.
    scoring : loader, or Batch, optional
        Source of the batches that `evaluate` goes over, of the same graph, x and labels, with each row of the splits
        once. A loader starts anew each time, with the same seeds and picks. By default the full batch, which makes the
        moments of batch norms exact if `batches` is a loader (`nn.exact_moments`).
    schedule : callable
        Factor of the learning rate by epoch. Epoch e begins at global step e * len(batches).
    loss : callable, optional
        (output, labels) -> scalar Tensor, a mean over the rows that it is given, in place of a task. Labels are not
        checked and there is no metric then; a task with a loss of your own, `NodeTask(loss=function)`, has both.
    task : Task, optional
        What the targets are, the loss and the metric. By default `NodeTask()`: classes of nodes, cross entropy,
        accuracy.
    clip_norm : float above 0, optional
        The largest norm of all ranks' gradients; larger ones are scaled down to it.
    numerics : {"fast", "exact"}, or an object as `Exact`
        "exact": losses, gradients, parameters and outputs have the same bits on any number of ranks, for any mode, way
        back, division and order of rows, prefetch, threads and instruction set. What is not exact yet is refused.

    Attributes
    ----------
    own_seconds : array of float
        Seconds of each step until this rank had its gradients, counted from the end of the step before.

    Raises
    ------
    SarliteError
        On every rank together. An argument is wrong, such as x or labels without a row for each of the graph's rows, x
        of another width than the model's `takes`, or targets that are not the task's; no rank has a training row; or
        the ranks differ in the width or dtype of x, or in a replicated parameter. A step raises it if the model's
        output does not fit. The error names the argument.
    """

    def __init__(self, graph: Any, model: Any, x: Any, labels: Any, train: Any, val: Any = (), test: Any = (), *,
                 optimizer: Callable[[nn.Flat], Optimizer], rng: nn.Random, batches: Any = None, scoring: Any = None,
                 schedule: Factor = lambda epoch: 1.0, loss: Callable[[Tensor, Array], Tensor] | None = None,
                 task: Task | None = None, clip_norm: float | None = None, numerics: Any = "fast") -> None:
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
        self.task.check_width(max(self.n_classes, 2))  # of fewer the output's columns tell
        loss_over_rows = self.task.loss_over(self.labels, self.rows["train"], self.comm, self.n_classes)
        self.loss = checked_loss(loss_over_rows, type(model).__name__, self.n_classes)
        self.left_out: dict[str, str] = {}  # by split, what its metric leaves out
        self.optimizer = together(self.comm, lambda: optimizer(self.flat))
        if not isinstance(self.optimizer, Optimizer):
            raise ConfigError(f"optimizer made a {type(self.optimizer).__name__}, but must make an optimizer, as "
                              "optim.Adam(flat, 0.01)")
        n_steps, self.schedule = len(self.batches), schedule
        self.training_step = TrainingStep(model, self.optimizer, rng, self.comm, profile=graph.profile,
                                          schedule=lambda step: schedule(step // n_steps), clip_norm=clip_norm)
        self.buffers, self.riders = self.training_step.buffers, self.training_step.riders
        self.own_seconds = array("d")
        self._left: Any = None  # the remaining batches of an epoch
        self._next_step = -1  # the global step of the first of them; -1 before the first epoch

    def __repr__(self) -> str:
        rows = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        model = f"{type(self.model).__name__} of {self.model.n_parameters:,} values"
        inputs = ", ".join(f"{name} {x.dtype} {x.shape}" for name, x in each_x(self.x)) or "no features"
        return (f"Trainer({model}, {self.graph!r}, {inputs}, rows of all ranks: {rows}; {self.optimizer!r}, "
                f"step {self.training_step.n_steps})")

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Trainer is neither copied nor pickled, as its optimizer steps the arrays of its own model and "
                        "its batches come from a loader: copy.deepcopy(trainer.model) and trainer.model.state_dict() "
                        "copy the model, train.checkpoint.write(path, trainer, {}) writes the whole state, and "
                        "checkpoint.restore_state puts the state into another Trainer")

    def step(self, epoch: int | None = None) -> float:
        """Take one optimizer step, the first of `epoch` or the next one, and return the loss over the step's rows of
        all ranks. Collective.

        Notes
        -----
        Sends what the model's aggregations send, and one allreduce of all gradients. After the first step no large
        array takes fresh memory. After a step that failed, and after `restore_state`, the next step is the global step
        `training_step.n_steps`.
        """
        if epoch is not None:
            self._begin(epoch * len(self.batches))
        elif self._next_step != self.training_step.n_steps:
            self._begin(self.training_step.n_steps)
        batch = next(self._left, None)
        if batch is None:
            self._begin(self.training_step.n_steps)
            batch = next(self._left)
        self._next_step += 1
        return self._step(batch, time.perf_counter())

    def epoch(self, epoch: int, on_step: Callable[[int, float], Any] = lambda done, loss: None) -> float:
        """Train one epoch and return the mean of the steps' losses, weighted by their training rows. Collective.

        `on_step(steps_done, loss)` is called after each step.
        """
        n_steps, step = len(self.batches), self.training_step
        self._begin(epoch * n_steps)
        total = n_rows = loss = 0.0
        begin = time.perf_counter()
        with closing(self._left) as batches:
            for batch in batches:
                loss = self._step(batch, begin)
                total, n_rows = total + loss * batch.n_global, n_rows + batch.n_global
                del batch
                on_step(step.n_steps - epoch * n_steps, loss)
                begin = time.perf_counter()
        return loss if n_steps == 1 else total / n_rows

    def fit(self, epochs: int, *, patience: int | None = None, eval_every: int = 1,
            callbacks: Sequence[Callable[[dict[str, Any]], Any]] = ()) -> Best:
        """Train until the trainer has taken `epochs` epochs, those before the call counted, and evaluate. Collective.

        Training that diverges ends with a RuntimeWarning on rank 0; the model then has the best epoch's parameters.

        Parameters
        ----------
        epochs : int
        patience : int, optional
            Training ends after so many epochs without a better one on the validation rows; counted from this call on.
        eval_every : int
            Epochs from one evaluation to the next; the last epoch is evaluated too.
        callbacks : sequence of callables
            Each is called after every epoch with its record, a dict: "epoch", "loss", "seconds", "lr", and what
            `evaluate` returns, None where the epoch was not evaluated. Training ends where a callback returns True, on
            every rank alike.

        Returns
        -------
        Best
            Its epoch, scores, and the model's state then: `trainer.model.load_state_dict(best.state)` takes it back.

        Raises
        ------
        ConfigError
            On every rank: a number or a callback is none.
        """
        if not all(map(callable, callbacks)):
            raise ConfigError(f"callbacks: {callbacks!r} are not all callable")

        def on_epoch(record):
            return any([callback(record) is True for callback in callbacks])  # each of them hears of it

        def on_divergence(text):
            if self.comm.rank == 0:
                warnings.warn(text, RuntimeWarning, stacklevel=3)

        return fit(self, epochs, start=self.training_step.n_steps // len(self.batches), eval_every=eval_every,
                   stopping=Stopping(patience, plateau_of(self.schedule)), on_epoch=on_epoch,
                   on_divergence=on_divergence)

    def _begin(self, step):
        """Begin an iteration over the remaining batches of the epoch that contains the global step `step`."""
        if self._left is not None:
            self._left.close()  # ends its thread, which may communicate
        self.training_step.n_steps = self.batches.step = self._next_step = step
        self._left = self.inputs.to_train(iter(self.batches), step)

    def _step(self, batch, begin):
        """Take a step over a batch, for which this rank began to wait or to compute at `begin`."""
        step, there = self.training_step, time.perf_counter()
        with self.graph.profile.span(f"step {step.n_steps + 1}"):
            with using(self.numerics):
                loss = step(batch, self.loss)
        self.own_seconds.append(there - begin + step.own_seconds)
        return loss

    def evaluate(self) -> Scores:
        """Return over all ranks "train_accuracy", "val_accuracy" and "test_accuracy", or the task's metric by its key,
        and "val_loss".

        Collective. A metric is None without rows and with a `loss` of your own; "val_loss" is None without rows.
        """
        metrics = {name: self.task.make_metric() for name in self.rows}
        with using(self.numerics):
            loss = self.score(metrics)
        counts = [np.zeros(0) if metric is None else metric.counts() for metric in metrics.values()]
        sums = self.riders.allreduce(self.comm, [*np.concatenate(counts), loss])
        found = np.split(sums[:-1], np.cumsum([len(own) for own in counts])[:-1])
        scores = {f"{name}_{self.task.key}": metric.value(own, self.comm) if metric and self.counts[name] else None
                  for (name, metric), own in zip(metrics.items(), found)}
        self.left_out = {name: metric.note for name, metric in metrics.items() if metric and metric.note}
        return {**scores, "val_loss": float(sums[-1]) if self.counts["val"] else None}

    def score(self, metrics: Mapping[str, Any]) -> float:
        """Add this rank's rows of each split to its metric; return its share of the validation loss. Collective.

        Parameters
        ----------
        metrics : dict of split to an object with add(output, labels)
            Of the splits that are looked at.
        """
        self.scoring.step, loss = 0, 0.0
        for batch in self.inputs.to_score(iter(self.scoring)):
            with self.buffers, no_grad():
                (output, judged), rows = self._output(batch), self._split_rows(batch)
                for name, metric in metrics.items():
                    if metric is not None:
                        metric.add(judged[rows[name]], batch.labels[rows[name]])
                if self.counts["val"]:  # on every rank: exact numerics add up over ranks
                    loss += self.loss(output, batch.labels, rows["val"], max(self.counts["val"], 1)).item()
                del output, judged
        return loss

    def _split_rows(self, batch):
        """Return, for each split, the rows of a batch's output that belong to the split."""
        if batch.outputs is None:
            return self.rows
        found, numbers = {}, np.arange(len(batch.outputs))
        for name, rows in self._ascending.items():
            first, last = (np.searchsorted(rows, batch.outputs, side) for side in ("left", "right"))
            found[name] = np.repeat(numbers, last - first)
        return found

    @cached_property
    def _ascending(self):
        return {name: np.sort(rows) for name, rows in self.rows.items()}

    def predict(self) -> Array:
        """Return the model's output in evaluation for this rank's rows, (n_dst, n_classes), a new array. Collective."""
        if getattr(self.batches, "temporal", None):
            raise ConfigError("predict: the full batch has edges that are later than a row: take the batches of "
                              "batches.batch(rows), which are sampled in time")
        batch = next(self.inputs.to_score(iter([self.full_batch])))
        with self.buffers, no_grad(), using(self.numerics):
            output, _ = self._output(batch, exact=False)
        return output.data.copy()

    def _output(self, batch, exact=True):
        """Return the task's `outputs`; of the whole graph, after steps over sampled batches, with exact moments."""
        self.model.eval()

        def run():
            return self.task.outputs(self.model, batch.graph, batch.x)

        exact = exact and self.batches.sampled and batch.outputs is None
        output, judged = nn.exact_moments(self.model, run) if exact else run()
        check_output(output, type(self.model).__name__, batch.graph.n_dst, self.n_classes)
        return output, judged

    def counted(self) -> dict[str, Any]:
        """Return statistics of the batches, keyed as in the output of `--json`. Collective.

        Of a loader "steps"; "imbalance", the largest rank's time of a step over the mean, the steps' median; with
        caches "hit_rate" and "rows_pushed" by layer and "bytes_pushed", over all ranks and the whole run. Of a
        message-flow batch "message_flow".
        """
        if not self.batches.sampled:
            return self.batches.counted(self.graph)
        seconds = np.array(self.own_seconds)
        largest, mean = self.comm.allreduce(seconds.copy(), "max"), self.comm.allreduce(seconds) / self.comm.size
        imbalance = float(np.median(largest / mean)) if len(seconds) else None
        return {"steps": len(seconds), "imbalance": imbalance, **self.batches.counted(self.graph)}


def source_of(batches: Any) -> Any:
    """Return `batches`, or of a single batch the source that yields it in each epoch."""
    return FixedBatch(batches) if isinstance(batches, (Batch, FullBatch)) else batches


def _constants(x):
    if isinstance(x, dict):
        return {name: _constants(rows) for name, rows in x.items()}
    return Tensor(as_array(x), constant=True, placement="rows")


def set_threads(n: int) -> None:
    """Let this rank's kernels use `n` threads, and the BLAS, which NumPy calls for further products, one."""
    import threadpoolctl

    kernels.set_threads(n)
    threadpoolctl.threadpool_limits(1, user_api="blas")
