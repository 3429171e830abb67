"""Baselines without edges: what a regression on the features alone, and the classes' shares alone, are worth."""

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
from sarlite.types import Array

MOST_ROWS, MOST_VALUES = 10_000, 1 << 20
"""Training rows, and their features or outputs, that the regression is fitted to at most."""
MOST_STEPS, MOST_PRODUCTS = 200, 3e10
"""Evaluations of the loss, and multiplications in all of them, at most; at least 20 evaluations."""


def baselines(comm: Communicator, task: Any, features: Array | None, ids: Array, labels: Array,
              rows: Mapping[str, Array], n_outputs: int) -> dict[str, Any]:
    """Return the task's metric, by split, of predictions that use no edge. Collective.

    Parameters
    ----------
    comm : Communicator
    task : Task
        Of the form classify, multilabel or regress.
    features : (n_local, n_features) array of floats, optional
    ids : (n_local,) int64
        Global ids of the rows.
    labels : (n_local, ...) array
    rows : dict of str to (k,) int64
        This rank's rows by split.
    n_outputs : int
        Classes, labels or values.

    Returns
    -------
    dict
        "prior": the same prediction for each row: the classes' shares of the training rows, or their mean. "features":
        logistic regression, or linear regression, with the penalty |w|^2 / 2 on the sum of the losses; absent without
        features. Each has a value by split, None without rows. "rows": training rows that these were fitted to.
        "seconds": the time that it took on rank 0.

    Notes
    -----
    Rank 0 fits to at most `MOST_ROWS` training rows, a sample drawn by global id and sorted, so that all numbers of
    ranks get the same weights. Memory: at most about 60 MiB on rank 0, 30 MiB on others. Sends the sample to rank 0, and the
    weights to all.
    """
    begin, form = time.perf_counter(), task.form.name
    x = features if features is not None and features.shape[1] else np.zeros((len(labels), 0), np.float32)
    wide = labels if form == "classify" or labels.ndim == 2 else labels[:, None]
    chosen = _sample(comm, ids, rows["train"], max(x.shape[1], n_outputs))
    sample = _gathered(comm, ids[chosen], x[chosen], wide[chosen])
    found: dict[str, Any] = {}
    prior = _prior(comm, form, wide, rows["train"], n_outputs, sample)
    found["prior"] = _scores(comm, task, x, labels, rows, np.zeros((x.shape[1], len(prior))), prior)
    n_sample = int(comm.allreduce(np.array([len(chosen)], np.float64))[0])
    if x.shape[1] and n_sample:
        weights, bias = _fitted(comm, form, sample, x.shape[1], n_outputs)
        found["features"] = _scores(comm, task, x, labels, rows, weights, bias)
    return {**found, "rows": n_sample, "seconds": time.perf_counter() - begin}


def row_features(part: Any) -> tuple[Array | None, Array]:
    """Return the features of a part's rows without its edges, and the rows' ids. Collective.

    Parameters
    ----------
    part : load.Shard
        With the graph and the rows of the run's task.

    Returns
    -------
    (n_local, n_features) array of floats, or None
        A graph has the mean of its nodes' features, and a pair of nodes the features of both ends. None for nodes
        without features, and for pairs of relational data.
    (n_local,) int64
        Global ids.
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


def _side_by_side(head, tail):
    """Return the rows of both ends of each pair, (n, 2 * width)."""
    return ops.concat([head, tail], axis=-1).reshape(len(head), -1)


def _sample(comm, ids, train, width):
    """Return the training rows of this rank that are in the sample, whose size is at most about `MOST_ROWS`."""
    n = int(comm.allreduce(np.array([len(train)], np.float64))[0])
    most = min(MOST_ROWS, MOST_VALUES // max(width, 1))
    variates = splitmix64(np.asarray(ids)[train].astype(np.uint64)) >> np.uint64(11)
    return train if n <= most else train[variates < np.uint64(most / n * 2**53)]


def _gathered(comm, ids, x, labels):
    """Return the features and labels of all ranks' rows by id on rank 0, float64 and as given; None elsewhere."""

    parts = [comm.gather(np.ascontiguousarray(array)) for array in (np.asarray(ids, np.int64), x, labels)]
    if comm.rank:
        return None
    every, x, labels = map(np.concatenate, parts)
    order = np.argsort(every, kind="stable")
    return x[order].astype(np.float64), labels[order]


