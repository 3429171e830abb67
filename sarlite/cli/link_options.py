"""Options for links: the linked node types, splits, negatives, labels, and the decoder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.cli.option import fixed_option
from sarlite.comm import together
from sarlite.command import count_or_all, share_or_file
from sarlite.errors import ConfigError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph
from sarlite.nn import Random
from sarlite.nn.decoders import DECODERS, LinkPredictor
from sarlite.tasks import edge_labels, link_splits
from sarlite.tasks.edge_labels import EdgeLabels
from sarlite.tasks.link_data import Links, labelled_links, split_links
from sarlite.tasks.link_edges import Linked, is_several, linked
from sarlite.tasks.link_files import read_links, read_pairs
from sarlite.tasks.link_splits import TEST, VAL
from sarlite.tasks.link_task import is_ranked
from sarlite.tasks.negatives import SAMPLERS
from sarlite.tasks.time_split import TimeSplit

RANKING_NEGATIVES = 10
"""Default number of negatives of each link where the metric is about ranks."""
_LINKS = {"needs": ("task link",)}
_LINKS_OR_LABELS = {"needs": ("task link or --edge-labels",)}


@dataclass(frozen=True)
class LinkOptions:
    """Links that a run predicts, or labels of edges: splits, negatives, and the decoder."""

    edge_labels: str | None = fixed_option(
        None, "FILE,labels=COLUMN: a table of edges, or of any pairs, with the labels to predict; --task says what the "
        "labels are; with split=COLUMN of train, val or test, or time=COLUMN: the latest rows are tested on",
        metavar="TABLE", argument="labels", see="links.md#labels-of-edges")
    link_relation: str | None = fixed_option(
        None, "for relational data: relation to predict, as user.buys.item, several with commas between, or all",
        metavar="RELATION", otherwise="the only relation", argument="relation", see="links.md#relations",
        **_LINKS_OR_LABELS)
    decoder: str | None = fixed_option(None, "how the rows of a link's ends become a score or label",
                                 choices=tuple(DECODERS), otherwise="dot; for labels mlp", **_LINKS_OR_LABELS)
    link_width: int = fixed_option(64, "width of a node's row that the model makes and the decoder takes", least=1,
                             argument="width", **_LINKS_OR_LABELS)
    link_val: float | str = fixed_option(
        0.05, "links to validate on, which bring no messages: a share of the edges, or a file of links, source and "
        "destination", metavar="SHARE|FILE", read=share_or_file, inside="in [0, 1)", argument="val", **_LINKS_OR_LABELS)
    link_test: float | str = fixed_option(0.1, "links to test on, likewise a share or a file", metavar="SHARE|FILE",
                                    read=share_or_file, inside="in [0, 1)", argument="test", **_LINKS_OR_LABELS)
    link_split: str | None = fixed_option(
        None, "FILE,split=COLUMN: a table of the edges, whose column has train, val or test; or FILE,time=COLUMN: test "
        "on the latest links, validate on the links before", metavar="TABLE", argument="split",
        see="links.md#what-is-trained-on-what", **_LINKS)
    link_disjoint: float = fixed_option(
        0.0, "this share of the training links is trained on and brings no messages in training; the other training "
        "links only bring messages; 0: each link does both", metavar="SHARE", inside="in [0, 1)", argument="disjoint",
        **_LINKS)
    negatives: int | None = fixed_option(None, "negatives of each link: pairs without a link, drawn anew each epoch",
                                         least=1, otherwise=f"for roc-auc and ap 1, else {RANKING_NEGATIVES}", **_LINKS)
    eval_negatives: Any = fixed_option(
        None, "negatives of each link in evaluation, the same each time; all: links to validate and to test on are "
        "ranked among all destinations", metavar="N|all", read=count_or_all, least=1, see="links.md#rankings",
        otherwise="for roc-auc and ap 1, else all, or 100 with --eval-negative-sampler", **_LINKS)
    negative_sampler: str | None = fixed_option(
        None, f"one of {', '.join(SAMPLERS)}: draw both ends of a negative; or keep the link's head and draw the tail; "
        "or draw the tail from the tails of the step's links; or FILE: pairs of a head and a hard tail, a file as for "
        "--link-val", metavar="SAMPLER|FILE", otherwise="for roc-auc and ap uniform, else per-source",
        argument="sampler", **_LINKS)
    eval_negative_sampler: str | None = fixed_option(
        None, "how evaluation's negatives are drawn", metavar="SAMPLER|FILE", argument="eval_sampler",
        otherwise="as in training, if that is uniform or per-source", **_LINKS)
    filtered: bool = fixed_option(True, "no negative of evaluation is a link of any split", **_LINKS)

    def linked(self, graph: Any, names: Mapping[str, Any]) -> Linked:
        """Return whose links they are, of a run's graph, and the names of nodes by type; a ConfigError of another
        relation."""
        found = linked(graph, None) if isinstance(graph, Graph) else linked(graph.graph, self.predicted(graph.graph))
        found = found._replace(ends=[(one._replace(names=names.get(one.node_type)),
                                      other._replace(names=names.get(other.node_type))) for one, other in found.ends])
        if found.several:
            given = {"edge_labels": self.edge_labels, "link_split": self.link_split}
            samplers = {"negative_sampler": self.negative_sampler, "eval_negative_sampler": self.eval_negative_sampler}
            given |= {name: one for name, one in samplers.items() if one not in SAMPLERS}
            for name, value in given.items():
                if value is not None:
                    raise ConfigError(f"{name} {value}: of several relations, as link_relation {self.link_relation} "
                                      "has it, it is not done yet", name)
        return found

    def predicted(self, graph: HeteroGraph) -> Any:
        """Return the relation that is predicted as `split_links` takes it: one, a list of several, or None."""
        known = {".".join(one): one for one in graph.relations}
        if self.link_relation is None or self.link_relation in known:
            return known.get(self.link_relation or "")
        words = known if self.link_relation == "all" else self.link_relation.split(",")
        found = [known.get(word, (word,)) for word in words]  # one that is none is refused by its name
        return found[0] if len(found) == 1 else found

    def splits(self, linked: Linked, time_split: TimeSplit | None = None) -> tuple[Any, Any]:
        """Return `val` and `test` as `split_links` takes them. Collective; raises as `link_splits.read`.

        They are shares, or the pairs that files tell rank 0, of several relations by relation, or `time_split`.
        """
        if time_split is not None:
            return time_split, 0.0
        if self.link_split is None and not any(isinstance(given, str) for given in (self.link_val, self.link_test)):
            return self.link_val, self.link_test

        def read():
            if linked.graph.comm.rank:
                return np.empty((0, 2), np.int64), np.empty(0, np.int64)
            return link_splits.read(self.link_val, self.link_test, self.link_split, linked.ends[0])

        if linked.several:
            given = self.link_val, self.link_test
            return tuple(together(linked.graph.comm, lambda: [_by_relation(linked, one) for one in given]))
        pairs, split = together(linked.graph.comm, read)
        return pairs[split == VAL], pairs[split == TEST]

    def for_metric(self, metric: str | None) -> "LinkOptions":
        """Return the options with negatives and samplers that fit the metric where no option gives these."""
        ranked = is_ranked(metric)
        own = "per-source" if ranked else "uniform"
        to_train = self.negative_sampler or own
        to_eval = self.eval_negative_sampler or (to_train if to_train in SAMPLERS[:2] else own)
        n_eval: int | str = 1 if not ranked else 100 if self.eval_negative_sampler else "all"
        return replace(self, negatives=self.negatives or (RANKING_NEGATIVES if ranked else 1),
                       eval_negatives=self.eval_negatives or n_eval, negative_sampler=to_train,
                       eval_negative_sampler=to_eval)

    def samplers(self, linked: Linked) -> list[Any]:
        """Return the samplers of training and of evaluation as `split_links` takes them.

        Collective; raises a ConfigError where one is no sampler and no file, and as `read_pairs`.
        """

        def read(argument, one):
            if one in SAMPLERS:
                return one
            if not Path(one).exists():
                raise ConfigError(f"{argument} {one!r}: no such file, and none of {', '.join(SAMPLERS)}", argument)
            return read_pairs(one, linked.ends[0]) if linked.graph.comm.rank == 0 else np.empty((0, 2), np.int64)

        return together(linked.graph.comm, lambda: [read("negative_sampler", self.negative_sampler),
                                                    read("eval_negative_sampler", self.eval_negative_sampler)])

    def of_graph(self, linked: Linked, splits: tuple[Any, Any], samplers: list[Any], seed: int) -> Links:
        """Return the links of a graph, with the negatives of `for_metric`. Collective; raises as `split_links`."""
        return split_links(linked.graph, *splits, relation=linked.relation, disjoint=self.link_disjoint,
                           negatives=self.negatives or 1, eval_negatives=self.eval_negatives, sampler=samplers[0], eval_sampler=samplers[1],
                           filtered=self.filtered, seed=seed)

    def of_labels(self, linked: Linked, labels: EdgeLabels) -> Links:
        """Return the labelled links from the result of `read_labels`. Collective."""
        relation: Any = linked.relation
        return labelled_links(linked.graph, labels.pairs, labels.labels, relation=relation, split=labels.split,
                              times=labels.times)

    def read_labels(self, linked: Linked, task: str | None, seed: int, time_split: str | None) -> EdgeLabels:
        """Return the labels in the table; rank 0 gets all pairs, other ranks none. Collective."""
        comm = linked.graph.comm
        told: Any = (self.edge_labels, task, self.link_val, self.link_test, seed, linked.ends[0], time_split)
        own = together(comm, lambda: edge_labels.read(*told) if comm.rank == 0 else None)
        others = comm.bcast(own and own._replace(pairs=own.pairs[:0], labels=own.labels[:0], split=own.split[:0],
                                                 times=None if own.times is None else own.times[:0]))
        return own or others

    def decoded(self, encoder: Any, rng: Random, dtype: str, nodes: Any, n_out: int) -> LinkPredictor:
        """Return an encoder with the decoder behind it: of labels with `n_out` outputs, of several relations of `nodes`
        with a row each."""
        relation = None if isinstance(nodes, Graph) or self.edge_labels else self.predicted(nodes.graph)
        kind = self.decoder or ("mlp" if self.edge_labels else "dot")
        n_relations = len(relation) if relation and is_several(relation) and kind != "dot" else None
        rows = n_out if self.edge_labels else n_relations
        return LinkPredictor(encoder, DECODERS[kind](self.link_width, rows, rng=rng, dtype=np.dtype(dtype)))


def _by_relation(linked, given):
    """Return the links in a file by relation, read on rank 0; no links if `given` is not the name of a file."""
    found = np.empty((0, 3), np.int64)
    if isinstance(given, str) and not linked.graph.comm.rank:
        found = read_links(given, linked)
    return {one: found[found[:, 2] == at, :2] for at, one in enumerate(linked.relations)}
