"""Staged broadcast (MG-GCN 4.1 to 4.3).

At stage j rank j broadcasts its rows, and everybody multiplies its tile with them.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from sarlite.schedule.broadcast_transport import Broadcasts
from sarlite.schedule.modes.sequential import n_parts
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Arrival, Piece, Plan


@dataclass(frozen=True)
class Broadcast:
    """A piece a stage, in the order of ranks on every rank.

    A rank computes its own tile in the stage in which its rows are sent, when all others have a tile too; with prefetch
    first, which hides the first broadcast. With prefetch, where the tiles are dense, a stage comes in ranges of the
    root's rows, each with a tile of its own, so that what is computed after the last transfer is a part of a tile.

    Backward a linear message's gradient is the same over the reversed edges (`Schedule.reverse`): the destinations'
    gradients are broadcast, and nothing is pushed. Other messages' gradients go by the peers' rows that are needed, as
    in mode `sar`.

    Attributes
    ----------
    most_ranges : int
        A stage comes in at most so many ranges,
    range_edges : int
        in no more than leave so many edges a row of the output and range on average, as each range takes a pass over
        the output: with 239 edges a row and tile, sums of 512 columns took 0.82 of the time in 7 ranges, whose rows
        stay in the cache, 0.88 in 4, 0.98 in 2;
    range_rows : int
        and in ranges of no fewer rows, so that a message is more than mere latency.
    backward_pieces, backward_rows : int
        As of `Sequential`.
    """

    name: str = "broadcast"
    most_ranges: int = 8
    range_edges: int = 32
    range_rows: int = 1024
    backward_pieces: int = 9
    backward_rows: int = 4096

    fetch: ClassVar[Any] = Broadcasts
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
        """The stages in which `root` sends its rows, one a range."""
        ranges = needs.ranges(root, n)
        if root == needs.rank:
            return [Piece(own.block, True, (Arrival(root, None, 0, True, rows),)) for rows, _ in ranges]
        tiles = [piece for piece in peers if piece.arrivals[0].source == root]
        arrivals = [Arrival(root, None, rows.stop - rows.start, True, slice(0, 0), needed) for rows, needed in ranges]
        return [Piece(tile.block, False, (arrival,), Fraction(1, n)) for tile, arrival in zip(tiles, arrivals)]

    def n_ranges(self, needs: Needs) -> int:
        """Return in how many ranges a rank's rows come; every rank decides alike."""
        fits = min(needs.degree / needs.size // self.range_edges, needs.n_rows / needs.size // self.range_rows)
        return int(max(1, min(self.most_ranges, fits)))
