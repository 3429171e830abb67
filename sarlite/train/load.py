"""Loading of a data set: each rank reads its rows and builds its part of the graph."""

import gc
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.comm.working import working
from sarlite.command import show
from sarlite.data.dataset import SPLITS
from sarlite.data.divide import stored_order
from sarlite.data.divided_data import divided
from sarlite.data.graph_tables import MEMBERS, NODE
from sarlite.data.names import Names
from sarlite.data.part import OwnedRows, Part
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
from sarlite.train.edge_values import NONE, EdgeValueUse
from sarlite.types import Array, JsonDict, Path


class Source(NamedTuple):
    """Options for loading a data set: its name, the data to read from it, and its division among ranks.

    Attributes
    ----------
    spec, task, normalize, verify, allow_empty, partition, order, balance, seed
        Arguments of `data.divided`. If a task does not read labels, the data may have labels of any form.
    dtype : str, optional
        Dtype of the features and edge values, by default as stored.
    features : bool
        True if features are read. Otherwise zeros of the same shape, which take no memory, replace the features.
    self_loops : bool
        True if missing self loops are added.
    graphs : bool
        True if a set of graphs is read as a `GraphSet`, False if as relational data.
    edge_values : edge_values.EdgeValueUse
        Use of edge weights and edge features.
    schema : data.schema.Schema, optional
        Schema of a checkpoint. The tables of the data are matched with the schema by name.
    times : bool
        True if the times of nodes and edges are read.
    progress : str
        Argument of `progress.Progress`.
    """

    spec: str
    task: str | None = None
    dtype: str | None = None
    features: bool = True
    normalize: bool = False
    self_loops: bool = False
    graphs: bool = True
    edge_values: EdgeValueUse = NONE
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
    """Data of one rank: its part of the graph, its rows, and the facts about the data that a run prints and stores.

    Attributes
    ----------
    graph : Graph, NodeType, or GraphSet
        For relational data the node type that has labels.
    rows : data.part.OwnedRows
        Features, labels and splits. Features of relational data are a dict by node type.
    n_classes : int
        Number of classes, labels per row, or values per row.
    summary : dict
        Facts about the data and their division, for a run's output.
    memory : Memory
        Memory counter that started before the rows were read.
    seconds : dict
        On rank 0, the seconds of "load", and of "partition", a part of them.
    task : str
        Name of the task.
    names : dict of str to data.names.Names
        Names of the nodes by node type, for the types whose nodes have names.
    target : str
        The node type that has labels.
    class_names : list of str, optional
        Names of the classes, if the labels were words.
    schema : data.schema.Schema
        Names of the tables and columns that the run uses.
    left_out, by_position : list of str
        Lines for the user about data that were matched with the schema of a checkpoint, see `data.schema.Matched`.
    times : dict of str to (n,) int64
        Times of this rank's rows by node type, for the types that have times, if times were read.
    time_kind : {"dates", "integers"}, optional
        Kind of all times in the data.
    seed_times : (n_dst,) int64, optional
        Time at which each row of the task is a seed, if the rows are not nodes.
    """

    graph: Any  # a Graph, NodeType or GraphSet
    rows: OwnedRows
    n_classes: int
    summary: JsonDict
    memory: Memory
    seconds: dict[str, float]
    task: str = "classify"
    names: Mapping[str, Names] = MappingProxyType({})
    target: str = NODE
    class_names: list[str] | None = None
    schema: Schema = MappingProxyType({})
    left_out: Sequence[str] = ()
    by_position: Sequence[str] = ()
    times: Mapping[str, Array] = MappingProxyType({})
    time_kind: str | None = None
    seed_times: Array | None = None


def load(comm: Communicator, source: Source, options: Options, scratch: Path | None = None,
         tick: Callable[[], object] = lambda: None) -> Shard:
    """Read this rank's part of the data set `source`, build its graph with the options `options`, and return both as a `Shard`. `scratch`
    is the folder for temporary files (None: the default), and `tick` is called repeatedly to report progress. Collective.

    Stored data of a suitable division are read by each rank alone. Otherwise rank 0 reads, generates or divides the data,
    and holds the whole edge list meanwhile.

    Parameters
    ----------
    comm : Communicator
    source : Source
    options : schedule.schedule.Options
        Options of the graph: mode, prefetch and others.
    scratch : path, optional
        Folder for temporary files, see `data.divided`.
    tick : callable
        Called again and again while any rank loads, and later by the graph as it makes progress.

    Returns
    -------
    Shard

    Raises
    ------
    SarliteError
        On every rank together, naming the file, the field and the value.
    """
    with working(tick):
        options.check(comm)
        begin, seconds = time.perf_counter(), {"partition": 0.0}
        shard, make = _read(comm, source, scratch, seconds, kind(comm, source.spec))
        uneven = balancing.warning(*(shard.summary[name] for name in ("partition", "method", "balance")))
        for text in (uneven, _lockstep_warning(comm, options, shard.summary)):
            if text and comm.rank == 0:
                show(f"warning: {text}", sys.stderr)
        part = shard._replace(graph=make(options), seconds=seconds)
        seconds["load"] = time.perf_counter() - begin
        part.graph.profile.on_progress = tick
        return part


