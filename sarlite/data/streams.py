"""What readers give in pieces, made into a data set: edges through sorts, rows of nodes one after the other.

A `Workspace` says where: in memory, or in files and within so many bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import Dataset
from sarlite.data.divide import counts_up
from sarlite.data.external_sort import csr, packed
from sarlite.data.graph_tables import NODE, RELATION, SPLITS, EdgeTable, NodeTable
from sarlite.data.mapped import copied
from sarlite.data.raw import CARRY_VALUES, as_features, check_nodes, count_outputs, in_form, strata
from sarlite.errors import ConfigError, DataError
from sarlite.structure.edges import index_dtype
from sarlite.structure.generate import random_split
from sarlite.structure.validation import MOST_NODES

_DRAWN_BYTES = 64  # a node, while a split is drawn


@dataclass
class Streams:
    """What a reader gives of a graph of one kind: iterators in place of arrays."""

    edges: Any  # yields (src, dst, values by column)
    n_nodes: Callable[[int, int], int]  # of the largest id and the number of edges
    rows: Callable[[int], dict[str, Any]]  # of the number of nodes: fields of a `NodeTable`
    name: str
    where: Path
    task: str
    columns: dict[str, Any] = field(default_factory=dict)  # of values on edges: dtype and shape by column
    edge_feature_names: list[str] | None = None


def one_kind(streams_of, path, options, workspace, tell, about, *, undirected=None, self_loops=False,
             deduplicate=False, normalize=False, drop_edge_values=False):
    """Return the Dataset, of one kind, of which `streams_of` gives the `Streams`.

    Parameters
    ----------
    streams_of : callable
        streams_of(path, workspace, finish, **options); finish(rows) is called of each piece of the features.
    path, options
        Of the reader.
    workspace : Workspace
    tell : callable
        tell(text) is called as each step begins.
    about : dict
        source and provenance of the data set.
    **changes
        As of `RawGraph.assemble`, and drop_edge_values.
    """
    streams = streams_of(path, workspace, partial(as_features, normalize=normalize), **options)
    columns = {} if drop_edge_values else streams.columns
    if columns and (undirected or self_loops or deduplicate):
        raise ConfigError(f"{about['source']}: {next(iter(columns))}: {CARRY_VALUES}")
    sorter = workspace.sorter("runs", once=bool(undirected or deduplicate), **columns)
    tell("sort the edges")
    largest, n_edges, loops = -1, 0, np.empty(0, np.int64)
    for src, dst, values in streams.edges:
        if src.size:
            largest = max(largest, int(src.max()), int(dst.max()))
        if largest >= MOST_NODES:
            raise DataError(f"{streams.where}: edges: node id {largest} is outside 0 <= id < {MOST_NODES}, "
                            "the most nodes")
        n_edges += src.size
        sorter.add(packed(dst, src), **{name: values[name] for name in columns})
        if undirected:
            sorter.add(packed(src, dst))
        if self_loops:
            loops = np.union1d(loops, src[src == dst])
    n_nodes = streams.n_nodes(largest, n_edges)
    check_nodes(n_nodes, 1 if workspace.folder is None else None, streams.where)
    if largest >= n_nodes:
        raise DataError(f"{streams.where}: edges: node id {largest} is outside 0 <= id < {n_nodes}")
    if self_loops:
        _add_missing_loops(sorter, loops, n_nodes, workspace.at_once())
    tell("merge the edges")
    edges = EdgeTable(RELATION, n_nodes, **merged(sorter, n_nodes, n_nodes, workspace), source=about["source"],
                      feature_names=streams.edge_feature_names if columns else None)
    tell("read the nodes")
    nodes = NodeTable(NODE, n_nodes, **{"task": streams.task, **streams.rows(n_nodes)}, source=about["source"])
    return Dataset.of_tables([nodes], [edges], name=streams.name, **about)


def _add_missing_loops(sorter, loops, n_nodes, at_once):
    for first in range(0, n_nodes, at_once):
        missing = np.ones(min(at_once, n_nodes - first), bool)
        missing[loops[(loops >= first) & (loops < first + at_once)] - first] = False
        nodes = np.flatnonzero(missing) + first
        sorter.add(packed(nodes, nodes))


def both_ways(pieces, relation, reverse, n_nodes, n_edges, workspace, source, columns=(), feature_names=None):
    """Yield the `EdgeTable` of a relation and, where it has a reverse, that one's: sorted side by side, each in half
    the memory.

    Parameters
    ----------
    pieces : iterable of (src, dst, values by column)
    relation, reverse : (str, str, str), or None for no reverse
    n_nodes : dict of str to int
    n_edges : int
        At most.
    workspace : Workspace
    source : str
    columns : dict
        Of values on edges: dtype and shape by column.
    feature_names : list of str, optional
        The name of each column of the edge features.
    """
    directions = {relation: False} if reverse is None else {relation: False, reverse: True}
    ids, columns = index_dtype(n_edges), dict(columns)
    places = [workspace.within(str(reversed_), share=len(directions)) for reversed_ in directions.values()]
    sorters = [place.sorter("runs", edge_ids=(ids, ()), **columns) for place in places]
    first = 0
    for src, dst, values in pieces:
        for reversed_, sorter in zip(directions.values(), sorters):
            keys = packed(src, dst) if reversed_ else packed(dst, src)
            of_edges = {name: values[name] for name in columns}
            sorter.add(keys, edge_ids=np.arange(first, first + src.size, dtype=ids), **of_edges)
        first += src.size
    while sorters:
        (name, _), place = directions.popitem(), places.pop()
        n_sources, n_rows = n_nodes[name[0]], n_nodes[name[2]]
        arrays = merged(sorters.pop(), n_rows, n_sources, place)
        if counts_up(arrays["edge_ids"]):
            del arrays["edge_ids"]
        yield EdgeTable(name, n_sources, **arrays, source=source, feature_names=feature_names)


def merged(sorter, n_rows, n_sources, workspace):
    """Return what a sorter of `packed` edges holds as the arrays of an `EdgeTable`."""
    columns = {name: dtype for name, (dtype, _) in sorter.columns.items()}
    dtypes = {"indptr": np.int64, "indices": index_dtype(n_sources), **columns}
    outs = {name: workspace.spool(name, dtype) for name, dtype in dtypes.items()}
    for ends, _, src, columns in csr(sorter, n_rows, n_sources):
        for name, rows in {"indptr": ends, "indices": src, **columns}.items():
            outs[name].write(rows)
    return {name: out.array() for name, out in outs.items()}


def spooled_labels(pieces, where, workspace, classes, task, what="node", name="labels"):
    """Return labels as `read_labels` does."""
    spool = workspace.spool(name)
    for piece in pieces:
        spool.write(in_form(piece, where, task, spool.n_rows, what))
    labels = spool.array()
    return labels, count_outputs(labels, where, classes, task)


def drawn(labels, task, train, val, seed, workspace, where):
    """Return the masks of a split that is drawn; raises a ConfigError where that takes too much memory."""
    needed = _DRAWN_BYTES * len(labels)
    if workspace.n_bytes is not None and needed > workspace.n_bytes:
        raise ConfigError(f"{where}: a split drawn of {len(labels):,} nodes takes {needed:,} bytes of --memory, of "
                          f"which {workspace.n_bytes:,} are left: give more, or the split in a file")
    return random_split(strata(copied(labels, 0, len(labels)), task), train, val, seed)


def constant(name, value, n, workspace):
    """Return an array of n rows that are all `value`."""
    steps = [min(workspace.at_once(), n - at) for at in range(0, n, workspace.at_once())] or [0]
    return workspace.array(name, (np.full((rows, *np.shape(value)), value) for rows in steps))


def unlabelled(n, workspace):
    """Return the fields of n nodes of which none has a label."""
    none = {name: constant(name, False, n, workspace) for name in SPLITS}
    return {"labels": constant("labels", -1, n, workspace), "n_classes": 0, **none}


def split_budget(n, workspace):
    """Refuse a split of n nodes that does not fit."""
    budget.check(4 * n, workspace.n_bytes, f"a split of {n:,} nodes")  # three masks, and where two of them overlap
