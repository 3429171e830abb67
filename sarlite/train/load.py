"""Loading of a data set: this rank's rows and graph, with one node type or several."""

import gc
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.comm.launch import default_prefetch, rank_threads
from sarlite.comm.working import working
from sarlite.command import show
from sarlite.data.dataset import SPLITS
from sarlite.data.divide import stored_order
from sarlite.data.divided_data import divided
from sarlite.data.graph_tables import MEMBERS, NODE
from sarlite.data.names import Names
from sarlite.data.part import Part
from sarlite.data.schema import Schema, matched, schema_of, transforms_of
from sarlite.data.spec import is_of_graphs, is_relational
from sarlite.errors import DataError
from sarlite.graph.graph import Graph
from sarlite.graph.graph_set import GraphSet
from sarlite.graph.hetero import HeteroGraph
from sarlite.profile import Memory
from sarlite.progress import Progress
from sarlite.schedule.schedule import Options
from sarlite.structure import balance as balancing
from sarlite.structure.edges import add_self_loops
from sarlite.structure.partition import measures
from sarlite.tasks.task_table import TASKS
from sarlite.train import edge_values
from sarlite.train.edge_values import NONE, Wanted
from sarlite.types import Path


class Source(NamedTuple):
    """Data set to load, the parts of it to read, and its division among ranks.

    Attributes
    ----------
    spec, task, normalize, verify, allow_empty, partition, order, balance, seed
        As for `data.divided`. A task that does not read labels takes data with labels of any form.
    dtype : str, optional
        Of features and values on edges; by default as stored.
    features : bool
        True if features are read. Otherwise zeros of their shape stand in their place, which take no memory.
    self_loops : bool
        Add the self loops that are missing.
    graphs : bool
        Whether a set of graphs is read as a `GraphSet`; else as relational data.
    edge_values : edge_values.Wanted
        What the graph gets of values on edges.
    schema : data.schema.Schema, optional
        The schema of a checkpoint, which the data are matched with by name.
    times : bool
        True if the times of nodes and edges are read.
    progress : str
        As for `progress.Progress`.
    """

    spec: str
    task: str | None = None
    dtype: str | None = None
    features: bool = True
    normalize: bool = False
    self_loops: bool = False
    graphs: bool = True
    edge_values: Wanted = NONE
    schema: Schema | None = None
    times: bool = False
    allow_empty: Collection[str] = ()
    partition: str = "stored"
    order: str = "stored"
    balance: str = "auto"
    seed: int = 0
    verify: bool = True
    progress: str = "none"


class Shard(NamedTuple):
    """One rank's share of the data.

    Attributes
    ----------
    graph : Graph, NodeType, or GraphSet
        Of relational data the node type that has labels.
    rows : data.part.Rows
        Features of relational data are by node type.
    n_classes : int
    summary : dict
        What a run tells of the data and their division.
    memory : Memory
        It counts from before the rows were read.
    seconds : dict
        On rank 0, how long "load" took, and "partition" in it.
    task : str
    names : dict of str to data.names.Names
        By node type, of the types whose nodes are known by names.
    target : str
        The node type that has labels.
    class_names : list of str, optional
        Of the classes, where labels were words.
    schema : data.schema.Schema
        What the run takes of the data, by name.
    left_out, by_position : list of str
        What `data.schema.matched` says of data that were matched with a checkpoint.
    times : dict of str to (n,) int64
        Times of this rank's rows by node type, of the types that have times, if they were read.
    time_kind : {"dates", "integers"}, optional
        Kind of all times in the data.
    seed_times : (n_dst,) int64, optional
        Time at which each row of the task is a seed, if the row is no node.
    """

    graph: Any
    rows: Any
    n_classes: int
    summary: dict[str, Any]
    memory: Memory
    seconds: dict[str, float]
    task: str = "classify"
    names: Mapping[str, Any] = MappingProxyType({})
    target: str = NODE
    class_names: list[str] | None = None
    schema: Schema = MappingProxyType({})
    left_out: Sequence[str] = ()
    by_position: Sequence[str] = ()
    times: Mapping[str, Any] = MappingProxyType({})
    time_kind: str | None = None
    seed_times: Any = None


