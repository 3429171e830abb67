"""Short trainings with exact numerics, and a hash of their results, which must not depend on ranks, threads or modes.

`python -m tests.helpers.train.exact_runs sage float32` prints the hash of one rank, on the instruction set of SARLITE_ISA.
"""

import hashlib
import sys
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from sarlite import Graph, HeteroGraph, Tensor, Trainer, fn, kernels, nn, optim
from sarlite.cli.smoothing_run import smoothed
from sarlite.comm import Solo, threads
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.minibatch import NeighborLoader, RowLoader, message_flow
from sarlite.models import APPNP, GAT, GCN, PNA, RGAT, RGCN, SAGE, SGC, SIGN, GATv2
from sarlite.nn.decoders import DECODERS
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.tape import ops
from sarlite.tasks.edge_task import EdgeTask
from sarlite.tasks.link_data import labelled_links, split_links
from sarlite.tasks.link_loader import LinkLoader
from sarlite.tasks.link_task import LinkTask
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.shown_labels import LabelInputs
from sarlite.train import propagated

N_NODES, N_OTHERS, N_FEAT, N_CLASSES, HUB = 330, 60, 10, 4, 300


class Functions(nn.Module):
    """Model whose messages are Python functions of sources, destinations and edges, with learned weights and edge values."""

    def __init__(self, n_in, n_out, *, rng, dtype):
        self.linear, self.out = nn.Linear(n_in, 6, rng=rng, dtype=dtype), nn.Linear(70, n_out, rng=rng, dtype=dtype)
        self.inside, self.by_edge, self.wide = (nn.glorot(rng, shape, *shape, dtype) for shape in ((6, 6), (1, 3), (3, 35)))
        self.by_head = nn.glorot(rng, (2, 3, 3), 3, 3, dtype)

    def __call__(self, graph, x):
        h = ops.elu(self.linear(x)).reshape(-1, 2, 3).matmul_by_head(self.by_head).reshape(-1, 6)
        e = Tensor(graph.edge_weight[:, None], placement="rows") @ self.by_edge
        h = graph.aggregate(lambda s, d, e: s["h"] @ self.inside - d["h"] * e["w"][:, :1], "mean", {"h": h}, {"h": h}, {"w": e})
        h = h + graph.aggregate(lambda s, d, e: s["h"] * e["w"][:, 1:2], "max", {"h": h}, edge={"w": e})
        h = fn.mul_edge(h.reshape(-1, 2, 3) @ self.wide, e[:, 1:])  # two heads, in alternate columns
        return self.out(graph.aggregate(h, "sum").reshape(-1, 70))


class Relations(nn.Module):
    """Model of a relational graph with a different kind of message for each relation: functions, products with edge values, maxima."""

    def __init__(self, n_in, n_out, nodes, *, rng, dtype):
        self.linear = nn.Linear(n_in["a"], 6, rng=rng, dtype=dtype)
        self.inside, self.out = (nn.glorot(rng, shape, *shape, dtype) for shape in ((6, 6), (6, n_out)))

    def __call__(self, nodes, x):
        graph, h = nodes.graph, self.linear(x["a"])
        cites, likes, to, back = graph.relations
        weight = (1e-7 * np.cos(graph.edge_ids[likes])).astype(h.dtype)  # small values need another grid
        product = fn.message(lambda s, d, e: (s["h"] @ self.inside) * d["h"], {"h": h}, {"h": h})
        h = graph.aggregate({cites: product, likes: fn.mul_edge(h, weight)}, "mean")["a"]
        return graph.aggregate({cites: fn.copy_src(h), likes: fn.copy_src(h * 0.5), to: fn.copy_src(h)}, "max")["a"] @ self.out