def kind(comm: Communicator, spec: str) -> str:
    """Return the kind of the data set with the name `spec`: "plain" for one node type, "relational" for several, or "graphs" for a set of
    graphs. Collective.
    """
    def read_kind():
        return "graphs" if is_of_graphs(spec) else "relational" if is_relational(spec) else "plain"

    return str(comm.bcast(together(comm, lambda: read_kind() if comm.rank == 0 else None)))


def _read(comm, source, scratch, seconds, data_kind):
    """Read this rank's part of `source`; return (its `Shard` without a graph, function that makes the graph from options). `data_kind` is
    "plain", "relational" or "graphs"; `scratch` is a folder for temporary files, and the dict `seconds` gets the time of dividing the data.
    Collective.
    """
    graphs, stored = data_kind == "graphs" and source.graphs, data_kind != "plain"
    typed = stored and not graphs
    options: dict[str, Any] = {"relational": True} if stored else {"normalize": source.normalize}
    if source.schema is not None:
        options["transforms"] = transforms_of(source.schema)
    with divided(comm, source.spec, **options, **_division_arguments(source, scratch, seconds)) as dataset:
        left_out, by_position = [], []
        if source.schema is not None:
            dataset, left_out, by_position = together(comm, partial(matched, dataset, source.schema, source.spec))
        names = edge_values.used(comm, dataset, source.edge_values, source.spec)
        memory = memory_from_here(comm)
        part = Part(dataset, comm.rank, comm.size)
        rows = (part.typed_rows if stored else part.rows)(source.dtype, source.features)
        edges = {relation: relation_part.csr() for relation, relation_part in part.relations.items()}
        ids = {name: node_part.ids() for name, node_part in part.nodes.items()}
        shard = _shard(comm, source, dataset, rows, memory, part, edges)
        shard = shard._replace(names=together(comm, partial(Names.of_dataset, dataset)), target=dataset.target,
                               class_names=dataset.class_names,
                               schema=schema_of(dataset, "edge_features" in names),
                               left_out=left_out, by_position=by_position, time_kind=dataset.time_kind)
        values = {relation: together(comm, partial(edge_values.read, relation_part, names, source.edge_values, source.dtype,
                                                   source.spec)) for relation, relation_part in part.relations.items()}
        if source.times:
            shard = shard._replace(times={name: node_part.read("time") for name, node_part in part.nodes.items()
                                          if node_part.table.time is not None})
            values = {relation: {**arrays, "edge_time": part.relations[relation].values("edge_time")}
                      for relation, arrays in values.items()}
        node_type = NODE if graphs else dataset.target
        first_row, target = part.nodes[node_type].first_row, dataset.target
    shard.summary["edge_values"] = [edge_values.ARRAYS[name].replace("_", " ") for name in names]
    del dataset, part  # frees the whole data set, which one rank may hold
    if typed:
        return shard, lambda options: _hetero_graph(comm, edges, ids, values, options).of(target)
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
        raise DataError(f"data {source.spec}: features: the nodes have none", "data")
    return shard._replace(rows=rows._replace(features=rows.features[NODE])) if graphs else shard, make


def _hetero_graph(comm, edges, ids, values, options):
    """Make the `HeteroGraph` of this rank's data with the schedule `options`: from the CSR arrays of each relation (`edges`), the edge
    values of each relation (`values`) and the node ids of each type (`ids`). Collective.
    """
    graph = HeteroGraph.from_part(comm, edges, ids, **options._asdict())
    names = next(iter(values.values()), {})
    arrays = [{relation: arrays_of[name] for relation, arrays_of in values.items() if arrays_of[name] is not None}
              for name in names]
    return graph.with_edge_values(*arrays) if any(arrays) else graph


