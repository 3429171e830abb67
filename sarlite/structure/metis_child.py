"""The call of METIS, and the process that makes the call for a large graph.

The process is started by this file's path; it imports no sarlite and no MPI.
"""

import ctypes
import json
import mmap
import os
import signal
import sys
import warnings


def part_graph(pymetis, xadj, adjncy, weights, n_parts, seed):
    """Return the part of each node, as METIS gives it.

    This pymetis gets the arrays without a copy where it can take them so.
    """
    with warnings.catch_warnings():
        # of xadj= and adjncy=, the form that old and new pymetis take without a copy
        warnings.simplefilter("ignore", DeprecationWarning)
        options = pymetis.Options(seed=seed % 2**31)
        return pymetis.part_graph(n_parts, xadj=xadj, adjncy=adjncy, vweights=weights, options=options)[1]


def main():
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
        found = part_graph(pymetis, arrays["xadj"], adjncy, arrays.get("weights"), job["n_parts"], job["seed"])
    except RuntimeError as error:
        sys.exit(str(error))
    arrays["parts"][:] = found


def end_with(parent):
    """Make the kernel end this process as soon as its parent has ended, in whatever way. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