class Case(NamedTuple):
    """A training whose results must have the same bits on any number of ranks: its model, and options other than the data set's.

    Attributes
    ----------
    model : callable (n_in, n_out, rng=, dtype=) -> Module
    loops, values, relational : bool
        Self loops; weights and three features on the edges; four relations, also from and to nodes without features.
    shown : bool
        Label inputs.
    batches : callable (graph, x, labels, train) -> dict of a Trainer's batches and scoring
    smooth : CorrectAndSmooth, optional
    links : callable (this rank's part) -> (Links, decoder (width, rng=, dtype=)), optional
        Links to predict in place of nodes; the model then makes 8 numbers for each node.
    task : Task
    clip_norm, decay : float
    """

    model: Callable[..., nn.Module]
    loops: bool = True
    values: bool = False
    relational: bool = False
    shown: bool = False
    batches: Callable[..., dict[str, object]] | None = None
    smooth: CorrectAndSmooth | None = None
    links: Callable[[Graph], tuple] | None = None
    task: NodeTask | LinkTask | EdgeTask | None = None
    clip_norm: float | None = None
    decay: float = 0.0


def _of(cls, **options):
    return partial(cls, **options)


def _sampled(*fanouts, scored=False, **options):
    """Return a function that makes a Trainer's batches: sampled neighbours with `fanouts`, else rows; with `scored` also for evaluation."""
    def sampled_batches(graph, x, labels, train):
        loader_options = {"batch_size": 33, "seed": 2, **options}
        if not fanouts:
            return {"batches": RowLoader(graph, x, labels, train, **loader_options)}
        options_of_run = {"batches": NeighborLoader(graph, x, labels, train, fanouts=fanouts, **loader_options)}
        every = NeighborLoader(graph, x, labels, slice(None), fanouts=fanouts, batch_size=90) if scored else None
        return {**options_of_run, "scoring": every}

    return sampled_batches


def _flow(graph, x, labels, train):
    return {"batches": message_flow(graph, train, 2, x, labels), "scoring": message_flow(graph, slice(None), 2, x, labels)}


def _links(decoder, relation=None, **options):
    """Return a function of a graph that returns (its `Links` to predict, of one `relation` or all edges; the decoder's class)."""
    def link_options(graph):
        whole = graph.graph if relation else graph
        return split_links(whole, 0.2, 0.2, relation=relation, seed=3, negatives=2, eval_negatives=3, **options), DECODERS[decoder]

    return link_options


def _labels_of_edges(graph):
    """Return (`Links`: pairs of nodes with a class each; decoder's constructor) for edge classification; some pairs are edges."""
    pairs, comm = np.stack(np.divmod(np.arange(700) * 155 % N_NODES**2, N_NODES), 1), graph.comm
    local_pairs = pairs[comm.rank :: comm.size]
    return labelled_links(graph, local_pairs, local_pairs.sum(1) % N_CLASSES, 0.2, 0.2, seed=3), partial(DECODERS["mlp"], n_out=N_CLASSES)


def _sampled_links(*fanouts):
    return lambda graph, x, labels, train: {"batches": LinkLoader(graph, x, labels, train, fanouts=fanouts, batch_size=300)}


