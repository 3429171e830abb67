"""Sequential aggregation: a few peers' rows at a time (SAR algorithms 1 and 2).

Mode `sar` fetches rows again in backward, mode `sa` keeps them, and mode `oneshot` fetches the rows of all peers at
once, which is ordinary domain-parallel training.
"""

from dataclasses import dataclass
from typing import ClassVar

from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Plan
from sarlite.schedule.transport import Fetch


@dataclass(frozen=True)
class Sequential:
    """Mode that takes one group of peers after another: fetch their rows, compute the block of their edges, free the rows.

    The own tile comes first in forward and last in backward. In the backward pass of `sar` a peer's rows come in parts,
    so that few refetched rows and gradients are in memory at once. In forward, parts would cost time, because each
    block takes a pass over all rows of the output. In backward the output of a block is the gradients of the peer's
    rows, so dividing these rows into parts costs nothing.

    Attributes
    ----------
    name : str
    keeps_rows : bool
        True if the rows of each block are kept for backward (`sa`, `oneshot`); False if rows are fetched again (`sar`).
    peers_at_once : int, or None
        Number of peers whose rows a piece takes, 1 .. N - 1; None for all peers (`oneshot`). A rank holds the rows of
        (1 + prefetch) * peers_at_once peers, and takes about (N - 1) / peers_at_once rounds.
    backward_pieces : int
        Approximate number of backward pieces of a rank with few peers; a rank with more peers has a piece for each.
    backward_rows : int
        Smallest number of rows of a backward piece, if all rows of a peer are needed.
    """

    name: str
    keeps_rows: bool
    peers_at_once: int | None = 1
    backward_pieces: int = 9
    backward_rows: int = 4096

    fetch: ClassVar[type[Fetch]] = Fetch
    reverses: ClassVar[bool] = False
    in_step: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    def plan(self, needs: Needs, prefetch: int) -> Plan:
        """Return the plan of one rank for the exchange of the rows `needs`: a piece of edges for each group of peers, forward and
        backward. `prefetch` is not used.
        """
        own_tile, peer_tiles = needs.tiles(peers_at_once=self.peers_at_once or max(needs.size - 1, 1))
        n = 1 if self.keeps_rows or self.peers_at_once != 1 else n_parts(needs, self.backward_pieces, self.backward_rows)
        parts = [part for piece in peer_tiles for part in piece.cut(n)]
        return Plan(needs.n_src, (own_tile, *peer_tiles), (*parts, own_tile), needs.degree)


def n_parts(needs: Needs, pieces: int, rows: int) -> int:
    """Return the number of parts, at least 1 and equal on all ranks, that each peer's rows are divided into in the backward pass.
    The peers together have about `pieces` parts, unless a part would have fewer than `rows` rows; `needs` has the numbers of ranks
    and rows.
    """
    return max(1, min(-(-pieces // max(needs.size - 1, 1)), needs.n_rows // needs.size // rows))
