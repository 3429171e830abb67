"""Baselines that use no edge: a regression on the features, and a constant prediction."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.graph.graph_set import GraphSet
from sarlite.graph.link_graph import LinkGraph
from sarlite.keys import splitmix64
from sarlite.operators import fn
from sarlite.tape import Tensor, no_grad, ops
from sarlite.tasks.class_losses import class_counts
from sarlite.tasks.task import Task
from sarlite.train.load import Shard
from sarlite.types import Array

MOST_ROWS, MOST_VALUES = 10_000, 1 << 20
"""Upper bounds of the number of training rows that the regression is fitted to, and of their values."""
MOST_STEPS, MOST_PRODUCTS = 200, 3e10
"""Upper bounds of the number of gradient steps, and of the multiplications in all steps; at least 20 steps are taken."""


def baselines(comm: Communicator, task: Task, features: Array | None, ids: Array, labels: Array,
              rows: Mapping[str, Array], n_outputs: int) -> dict[str, object]:
    """Fit two predictors that use no edges to the training rows of all ranks: a constant and, unless `features` is None, a regression on
    the features. Return a dict by predictor, which has the metric of `task` for each split. `ids`, `labels` and `rows` (row numbers by
    split) are this rank's. Collective.

    Parameters
    ----------
    comm : Communicator
    task : Task
        Task of the form classify, multilabel or regress.
    features : (n_local, n_features) array of floats, optional
    ids : (n_local,) int64
        Global ids of the rows.
    labels : (n_local, ...) array
    rows : dict of str to (k,) int64
        This rank's row numbers by split.
    n_outputs : int
        Number of classes, labels or values.

    Returns
    -------
    dict
        "prior": metric by split of the same prediction for each row, the class frequencies or the mean of the training
        rows. "features": metric by split of a logistic or linear regression on the features, with the penalty
        |w|^2 / 2 on the sum of the losses; absent without features. A metric is None for a split without rows. "rows":
        number of training rows that the regression was fitted to. "seconds": time on this rank.

    Notes
    -----
    Rank 0 fits the regression to at most about `MOST_ROWS` training rows. These are sampled and sorted by global id, so
    that the weights do not depend on the number of ranks. Memory: at most about 60 MiB on rank 0 and 30 MiB on other
    ranks. Bytes sent: the sample to rank 0, and the weights to all ranks.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> from sarlite.tasks.node_task import NodeTask
    >>> labels = np.arange(40) % 4 // 2
    >>> x = labels[:, None] + np.arange(40)[:, None] % 4 / 10
    >>> scores = baselines(Solo(), NodeTask(), x, np.arange(40), labels, {"train": np.arange(20), "val": np.arange(20, 40)}, 2)
    >>> scores["prior"], scores["features"], scores["rows"]
    ({'train': 0.5, 'val': 0.5}, {'train': 1.0, 'val': 1.0}, 20)
    """
    begin, form = time.perf_counter(), task.form.name
    x = features if features is not None and features.shape[1] else np.zeros((len(labels), 0), np.float32)
    wide = labels if form == "classify" or labels.ndim == 2 else labels[:, None]
    chosen = _sample(comm, ids, rows["train"], max(x.shape[1], n_outputs))
    sample = _gathered(comm, ids[chosen], x[chosen], wide[chosen])
    scores: dict[str, object] = {}
    prior = _prior(comm, form, wide, rows["train"], n_outputs, sample)
    scores["prior"] = _scores(comm, task, x, labels, rows, np.zeros((x.shape[1], len(prior))), prior)
    n_sample = int(comm.allreduce(np.array([len(chosen)], np.float64))[0])
    if x.shape[1] and n_sample:
        weights, bias = _fit(comm, form, sample, x.shape[1], n_outputs)
        scores["features"] = _scores(comm, task, x, labels, rows, weights, bias)
    return {**scores, "rows": n_sample, "seconds": time.perf_counter() - begin}


def row_features(part: Shard) -> tuple[Array | None, Array]:
    """Return (features, ids) of this rank's rows that a run predicts, which are nodes, graphs or node pairs. The features are None for
    nodes without features and for pairs of relational data. Collective.

    Parameters
    ----------
    part : load.Shard
        This rank's part, with the graph and the rows of the run's task.

    Returns
    -------
    features : (n_local, n_features) array of floats, or None
        Features of nodes, the mean over the nodes of each graph, or the features of both ends of each pair side by side.
        None for nodes without features, and for pairs of relational data.
    ids : (n_local,) int64
        Global ids of the nodes or graphs. The id of a pair is head * n_nodes + tail.
    """
    x, graph = part.rows.features, part.graph
    if isinstance(graph, LinkGraph):
        with no_grad():
            ends = graph.score(_side_by_side, Tensor(np.asarray(graph.nodes.dst_ids, np.float64)[:, None])).data
            ids = ends[:, 0].astype(np.int64) * graph.nodes.n_nodes + ends[:, 1].astype(np.int64)
            return (None if isinstance(x, dict) else graph.score(_side_by_side, Tensor(x)).data), ids
    if isinstance(graph, GraphSet):
        with no_grad():
            return graph.members.aggregate(fn.copy_src(Tensor(x)), "mean").data, graph.dst_ids
    return (x.get(part.target) if isinstance(x, dict) else x), graph.dst_ids


def _side_by_side(head: Tensor, tail: Tensor) -> Tensor:
    """Return the rows of both ends of each pair, head[i] and tail[i], next to each other: (n, 2 * width)."""
    return ops.concat([head, tail], axis=-1).reshape(len(head), -1)


def _sample(comm: Communicator, ids: Array, train: Array, width: int) -> Array:
    """Return this rank's part of a random sample of the training rows of all ranks: about `MOST_ROWS` rows, or fewer if a row has many
    columns (`width`). `train` are this rank's training row numbers; the draw depends only on the `ids` of the rows. Collective.
    """
    n = int(comm.allreduce(np.array([len(train)], np.float64))[0])
    most = min(MOST_ROWS, MOST_VALUES // max(width, 1))
    variates = splitmix64(np.asarray(ids)[train].astype(np.uint64)) >> np.uint64(11)
    return train if n <= most else train[variates < np.uint64(most / n * 2**53)]


def _gathered(comm, ids, x, labels):
    """Gather the rows of all ranks on rank 0. Return (features x as float64, labels), sorted by the rows' ids, on rank 0 and None on other
    ranks. Collective.
    """
    parts = [comm.gather(np.ascontiguousarray(array)) for array in (np.asarray(ids, np.int64), x, labels)]
    if comm.rank:
        return None
    every, x, labels = map(np.concatenate, parts)
    order = np.argsort(every, kind="stable")
    return x[order].astype(np.float64), labels[order]


def _prior(comm: Communicator, form: str, labels: Array, train: Array, n_outputs: int, sample: Any) -> Array:
    """Return the constant output with the least loss, (n_outputs,). If the targets' kind `form` is "classify" or "multilabel", these are
    the logits of the classes' frequencies in the rows `train` of all ranks. If `form` is "regress", it is the mean target in `sample`, rank
    0's random sample (x, labels) of all ranks' training rows. Collective.
    """
    if form == "regress":
        return comm.broadcast(sample[1].mean(0, np.float64) if comm.rank == 0 and len(sample[1])
                              else np.zeros(n_outputs), 0)
    counts = class_counts(comm, labels, train, n_outputs if form == "classify" else None)
    if form == "classify":
        return np.log(np.maximum(counts, 0.5))
    n = int(comm.allreduce(np.array([len(train)], np.float64))[0])
    return np.log(np.maximum(counts, 0.5)) - np.log(np.maximum(n - counts, 0.5))


def _fit(comm: Communicator, form: str, sample: Any, n_features: int, n_outputs: int) -> tuple[Array, Array]:
    """Fit a regression to rank 0's `sample`, (x, labels), and return (weights (n_features, n_outputs), bias (n_outputs,)) on all ranks. It
    is linear if `form` is "regress", otherwise logistic. Collective.
    """
    weights, bias = np.zeros((n_features, n_outputs)), np.zeros(n_outputs)
    if comm.rank == 0:
        x, labels = sample
        mean, scale = x.mean(0), x.std(0)
        scale = np.where(scale > 0, scale, 1)
        x -= mean
        x /= scale
        # optimal weights with a penalty lie in the span of the rows, so it is enough to fit in a basis of this span
        basis = np.linalg.qr(x.T)[0] if x.shape[1] > len(x) else None
        inner = x if basis is None else x @ basis
        if form == "regress":
            weights, bias = linear_regression(inner, labels)
        else:
            weights, bias = logistic_regression(inner, labels, n_outputs)
        weights = (weights if basis is None else basis @ weights) / scale[:, None]
        bias = bias - mean @ weights
    return comm.broadcast(np.ascontiguousarray(weights), 0), comm.broadcast(np.ascontiguousarray(bias), 0)


def linear_regression(x: Array, targets: Array) -> tuple[Array, Array]:
    """Return the (weights, bias) of a ridge regression from x to `targets`: they minimize (sum of squared errors + |weights|^2) / 2.

    Parameters
    ----------
    x : (n, n_features) float64
        Features whose means are 0.
    targets : (n, k) array of floats

    Returns
    -------
    weights : (n_features, k) float64
    bias : (k,) float64

    Examples
    --------
    >>> weights, bias = linear_regression(np.array([[-10.0], [10.0]]), np.array([[0.0], [2.0]]))
    >>> weights.round(3).tolist(), bias.tolist()
    ([[0.1]], [1.0])
    """
    bias = targets.mean(0, np.float64)
    return np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (targets - bias)), bias


def logistic_regression(x: Array, labels: Array, n_outputs: int) -> tuple[Array, Array]:
    """Return the (weights, bias) of a logistic regression from x to `labels`: they minimize the sum of the cross entropies + |weights|^2 /
    2.

    Parameters
    ----------
    x : (n, n_features) float64
    labels : (n,) integers, or (n, n_outputs) of 0 and 1
        Classes, with a softmax over the outputs (for two classes a logistic function); or several labels for each row,
        with a logistic function of each output.
    n_outputs : int

    Returns
    -------
    weights : (n_features, n_outputs) float64
    bias : (n_outputs,) float64

    Notes
    -----
    Each step multiplies the gradient by the inverse of a fixed bound of the Hessian (Boehning 1992), with Nesterov
    acceleration, which restarts after a step uphill (O'Donoghue and Candes 2015). At most `MOST_STEPS` steps are taken,
    and fewer if they would need more than `MOST_PRODUCTS` multiplications.
    """
    several = labels.ndim == 2
    if n_outputs == 2 and not several:  # one logit, of the second class against the first one
        weights, bias = logistic_regression(x, (labels == 1)[:, None], 1)
        return np.concatenate([0 * weights, weights], 1), np.concatenate([0 * bias, bias])
    truth = labels == 1 if several else labels[:, None] == np.arange(n_outputs)
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    penalty = np.ones((x.shape[1], 1))
    penalty[-1] = 0  # the bias has no penalty
    inverse = np.linalg.inv((0.25 if several else 0.5) * (x.T @ x) + np.diag(penalty[:, 0]))
    now = ahead = np.zeros((x.shape[1], n_outputs))
    momentum = 1.0
    for _ in range(int(np.clip(MOST_PRODUCTS / (2 * x.size * n_outputs), 20, MOST_STEPS))):
        z = x @ ahead
        z -= z.max(1, keepdims=True) if not several else 0
        e = np.exp(np.minimum(-z, 700) if several else z)
        slope = x.T @ ((1 / (1 + e) if several else e / e.sum(1, keepdims=True)) - truth) + penalty * ahead
        before, now = now, ahead - inverse @ slope
        uphill = np.vdot(slope, now - before) > 0
        after = 1.0 if uphill else (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = now if uphill else now + (momentum - 1) / after * (now - before)
        momentum = after
        if np.abs(now - before).max() < 1e-7:
            break
    return now[:-1], now[-1]


def _scores(comm, task, x, labels, rows, weights, bias):
    """Return {split: metric of the task} of the outputs x @ weights + bias, rounded to float32 so that rows with equal features tie. `rows`
    has this rank's row numbers by split; a split without rows has None. Collective.
    """
    scores, step = {}, max(1, MOST_VALUES // max(weights.shape))
    for name, split_rows in rows.items():
        metric = task.make_metric()
        for at in range(0, max(len(split_rows), 1), step):
            some = split_rows[at : at + step]
            output = (x[some].astype(np.float64) @ weights + bias).astype(np.float32)
            metric.add(output, labels[some])
        n = comm.allreduce(np.array([len(split_rows)], np.float64))[0]
        value = metric.value(comm.allreduce(metric.counts().copy()), comm)
        scores[name] = value if n else None
    return scores
