"""Options for links: the linked node types, splits, negatives, labels, and the decoder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.cli.option import fixed_option
from sarlite.comm import together
from sarlite.command import count_or_all, share_or_file
from sarlite.data.names import Names
from sarlite.errors import ConfigError
from sarlite.graph.array_checks import Relation
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph, NodeType
from sarlite.nn import Random
from sarlite.nn.decoders import DECODERS, Encoder, LinkPredictor
from sarlite.tasks import edge_labels, link_splits
from sarlite.tasks.edge_labels import EdgeLabels
from sarlite.tasks.link_data import Links, labelled_links, split_links
from sarlite.tasks.link_edges import Linked, is_several, linked
from sarlite.tasks.link_files import read_links, read_pairs
from sarlite.tasks.link_splits import TEST, VAL
from sarlite.tasks.link_task import is_ranked
from sarlite.tasks.negatives import SAMPLERS
from sarlite.tasks.time_split import TimeSplit
from sarlite.types import Array

RANKING_NEGATIVES = 10
"""Default number of negatives for each link if the metric is a ranking metric."""
Split = TimeSplit | float | Array | dict[Relation, Array]
"""Argument `val` or `test` of `split_links`."""
_LINKS = {"needs": ("task link",)}
_LINKS_OR_LABELS = {"needs": ("task link or --edge-labels",)}


@dataclass(frozen=True)
class LinkOptions:
    """Options for the prediction of links or of edge labels: relations, splits, negatives and decoder."""

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
        0.05, "links to validate on, which carry no messages: a share of the edges, or a file of links, source and "
        "destination", metavar="SHARE|FILE", read=share_or_file, inside="in [0, 1)", argument="val", **_LINKS_OR_LABELS)
    link_test: float | str = fixed_option(0.1, "links to test on, likewise a share or a file", metavar="SHARE|FILE",
                                    read=share_or_file, inside="in [0, 1)", argument="test", **_LINKS_OR_LABELS)
    link_split: str | None = fixed_option(
        None, "FILE,split=COLUMN: a table of the edges, whose column has train, val or test; or FILE,time=COLUMN: test "
        "on the latest links, validate on the links before", metavar="TABLE", argument="split",
        see="links.md#what-is-trained-on-what", **_LINKS)
    link_disjoint: float = fixed_option(
        0.0, "share of the training links that are trained on and carry no messages in training; the other training links "
             "only carry messages; 0: each link does both", metavar="SHARE", inside="in [0, 1)", argument="disjoint",
        **_LINKS)
    negatives: int | None = fixed_option(None, "negatives of each link: pairs without a link, drawn anew each epoch",
                                         least=1, otherwise=f"for roc-auc and ap 1, else {RANKING_NEGATIVES}", **_LINKS)
    eval_negatives: int | str | None = fixed_option(
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

    def linked(self, graph: Graph | NodeType, names: Mapping[str, Names]) -> Linked:
        """Return a `Linked`: an object that holds `graph`, this rank's part of the run's graph, and the relations whose edges are
        predicted. `names` has the nodes' names by node type.

        Parameters
        ----------
        graph : Graph or NodeType
            This rank's part of the run's graph.
        names : dict of str to Names
            Names of nodes by node type, for types whose nodes have names.

        Raises
        ------
        ConfigError
            The data lack the relation, or an option does not go together with several relations.
        """
        links = linked(graph, None) if isinstance(graph, Graph) else linked(graph.graph, self.predicted(graph.graph))
        links = links._replace(ends=[(source._replace(names=names.get(source.node_type)),
                                      destination._replace(names=names.get(destination.node_type)))
                                     for source, destination in links.ends])
        if links.several:
            unsupported = {"edge_labels": self.edge_labels, "link_split": self.link_split}
            samplers = {"negative_sampler": self.negative_sampler, "eval_negative_sampler": self.eval_negative_sampler}
            unsupported |= {name: sampler for name, sampler in samplers.items() if sampler not in SAMPLERS}
            for name, value in unsupported.items():
                if value is not None:
                    raise ConfigError(f"{name} {value}: is not supported for several relations, as in link_relation "
                                      f"{self.link_relation}", name)
        return links

    def predicted(self, graph: HeteroGraph) -> Relation | list[Relation] | None:
        """Return the relation of `graph` that --link-relation names, or a list if it names several; None without the option, for
        the only relation of the graph.

        A name that is not a relation of the graph is returned as (name,), which `linked` refuses.
        """
        relations = {".".join(relation): relation for relation in graph.relations}
        if self.link_relation is None or self.link_relation in relations:
            return relations.get(self.link_relation or "")
        words = relations if self.link_relation == "all" else self.link_relation.split(",")
        requested: list[Any] = [relations.get(word, (word,)) for word in words]
        return requested[0] if len(requested) == 1 else requested

    def splits(self, linked: Linked, time_split: TimeSplit | None = None) -> tuple[Split, Split]:
        """Return how to divide the edges to predict in `linked` into splits, as the arguments (`val`, `test`) of `split_links`. They are
        (`time_split`, 0) if `time_split` is not None, else the shares of the options, or the pairs of nodes in the files that the options
        name. Collective.

        Returns
        -------
        val, test : TimeSplit, float, ndarray, or dict of Relation to ndarray
            `time_split` and 0 if there is a time split; shares; or the pairs of nodes in files, shape (n_pairs, 2),
            int64, for several relations by relation. Rank 0 reads the files; other ranks have no pairs.

        Raises
        ------
        SarliteError
            On every rank: a file cannot be read; see `link_splits.read`.
        """
        if time_split is not None:
            return time_split, 0.0
        shares = [value for value in (self.link_val, self.link_test) if not isinstance(value, str)]
        if self.link_split is None and len(shares) == 2:
            return shares[0], shares[1]

        def read():
            if linked.graph.comm.rank:
                return np.empty((0, 2), np.int64), np.empty(0, np.int64)
            return link_splits.read(self.link_val, self.link_test, self.link_split, linked.ends[0])

        if linked.several:
            val, test = together(linked.graph.comm, lambda: [_pairs_by_relation(linked, value)
                                                             for value in (self.link_val, self.link_test)])
            return val, test
        pairs, split = together(linked.graph.comm, read)
        return pairs[split == VAL], pairs[split == TEST]

    def for_metric(self, metric: str | None) -> "LinkOptions":
        """Return a copy of these options with values for all unset options about negatives and samplers. The values depend on `metric`:
        more negatives for a metric of ranks, such as "mrr", than for other metrics or None.

        For a ranking metric, each link has 10 negatives drawn per source, and evaluation ranks all destinations. For
        other metrics, each link has 1 uniform negative.
        """
        ranked = is_ranked(metric)
        default = "per-source" if ranked else "uniform"
        to_train = self.negative_sampler or default
        to_eval = self.eval_negative_sampler or (to_train if to_train in SAMPLERS[:2] else default)
        n_eval: int | str = 1 if not ranked else 100 if self.eval_negative_sampler else "all"
        return replace(self, negatives=self.negatives or (RANKING_NEGATIVES if ranked else 1),
                       eval_negatives=self.eval_negatives or n_eval, negative_sampler=to_train,
                       eval_negative_sampler=to_eval)

    def samplers(self, linked: Linked) -> list[str | Array]:
        """Return how to draw negatives in training and in evaluation, as the arguments [`sampler`, `eval_sampler`] of `split_links`: the
        name of a sampler, or pairs of nodes read from a file. `linked` has the graph and its relations to predict. Collective.

        Returns
        -------
        list of str or ndarray
            Name of a sampler, or the pairs of a head and a hard tail in a file, shape (n_pairs, 2), int64. Rank 0 reads
            the file; other ranks have no pairs.

        Raises
        ------
        ConfigError
            A value is neither the name of a sampler nor a file.
        DataError
            A file is invalid.
        """

        def read(argument, sampler):
            if sampler in SAMPLERS:
                return sampler
            if not Path(sampler).exists():
                raise ConfigError(f"{argument} {sampler!r}: no such file, and not one of {', '.join(SAMPLERS)}", argument)
            return read_pairs(sampler, linked.ends[0]) if linked.graph.comm.rank == 0 else np.empty((0, 2), np.int64)

        return together(linked.graph.comm, lambda: [read("negative_sampler", self.negative_sampler),
                                                    read("eval_negative_sampler", self.eval_negative_sampler)])

    def of_graph(self, linked: Linked, splits: tuple[Split, Split], samplers: list[str | Array], seed: int) -> Links:
        """Make training, validation and test links of the edges to predict in `linked`, with negatives. `splits` are the arguments (`val`,
        `test`) of `split_links`, `samplers` its arguments for negatives in training and in evaluation, and `seed` draws both. Collective.

        Parameters
        ----------
        linked : Linked
        splits : (val, test)
            Result of `splits`.
        samplers : (sampler, eval_sampler)
            Result of `samplers`.
        seed : int
            Seed of the drawn splits and negatives.
        """
        return split_links(linked.graph, *splits, relation=linked.relation, disjoint=self.link_disjoint,
                           negatives=self.negatives or 1, filtered=self.filtered, seed=seed, sampler=samplers[0],
                           eval_negatives=1 if self.eval_negatives is None else self.eval_negatives,
                           eval_sampler=samplers[1])

    def of_labels(self, linked: Linked, labels: EdgeLabels) -> Links:
        """Make `Links` (links with targets and splits) of labelled pairs of nodes, `labels`. `linked` has the graph and the relation of the
        pairs. Collective.
        """
        relation: Any = linked.relation  # one relation: `linked` refuses several
        return labelled_links(linked.graph, labels.pairs, labels.labels, relation=relation, split=labels.split,
                              times=labels.times)

    def read_labels(self, linked: Linked, task: str | None, seed: int, time_split: str | None) -> EdgeLabels:
        """Read labelled pairs of nodes from the file --edge-labels, as labels for `task`; `linked` has the graph and the relation of the
        pairs. Their splits come from a column of the file or from their times (`time_split`), or are drawn with `seed`. Return all pairs on
        rank 0, none on other ranks. Collective.

        Parameters
        ----------
        linked : Linked
        task : str or None
            Name of the task, such as "classify".
        seed : int
            Seed of the drawn splits.
        time_split : str or None
            Value of --time-split.

        Returns
        -------
        EdgeLabels
            All pairs on rank 0; no pairs on other ranks.
        """
        comm = linked.graph.comm
        arguments: Any = (self.edge_labels, task, self.link_val, self.link_test, seed, linked.ends[0], time_split)
        labels = together(comm, lambda: edge_labels.read(*arguments) if comm.rank == 0 else None)
        empty = comm.bcast(labels and labels._replace(pairs=labels.pairs[:0], labels=labels.labels[:0], split=labels.split[:0],
                                                      times=None if labels.times is None else labels.times[:0]))
        return labels or empty

    def decoded(self, encoder: Encoder, rng: Random, dtype: str, nodes: Graph | NodeType, n_out: int) -> LinkPredictor:
        """Return a model of pairs of nodes: `encoder` computes a row for each node of the graph `nodes`, and a decoder turns the two rows
        of a pair into a score or, for labels of edges, into `n_out` numbers. `rng` draws the decoder's parameters.

        Parameters
        ----------
        encoder : Encoder
            Model that computes a row of `link_width` numbers for each node.
        rng : Random
            Generator of the decoder's initial parameters.
        dtype : {"float32", "float64"}
        nodes : Graph or NodeType
            Graph that the encoder computes on. A decoder of several relations has a row of parameters for each.
        n_out : int
            Number of outputs for labels of edges; ignored for links.
        """
        relation = None if isinstance(nodes, Graph) or self.edge_labels else self.predicted(nodes.graph)
        kind = self.decoder or ("mlp" if self.edge_labels else "dot")
        n_relations = len(relation) if relation and is_several(relation) and kind != "dot" else None
        rows = n_out if self.edge_labels else n_relations
        return LinkPredictor(encoder, DECODERS[kind](self.link_width, rows, rng=rng, dtype=np.dtype(dtype)))


def _pairs_by_relation(linked, path):
    """Read pairs of nodes from the file `path`; return {relation: its pairs, shape (n_pairs, 2)} for each relation to predict in `linked`.
    Only rank 0 reads; other ranks have no pairs. A share in place of a path gives no pairs.
    """
    links = np.empty((0, 3), np.int64)
    if isinstance(path, str) and not linked.graph.comm.rank:
        links = read_links(path, linked)
    return {relation: links[links[:, 2] == index, :2] for index, relation in enumerate(linked.relations)}
