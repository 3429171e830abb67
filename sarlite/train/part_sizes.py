"""What a run's loaded part says for its costs: the facts and sizes that trials are made of."""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite import optim
from sarlite.comm import Communicator, together
from sarlite.data.tables import SPLITS
from sarlite.minibatch.flow import count_layers
from sarlite.profile import uncounted
from sarlite.sar.cost import Exchanged, exchanged, expected
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.node_type import NodeType
from sarlite.sar.schedule.modes import MODES
from sarlite.tape import no_grad
from sarlite.train import minibatch, sampled, small
from sarlite.train.costs import Model
from sarlite.train.load import Shard, widths
from sarlite.train.small import Facts, Relations, Sizes
from sarlite.train.trial import Mirror

TINY_ROWS = 40
"""Of a trial that asks what a model does, and not how much."""


def of_run(comm: Communicator, config: argparse.Namespace, cls: Any, part: Shard, make_trainer: Callable[..., Any],
           there: int | None = None, trainer: Any = None) -> tuple[Model, Sizes]:
    """Return the `Model` and the `Sizes` of a run whose part was loaded. Collective.

    Parameters
    ----------
    there : int, optional
        What the process has above its state before loading, by default now.
    trainer : Trainer, optional
        The run's, where it was made: then its message-flow graphs are not made again.
    """
    graph: Any = part.graph
    schedule = optim.schedule(config.lr_schedule, config.epochs)

    def make(comm, config, part):
        return make_trainer(comm, config, cls, schedule, part, None)

    facts, peak = facts_of(part), part.memory.peak()
    if facts.relations:
        facts = with_exchanges(comm, config, make, facts, graph)
    there = part.memory.now() if there is None else there
    sharing = comm.size if config.ranks > 1 else 1
    features = [*part.rows.features.values()] if facts.relations else [part.rows.features]
    counted = sum(x.dtype.itemsize * x.size for x in features if part.standing or x.strides[0])
    missing = sum(x.dtype.itemsize * x.size for x in features) - counted
    batches = scored = None
    if config.batch_size:
        batches, scored = sampled.of_run(config, part)
    sizes = sizes_of(comm, config, part)
    for several in (batches, scored):
        sizes = sizes._replace(layer_sizes={**sizes.layer_sizes, **(several.sizes if several else {})})
    if batches:  # a trial has but one batch of each kind, of all rows of the splits: then of as many
        train, *others = sizes.splits
        others = [-(-max(0, scored.n_seeds - batches.n_seeds) // 2)] * 2 if scored else others
        sizes = sizes._replace(splits=(batches.n_seeds, others[0], others[1]))
    if config.mfg:
        flows = _flows(comm, config, part, make, facts, trainer)
        more = {name: exchanged(uncounted(graph.comm), layer.plan) for name, layer in flows.items()}
        sizes = sizes._replace(exchanged={**sizes.exchanged, **more}, layer_sizes={name: layer.sizes for name, layer in flows.items()})
    return Model(config, make, facts), sizes._replace(there_bytes=there // sharing - counted, load_bytes=peak // sharing + missing,
                                                      batches=batches, scored=scored)


def facts_of(part: Shard) -> Facts:
    """Return the `Facts` of a part's data."""
    graph: Any = part.graph
    rows: Any = part.rows
    if isinstance(graph, NodeType):
        whole = graph.graph
        own = {name: len(ids) for name, ids in whole.node_ids.items()}, {r: len(ids) for r, ids in whole.edge_ids.items()}
        relations = Relations(graph.node_type, whole.n_nodes, whole.n_edges, *own)
        return Facts(widths(rows), part.n_classes, part.task, rows.labels[:0], relations=relations)
    values = tuple(None if a is None else a[:0] for a in (graph.edge_weight, graph.edge_features))
    return Facts(rows.features.shape[1], part.n_classes, part.task, rows.labels[:0], graph.added_loops is not None, values)


def sizes_of(comm: Communicator, config: argparse.Namespace, part: Shard) -> Sizes:
    """Return the `Sizes` of a part that was loaded. Collective."""
    graph: Any = part.graph
    rows: Any = part.rows
    splits: Any = tuple(int(np.count_nonzero(getattr(rows, name))) for name in SPLITS)
    if isinstance(graph, NodeType):
        found: dict[Any, Exchanged] = {chosen: exchanged(comm, plan) for chosen, (plan, _) in graph.graph.exchanges.items()}
        return Sizes(comm.rank, comm.size, graph.n_dst, splits, found)
    return _of_graph(comm, graph, splits, not config.mfg and not config.batch_size)


def _of_graph(comm, graph, splits, turns):
    inner: Graph = graph if graph.grid is None else graph.grid.graph
    with graph.profile.phase("setup"):
        found = exchanged(uncounted(inner.comm), inner.plan, turns)
    whole = [(graph.n_dst, inner.n_dst), (graph.n_edges, inner.n_edges)]
    if graph.grid is None:
        whole = list(zip((graph.n_dst, graph.n_edges), np.sum(comm.allgather((graph.n_dst, graph.n_edges)), 0).tolist()))
    columns = 1 if graph.grid is None else graph.grid.n_columns
    return Sizes(comm.rank, comm.size, graph.n_dst, splits, {"edges": found}, dict(zip(("rows", "edges"), whole)), columns)


def with_exchanges(comm: Communicator, config: argparse.Namespace, make: Callable[..., Any], facts: Facts, nodes: Any) -> Facts:
    """Find what a relational model exchanges; return the facts with the rows that each fetch brings to all ranks. Collective."""
    sizes = Sizes(0, 1, facts.relations.own_nodes[facts.relations.target], (1, 1, 1), {})
    k = max(1.0, max(facts.relations.own_nodes.values()) / TINY_ROWS)

    def chosen_here():
        trainer = _tiny(config, make, facts, sizes, k)
        trainer.evaluate()
        return [*trainer.graph.graph.exchanges]

    chosen = comm.bcast(together(comm, chosen_here))
    halo = {each: nodes.graph.exchange(each)[1] for each in chosen}
    return facts._replace(relations=facts.relations._replace(n_halo=halo))


def _tiny(config, make, facts, sizes, k):
    """A trainer on a part `k` times smaller than `sizes`, on one rank."""
    config = small.options(config)
    graph = small.graph(Mirror(0, 1), config, facts, sizes, MODES["sar"], k)
    return make(graph.comm, config, small.part(graph, config, facts, sizes, k))


def _flows(comm, config, part, make, facts, trainer):
    """The layers of the message-flow graphs that a run trains and scores on, by name and layer. Collective."""
    if trainer is None:
        sizes = Sizes(0, 1, TINY_ROWS, (5, 5, 5), {"edges": expected(TINY_ROWS, TINY_ROWS, 1)})
        plain = argparse.Namespace(**{**vars(config), "mfg": False, "columns": 1})

        def asked():
            trainer = _tiny(plain, make, facts, sizes, 1.0)
            with no_grad():
                return count_layers(trainer.model, trainer.graph, trainer.x)

        n_layers = together(comm, asked)
        made = [*minibatch.flows(part, n_layers, part.rows.features).values()]
    else:
        made = [trainer.batches.batch, trainer.scoring.batch]
    return {(name, k): layer for name, each in zip(("training", "scoring"), made) for k, layer in enumerate(each.graphs)}
