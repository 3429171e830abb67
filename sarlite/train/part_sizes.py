"""What a run's loaded part says for its costs: the sizes that trials are made of."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data.tables import SPLITS
from sarlite.sar.cost import exchanged, reversed_exchanged
from sarlite.train import sampled, small
from sarlite.train.load import Shard
from sarlite.train.mirror import Mirror
from sarlite.train.settings import Settings
from sarlite.train.small import Sizes

TINY_ROWS = 40
"""Of a trial that asks what a model does, and not how much."""


def of_run(comm: Communicator, run: Settings, part: Shard, make: Callable[..., Any], sharing: int = 1,
           there: int | None = None, trainer: Any = None) -> Sizes:
    """Return the `Sizes` of a run whose part was loaded. Collective.

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
    there, features = before if there is None else there, [part.rows.features]
    if sizes.relational:
        there += max(0, part.memory.now() - before)  # whose exchanges have been found only now
        features = [*part.rows.features.values()]
    counted = sum(x.dtype.itemsize * x.size for x in features if part.standing or x.strides[0])
    missing = sum(x.dtype.itemsize * x.size for x in features) - counted
    sizes = sizes._replace(there_bytes=there // sharing - counted, load_bytes=peak // sharing + missing)
    if run.batches:  # a trial has one batch of each kind, of all rows of the splits
        batches, scored = sampled.of_run(run, part)
        _, val, test = sizes.splits
        if scored:
            val = test = -(-max(0, scored.n_seeds - batches.n_seeds) // 2)
        sizes = sizes._replace(batches=batches, scored=scored, splits=(batches.n_seeds, val, test))
    if run.training.mfg:
        batches, scored = sampled.flows(make(comm, run, part) if trainer is None else trainer)
        sizes = sizes._replace(batches=batches, scored=scored)
    return sizes


def sizes_of(comm: Communicator, run: Settings, part: Shard, make: Callable[..., Any]) -> Sizes:
    """Return the `Sizes` of a part that was loaded, but for its memory, batches and message-flow graphs. Collective."""
    graph: Any = part.graph
    splits: Any = tuple(int(np.count_nonzero(getattr(part.rows, name))) for name in SPLITS)
    sizes = Sizes(run, make, part, comm.rank, comm.size, graph.n_dst, splits, {})
    if sizes.relational:
        for chosen in _chosen(comm, sizes):
            graph.graph.exchange(chosen)
        found = {chosen: exchanged(comm, plan) for chosen, (plan, _) in graph.graph.exchanges.items()}
        return sizes._replace(exchanged=found)
    with graph.profile.phase("setup"):
        reverse = None
        found = {"edges": exchanged(comm, graph.plan)}
        if comm.size > 1 and not run.training.mfg and not run.batches:
            reverse = reversed_exchanged(comm, graph.plan)
    return sizes._replace(exchanged=found, reverse=reverse)


def _chosen(comm, sizes):
    """The sets of relations that a fetch of the model serves, as a tiny trainer on one rank tells them. Collective."""
    k = max(1.0, max(map(len, sizes.part.graph.graph.node_ids.values())) / TINY_ROWS)
    tiny = small.options(sizes.run._replace(graph=sizes.run.graph._replace(mode="sar")), k)
    alone = sizes._replace(rank=0, size=1, splits=(1, 1, 1))

    def asked():
        graph = small.graph(Mirror(0, 1), tiny, alone, k)
        sizes.make(graph.comm, tiny, small.part(graph, tiny, alone, k)).evaluate()
        return [*graph.graph.exchanges]

    return comm.bcast(together(comm, asked))