CASES = {
    "gcn": Case(_of(GCN, layers=2, hidden=9, dropout=0.3), clip_norm=0.01),
    "sage": Case(_of(SAGE, layers=3, hidden=17, dropout=0.4, batch_norm=True), loops=False),
    "sage elu": Case(_of(SAGE, layers=2, hidden=130, batch_norm=False, activation="elu"), decay=0.1),
    "sage pool": Case(_of(SAGE, layers=2, hidden=6, aggregator="max-pool"), task=NodeTask("multilabel")),
    "gat": Case(_of(GAT, layers=2, hidden=3, heads=3, dropout=0.2, attention_dropout=0.4, residual=True, batch_norm=True)),
    "gat paper": Case(_of(GAT, form="paper", layers=2, hidden=4, heads=2, dropout=0.1, attention_dropout=0.1)),
    "gat heads": Case(_of(GAT, layers=2, hidden=3, heads=2, out_heads=2, dropout=0.1, attention_dropout=0.0)),
    "gatv2": Case(_of(GATv2, layers=2, hidden=3, heads=2), decay=0.01),
    "pna": Case(_of(PNA, layers=2, hidden=4)),
    "appnp": Case(_of(APPNP, hops=3, hidden=8)),
    "gcn of weights": Case(_of(GCN, layers=3, hidden=70, dropout=0.3), values=True),
    "sage of weights": Case(_of(SAGE, layers=2, hidden=7), values=True, loops=False, task=NodeTask("regress", "absolute", "mae")),
    "gat of edge values": Case(_of(GAT, layers=2, hidden=3, heads=2, edge_features=3, attention_dropout=0.4), values=True),
    "functions": Case(Functions, values=True, task=NodeTask("multilabel")),
    "shown labels": Case(_of(SAGE, layers=2, hidden=5, batch_norm=True), shown=True,
                         task=NodeTask(metric="macro-f1", label_inputs=LabelInputs(0.5, N_CLASSES))),
    "sgc": Case(_of(SGC, hops=2), values=True, smooth=CorrectAndSmooth(correct_iterations=5, smooth_iterations=4)),
    "sign": Case(_of(SIGN, hops=2, hidden=5),
                 smooth=CorrectAndSmooth(correct_iterations=3, smooth_iterations=3, scale=1.5, correct_normalization="row")),
    "message flow": Case(_of(GAT, layers=2, hidden=3, heads=2), batches=_flow),
    "minibatch sage": Case(_of(SAGE, layers=2, hidden=7, batch_norm=True, dropout=0.3), batches=_sampled(4, 3), shown=True,
                           task=NodeTask(label_inputs=LabelInputs(0.5, N_CLASSES))),
    "minibatch pool": Case(_of(SAGE, layers=1, aggregator="max-pool"), batches=_sampled(5, sampler="replace"), task=NodeTask("regress")),
    "minibatch gcn": Case(_of(GCN, layers=2, hidden=7), batches=_sampled(4, -1, scored=True), values=True),
    "minibatch gat": Case(_of(GAT, layers=2, hidden=3, heads=2, attention_dropout=0.2), batches=_sampled(4, 6, sampler="labor")),
    "minibatch sgc": Case(_of(SGC, hops=2), batches=_sampled(batch_size=20)),
    "rgcn": Case(_of(RGCN, layers=2, hidden=6, embedding=5), relational=True, clip_norm=0.1),
    "rgcn of bases": Case(_of(RGCN, layers=2, hidden=4, n_bases=2, embedding=4), relational=True),
    "rgat": Case(_of(RGAT, layers=2, hidden=3, heads=2, embedding=5, attention_dropout=0.3), relational=True),
    "relations": Case(Relations, relational=True),
    "minibatch rgcn": Case(_of(RGCN, layers=2, hidden=6, embedding=5, dropout=0.3), relational=True, batches=_sampled(3, 4)),
    "minibatch rgat": Case(_of(RGAT, layers=2, hidden=3, heads=2, embedding=5, attention_dropout=0.3), relational=True,
                           batches=_sampled(9, 8, sampler="labor", scored=True)),
    "message flow of relations": Case(_of(RGCN, layers=2, hidden=6, embedding=5), relational=True, batches=_flow),
    "links": Case(_of(GCN, layers=2, hidden=6), links=_links("distmult", sampler="per-source"), task=LinkTask("bpr", "mrr")),
    "links apart": Case(_of(GAT, layers=2, hidden=3, heads=2), links=_links("rotate", disjoint=0.3), task=LinkTask("margin", "ap")),
    "labels of edges": Case(_of(SAGE, layers=2, hidden=7, batch_norm=True), links=_labels_of_edges, task=EdgeTask()),
    "minibatch links": Case(_of(SAGE, layers=2, hidden=7), links=_links("mlp", sampler="in-batch"), batches=_sampled_links(4, 3),
                            task=LinkTask("cross-entropy")),
    "links of a relation": Case(_of(RGCN, layers=2, hidden=6, embedding=5), relational=True, links=_links("complex", ("a", "in", "b")),
                                task=LinkTask()),
}  # fmt: skip


