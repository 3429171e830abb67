"""What a run's loaded part says for its costs: the sizes that trials are made of."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data.tables import SPLITS
from sarlite.profile import uncounted
from sarlite.sar.cost import Exchanged, exchanged
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.node_type import NodeType
from sarlite.train import sampled, small
from sarlite.train.costs import Cost, Setting, cost
from sarlite.train.load import Shard, widths
from sarlite.train.settings import Settings
from sarlite.train.small import Facts, Relations, Sizes
from sarlite.train.trial import Mirror, flow_layers

TINY_ROWS = 40
"""Of a trial that asks what a model does, and not how much."""


def of_run(comm: Communicator, run: Settings, part: Shard, make: Callable[..., Any], sharing: int = 1,
           there: int | None = None, trainer: Any = None) -> tuple[Callable[[Setting], Cost], Sizes]:
    """Return what tells the costs of a setting, of a run whose part was loaded, and the sizes of the part. Collective.

    Parameters
    ----------
    make : callable (comm, run, part) -> Trainer
    sharing : int
        Ranks that share this process.
    there : int, optional
        What the process has above its state before loading, by default now.
    trainer : Trainer, optional
        The run's, where it was made: then its message-flow graphs are not made again.
    """
    peak, before = part.memory.peak(), part.memory.now()
    sizes = sizes_of(comm, run, part, make)
    there = before if there is None else there
    if sizes.facts.relations:  # whose exchanges have been found only now
        there += max(0, part.memory.now() - before)
    features = [*part.rows.features.values()] if sizes.facts.relations else [part.rows.features]
    counted = sum(x.dtype.itemsize * x.size for x in features if part.standing or x.strides[0])
    missing = sum(x.dtype.itemsize * x.size for x in features) - counted
    sizes = sizes._replace(there_bytes=there // sharing - counted, load_bytes=peak // sharing + missing)
    if run.batches:
        sizes = _with_batches(run, part, sizes)
    if run.training.mfg:
        trainer = make(comm, run, part) if trainer is None else trainer
        layers = {(name, k): layer for name, k, layer in flow_layers(trainer)}
        found = {name: exchanged(uncounted(part.graph.comm), layer.plan) for name, layer in layers.items()}
        sizes = sizes._replace(exchanged={**sizes.exchanged, **found},
                               layer_sizes={name: layer.sizes for name, layer in layers.items()})
    return partial(cost, run, make, sizes), sizes


def sizes_of(comm: Communicator, run: Settings, part: Shard, make: Callable[..., Any]) -> Sizes:
    """Return the `Sizes` of a part that was loaded, but for its memory, batches and message-flow graphs. Collective."""
    graph: Any = part.graph
    rows: Any = part.rows
    splits: Any = tuple(int(np.count_nonzero(getattr(rows, name))) for name in SPLITS)
    facts = Facts(widths(rows), part.n_classes, part.task, rows.labels[:0])
    if not isinstance(graph, NodeType):
        values = tuple(None if a is None else a[:0] for a in (graph.edge_weight, graph.edge_features))
        facts = facts._replace(loops=graph.added_loops is not None, edge_values=values)
        return _of_graph(comm, graph, facts, splits, not run.training.mfg and not run.batches)
    whole = graph.graph
    own = {name: len(ids) for name, ids in whole.node_ids.items()}, {r: len(ids) for r, ids in whole.edge_ids.items()}
    relations = Relations(graph.node_type, whole.n_nodes, whole.n_edges, *own)
    chosen = _chosen(comm, run, facts._replace(relations=relations), make)
    facts = facts._replace(relations=relations._replace(n_halo={each: whole.exchange(each)[1] for each in chosen}))
    found: dict[Any, Exchanged] = {chosen: exchanged(comm, plan) for chosen, (plan, _) in whole.exchanges.items()}
    return Sizes(facts, comm.rank, comm.size, graph.n_dst, splits, found)


def _of_graph(comm, graph, facts, splits, turns):
    inner: Graph = graph if graph.grid is None else graph.grid.graph
    with graph.profile.phase("setup"):
        found = exchanged(uncounted(inner.comm), inner.plan, turns)
    whole = [(graph.n_dst, inner.n_dst), (graph.n_edges, inner.n_edges)]
    if graph.grid is None:
        own = graph.n_dst, graph.n_edges
        whole = list(zip(own, np.sum(comm.allgather(own), 0).tolist()))
    columns, group = 1 if graph.grid is None else graph.grid.n_columns, dict(zip(("rows", "edges"), whole))
    return Sizes(facts, comm.rank, comm.size, graph.n_dst, splits, {"edges": found}, group, columns)


def _with_batches(run, part, sizes):
    """The sizes with those of sampled batches; a trial has one batch of each kind, of all rows of the splits."""
    batches, scored = sampled.of_run(run, part)
    train, *others = sizes.splits
    if scored:
        others = [-(-max(0, scored.n_seeds - batches.n_seeds) // 2)] * 2
    return sizes._replace(batches=batches, scored=scored, splits=(batches.n_seeds, *others),
                          layer_sizes={**batches.sizes, **(scored.sizes if scored else {})})


def _chosen(comm, run, facts, make):
    """The sets of relations that a fetch of the model serves, as a tiny trainer on one rank tells them. Collective."""
    own = facts.relations.own_nodes
    sizes, k = Sizes(facts, 0, 1, own[facts.relations.target], (1, 1, 1), {}), max(1.0, max(own.values()) / TINY_ROWS)
    tiny = small.options(run._replace(graph=run.graph._replace(mode="sar")), k)

    def asked():
        graph = small.graph(Mirror(0, 1), tiny, sizes, k)
        make(graph.comm, tiny, small.part(graph, tiny, sizes, k)).evaluate()
        return [*graph.graph.exchanges]

    return comm.bcast(together(comm, asked))