def load(comm: Communicator, source: Source, options: Options, scratch: Path | None = None,
         tick: Callable[[], Any] = lambda: None) -> Shard:
    """Read this rank's rows and build its graph. Collective.

    Only rank 0 holds a whole edge list, and only while it reads, generates or divides what is not stored as the ranks
    need it.

    Parameters
    ----------
    comm : Communicator
    source : Source
    options : sar.schedule.Options
        Of the graph.
    scratch : path, optional
        As for `data.divided`.
    tick : callable
        Called as long as any rank works at it, and then by the graph.

    Raises
    ------
    SarliteError
        On every rank together, naming the file, the field and the value.
    """
    with working(tick):
        options.check(comm)
        begin, seconds = time.perf_counter(), {"partition": 0.0}
        found, make = _read(comm, source, scratch, seconds, kind(comm, source.spec))
        uneven = balancing.warning(*(found.summary[name] for name in ("partition", "method", "balance")))
        for text in (uneven, _lockstep(comm, options, found.summary)):
            if text and comm.rank == 0:
                show(f"warning: {text}", sys.stderr)
        part = found._replace(graph=make(options), seconds=seconds)
        seconds["load"] = time.perf_counter() - begin
        part.graph.profile.on_progress = tick
        return part


def prefetched(comm: Communicator, graph: Options, prefetch: int | None, threads: int) -> Options:
    """Return how a graph is computed with; where the options of a run do not say how many peers' rows are fetched
    ahead, as many as hide something. Collective.
    """
    if prefetch is not None:
        return graph._replace(prefetch=prefetch)
    return graph._replace(prefetch=default_prefetch(comm, rank_threads(comm, threads)))


def kind(comm: Communicator, spec: str) -> str:
    """Return the kind of a data set: "plain" for one node type, "relational", or "graphs" for a set. Collective."""
    def found():
        return "graphs" if is_of_graphs(spec) else "relational" if is_relational(spec) else "plain"

    return str(comm.bcast(together(comm, lambda: found() if comm.rank == 0 else None)))


def _read(comm, source, scratch, seconds, what):
    """Return the `Shard` without a graph, and a function that makes the graph from options. Collective.

    Of relational data features are by node type, and what is to be exchanged is found at its first use.
    """
    graphs, stored = what == "graphs" and source.graphs, what != "plain"
    typed = stored and not graphs
    options: dict[str, Any] = {"relational": True} if stored else {"normalize": source.normalize}
    if source.schema is not None:
        options["transforms"] = transforms_of(source.schema)
    with divided(comm, source.spec, **options, **_division(source, scratch, seconds)) as dataset:
        left_out, by_position = [], []
        if source.schema is not None:
            dataset, left_out, by_position = together(comm, partial(matched, dataset, source.schema, source.spec))
        names = edge_values.used(comm, dataset, source.edge_values, source.spec)
        memory = memory_from_here(comm)
        part = Part(dataset, comm.rank, comm.size)
        rows = (part.typed_rows if stored else part.rows)(source.dtype, source.features)
        edges = {relation: own.csr() for relation, own in part.relations.items()}
        ids = {name: own.ids() for name, own in part.nodes.items()}
        found = _part(comm, source, dataset, rows, memory, part, edges)
        found = found._replace(names=together(comm, partial(Names.of_dataset, dataset)), target=dataset.target,
                               class_names=dataset.class_names,
                               schema=schema_of(dataset, "edge_features" in names),
                               left_out=left_out, by_position=by_position, time_kind=dataset.time_kind)
        values = {relation: together(comm, partial(edge_values.read, own, names, source.edge_values, source.dtype,
                                                   source.spec)) for relation, own in part.relations.items()}
        if source.times:
            found = found._replace(times={name: own.read("time") for name, own in part.nodes.items()
                                          if own.table.time is not None})
            values = {relation: {**own, "edge_time": part.relations[relation].values("edge_time")}
                      for relation, own in values.items()}
        node_type = NODE if graphs else dataset.target
        first_row, target = part.nodes[node_type].first_row, dataset.target
    found.summary["edge_values"] = [edge_values.ARRAYS[name].replace("_", " ") for name in names]
    del dataset, part  # which one rank has in memory
    if typed:
        return found, lambda options: _typed(comm, edges, ids, values, options).of(target)
    members = edges.pop(MEMBERS) if graphs else None
    (relation,), added = edges, None
    (indptr, indices), values = edges[relation], values[relation]
    if source.self_loops:
        indptr, indices, added = add_self_loops(indptr, indices, first_row)
        values = edge_values.with_loops(values, indptr, indices, added, first_row)

    def make(options):
        graph = Graph.from_part(comm, indptr, indices, node_ids=ids[node_type], added_loops=added, **options._asdict())
        if any(array is not None for array in values.values()):
            graph = graph.with_edge_values(*values.values())
        return graph if members is None else GraphSet(graph, *members, ids[target])

    if graphs and NODE not in rows.features:
        raise DataError(f"data {source.spec}: features: none of the type {NODE}", "data")
    return found._replace(rows=rows._replace(features=rows.features[NODE])) if graphs else found, make