def _division_arguments(source, scratch, seconds):
    """Return the keyword arguments of `data.divided_data.divided` for the data that `source` describes. `scratch` is the folder for
    temporary files; the dict `seconds` will get the time of dividing.
    """
    names = ("partition", "order", "balance", "seed", "task", "verify", "allow_empty")
    options = {name: getattr(source, name) for name in names}
    if not _reads_labels(source):
        options["task"] = None  # the labels may have any form
        options["allow_empty"] = options["allow_empty"] if TASKS[source.task].needs_splits else SPLITS
    return {**options, "progress": Progress(source.progress), "scratch": scratch, "seconds": seconds}


def _reads_labels(source):
    return source.task is None or TASKS[source.task].reads_labels


def _shard(comm, source, dataset, rows, memory, part, edges):
    """Make this rank's `Shard`, without its graph, from `rows` and the memory counter `memory`. Its summary of the data and their division
    is computed from `dataset`, `part` and the CSR `edges`. Collective.
    """
    n_edges = sum(indices.size for _, indices in edges.values())
    n_cut = sum(part.n_cut(relation, indices) for relation, (_, indices) in edges.items())
    n_rows = sum(nodes.n_rows for nodes in part.nodes.values())
    summary = {
        "data": source.spec, "nodes": dataset.n_nodes, "edges": dataset.n_edges,
        "features": widths_text(rows.features) or "no" if isinstance(rows.features, dict) else dataset.n_features,
        "classes": dataset.n_classes, "task": dataset.task, "ordered": stored_order(dataset) != "none",
        "method": (dataset.division or {"partition": "none"})["partition"],
        "balance": (dataset.division or {}).get("balance"),
        "partition": _measures(comm, rows.train, n_rows, n_edges, n_cut),
    }  # fmt: skip
    task = dataset.task if _reads_labels(source) else source.task
    return Shard(None, rows, dataset.n_classes, summary, memory, {}, task)


def _measures(comm: Communicator, train: Array, n_rows: int, n_edges: int, n_cut: int) -> dict[str, Any]:
    """Return a dict that describes the division of the data among ranks: numbers of nodes, edges and training nodes by rank, cut edges, and
    imbalance. Each rank passes its `n_rows`, `n_edges`, `n_cut` cut edges and the mask `train` of its training rows. Collective.
    """
    ranks = np.array(comm.allgather([n_rows, n_edges, int(np.count_nonzero(train)), int(n_cut)]))
    names = ("nodes", "edges", "train_nodes")
    return measures(cut_edges=ranks[:, 3].sum(), **{name: ranks[:, at] for at, name in enumerate(names)})


def _lockstep_warning(comm: Communicator, options: Options, summary: JsonDict) -> str | None:
    """Return a warning if the mode in `options` makes ranks wait for the largest block of edges in each round, and the blocks are uneven by
    the division in `summary`; else None.
    """
    method = summary["method"]
    if options.mode_value.in_step and comm.size > 1 and method in ("metis", "fennel", "contiguous"):
        return (f"--mode {options.mode} takes as long as the largest block of each round, and the blocks of {method} parts "
                "are uneven (see python -m sarlite.data report). --partition random makes even blocks; --mode sar does "
                "not need them")
    return None


FIRST_BYTES = (8, 1 << 10, 1 << 14)
"""Sizes in bytes of the first messages to a peer: sizes for which MPI allocates its buffers."""


def memory_from_here(comm: Communicator) -> Memory:
    """Return a counter of the memory that this rank uses from now on, without MPI's own buffers. Collective.

    MPI allocates its buffers with the first messages to each peer (MPICH on one host: 1 MiB on 2 ranks, 5 MiB on 8). The
    messages make sure that these buffers are not counted.
    """
    for n_bytes in FIRST_BYTES:
        for _ in range(2):
            comm.alltoall([np.zeros(n_bytes, np.uint8)] * comm.size)
    gc.collect()
    return Memory()


def widths(rows: OwnedRows) -> Any:
    """Return the model's argument `n_in`: the number of feature columns in `rows` or, for relational data, a dict of the numbers by node
    type.
    """
    x = rows.features
    return {name: rows_of_type.shape[1] for name, rows_of_type in x.items()} if isinstance(x, dict) else x.shape[1]


def widths_text(features: Mapping[str, Array]) -> str:
    """Return a text with the number of features of each node type, such as "paper 8, author 4".

    Examples
    --------
    >>> widths_text({"paper": np.zeros((3, 8)), "author": np.zeros((2, 4))})
    'paper 8, author 4'
    """
    return ", ".join(f"{name} {x.shape[1]}" for name, x in features.items())
