"""From the options to this rank's data and graph."""

import gc
import sys
import time
from typing import NamedTuple

import numpy as np

from sarlite.comm.working import working
from sarlite.data.divide import stored_order
from sarlite.data.part import Part as DataPart
from sarlite.data.ranks import divided
from sarlite.graph import balance as balancing
from sarlite.graph.edges import add_self_loops
from sarlite.graph.partition import measures
from sarlite.profile import Memory
from sarlite.progress import Progress
from sarlite.sar.graph.graph import Graph
from sarlite.sar.schedule.schedule import Options
from sarlite.train import edge_values as edges

_PIECE = 1 << 20
FIRST_BYTES = (8, 1 << 10, 1 << 14)  # bytes of the first messages to a peer: of those that MPI copies


class Part(NamedTuple):
    """One rank's share of the data."""

    graph: Graph
    rows: object
    n_classes: int
    summary: dict
    memory: Memory
    seconds: dict  # of rank 0: "load", and "partition" in it
    task: str = "classify"


def load_part(config, comm, run_dir, self_loops, tick=lambda: None, allow_empty=(), edge_values=edges.NONE, choose=None):
    """Read this rank's rows and build its graph; `tick` as long as any rank works at it; splits of `allow_empty` may be. Collective.

    `edge_values` says which values of its edges the graph gets, as `edge_values.wanted` does. `choose` is given the part in mode "sar" and
    returns the options that its graph shall have, by name, where they are others. Only rank 0 holds a whole edge list, and only while it
    reads, generates or divides what is not stored as the ranks need it.

    Raises
    ------
    SarliteError
        On every rank together, naming the file, the field and the value.
    """
    with working(tick):
        return _load_part(config, comm, run_dir, self_loops, allow_empty, edge_values, choose)


def _load_part(config, comm, run_dir, self_loops, allow_empty, edge_values, choose):
    begin, seconds = time.perf_counter(), {"partition": 0.0}
    Options("sar" if config.mode == "auto" else config.mode, config.prefetch, config.backward, config.columns).check(comm)
    options = {"partition": config.partition, "order": config.order, "balance": config.balance, "seed": config.seed, "task": config.task,
               "normalize": config.normalize_features, "progress": Progress(config.progress), "allow_empty": allow_empty}
    with divided(comm, config.data, verify=config.verify, scratch=run_dir, seconds=seconds, **options) as dataset:
        names = edges.used(comm, dataset, edge_values, config.data)
        memory = memory_from_here(comm)
        rows, (indptr, indices), ids, first_row, summary = _read(comm, config, dataset)
        values = edges.read(comm, dataset, names, edge_values, config)
        summary["edge_values"] = [edges.ARRAYS[name].replace("_", " ") for name in names]
        division = dataset.division
    for text in (balancing.warning(summary["partition"]), _lockstep(config, comm, division)) if comm.rank == 0 else ():
        if text:
            print(f"warning: {text}", file=sys.stderr, flush=True)
    del dataset  # which one rank has in memory
    added = None
    if self_loops:
        indptr, indices, added = add_self_loops(indptr, indices, first_row)
        values = edges.with_loops(values, indptr, indices, added, first_row)

    def part_in(**options):
        graph = Graph.from_part(comm, indptr, indices, node_ids=ids, added_loops=added, prefetch=config.prefetch, **options)
        graph = graph.with_edge_values(*values.values()) if names else graph
        seconds["load"] = time.perf_counter() - begin
        return Part(graph, rows, summary["classes"], summary, memory, seconds, summary["task"])

    given = {name: getattr(config, name) for name in ("mode", "backward", "columns")}
    if choose is None:
        return part_in(**given)
    first = {**given, "mode": "sar"}
    part = part_in(**first)
    chosen = {**first, **choose(part)}
    if chosen == first:
        return part
    del part  # its edges are laid out anew
    return part_in(**chosen)


def memory_from_here(comm):
    """Return a `Memory` that counts from now on; first send each peer a few small messages. Collective.

    What MPI takes for itself it takes with the first messages to each peer (MPICH on one host: 1 MiB on 2 ranks, 5 on 8). So it is of the
    process, as MPI's code is, and not of a run.
    """
    for n_bytes in FIRST_BYTES:
        for _ in range(2):
            comm.alltoall([np.zeros(n_bytes, np.uint8)] * comm.size)
    gc.collect()
    return Memory()


def _lockstep(config, comm, division):
    """Warn of parts whose blocks are uneven, where every round of mode broadcast lasts as long as its largest block."""
    method = division["partition"] if division else None
    if config.mode == "broadcast" and comm.size > 1 and method in ("metis", "fennel", "contiguous"):
        return (f"--mode broadcast takes as long as the largest block of each round, and those of {method} parts are uneven (python -m "
                f"sarlite.data report says how much): --partition random evens them out, --mode sar does not mind")
    return None


def _read(comm, config, dataset):
    part = DataPart(dataset, comm.rank, comm.size)
    rows, edges = part.rows(config.dtype, features=not getattr(config, "dry_run", False)), part.edges()
    summary = {"data": config.data, "nodes": dataset.n_nodes, "edges": dataset.n_edges, "features": dataset.n_features,
               "classes": dataset.n_classes, "task": dataset.task, "ordered": stored_order(dataset) != "none",
               "method": (dataset.division or {"partition": "none"})["partition"],
               "partition": _measures(comm, part, edges[1], rows.train)}
    return rows, edges, part.node_ids(), part.first_row, summary


def _measures(comm, part, indices, train):
    """What the division costs, from every rank's own edges. Collective."""
    low, high = part.first_row, part.first_row + part.n_rows
    pieces = (indices[at : at + _PIECE] for at in range(0, indices.size, _PIECE))
    cut = sum(np.count_nonzero((piece < low) | (piece >= high)) for piece in pieces)
    ranks = np.array(comm.allgather([part.n_rows, indices.size, np.count_nonzero(train), int(cut)]))
    names = ("nodes", "edges", "train_nodes")
    return measures(cut_edges=ranks[:, 3].sum(), **{name: ranks[:, at] for at, name in enumerate(names)})
