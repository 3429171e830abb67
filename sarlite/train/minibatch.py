"""Training on minibatches: an epoch is the loader's, and evaluation goes over the whole graph, or is sampled."""

import math
import time
from array import array
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from sarlite import nn
from sarlite.errors import ConfigError
from sarlite.minibatch import NeighborLoader, RowLoader
from sarlite.tape import Tensor, no_grad
from sarlite.train.loop import Trainer, check_output
from sarlite.train.settings import remote

SPLITS = ("train", "val", "test")
LR_SCALES: dict[str, Callable[[int], float]] = {"none": lambda n: 1.0, "sqrt": math.sqrt, "linear": float}
"""Factors of the learning rate by the number of ranks, for a batch size that grows with it."""


class BatchTrainer(Trainer):
    """Trains a model on minibatches of this rank's part of a graph. Construction is collective.

    Parameters
    ----------
    *args, **options
        As of `Trainer`. Epochs are the loader's, and so is the schedule by epoch: epoch e begins at global step e * len(loader).
    loader : NeighborLoader, or RowLoader
        Of the same graph, x, labels and training rows.
    scoring : NeighborLoader, optional
        Makes the batches of a sampled evaluation, with the same seeds and picks each time; its labels are (n_dst, any) float64, the label's
        numbers and at last 1, 2 and 4 for the splits that the row is in, added. Without it evaluation is exact, on the full graph, and
        makes batch norms' moments exact, too (`nn.exact_moments`).

    Attributes
    ----------
    own_seconds : array of float
        How long each step took this rank until it had its gradients, from the end of the step before on.
    """

    def __init__(self, *args: Any, loader: NeighborLoader | RowLoader, scoring: NeighborLoader | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loader, self.scoring, self.own_seconds = loader, scoring, array("d")
        if self.shown is not None and not (isinstance(loader, NeighborLoader) and loader.fresh):
            raise ConfigError("label inputs: a loader without caches is needed, as their rows were made while other labels were shown")
        by_epoch = self.training_step.schedule
        self.training_step.schedule = lambda step: by_epoch(step // len(loader))

    def epoch(self, epoch: int, on_step: Callable[[int, float], Any] = lambda done, loss: None) -> float:
        """Train one epoch and return its loss, the mean over the training rows of what they had in their steps. Collective."""
        step, loader = self.training_step, self.loader
        step.n_steps = loader.step = epoch * len(loader)
        total = n_seeds = 0.0
        begin = time.perf_counter()
        with closing(iter(loader)) as batches:
            for batch in batches:
                with self.graph.profile.span(f"step {step.n_steps + 1}"):
                    x = self._inputs(batch)
                    sampled = time.perf_counter()
                    loss = step(batch, x, batch.labels, batch.rows, batch.n_global, self.loss)
                self.own_seconds.append(sampled - begin + step.own_seconds)
                total, n_seeds = total + loss * batch.n_global, n_seeds + batch.n_global
                del batch, x
                on_step(step.n_steps - epoch * len(loader), loss)
                begin = time.perf_counter()
        return total / n_seeds

    def _inputs(self, batch):
        """A batch's input rows; with label inputs the seeds, whose labels it is to predict, show none."""
        if self.shown is None:
            return batch.x
        with batch.buffers:
            return Tensor(self.shown.of_batch(batch, self.training_step.n_steps))

    def _add_all(self, metrics):
        if self.scoring is None:
            with self.buffers, no_grad():
                return self._add(metrics, nn.exact_moments(self.model, self._output), self.labels, self.rows)
        self.scoring.step, loss = 0, 0.0
        self.model.eval()
        if self.shown is not None:
            self.shown.show_all()
        for batch in self.scoring:
            labels, splits = batch.labels[:, :-1].astype(self.labels.dtype), batch.labels[:, -1].astype(np.int64)
            rows = {name: np.flatnonzero(splits >> bit & 1) for bit, name in enumerate(SPLITS)}
            with self.buffers, no_grad():
                output = self.model(batch, batch.x if self.shown is None else Tensor(batch.take(self.shown.x)))
                check_output(output, type(self.model).__name__, batch.n_dst, self.n_classes)
                loss += self._add(metrics, output, labels if self.labels.ndim == 2 else labels[:, 0], rows)
                del output
        return loss

    def counted(self) -> dict[str, Any]:
        """Return "steps"; "imbalance", the largest rank's time of a step over the mean, the steps' median; with caches "hit_rate" and
        "rows_pushed" by layer and "bytes_pushed", over all ranks and the whole run. Collective."""
        seconds = np.array(self.own_seconds)
        largest, mean = self.comm.allreduce(seconds.copy(), "max"), self.comm.allreduce(seconds) / self.comm.size
        found: dict[str, Any] = {"steps": len(seconds), "imbalance": float(np.median(largest / mean)) if len(seconds) else None}
        ranks = self.comm.allgather(self.loader.counts)
        if all("lookups" in counts for counts in ranks):
            sums = {name: np.sum([counts[name] for counts in ranks], 0) for name in ("lookups", "hits", "rows_pushed", "bytes_pushed")}
            found["hit_rate"] = [int(hits) / int(n) if n else None for hits, n in zip(sums["hits"], sums["lookups"])]
            found |= {"rows_pushed": sums["rows_pushed"].tolist(), "bytes_pushed": int(sums["bytes_pushed"])}
        return found


def loaders(config, part, features, rows_alone=False):
    """Return a BatchTrainer's loaders, by its arguments' names. Collective.

    Parameters
    ----------
    config : Namespace of `config.OPTIONS`
    part : load.Part
    features : (n, ...) array
        The model's input rows, without labels.
    rows_alone : bool
        Whether the model needs no neighbours.

    Raises
    ------
    ConfigError, DataError
        As of NeighborLoader, or RowLoader.
    """
    if rows_alone:
        return {"loader": RowLoader(part.graph, features, part.rows.labels, part.rows.train, batch_size=config.batch_size, seed=config.seed,
                                    batches=config.batches or "global")}
    graph, rows, common = part.graph, part.rows, {"batch_size": config.batch_size, "seed": config.seed}
    own = {name: value for name in ("sampler", "sample_ahead", "batches") if (value := getattr(config, name)) is not None}
    loader = NeighborLoader(graph, rows.features, rows.labels, rows.train, fanouts=config.fanouts, remote=remote(vars(config)),
                            **common, **own)
    if config.eval_fanouts is None:
        return {"loader": loader}
    return {"loader": loader, "scoring": _scoring(graph, rows._replace(features=loader.x), fanouts=config.eval_fanouts, **common)}


def _scoring(graph, rows, **options):
    """A loader of the rows of all splits; a row's labels are its own and, as bits, the splits that it is in."""
    splits = sum(np.asarray(own).astype(np.int64) << bit for bit, own in enumerate((rows.train, rows.val, rows.test)))
    labels = np.asarray(rows.labels, np.float64)  # which holds every form's, exactly
    return NeighborLoader(graph, rows.features, np.column_stack([labels, splits]), splits > 0, **options)
