"""One training step and one evaluation over all ranks."""

import time

import numpy as np

from sarlite import kernels, nn
from sarlite.errors import DataError, raise_together
from sarlite.tape import Tensor, no_grad, ops
from sarlite.tape.engine import as_array


class Trainer:
    """Trains a model full-batch on this rank's part of a graph. Construction is collective.

    Parameters
    ----------
    graph : Graph
    model : callable Module, model(graph, x) -> logits (n_local, n_classes)
        The same parameters on every rank: make it from the same `nn.Random` seed.
    x : (n_local, n_features) array
        This rank's rows, in the order of `graph.node_ids`. Borrowed, and must not change: it is a constant tensor, so a first layer
        without dropout before it keeps the aggregated x, another (n_local, n_features), and aggregates and fetches only once.
    labels : (n_local,) int array
        Values outside the splits are not looked at.
    train, val, test : (k,) int array
        Local rows of each split; a rank may have none.
    optimizer : callable
        Makes an optimizer from the model's `nn.flatten` result, such as `lambda flat: optim.Adam(flat, 0.01)`.
    rng : nn.Random
        The one that the model was made with; its `epoch` follows the steps.
    schedule : callable
        Factor of the learning rate by epoch.

    Raises
    ------
    DataError
        On every rank together, where no rank has a training row.
    """

    def __init__(self, graph, model, x, labels, train, val=(), test=(), *, optimizer, rng, schedule=lambda epoch: 1.0):
        self.graph, self.comm, self.model, self.rng, self.schedule = graph, graph.comm, model, rng, schedule
        self.x, self.labels = Tensor(as_array(x), constant=True), as_array(labels)
        self.rows = {"train": np.asarray(train, np.int64), "val": np.asarray(val, np.int64), "test": np.asarray(test, np.int64)}
        self.counts = dict(zip(self.rows, self.comm.allreduce(np.array([float(len(r)) for r in self.rows.values()]))))
        if not self.counts["train"]:
            raise_together(self.comm, DataError("the training split is empty on every rank"))
        self.flat = nn.flatten(model)
        self.optimizer = optimizer(self.flat)
        self.buffers = kernels.Buffers()

    def step(self, epoch):
        """Take one optimizer step and return the loss over all ranks' training rows. Collective.

        Notes
        -----
        Sends what the model's aggregations send, and one allreduce of all gradients. After the first step no large array takes
        fresh memory.
        """
        self.rng.epoch = epoch
        self.model.train()
        self.flat.zero_grad()
        with self.buffers:
            logits = self.model(self.graph, self.x)
            loss = ops.cross_entropy(logits, self.labels, self.rows["train"], self.counts["train"])
            loss.backward()
            self.comm.allreduce(self.flat.grad)
            with self.graph.profile.span("optimizer"):
                self.optimizer.step(self.schedule(epoch))
        return float(self.comm.allreduce(np.array([loss.item()], np.float64))[0])

    def evaluate(self):
        """Return over all ranks "train_accuracy", "val_accuracy", "test_accuracy" (None without rows) and "val_loss". Collective."""
        self.model.eval()
        with self.buffers, no_grad():
            logits = self.model(self.graph, self.x)
            val = self.rows["val"]
            loss = ops.cross_entropy(logits, self.labels, val, max(self.counts["val"], 1)).item() if len(val) else 0.0
        right = [float((logits.data[r].argmax(1) == self.labels[r]).sum()) if len(r) else 0.0 for r in self.rows.values()]
        sums = self.comm.allreduce(np.array([*right, loss], np.float64))
        scores = {f"{name}_accuracy": hits / n if n else None for (name, n), hits in zip(self.counts.items(), sums)}
        return {**scores, "val_loss": float(sums[-1])}


class Best:
    """The best validation accuracy so far; among equal ones the lowest validation loss."""

    def __init__(self):
        self.epoch, self.state = 0, None
        self.scores = {"train_accuracy": None, "val_accuracy": -1.0, "test_accuracy": None, "val_loss": np.inf}

    def update(self, epoch, scores, model):
        """Without a validation split, the last epoch is the best."""
        if scores["val_accuracy"] is None or self._key(scores) > self._key(self.scores):
            self.epoch, self.scores = epoch, dict(scores)
            self.state = {name: value.copy() for name, value in model.state_dict().items()}

    @staticmethod
    def _key(scores):
        return scores["val_accuracy"], -scores["val_loss"]


def fit(trainer, epochs, *, start=0, eval_every=1, best=None, on_epoch=lambda record: None):
    """Train to `epochs`, evaluating every `eval_every` and at the end; call `on_epoch` with each epoch's record. Collective.

    Returns
    -------
    Best
    """
    best = best or Best()
    for epoch in range(start, epochs):
        with trainer.graph.profile.span(f"epoch {epoch + 1}"):
            record = _epoch(trainer, epoch, (epoch + 1) % eval_every == 0 or epoch + 1 == epochs, best)
        on_epoch(record)
    return best


def _epoch(trainer, epoch, evaluates, best):
    """Take one step, and evaluate where asked; return the epoch's record."""
    profile, begin = trainer.graph.profile, time.perf_counter()
    loss = trainer.step(epoch)
    record = {"epoch": epoch + 1, "loss": loss, "seconds": time.perf_counter() - begin,
              "train_accuracy": None, "val_accuracy": None, "test_accuracy": None, "val_loss": None}
    if not np.isfinite(loss):  # the same on every rank
        raise DataError(f"the loss is {loss} at epoch {epoch + 1}: try a lower learning rate")
    if evaluates:
        with profile.span("evaluation"), profile.phase("evaluation"):
            scores = trainer.evaluate()
        record.update(scores)
        best.update(epoch + 1, scores, trainer.model)
    return record


def set_threads(n):
    """Let this rank's kernels use `n` threads, which do its dense products too: the BLAS has no threads of its own."""
    import threadpoolctl

    kernels.set_threads(n)
    threadpoolctl.threadpool_limits(1, user_api="blas")
