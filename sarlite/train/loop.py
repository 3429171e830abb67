"""Training by epochs, full-batch of one step each, and evaluation over all ranks."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite import kernels, nn
from sarlite.comm import agree, together
from sarlite.errors import ConfigError, DataError, ShapeError, raise_together
from sarlite.optim import Factor, Optimizer
from sarlite.sar.graph import Graph
from sarlite.sar.hetero import NodeType
from sarlite.tape import Tensor, no_grad, ops
from sarlite.tape.engine import as_array, grad_enabled
from sarlite.tape.rows import row_numbers
from sarlite.train.step import Loss, TrainingStep, mean_over_rows, not_finite
from sarlite.types import Array

Scores = dict[str, float | None]


class Trainer:
    """Trains a model full-batch on this rank's part of a graph. Construction is collective.

    Parameters
    ----------
    graph : Graph, or NodeType
        The rows that have labels: of a `HeteroGraph` `graph.of(type)`.
    model : callable Module, model(graph, x) -> output, such as logits (n_dst, n_classes)
        The same replicated parameters on every rank: make it from the same `nn.Random` seed.
    x : (n_src, n_features) array, or of a node type of a `HeteroGraph` a dict of such by node type
        This rank's rows, in the order of `graph.src_ids`. Borrowed, and must not change: it is a constant tensor, so a first layer
        without dropout before it keeps the aggregated x, another (n_src, n_features), and aggregates and fetches only once.
    labels : (n_dst,) array of integers, or what else `loss` compares the output's rows with
        Classes from 0. Values outside the splits are not looked at.
    train, val, test : (n_dst,) array of bools, slice, or (k,) array of row numbers
        This rank's rows of each split; a rank may have none.
    optimizer : callable
        Makes an optimizer from the model's `nn.flatten` result, such as `lambda flat: optim.Adam(flat, 0.01)`.
    rng : nn.Random
        The one that the model was made with; its `step` follows the steps.
    schedule : callable
        Factor of the learning rate by epoch.
    loss : callable, optional
        (output, labels) -> scalar Tensor, a mean over the rows that it is given; cross entropy without it.

    Raises
    ------
    SarliteError
        On every rank together, naming the argument: x or labels have not the graph's rows, labels are no classes, a split is none of the
        above, no rank has a training row, or another argument is not what is said here; the ranks' x differ in width or dtype, or their
        models in a replicated parameter. In a step, where the model's output does not fit.
    """

    def __init__(self, graph: Graph | NodeType, model: Any, x: Any, labels: Any, train: Any, val: Any = (), test: Any = (), *,
                 optimizer: Callable[[nn.Flat], Optimizer], rng: nn.Random, schedule: Factor = lambda epoch: 1.0,
                 loss: Callable[[Tensor, Array], Tensor] | None = None) -> None:
        if not hasattr(graph, "comm"):
            raise ConfigError(f"graph is a {type(graph).__name__}, but must be a Graph")
        self.graph: Any = graph
        self.comm, self.model = graph.comm, model
        self.x = {name: _constant(rows) for name, rows in x.items()} if isinstance(x, dict) else _constant(x)
        self.labels, self.scored = as_array(labels), loss is None
        together(self.comm, lambda: _check_arguments(model, rng, optimizer, schedule, loss))
        self.rows = together(self.comm, lambda: self._rows({"train": train, "val": val, "test": test}))
        self.counts = dict(zip(self.rows, map(int, self.comm.allreduce(np.array([len(r) for r in self.rows.values()])))))
        if not self.counts["train"]:
            raise_together(self.comm, DataError("the training split is empty on every rank"))
        self.flat = together(self.comm, lambda: nn.flatten(model))
        agree(self.comm, [(name, x.shape[1:], str(x.dtype)) for name, x in _each(self.x)], "x: number of features and dtype")
        agree(self.comm, (self.flat.replicated.names, self.flat.data), "model: values of the replicated parameters")
        self.loader: Any = None  # full-batch
        self.n_classes = max(self.comm.allgather(self._largest_label() + 1)) if self.scored else 0
        self.loss = _checking(mean_over_rows(loss) if loss else ops.cross_entropy, type(model).__name__, self.n_classes)
        self.optimizer = optimizer(self.flat)
        if not isinstance(self.optimizer, Optimizer):
            raise ConfigError(f"optimizer made a {type(self.optimizer).__name__}, but must make an optimizer, as optim.Adam(flat, 0.01)")
        self.training_step = TrainingStep(model, self.optimizer, rng, self.comm, schedule=schedule, profile=graph.profile)
        self.buffers, self.votes = self.training_step.buffers, self.training_step.votes

    def __repr__(self) -> str:
        rows = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        model = f"{type(self.model).__name__} of {self.model.n_parameters:,} values"
        return (f"Trainer({model}, {self.graph!r}, {', '.join(f'{name} {x.dtype} {x.shape}' for name, x in _each(self.x))}, "
                f"rows of all ranks: {rows}; {self.optimizer!r}, step {self.training_step.n_steps})")

    def _rows(self, splits):
        if isinstance(self.x, dict) and not isinstance(self.graph, NodeType):
            raise ConfigError("x is a dict by node type, but graph is no node type of a HeteroGraph, as graph.of(type) gives it")
        sources = [self.graph.graph.of(name) for name in self.x] if isinstance(self.x, dict) else [self.graph]
        inputs = [(name, x, nodes.n_src) for (name, x), nodes in zip(_each(self.x), sources)]
        for name, array, n in (*inputs, ("labels", self.labels, self.graph.n_dst)):
            if array.shape[:1] != (n,):
                raise ShapeError(f"{name} of shape {array.shape} has not the graph's {n} rows")
        for name, x in _each(self.x):
            if x.dtype.kind not in "fiub":
                raise ShapeError(f"{name} is {x.dtype}, but features are numbers, as by x.astype(np.float32)")
            if (error := not_finite(x, name=name)) is not None:
                raise error
        rows = {name: row_numbers(name, split, self.graph.n_dst) for name, split in splits.items()}
        if self.scored:
            self._check_labels(rows)
        return rows

    def _check_labels(self, rows):
        if self.labels.dtype.kind not in "iu":
            raise DataError(f"labels are {self.labels.dtype}, but classes are integers from 0: labels.astype(np.int64), or give a loss")
        if self.labels.ndim != 1:
            raise ShapeError(f"labels have shape {self.labels.shape}, but classes are ({self.graph.n_dst},), one each row, or give a loss")
        for name, split in rows.items():
            wrong = split[self.labels[split] < 0]
            if len(wrong):
                raise DataError(f"labels[{wrong[0]}], of the {name} split, is {self.labels[wrong[0]]}, but classes count from 0")

    def _largest_label(self):
        return max((int(self.labels[rows].max()) for rows in self.rows.values() if len(rows)), default=-1)

    def step(self, epoch: int | None = None) -> float:
        """Take one optimizer step, that of `epoch` or the next one, and return the loss over all ranks' training rows. Collective.

        Notes
        -----
        Sends what the model's aggregations send, and one allreduce of all gradients. After the first step no large array takes
        fresh memory.
        """
        if epoch is not None:
            self.training_step.n_steps = epoch
        return self.training_step(self.graph, self.x, self.labels, self.rows["train"], self.counts["train"], self.loss)

    def epoch(self, epoch: int, on_step: Callable[[int, float], Any] = lambda done, loss: None) -> float:
        """Train one epoch, full-batch a step, and return its loss; `on_step` hears of steps on the way, (steps done, loss). Collective."""
        return self.step(epoch)

    def counted(self) -> dict[str, Any]:
        """Return what a run tells of its minibatches, by the name that `--json` gives it. Collective."""
        return {}

    def evaluate(self) -> Scores:
        """Return over all ranks "train_accuracy", "val_accuracy", "test_accuracy" and "val_loss". Collective.

        Accuracies are None without rows and with a `loss` of your own; "val_loss" is None without rows.
        """
        sums = self.votes.allreduce(self.comm, self._sums())
        scores = {f"{name}_accuracy": hits / n if n and self.scored else None for (name, n), hits in zip(self.counts.items(), sums)}
        return {**scores, "val_loss": float(sums[-1]) if self.counts["val"] else None}

    def _sums(self):
        """This rank's hits of each split, and its share of the validation loss."""
        with self.buffers, no_grad():
            return self._score(self._output(), self.labels, self.rows)

    def _score(self, output, labels, rows):
        """What some rows add to `_sums`; `rows` are those of each split."""
        val = rows["val"]
        loss = self.loss(output, labels, val, max(self.counts["val"], 1)).item() if len(val) else 0.0
        return [*(_hits(output.data, labels, own) if self.scored else 0 for own in rows.values()), loss]

    def predict(self) -> Array:
        """Return the model's output in evaluation for this rank's rows, (n_dst, n_classes), a new array. Collective."""
        with self.buffers, no_grad():
            output = self._output()
        return output.data.copy()

    def _output(self):
        self.model.eval()
        output = self.model(self.graph, self.x)
        check_output(output, type(self.model).__name__, self.graph.n_dst, self.n_classes)
        return output