@cache
def data(dtype):
    """Return ((sources, destinations), features, labels, training mask) with a hub, repeated edges and features of mixed scales."""
    rng = np.random.default_rng(4)
    src, dst = (rng.zipf(1.5, 3000) % (N_NODES - 20) for _ in range(2))
    hub = rng.integers(0, N_NODES - 20, 2 * HUB)
    src, dst = np.concatenate([src, hub, np.full(HUB, 7)]), np.concatenate([dst, np.full(2 * HUB, 3), hub[:HUB]])
    x = rng.standard_normal((N_NODES, N_FEAT)) * 10.0 ** rng.integers(-3, 3, (N_NODES, 1))
    x[:, 1] *= 1e-20
    x[5] = 0
    labels = rng.integers(0, N_CLASSES, N_NODES)
    train = rng.random(N_NODES) < 0.3
    return (src, dst), x.astype(dtype), labels, train


def relational_edges(dtype):
    """Return {relation: (sources, destinations)}: two among the nodes "a" with features, and one each way to nodes "b" without."""
    (src, dst), rng = data(dtype)[0], np.random.default_rng(6)
    n = len(src) // 2
    a, b = rng.zipf(1.7, 900) % (N_NODES - 20), rng.integers(0, N_OTHERS, 900)
    return {("a", "cites", "a"): (src[:n], dst[:n]), ("a", "likes", "a"): (src[n:], dst[n:]), ("a", "in", "b"): (a, b),
            ("b", "of", "a"): (b[::-1], a)}


def division(name, n_ranks):
    """Return the division `name` of the nodes for `parts`: the name, or for "by hand" each node's rank, with parts of 7, 1 and 0 nodes."""
    if name != "by hand":
        return name
    parts = np.full(N_NODES, n_ranks - 1)
    sizes = [7, 1, 0][: n_ranks - 1]
    for rank, (end, n) in enumerate(zip(np.cumsum(sizes), sizes)):
        parts[end - n : end] = rank
    return np.random.default_rng(1).permutation(parts)


def graph_of(comm, case: Case, dtype, parts="random", order=None, **options):
    """Return this rank's part of the case's graph, divided as `parts` says; with relations, of the node type that has labels."""
    if case.relational:
        wanted = {name: options[name] for name in ("mode", "prefetch") if name in options}
        method = parts if isinstance(parts, str) and parts == "metis" else {"a": division(parts, comm.size), "b": "random"}
        edges, n_nodes = relational_edges(dtype), {"a": N_NODES, "b": N_OTHERS}
        return HeteroGraph.from_edges(edges, n_nodes, comm=comm, parts=method, **wanted).of("a")
    if case.batches:
        options.pop("backward", None)  # parts of the graph have no reversed edges
    graph = Graph.from_edges(*data(dtype)[0], N_NODES, self_loops=case.loops)
    if case.values:
        rng = np.random.default_rng(5)
        graph = graph.with_edge_values(*((10.0 ** rng.uniform(-3, 2, shape)).astype(dtype)
                                         for shape in (graph.n_edges, (graph.n_edges, 3))))
    return graph.shard(comm, division(parts, comm.size), order=order, **options) if comm.size > 1 else graph


def labels_of(case: Case, labels):
    """Return the class numbers `labels` turned into the kind of targets of the case's task: classes, several of 0 or 1, or numbers."""
    name = "classify" if case.task is None else case.task.form.name
    values = {"classify": labels, "multilabel": (labels[:, None] >> np.arange(3)) & 1, "regress": np.sin(labels[:, None] + np.arange(2))}
    return values[name]