def _typed(comm, edges, ids, values, options):
    """Return the graph of relational data, with its edge values. Collective."""
    graph = HeteroGraph.from_part(comm, edges, ids, **options._asdict())
    names = next(iter(values.values()), {})
    arrays = [{relation: own[name] for relation, own in values.items() if own[name] is not None} for name in names]
    return graph.with_edge_values(*arrays) if any(arrays) else graph


def _division(source, scratch, seconds):
    """Return the keyword arguments of `data.divided` for both kinds of data."""
    names = ("partition", "order", "balance", "seed", "task", "verify", "allow_empty")
    options = {name: getattr(source, name) for name in names}
    if not _reads_labels(source):
        options["task"] = None  # the labels may have any form
        options["allow_empty"] = options["allow_empty"] if TASKS[source.task].needs_splits else SPLITS
    return {**options, "progress": Progress(source.progress), "scratch": scratch, "seconds": seconds}


def _reads_labels(source):
    return source.task is None or TASKS[source.task].reads_labels


def _part(comm, source, dataset, rows, memory, part, edges):
    """Return this rank's `Shard`, without a graph. Collective."""
    n_edges = sum(indices.size for _, indices in edges.values())
    n_cut = sum(part.n_cut(relation, indices) for relation, (_, indices) in edges.items())
    n_rows = sum(own.n_rows for own in part.nodes.values())
    summary = {
        "data": source.spec, "nodes": dataset.n_nodes, "edges": dataset.n_edges,
        "features": told_widths(rows.features) or "no" if isinstance(rows.features, dict) else dataset.n_features,
        "classes": dataset.n_classes, "task": dataset.task, "ordered": stored_order(dataset) != "none",
        "method": (dataset.division or {"partition": "none"})["partition"],
        "balance": (dataset.division or {}).get("balance"),
        "partition": _measures(comm, rows.train, n_rows, n_edges, n_cut),
    }  # fmt: skip
    task = dataset.task if _reads_labels(source) else source.task
    return Shard(None, rows, dataset.n_classes, summary, memory, {}, task)


def _measures(comm, train, n_rows, n_edges, n_cut):
    """Return the measures of the division, computed from every rank's own edges. Collective."""
    ranks = np.array(comm.allgather([n_rows, n_edges, int(np.count_nonzero(train)), int(n_cut)]))
    names = ("nodes", "edges", "train_nodes")
    return measures(cut_edges=ranks[:, 3].sum(), **{name: ranks[:, at] for at, name in enumerate(names)})


def _lockstep(comm, options, summary):
    """Return a warning if the division gives uneven blocks in a mode with rounds, else None.

    Each round of such a mode lasts as long as its largest block.
    """
    method = summary["method"]
    if options.mode_value.in_step and comm.size > 1 and method in ("metis", "fennel", "contiguous"):
        return (f"--mode {options.mode} takes as long as the largest block of each round, and those of {method} parts "
                "are uneven (python -m sarlite.data report says how much): --partition random evens them out, --mode "
                "sar does not mind")
    return None


FIRST_BYTES = (8, 1 << 10, 1 << 14)
"""Bytes of the first messages to a peer, which are of the sizes that MPI copies."""


def memory_from_here(comm: Communicator) -> Memory:
    """Return a `Memory` that counts from now on; first send each peer a few small messages. Collective.

    What MPI takes for itself it takes with the first messages to each peer (MPICH on one host: 1 MiB on 2 ranks, 5 on
    8). So it is of the process, as MPI's code is, and not of a run.
    """
    for n_bytes in FIRST_BYTES:
        for _ in range(2):
            comm.alltoall([np.zeros(n_bytes, np.uint8)] * comm.size)
    gc.collect()
    return Memory()


def widths(rows: Any) -> Any:
    """Return the model's argument `n_in`: the number of features, for relational data by node type."""
    x = rows.features
    return {name: own.shape[1] for name, own in x.items()} if isinstance(x, dict) else x.shape[1]


def told_widths(features: dict[str, Any]) -> str:
    """Return the numbers of features by node type as text."""
    return ", ".join(f"{name} {x.shape[1]}" for name, x in features.items())
