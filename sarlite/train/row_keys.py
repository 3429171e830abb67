"""Keys of learned rows, made of the names of the nodes, and the rows of a checkpoint that have the same keys.

A key is the BLAKE2b hash of 16 bytes of a node's name in UTF-8: two uint64.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data.graph_tables import NODE
from sarlite.data.names import Names
from sarlite.errors import CheckpointError
from sarlite.graph.hetero import NodeType
from sarlite.train.owners import PIECE_BYTES, Attempts
from sarlite.types import Array

_AT_ONCE = 1 << 16  # names in memory


def row_keys(model: Any, graph: Any, names: Mapping[str, Names]) -> dict[str, Array]:
    """Return the keys of each parameter that is owned by rows, by dotted name, (n_local, 2) uint64. Collective.

    Parameters whose nodes have no names are left out, and so are parameters with ids that are no nodes.

    Parameters
    ----------
    model : nn.Module
    graph : Graph, NodeType, GraphSet or LinkGraph
        If the nodes are of one type, a parameter's rows are of these nodes, whatever `node_type` the parameter names.
    names : dict of str to data.names.Names
        By node type.

    Notes
    -----
    Memory: 16 bytes a row, and 65,536 names. Time: linear in the rows.
    """
    nodes = getattr(graph, "nodes", graph)
    types = {name: parameter.node_type if isinstance(nodes, NodeType) else NODE
             for name, parameter in model.named_parameters() if parameter.ids is not None}
    named = {name: (ids, names[types[name]]) for name, ids in model.row_ids().items() if types[name] in names}
    inside = nodes.comm.allgather([int(ids.max(initial=-1)) < own.n_nodes for ids, own in named.values()])
    kept = [name for name, *of_ranks in zip(named, *inside) if all(of_ranks)]
    return together(nodes.comm, lambda: {name: _keys(*named[name]) for name in kept})


def _keys(ids, names):
    found = [names.keys(ids[at : at + _AT_ONCE]) for at in range(0, max(len(ids), 1), _AT_ONCE)]
    return np.concatenate(found)


class KeyedRows:
    """Map from this rank's rows to the rows of a checkpoint with the same keys. Collective, as is every method.

    Parameters
    ----------
    comm : Communicator
    keys : (n_local, 2) uint64
        This rank's keys. No key is twice on all ranks together.
    stored : tensorfile.Stored or None
        The checkpoint's keys on rank 0; None elsewhere.
    name : str
        What an error calls the rows.

    Attributes
    ----------
    n : int
        Number of rows in the checkpoint.
    n_here, n_missing : int
        Number of rows of all ranks, and of those that the checkpoint lacks.

    Raises
    ------
    CheckpointError
        On every rank: the checkpoint's keys cannot be read, or are not two uint64 a row.

    Notes
    -----
    Rank 0 reads the checkpoint's rows in pieces of `owners.PIECE_BYTES`, and broadcasts each piece. Memory: 32 bytes a
    row of this rank and two pieces. Bytes: each rank receives all rows of the checkpoint.
    """

    def __init__(self, comm: Communicator, keys: Array, stored: Any, name: str) -> None:
        self.comm, attempt = comm, Attempts(comm)
        n = attempt(lambda: _checked(stored, name))
        self.n = comm.bcast(n) or 0
        attempt.end()
        order = np.argsort(keys[:, 0], kind="stable")
        halves, self._at = [keys[order, half] for half in (0, 1)], np.full(len(keys), -1)  # -1: not in the checkpoint
        for first, piece in self._pieces(stored, np.dtype(np.uint64), (2,)):
            places = np.searchsorted(halves[0], piece[:, 0])
            found = np.flatnonzero(places < len(keys))
            for half, own in enumerate(halves):
                found = found[own[places[found]] == piece[found, half]]
            self._at[order[places[found]]] = first + found
        self.n_here, self.n_missing = comm.allreduce(np.array([len(keys), np.count_nonzero(self._at < 0)])).tolist()

    def scatter(self, stored: Any, rows: Array) -> None:
        """Fill this rank's `rows` from a tensor of the checkpoint; a row that the checkpoint lacks gets the mean row.

        Parameters
        ----------
        stored : tensorfile.Stored or None
            (n, ...) on rank 0; None elsewhere.
        rows : (n_local, ...) array
            Changed in place.

        Raises
        ------
        CheckpointError
            On every rank: the checkpoint cannot be read; `rows` may have changed.

        Notes
        -----
        The mean is of all rows of the checkpoint, added up in float64 in the order of the file: it does not depend on
        the number of ranks.
        """
        order = np.argsort(self._at, kind="stable")
        ascending, total = self._at[order], np.zeros(rows.shape[1:], np.float64)
        for first, piece in self._pieces(stored, rows.dtype, rows.shape[1:]):
            low, high = np.searchsorted(ascending, [first, first + len(piece)])
            rows[order[low:high]] = piece[ascending[low:high] - first]
            total += piece.sum(0, dtype=np.float64)
        rows[self._at < 0] = total / max(self.n, 1)

    def _pieces(self, stored, dtype, shape):
        """Yield the first position and the rows of each piece of a tensor on rank 0, on every rank."""
        attempt, step = Attempts(self.comm), max(1, PIECE_BYTES // (dtype.itemsize * max(1, math.prod(shape))))
        for first in range(0, self.n, step):
            end = min(first + step, self.n)
            piece = attempt(lambda span=(first, end): stored.rows(*span))
            yield first, self.comm.broadcast(np.zeros((end - first, *shape), dtype) if piece is None else piece, 0)
        attempt.end()


def _checked(stored, name):
    """Return the number of keys on rank 0."""
    if stored.dtype != np.uint64 or stored.shape[1:] != (2,):
        raise CheckpointError(f"{name!r}: the checkpoint's keys are {stored.dtype} {stored.shape}, but must be two "
                              "uint64 a row")
    return stored.shape[0]
