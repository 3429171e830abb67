"""Sequential aggregation: a few peers' rows at a time (SAR algorithms 1 and 2).

With rematerialization it is mode `sar`, without `sa`; with all peers' rows at once it is vanilla domain-parallel
training, `oneshot`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Plan
from sarlite.schedule.transport import Fetch


@dataclass(frozen=True)
class Sequential:
    """A piece for each few peers: their rows are fetched, their block is computed, the rows are freed.

    Forward the own tile comes first, backward last. Backward in `sar` a peer's rows come in parts, so that little is
    held of what is fetched again and of the gradients. Forward parts would cost time, as each block's pass touches all
    rows of the output; backward a block's rows are the peer's, and any part of them costs the same.

    Attributes
    ----------
    name : str
    keeps_rows : bool
        True if the rows of each block are kept for backward (`sa`); else rows are fetched again (`sar`).
    peers_at_once : int, or None
        How many peers' rows a piece takes, 1 .. N - 1; None for all peers (`oneshot`). A rank holds the rows of
        (1 + prefetch) times as many peers, and waits for about N - 1 rounds divided by as many.
    backward_pieces : int
        With few peers a rank takes about so many pieces backward,
    backward_rows : int
        but no pieces of fewer rows, were all rows of a peer needed.
    """

    name: str
    keeps_rows: bool
    peers_at_once: int | None = 1
    backward_pieces: int = 9
    backward_rows: int = 4096

    fetch: ClassVar[Any] = Fetch
    reverses: ClassVar[bool] = False
    in_step: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    def plan(self, needs: Needs, prefetch: int) -> Plan:
        """Return the pieces, forward and backward."""
        own, peers = needs.tiles(peers_at_once=self.peers_at_once or max(needs.size - 1, 1))
        n = 1 if self.keeps_rows or self.peers_at_once != 1 else n_parts(needs, self.backward_pieces, self.backward_rows)
        parts = [part for piece in peers for part in piece.cut(n)]
        return Plan(needs.n_src, (own, *peers), (*parts, own), needs.degree)


def n_parts(needs: Needs, pieces: int, rows: int) -> int:
    """Return in how many parts a peer's rows come, for about so many pieces in all, of no fewer rows.

    Every rank decides alike.
    """
    return max(1, min(-(-pieces // max(needs.size - 1, 1)), needs.n_rows // needs.size // rows))