def _constant(x):
    return Tensor(as_array(x), constant=True)


def _each(x):
    """Yield (what an error calls it, the tensor) of x, or of each in a dict."""
    yield from ((f"x[{name!r}]", rows) for name, rows in x.items()) if isinstance(x, dict) else [("x", x)]


def _hits(output, labels, rows):
    return int(np.count_nonzero(output[rows].argmax(1) == labels[rows])) if len(rows) else 0


def _check_arguments(model, rng, optimizer, schedule, loss):
    if not callable(model):
        raise ConfigError(f"model is a {type(model).__name__} that cannot be called: a model defines __call__(self, graph, h)")
    if not isinstance(rng, nn.Random):
        raise ConfigError(f"rng is a {type(rng).__name__}, but must be the nn.Random that the model was made with")
    for name, function, example in (("optimizer", optimizer, "lambda flat: optim.Adam(flat, 0.01)"),
                                    ("schedule", schedule, "optim.schedule('cosine', epochs)"),
                                    ("loss", loss, "lambda output, targets: ((output - targets) ** 2).mean()")):
        if not callable(function) and not (name == "loss" and loss is None):
            raise ConfigError(f"{name} is {function!r}, but must be a function, such as {example}")


def _checking(loss: Loss, model: str, n_classes: int) -> Loss:
    """Return `loss` of an output that is checked."""

    def share(output, targets, rows, count):
        check_output(output, model, len(targets), n_classes)
        if grad_enabled() and not output.requires_grad:
            raise ConfigError(f"the output of the model {model} does not depend on its parameters: was it detached, or made by NumPy?")
        return loss(output, targets, rows, count)

    return share


