"""Full-batch training: epochs of one step each, and evaluation over all ranks."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite import kernels, nn
from sarlite.comm import agree, together
from sarlite.errors import DataError, ShapeError, raise_together
from sarlite.graph.rows import row_numbers
from sarlite.optim import Factor, Optimizer
from sarlite.sar.graph import Graph
from sarlite.tape import Tensor, no_grad, ops
from sarlite.tape.engine import as_array
from sarlite.train.step import TrainingStep, mean_over_rows
from sarlite.types import Array

Scores = dict[str, float | None]


class Trainer:
    """Trains a model full-batch on this rank's part of a graph. Construction is collective.

    Parameters
    ----------
    graph : Graph
    model : callable Module, model(graph, x) -> output, such as logits (n_dst, n_classes)
        The same replicated parameters on every rank: make it from the same `nn.Random` seed.
    x : (n_src, n_features) array
        This rank's rows, in the order of `graph.src_ids`. Borrowed, and must not change: it is a constant tensor, so a first layer
        without dropout before it keeps the aggregated x, another (n_src, n_features), and aggregates and fetches only once.
    labels : (n_dst,) int array, or what else `loss` compares the output's rows with
        Values outside the splits are not looked at.
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
        On every rank together: x or labels have not the graph's rows, a split is none of the above, or no rank has a training row;
        the ranks' x differ in width or dtype, or their models in a replicated parameter.
    """

    def __init__(self, graph: Graph, model: Any, x: Any, labels: Any, train: Any, val: Any = (), test: Any = (), *,
                 optimizer: Callable[[nn.Flat], Optimizer], rng: nn.Random, schedule: Factor = lambda epoch: 1.0,
                 loss: Callable[[Tensor, Array], Tensor] | None = None) -> None:
        self.graph, self.comm, self.model = graph, graph.comm, model
        self.x, self.labels = Tensor(as_array(x), constant=True), as_array(labels)
        self.rows = together(self.comm, lambda: self._rows({"train": train, "val": val, "test": test}))
        self.counts = dict(zip(self.rows, map(int, self.comm.allreduce(np.array([len(r) for r in self.rows.values()])))))
        if not self.counts["train"]:
            raise_together(self.comm, DataError("the training split is empty on every rank"))
        self.loss, self.scored = mean_over_rows(loss) if loss else ops.cross_entropy, loss is None
        self.flat = together(self.comm, lambda: nn.flatten(model))
        agree(self.comm, (self.x.shape[1:], str(self.x.dtype)), "x: number of features and dtype")
        agree(self.comm, (self.flat.replicated.names, self.flat.data), "model: values of the replicated parameters")
        self.optimizer = optimizer(self.flat)
        self.training_step = TrainingStep(model, self.optimizer, rng, self.comm, schedule=schedule, profile=graph.profile)
        self.buffers, self.votes = self.training_step.buffers, self.training_step.votes

    def _rows(self, splits):
        for name, array, n in (("x", self.x, self.graph.n_src), ("labels", self.labels, self.graph.n_dst)):
            if array.shape[:1] != (n,):
                raise ShapeError(f"{name} of shape {array.shape} has not the graph's {n} rows")
        return {name: row_numbers(name, split, self.graph.n_dst) for name, split in splits.items()}

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

    def evaluate(self) -> Scores:
        """Return over all ranks "train_accuracy", "val_accuracy", "test_accuracy" and "val_loss". Collective.

        Accuracies are None without rows and with a `loss` of your own; "val_loss" is None without rows.
        """
        self.model.eval()
        with self.buffers, no_grad():
            output, rows = self.model(self.graph, self.x), self.rows["val"]
            loss = self.loss(output, self.labels, rows, max(self.counts["val"], 1)).item() if len(rows) else 0.0
            right = [self._hits(output.data, rows) for rows in self.rows.values()]
        sums = self.votes.allreduce(self.comm, [*right, loss])
        scores = {f"{name}_accuracy": hits / n if n and self.scored else None for (name, n), hits in zip(self.counts.items(), sums)}
        return {**scores, "val_loss": float(sums[-1]) if self.counts["val"] else None}

    def _hits(self, output, rows):
        return int(np.count_nonzero(output[rows].argmax(1) == self.labels[rows])) if len(rows) and self.scored else 0

    def predict(self) -> Array:
        """Return the model's output in evaluation for this rank's rows, (n_dst, n_classes), a new array. Collective."""
        self.model.eval()
        with self.buffers, no_grad():
            output = self.model(self.graph, self.x)
        return output.data.copy()


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
        on_epoch: Callable[[dict[str, Any]], Any] = lambda record: None) -> Best:
    """Train to `epochs`, evaluating every `eval_every` and at the end; call `on_epoch` with each epoch's record. Collective.

    Where `on_epoch` returns True, on every rank alike, training ends there.

    Returns
    -------
    Best
    """
    best = best or Best()
    for epoch in range(start, epochs):
        with trainer.graph.profile.span(f"epoch {epoch + 1}"):
            record = _epoch(trainer, epoch, (epoch + 1) % eval_every == 0 or epoch + 1 == epochs, best)
        if on_epoch(record) is True:
            break
    return best


def _epoch(trainer, epoch, evaluates, best):
    """Take one step, and evaluate where asked; return the epoch's record."""
    profile, begin = trainer.graph.profile, time.perf_counter()
    loss = trainer.step(epoch)
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
