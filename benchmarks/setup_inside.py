"""Functions that `setup_speed.py` runs in processes of their own: setup_inside.py FUNCTION JSON-ARGUMENTS.

They use the sarlite of PYTHONPATH.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

HALO = ("src_ids", "send_rows")  # names of the arrays of a peer's block and step


def hold(options):
    """Load the data set of `options` on every rank; rank 0 prints a JSON line with each rank's bytes held afterwards and at the peak."""
    from sarlite.cli import config
    from sarlite.cli.settings import graph_of, source_of
    from sarlite.comm import launch
    from sarlite.profile import Memory, trim
    from sarlite.train.load import load

    comm, memory = launch.connect(), Memory()
    resolved = config.resolve(options)
    part = load(comm, source_of(resolved), graph_of(resolved), Path(options["run_dir"]))
    peak = memory.peak()
    trim()
    held = Memory().base - memory.base
    local_bytes, halo = array_bytes(part.graph, part.rows)
    rows = part.graph.plan.n_halo
    by_rank = comm.allgather([held, peak, local_bytes, halo, rows * part.rows.features[:1].nbytes])
    if comm.rank == 0:
        print(json.dumps(dict(zip(("held", "peak", "own", "halo_ids", "halo_rows"), zip(*by_rank)))))


def array_bytes(*roots):
    """Return [bytes of the rank's own NumPy arrays, bytes of arrays of halo ids], searching the objects `roots` and their attributes.

    Memory that several arrays share counts once.
    """
    seen, total, queue = set(), [0, 0], [(root, "", False) for root in roots]
    while queue:
        item, name, remote = queue.pop(0)
        while isinstance(item, np.ndarray) and isinstance(item.base, np.ndarray):
            item = item.base
        if id(item) in seen or callable(item) and not hasattr(item, "__dict__"):
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            total[remote and name in HALO] += 0 if isinstance(item, np.memmap) else item.nbytes
        elif isinstance(item, dict):
            queue += [(value, name, remote) for value in item.values()]
        elif isinstance(item, (list, tuple)):
            names = getattr(item, "_fields", [name] * len(item))
            queue += [(value, word, remote or word in ("forward", "backward")) for value, word in zip(item, names)]
        elif type(item).__module__.startswith("sarlite") and not type(item).__module__.startswith("sarlite.comm"):
            state = getattr(item, "__dict__", {})
            queue += [(value, word, remote or word in ("forward", "backward")) for word, value in state.items()]
    return total


def partition(arguments):
    """Run `sarlite.data partition ARGUMENTS` with a fast stand-in for METIS; print its seconds and peak bytes as a line of JSON."""
    import pymetis

    def part_graph(n_parts, adjacency=None, xadj=None, adjncy=None, **others):
        ids = np.arange(len(xadj) - 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return 0, ((ids >> np.uint64(40)) % np.uint64(n_parts)).tolist()

    pymetis.part_graph = part_graph
    from sarlite.cli.data_command import main

    start = time.perf_counter()
    status = main(["partition", *arguments])
    used = resource.getrusage(resource.RUSAGE_SELF)
    if status:
        raise SystemExit(status)
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu": used.ru_utime + used.ru_stime,
                      "peak": 1024 * used.ru_maxrss}))


def ring(directory, n_nodes, n_features):
    """Write the data set of a ring, whose nodes have two neighbours each, to `directory`."""
    from sarlite.data import Dataset, format

    node = np.arange(n_nodes)
    indices = np.sort(np.stack([(node - 1) % n_nodes, (node + 1) % n_nodes], 1), axis=1).ravel().astype(np.int32)
    x = np.random.default_rng(0).standard_normal((n_nodes, n_features), dtype=np.float32)
    place = node % 10
    masks = place == 0, place == 1, place > 1
    format.write(directory, Dataset(2 * np.arange(n_nodes + 1), indices, x, node % 8, *masks, 8, name="ring"))


if __name__ == "__main__":
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))
