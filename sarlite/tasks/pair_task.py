"""PairTask: base class of the tasks whose rows are pairs of nodes."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from sarlite.comm import together
from sarlite.data.part import OwnedRows
from sarlite.errors import ConfigError
from sarlite.graph.link_graph import LinkGraph
from sarlite.minibatch.batch import Features, FixedBatch, FullBatch
from sarlite.minibatch.loader import Loader
from sarlite.nn import Module, Random
from sarlite.tasks.link_data import Links
from sarlite.tasks.link_edges import Linked
from sarlite.tasks.link_loader import LinkLoader, ScoredLinks, resampled
from sarlite.tasks.task import DataPart, RunSettings, SamplingChoices, Task
from sarlite.types import Array, ArrayLike


class PairTask(Task):
    """Base class of tasks whose rows are pairs of nodes: the rows of a `LinkGraph`, a graph with a list of node pairs. It has the
    parameters of `Task`.
    """

    graph_types: ClassVar[tuple[type, ...]] = (LinkGraph,)
    reads_labels: ClassVar[bool] = False
    needs_splits: ClassVar[bool] = False

    def check_arguments(self, graph: object, model: object, x: object, batches: object, scoring: object) -> None:
        super().check_arguments(graph, model, x, batches, scoring)
        if scoring is not None and not isinstance(scoring, ScoredLinks):
            raise ConfigError("scoring: links are scored on the full graph, so pass no loader, or a loader ScoredLinks")

    def full_batches(self, full: FullBatch) -> FixedBatch:
        return resampled(full)

    @classmethod
    def make_model(cls, encoder: Callable[..., Module], run: RunSettings, nodes: object, n_outputs: int, rng: Random) -> Module:
        return run.links.decoded(encoder(run.links.link_width, run.batches), rng, run.model.dtype, nodes, n_outputs)

    @classmethod
    def make_loader(cls, sampling: SamplingChoices, graph: Any, x: Features, targets: Array, train: ArrayLike | slice,
                    **options: Any) -> Loader:
        return LinkLoader(graph, x, targets, train, fanouts=sampling.fanouts, remote=sampling.at_remote(),
                          sampler=sampling.sampler, sample_ahead=sampling.sample_ahead, **options)

    @classmethod
    def make_scoring(cls, sampling: SamplingChoices, graph: Any, x: Features, targets: Array, rows: OwnedRows, **options: Any) -> Loader:
        scored = np.concatenate([rows.train, rows.val, rows.test])
        return ScoredLinks(graph, x, targets, scored, fanouts=sampling.fanouts, **options)

    @classmethod
    def summary(cls, counts: dict[str, int]) -> dict[str, object]:
        return {"links": counts}


def linked_of(run: RunSettings, part: DataPart) -> Linked:
    """Return a `Linked`, an object that holds the graph of this rank's data `part` and the relations whose edges are links to predict. The
    options of `run` choose the relations. Collective.
    """
    return together(part.graph.comm, lambda: run.links.linked(part.graph, part.names))


def with_links(part: Any, links: Links) -> Any:
    """Return a rank's data `part` (a `load.Shard`) with links in place of nodes as its rows: it has the graph, targets, splits and times of
    `links`.
    """
    rows = part.rows._replace(**{name: getattr(links, name) for name in ("labels", "train", "val", "test")})
    return part._replace(graph=links.graph, rows=rows, seed_times=links.times)