def make_trainer(comm, case: Case, graph, dtype, numerics):
    """Return a Trainer of the case's model and task on `graph`, this rank's part; `numerics` is "exact", "fast" or an object."""
    if case.links:
        return _link_trainer(case, graph, dtype, numerics)
    _, x, labels, train = data(dtype)
    ids, rng, labels = graph.node_ids, nn.Random(3), labels_of(case, labels)
    n_out = labels.shape[1] if labels.ndim == 2 else N_CLASSES
    n_in = ({"a": N_FEAT}, n_out, graph) if case.relational else (N_FEAT + N_CLASSES * case.shown, n_out)
    model = case.model(*n_in, rng=rng, dtype=dtype)
    with using(named(numerics, comm) if isinstance(numerics, str) else numerics):
        x = {"a": x[ids]} if case.relational else x[ids]
        x = propagated.inputs(comm, model, SimpleNamespace(graph=graph, rows=SimpleNamespace(features=x)))
    batches = case.batches(graph, x, labels[ids], train[ids]) if case.batches else {}
    return Trainer(graph, model, x, labels[ids], train[ids], ~train[ids], rng=rng, clip_norm=case.clip_norm, task=case.task,
                   numerics=numerics,
                   optimizer=lambda flat: optim.Adam(flat, 0.01, weight_decay=case.decay), **batches)


def _link_trainer(case, graph, dtype, numerics):
    (links, decoder), rng, x = case.links(graph), nn.Random(3), data(dtype)[1]
    n_in = ({"a": N_FEAT}, 8, links.graph.nodes) if case.relational else (N_FEAT, 8)
    model = nn.LinkPredictor(case.model(*n_in, rng=rng, dtype=dtype), decoder(8, rng=rng, dtype=dtype))
    x = {"a": x[graph.node_ids]} if case.relational else x[graph.node_ids]
    batches = case.batches(links.graph, x, links.labels, links.train) if case.batches else {}
    trainer = Trainer(links.graph, model, x, links.labels, links.train, links.val, links.test, rng=rng, task=case.task, numerics=numerics,
                      optimizer=lambda flat: optim.Adam(flat, 0.01), **batches)
    trainer.row_ids = links.heads * links.graph.nodes.n_nodes + links.tails
    return trainer


def work(comm, name, dtype, epochs=2, n_threads=1, numerics="exact", **options):
    """Train CASES[name] as one rank; return ([(ids, this rank's rows), ...], [arrays that are equal on all ranks]).

    These results must not depend on the number of ranks and threads.

    The result is [(ids, this rank's rows), ...] and a list of arrays that are the same on all ranks.
    """
    kernels.set_threads(n_threads)
    case = CASES[name]
    graph = graph_of(comm, case, dtype, **options)
    trainer = make_trainer(comm, case, graph, dtype, numerics if isinstance(numerics, str) else numerics(comm))
    losses = [trainer.step() for _ in range(epochs)]
    scores = trainer.evaluate()
    rows = trainer.predict()
    if case.smooth:
        rows = np.concatenate([rows, *smoothed(trainer, case.smooth, rows)[:2]], 1)
    alike = [trainer.flat.data, trainer.flat.grad, np.array(losses), np.array([scores[f"val_{key}"] for key in ("loss", trainer.task.key)])]
    owned = {name: p for name, p in trainer.model.named_parameters() if p.ids is not None}
    alike += [array for name, array in sorted(trainer.model.state_dict().items()) if name not in owned]
    by_ids = [(getattr(trainer, "row_ids", graph.node_ids), rows), *((p.ids, p.data.copy()) for _, p in sorted(owned.items()))]
    return by_ids, [a.copy() for a in alike]


def digest(n_ranks, case, dtype=np.float32, **options):
    """Train CASES[case] on N ranks as threads, check that all ranks get the same hash of the results, and return the hash."""
    ranks = [work(Solo(), case, dtype, **options)] if n_ranks == 1 else threads.run(n_ranks, work, case, dtype, **options)
    rows = []
    for of_ranks in zip(*(by_ids for by_ids, _ in ranks)):
        ids, values = (np.concatenate(arrays) for arrays in zip(*of_ranks))
        rows.append(values[np.argsort(ids)])
    hashes = {_hash([*rows, *alike]) for _, alike in ranks}
    assert len(hashes) == 1, "ranks differ"
    assert np.isfinite(rows[0]).all()
    return hashes.pop()


def _hash(arrays):
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


if __name__ == "__main__":
    for dtype in (np.float32, np.float64):
        for case in sys.argv[1:]:
            print(digest(1, case, dtype))
