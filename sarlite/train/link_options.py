"""What a run makes of links: whose they are, splits, negatives and labels of them, and the decoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import together
from sarlite.errors import ConfigError
from sarlite.nn import Random
from sarlite.nn.decoders import DECODERS, LinkPredictor
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.hetero import HeteroGraph
from sarlite.tasks import edge_labels, link_splits
from sarlite.tasks.edge_labels import EdgeLabels
from sarlite.tasks.link_data import Links, labelled_links, split_links
from sarlite.tasks.link_edges import Linked, is_several, linked
from sarlite.tasks.link_files import read_links, read_pairs
from sarlite.tasks.link_splits import TEST, VAL
from sarlite.tasks.negatives import SAMPLERS


class LinkOptions(NamedTuple):
    """What a run makes of links.

    Attributes
    ----------
    decoder : str, optional
        Of `nn.decoders.DECODERS`; by default "dot", of labels "mlp".
    width : int
        Numbers in a node's row, which the encoder makes.
    val, test : float or path
        As for `split_links`; a path names a file of pairs, as `link_files.read_pairs` takes it, and a share beside a
        path is no link.
    split : str, optional
        A table that tells each edge's split or time, as of `link_splits.read`.
    relation : str, optional
        Of relational data: user.buys.item, several with commas between, or "all"; by default the only relation.
    labels : str, optional
        A table of labels of pairs, as of `edge_labels.read`, which are predicted in place of links.
    disjoint, negatives, eval_negatives, filtered
        As for `split_links`; None: 1, but for metrics of a link's rank 100.
    sampler, eval_sampler : str, optional
        Of `SAMPLERS`, or a file of pairs, as `link_files.read_pairs` takes it. None: "uniform", but for metrics of a
        link's rank "per-source"; in evaluation as in training where that draws of all nodes.
    """

    decoder: str | None = None
    width: int = 64
    val: float | str = 0.05
    test: float | str = 0.1
    split: str | None = None
    relation: str | None = None
    labels: str | None = None
    disjoint: float = 0.0
    negatives: int = 1
    eval_negatives: int | None = None
    sampler: str | None = None
    eval_sampler: str | None = None
    filtered: bool = True

    def linked(self, graph: Any, names: Mapping[str, Any]) -> Linked:
        """Return whose links they are, of a run's graph, and the names of nodes by type; a ConfigError of another
        relation."""
        found = linked(graph, None) if isinstance(graph, Graph) else linked(graph.graph, self.predicted(graph.graph))
        found = found._replace(ends=[(one._replace(names=names.get(one.node_type)),
                                      other._replace(names=names.get(other.node_type))) for one, other in found.ends])
        if found.several:
            given = {"edge_labels": self.labels, "link_split": self.split}
            samplers = {"negative_sampler": self.sampler, "eval_negative_sampler": self.eval_sampler}
            given |= {name: one for name, one in samplers.items() if one not in SAMPLERS}
            for name, value in given.items():
                if value is not None:
                    raise ConfigError(f"{name} {value}: of several relations, as link_relation {self.relation} has "
                                      "it, it is not done yet", name)
        return found

    def predicted(self, graph: HeteroGraph) -> Any:
        """Return the relation that is predicted as `split_links` takes it: one, a list of several, or None."""
        known = {".".join(one): one for one in graph.relations}
        if self.relation is None or self.relation in known:
            return known.get(self.relation or "")
        words = known if self.relation == "all" else self.relation.split(",")
        found = [known.get(word, (word,)) for word in words]  # one that is none is refused by its name
        return found[0] if len(found) == 1 else found

    def splits(self, linked: Linked) -> tuple[Any, Any]:
        """Return `val` and `test` as `split_links` takes them: shares, or the pairs that files tell rank 0, of several
        relations by relation. Collective; raises as `link_splits.read`.
        """
        if self.split is None and not any(isinstance(given, str) for given in (self.val, self.test)):
            return self.val, self.test

        def read():
            if linked.graph.comm.rank:
                return np.empty((0, 2), np.int64), np.empty(0, np.int64)
            return link_splits.read(self.val, self.test, self.split, linked.ends[0])

        if linked.several:
            given = self.val, self.test
            return tuple(together(linked.graph.comm, lambda: [_by_relation(linked, one) for one in given]))
        pairs, split = together(linked.graph.comm, read)
        return pairs[split == VAL], pairs[split == TEST]

    def samplers(self, linked: Linked, metric: str | None) -> list[Any]:
        """Return the samplers of training and of evaluation as `split_links` takes them, of the metric that judges.

        Collective; raises a ConfigError where one is no sampler and no file, and as `read_pairs`.
        """
        own = "uniform" if metric in (None, "roc-auc", "ap") else "per-source"
        to_train = self.sampler or own
        to_eval = self.eval_sampler or (to_train if to_train in SAMPLERS[:2] else own)

        def read(argument, one):
            if one in SAMPLERS:
                return one
            if not Path(one).exists():
                raise ConfigError(f"{argument} {one!r}: no such file, and none of {', '.join(SAMPLERS)}", argument)
            return read_pairs(one, linked.ends[0]) if linked.graph.comm.rank == 0 else np.empty((0, 2), np.int64)

        return together(linked.graph.comm, lambda: [read("negative_sampler", to_train),
                                                    read("eval_negative_sampler", to_eval)])

    def of_graph(self, linked: Linked, splits: tuple[Any, Any], samplers: list[Any], metric: str | None,
                 seed: int) -> Links:
        """Return the links of a graph, to be judged by a metric of `METRICS`. Collective; raises as `split_links`."""
        n = self.eval_negatives or (1 if metric in (None, "roc-auc", "ap") else 100)
        return split_links(linked.graph, *splits, relation=linked.relation, disjoint=self.disjoint,
                           negatives=self.negatives, eval_negatives=n, sampler=samplers[0], eval_sampler=samplers[1],
                           filtered=self.filtered, seed=seed)

    def of_labels(self, linked: Linked, labels: EdgeLabels) -> Links:
        """Return the links that are labelled, of what `read_labels` returned. Collective."""
        relation: Any = linked.relation
        return labelled_links(linked.graph, labels.pairs, labels.labels, relation=relation, split=labels.split)

    def read_labels(self, linked: Linked, task: str | None, seed: int) -> EdgeLabels:
        """Return the labels that the table tells; all pairs on rank 0, and on others none. Collective; raises as
        `edge_labels.read`.
        """
        comm = linked.graph.comm
        told: Any = (self.labels, task, self.val, self.test, seed, linked.ends[0])
        own = together(comm, lambda: edge_labels.read(*told) if comm.rank == 0 else None)
        others = comm.bcast(own and own._replace(pairs=own.pairs[:0], labels=own.labels[:0], split=own.split[:0]))
        return own or others

    def decoded(self, encoder: Any, rng: Random, dtype: str, nodes: Any, n_out: int) -> LinkPredictor:
        """Return an encoder with the decoder behind it: of labels with `n_out` outputs, of several relations of `nodes`
        with a row each."""
        relation = None if isinstance(nodes, Graph) or self.labels else self.predicted(nodes.graph)
        kind = self.decoder or ("mlp" if self.labels else "dot")
        rows = n_out if self.labels else len(relation) if relation and is_several(relation) and kind != "dot" else None
        return LinkPredictor(encoder, DECODERS[kind](self.width, rows, rng=rng, dtype=np.dtype(dtype)))


def _by_relation(linked, given):
    """The links of a file by relation, on rank 0; what is no file are none."""
    found = np.empty((0, 3), np.int64)
    if isinstance(given, str) and not linked.graph.comm.rank:
        found = read_links(given, linked)
    return {one: found[found[:, 2] == at, :2] for at, one in enumerate(linked.relations)}