def _prior(comm, form, labels, train, n_outputs, sample):
    """Return the output that is the same for each row, (n_outputs,) float64. Collective."""
    if form == "regress":
        return comm.broadcast(sample[1].mean(0, np.float64) if comm.rank == 0 and len(sample[1])
                              else np.zeros(n_outputs), 0)
    counts = class_counts(comm, labels, train, n_outputs if form == "classify" else None)
    if form == "classify":
        return np.log(np.maximum(counts, 0.5))
    n = int(comm.allreduce(np.array([len(train)], np.float64))[0])
    return np.log(np.maximum(counts, 0.5)) - np.log(np.maximum(n - counts, 0.5))


def _fitted(comm, form, sample, n_features, n_outputs):
    """Return weights, (n_features, n_outputs), and bias, (n_outputs,), which rank 0 fits to the sample. Collective."""
    weights, bias = np.zeros((n_features, n_outputs)), np.zeros(n_outputs)
    if comm.rank == 0:
        x, labels = sample
        mean, scale = x.mean(0), x.std(0)
        scale = np.where(scale > 0, scale, 1)
        x -= mean
        x /= scale
        # weights with a penalty are sums of rows: with more features than rows the rows' coordinates are enough
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
    """Return weights and bias that minimise half the squared errors, plus |w|^2 / 2.

    Parameters
    ----------
    x : (n, n_features) float64
        Features whose means are 0.
    targets : (n, k) array of floats

    Returns
    -------
    (n_features, k) and (k,) float64
    """
    bias = targets.mean(0, np.float64)
    return np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (targets - bias)), bias


def logistic_regression(x: Array, labels: Array, n_outputs: int) -> tuple[Array, Array]:
    """Return weights and bias that minimise the sum of the cross entropies, plus |w|^2 / 2.

    Parameters
    ----------
    x : (n, n_features) float64
    labels : (n,) integers, or (n, n_outputs) of 0 and 1
        Classes, for a softmax over the outputs, and of two classes a logistic function; or several labels, for a
        logistic function of each output.
    n_outputs : int

    Returns
    -------
    (n_features, n_outputs) and (n_outputs,) float64

    Notes
    -----
    Steps of a fixed matrix that bounds the curvature (Boehning 1992), accelerated as by Nesterov and restarted where a
    step goes uphill (O'Donoghue and Candes 2015). At most `MOST_STEPS` steps, fewer if `MOST_PRODUCTS` are used up.
    """
    several = labels.ndim == 2
    if n_outputs == 2 and not several:  # one logit, of the second class against the first one
        weights, bias = logistic_regression(x, (labels == 1)[:, None], 1)
        return np.concatenate([0 * weights, weights], 1), np.concatenate([0 * bias, bias])
    truth = labels == 1 if several else labels[:, None] == np.arange(n_outputs)
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    penalty = np.ones((x.shape[1], 1))
    penalty[-1] = 0  # of the bias
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
    """Return the task's metric of x @ weights + bias by split. Collective.

    Outputs are rounded to float32, so that rows with equal features have equal outputs on any number of ranks.
    """
    found, step = {}, max(1, MOST_VALUES // max(weights.shape))
    for name, own in rows.items():
        metric = task.make_metric()
        for at in range(0, max(len(own), 1), step):
            some = own[at : at + step]
            output = (x[some].astype(np.float64) @ weights + bias).astype(np.float32)
            metric.add(output, labels[some])
        n = comm.allreduce(np.array([len(own)], np.float64))[0]
        value = metric.value(comm.allreduce(metric.counts().copy()), comm)
        found[name] = value if n else None
    return found