def check_output(output, model, n_rows, n_classes):
    """Raise, naming the model, where its output is no Tensor of `n_rows` rows or too narrow for the labels' `n_classes`, if not 0."""
    if not isinstance(output, Tensor):
        raise ConfigError(f"the model {model} returned a {type(output).__name__}, but must return a Tensor")
    if output.shape[:1] != (n_rows,):
        raise ShapeError(f"the model {model} returned shape {output.shape}, but the graph has {n_rows} destination rows")
    if n_classes and (output.ndim != 2 or output.shape[1] < n_classes):
        needed = f"labels go up to {n_classes - 1}: it needs {n_classes} columns"
        raise ShapeError(f"the model {model} returned shape {output.shape}, but {needed}")


class Best:
    """The best validation accuracy so far; among equal ones the lowest validation loss."""

    state: dict[str, Array] | None
    scores: Scores

    def __init__(self) -> None:
        self.epoch, self.state = 0, None
        self.scores = {"train_accuracy": None, "val_accuracy": -1.0, "test_accuracy": None, "val_loss": np.inf}

    def update(self, epoch: int, scores: Scores, model: nn.Module) -> None:
        """Without a validation split, the last epoch is the best; without accuracies, that of the lowest validation loss."""
        if scores["val_loss"] is None or self._key(scores) > self._key(self.scores):
            self.epoch, self.scores, self.state = epoch, dict(scores), model.state_dict()

    @staticmethod
    def _key(scores):
        return -1.0 if scores["val_accuracy"] is None else scores["val_accuracy"], -scores["val_loss"]


def fit(trainer: Trainer, epochs: int, *, start: int = 0, eval_every: int = 1, best: Best | None = None,
        on_epoch: Callable[[dict[str, Any]], Any] = lambda record: None,
        on_step: Callable[[int, float], Any] = lambda done, loss: None) -> Best:
    """Train to `epochs`, evaluating every `eval_every` and at the end; call `on_epoch` with each epoch's record. Collective.

    Where `on_epoch` returns True, on every rank alike, training ends there.

    Returns
    -------
    Best
    """
    best = best or Best()
    for epoch in range(start, epochs):
        with trainer.graph.profile.span(f"epoch {epoch + 1}"):
            record = _epoch(trainer, epoch, (epoch + 1) % eval_every == 0 or epoch + 1 == epochs, best, on_step)
        if on_epoch(record) is True:
            break
    return best


def _epoch(trainer, epoch, evaluates, best, on_step):
    """Train an epoch, and evaluate where asked; return its record."""
    profile, begin = trainer.graph.profile, time.perf_counter()
    loss = trainer.epoch(epoch, on_step)
    record = {"epoch": epoch + 1, "loss": loss, "seconds": time.perf_counter() - begin,
              "train_accuracy": None, "val_accuracy": None, "test_accuracy": None, "val_loss": None}
    if evaluates:
        with profile.span("evaluation"), profile.phase("evaluation"):
            scores = trainer.evaluate()
        record.update(scores)
        best.update(epoch + 1, scores, trainer.model)
    return record


def set_threads(n: int) -> None:
    """Let this rank's kernels use `n` threads, which do its dense products too: the BLAS has no threads of its own."""
    import threadpoolctl

    kernels.set_threads(n)
    threadpoolctl.threadpool_limits(1, user_api="blas")
