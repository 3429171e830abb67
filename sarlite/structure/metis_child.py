"""The call of pymetis, and the program of the child process that makes the call for a large graph.

The child runs this file by its path. It imports neither sarlite nor MPI.
"""

import ctypes
import json
import mmap
import os
import signal
import sys
import warnings


def part_graph(pymetis, xadj, adjncy, weights, n_parts, seed):
    """Return METIS's part of each node of the graph with the CSR (`xadj`, `adjncy`) and node `weights` (None: all 1), computed by
    the passed module `pymetis`.

    Parameters
    ----------
    pymetis : module
    xadj, adjncy : arrays of METIS's integers
        CSR of a symmetric graph without self loops.
    weights : (n_nodes,) array, or None
        Weights of the nodes.
    n_parts, seed : int
    """
    with warnings.catch_warnings():
        # old and new versions of pymetis take xadj= and adjncy= without a copy; the new ones warn
        warnings.simplefilter("ignore", DeprecationWarning)
        options = pymetis.Options(seed=seed % 2**31)
        return pymetis.part_graph(n_parts, xadj=xadj, adjncy=adjncy, vweights=weights, options=options)[1]


def main():
    """Divide the graph that the command line describes, and write the parts into the shared memory."""
    job = json.loads(sys.argv[1])
    end_with(job["parent"])
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches both processes; Python would wait for METIS
    sys.path[:] = job["path"]
    import numpy as np
    import pymetis

    memory = mmap.mmap(job["fd"], 0)
    arrays = {name: np.frombuffer(memory, dtype, n, start) for name, (start, n, dtype) in job["arrays"].items()}
    adjncy = arrays["adjncy"][: job["n_entries"]]
    try:
        parts = part_graph(pymetis, arrays["xadj"], adjncy, arrays.get("weights"), job["n_parts"], job["seed"])
    except RuntimeError as error:
        sys.exit(str(error))
    arrays["parts"][:] = parts


def end_with(parent: int) -> None:
    """Let Linux kill this process when the process with the id `parent` ends; exit at once if that process has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
