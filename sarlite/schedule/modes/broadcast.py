"""Staged broadcast (MG-GCN 4.1 to 4.3).

At stage j rank j broadcasts its rows, and every rank multiplies its tile with them.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from sarlite.schedule.broadcast_transport import Broadcasts
from sarlite.schedule.modes.sequential import n_parts
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Arrival, Piece, Plan


@dataclass(frozen=True)
class Broadcast:
    """Takes one piece per stage, in the same order on every rank: in stage j rank j broadcasts its rows.

    Without prefetch a rank computes its own tile in the stage that sends its rows. With prefetch the own tile comes
    first and hides the first broadcast. With prefetch and dense tiles, a stage is divided into ranges of the root's
    rows, each with its own tile, so that only a part of a tile is computed after the last transfer.

    The backward pass of a linear message runs the same way over the reversed edges (`Schedule.reverse`): the gradients
    of destinations are broadcast, and nothing is pushed. The gradients of other messages use only the peers' rows that
    are needed, as in mode `sar`.

    Attributes
    ----------
    most_ranges : int
        Largest number of ranges of a stage.
    range_edges : int
        Smallest mean number of edges per output row and range. Each range takes a pass over the output, so sparse tiles
        are not divided. With 239 edges per row and tile, sums of 512 columns took 0.82 of the time in 7 ranges, whose
        rows stay in the cache, 0.88 in 4 and 0.98 in 2.
    range_rows : int
        Smallest number of rows of a range, so that latency does not dominate a message.
    backward_pieces, backward_rows : int
        See `Sequential`.
    """

    name: str = "broadcast"
    most_ranges: int = 8
    range_edges: int = 32
    range_rows: int = 1024
    backward_pieces: int = 9
    backward_rows: int = 4096

    fetch: ClassVar[type[Broadcasts]] = Broadcasts
    keeps_rows: ClassVar[bool] = False
    reverses: ClassVar[bool] = True
    in_step: ClassVar[bool] = True

    def __str__(self) -> str:
        return self.name

    def plan(self, needs: Needs, prefetch: int) -> Plan:
        n = self.n_ranges(needs) if prefetch else 1
        own, peers = needs.tiles(n)
        parts = -(-n_parts(needs, self.backward_pieces, self.backward_rows) // n)
        backward = (*(part for piece in peers for part in piece.cut(parts)), own)
        if needs.size == 1:
            return Plan(needs.n_src, (own,), backward, needs.degree)
        stages = [stage for root in range(needs.size) for stage in self._stages(needs, root, n, own, peers)]
        if prefetch:
            stages = [own, *(stage._replace(block=None) if stage.own else stage for stage in stages)]
        return Plan(needs.n_src, tuple(stages), backward, needs.degree)

    def _stages(self, needs, root, n, own, peers):
        """Return the pieces for the rows that `root` sends, one for each range."""
        ranges = needs.ranges(root, n)
        if root == needs.rank:
            return [Piece(own.block, True, (Arrival(root, None, 0, True, rows),)) for rows, _ in ranges]
        tiles = [piece for piece in peers if piece.arrivals[0].source == root]
        arrivals = [Arrival(root, None, rows.stop - rows.start, True, slice(0, 0), needed) for rows, needed in ranges]
        return [Piece(tile.block, False, (arrival,), Fraction(1, n)) for tile, arrival in zip(tiles, arrivals)]

    def n_ranges(self, needs: Needs) -> int:
        """Return the number of ranges of a rank's rows, the same on every rank."""
        fits = min(needs.degree / needs.size // self.range_edges, needs.n_rows / needs.size // self.range_rows)
        return int(max(1, min(self.most_ranges, fits)))
