"""Keys of learned rows: hashes of the names of nodes, which find the rows of the same nodes in a checkpoint of other data.

A key is the 16-byte BLAKE2b hash of a node's name in UTF-8, stored as two uint64.
"""

import math
from collections.abc import Mapping

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data.graph_tables import NODE
from sarlite.data.names import Names
from sarlite.errors import CheckpointError
from sarlite.graph.graph_set import GraphSet
from sarlite.graph.hetero import NodeType
from sarlite.graph.link_graph import LinkGraph, NodeRows
from sarlite.nn import Module
from sarlite.train.owners import PIECE_BYTES, Attempts
from sarlite.train.tensorfile import Stored
from sarlite.types import Array

_AT_ONCE = 1 << 16  # number of names in memory


def row_keys(model: Module, graph: NodeRows | GraphSet | LinkGraph, names: Mapping[str, Names]) -> dict[str, Array]:
    """Return {parameter: (n_local, 2) uint64}, the keys of the rows of each parameter that has a row for each node. A key is a hash of the
    node's name; parameters whose nodes have no names are left out. Collective.

    Parameters with an id that is not a node are left out, too.

    Parameters
    ----------
    model : nn.Module
    graph : Graph, NodeType, GraphSet or LinkGraph
        Without node types all rows belong to the nodes of the graph, and the parameters' `node_type` is ignored.
    names : dict of str to data.names.Names
        Names of the nodes by node type.

    Returns
    -------
    dict of str to (n_local, 2) uint64
        Keys by dotted name of the parameter, in the order of its ids.

    Notes
    -----
    Memory: 16 bytes for each row, and 65,536 names. Time: linear in the number of rows.
    """
    nodes = getattr(graph, "nodes", graph)
    types = {name: parameter.node_type if isinstance(nodes, NodeType) else NODE
             for name, parameter in model.named_parameters() if parameter.ids is not None}
    named = {name: (ids, names[types[name]]) for name, ids in model.row_ids().items() if types[name] in names}
    inside = nodes.comm.allgather([int(ids.max(initial=-1)) < node_names.n_nodes for ids, node_names in named.values()])
    in_range = [name for name, *of_ranks in zip(named, *inside) if all(of_ranks)]
    return together(nodes.comm, lambda: {name: _keys(*named[name]) for name in in_range})


def _keys(ids, names):
    pieces = [names.keys(ids[at : at + _AT_ONCE]) for at in range(0, max(len(ids), 1), _AT_ONCE)]
    return np.concatenate(pieces)


class KeyedRows:
    """Map from this rank's rows to the rows of a checkpoint that have the same keys, which are hashes of node names. Methods are
    collective.

    Construction is collective, too.

    Parameters
    ----------
    comm : Communicator
    keys : (n_local, 2) uint64
        Keys of this rank's rows. Each key belongs to one row of one rank.
    stored : tensorfile.Stored or None
        The checkpoint's keys, (n, 2) uint64, on rank 0; None on other ranks.
    name : str
        Name of the rows in error messages.

    Attributes
    ----------
    n : int
        Number of rows in the checkpoint.
    n_here : int
        Number of rows of all ranks.
    n_missing : int
        Number of rows of all ranks whose keys the checkpoint lacks.

    Raises
    ------
    CheckpointError
        On every rank: the checkpoint's keys cannot be read, or are not two uint64 for each row.

    Notes
    -----
    Rank 0 reads the checkpoint's rows in pieces of `owners.PIECE_BYTES` and broadcasts each piece. Memory: 32 bytes for
    each row of this rank, and two pieces. Bytes: each rank receives all rows of the checkpoint.
    """

    def __init__(self, comm: Communicator, keys: Array, stored: Stored | None, name: str) -> None:
        self.comm, attempt = comm, Attempts(comm)
        n = attempt(lambda: _checked_count(stored, name))
        self.n = comm.bcast(n) or 0
        attempt.end()
        order = np.argsort(keys[:, 0], kind="stable")
        halves, self._stored_row = [keys[order, half] for half in (0, 1)], np.full(len(keys), -1)  # -1: not in the checkpoint
        for first, piece in self._pieces(stored, np.dtype(np.uint64), (2,)):
            places = np.searchsorted(halves[0], piece[:, 0])
            matches = np.flatnonzero(places < len(keys))
            for half, local_half in enumerate(halves):
                matches = matches[local_half[places[matches]] == piece[matches, half]]
            self._stored_row[order[places[matches]]] = first + matches
        self.n_here, self.n_missing = comm.allreduce(np.array([len(keys), np.count_nonzero(self._stored_row < 0)])).tolist()

    def scatter(self, stored: Stored | None, rows: Array) -> None:
        """Fill this rank's `rows` from the rows of a checkpoint with the same keys. A row whose key the checkpoint lacks gets the mean of
        all its rows. `stored` is the checkpoint's tensor on rank 0, None on others. Collective.

        The mean is summed in float64 in the order of the file, so that the number of ranks does not matter.

        Parameters
        ----------
        stored : tensorfile.Stored or None
            The tensor, (n, ...), on rank 0; None on other ranks.
        rows : (n_local, ...) array
            Rows in the order of the keys, changed in place.

        Raises
        ------
        CheckpointError
            On every rank: the checkpoint cannot be read. `rows` may have changed.
        """
        order = np.argsort(self._stored_row, kind="stable")
        ascending, total = self._stored_row[order], np.zeros(rows.shape[1:], np.float64)
        for first, piece in self._pieces(stored, rows.dtype, rows.shape[1:]):
            low, high = np.searchsorted(ascending, [first, first + len(piece)])
            rows[order[low:high]] = piece[ascending[low:high] - first]
            total += piece.sum(0, dtype=np.float64)
        rows[self._stored_row < 0] = total / max(self.n, 1)

    def _pieces(self, stored, dtype, shape):
        """Yield (index of the first row, some rows) until all rows of the tensor `stored`, which rank 0 reads, were broadcast to all ranks.
        `dtype` is the dtype of the rows, and `shape` the shape of one row. Collective.
        """
        attempt, step = Attempts(self.comm), max(1, PIECE_BYTES // (dtype.itemsize * max(1, math.prod(shape))))
        for first in range(0, self.n, step):
            end = min(first + step, self.n)
            piece = attempt(lambda span=(first, end): stored.rows(*span))
            yield first, self.comm.broadcast(np.zeros((end - first, *shape), dtype) if piece is None else piece, 0)
        attempt.end()


def _checked_count(stored, name):
    """Return the number of keys in `stored`, a checkpoint's tensor; raise a CheckpointError, with `name` as the name of the rows, unless a
    key is two uint64.
    """
    if stored.dtype != np.uint64 or stored.shape[1:] != (2,):
        raise CheckpointError(f"{name!r}: the checkpoint's keys are {stored.dtype} {stored.shape}, but must be two "
                              "uint64 a row")
    return stored.shape[0]
