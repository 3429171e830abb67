"""Mode "broadcast": in stage j rank j broadcasts its rows, and all ranks compute the blocks of edges from these rows (MG-GCN paper,
sections 4.1 and 4.3).
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
    """Mode with a stage for each rank, the same on all ranks: in stage j rank j broadcasts its rows to all ranks.

    Without prefetch a rank computes its own tile in the stage that sends its rows. With prefetch a rank computes its
    own tile first, during the first broadcast. With prefetch and dense tiles, a stage is divided into ranges of the
    root's rows, with a tile for each range, so that only a part of a tile is computed after the last transfer.

    The backward pass of a linear message runs in the same way over the reversed edges (`Schedule.reverse`): gradients
    of destinations are broadcast, and nothing is pushed. For other messages the backward pass fetches only the rows
    that are needed, as in mode `sar`.

    Attributes
    ----------
    most_ranges : int
        Largest number of ranges of a stage.
    range_edges : int
        Smallest mean number of edges of an output row in a range. Each range takes a pass over the output, so sparse
        tiles are not divided. Measured with 239 edges for each row and tile, and 512 columns: sums take 0.82 of the
        time with 7 ranges, whose rows stay in the cache, 0.88 with 4 and 0.98 with 2.
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
        """Return the plan of one rank for the exchange of the rows `needs`: forward in the order of the broadcasts, with rows divided
        into ranges if `prefetch` is not 0; backward one peer after another, as in mode "sar".

        There is a forward piece for each rank that broadcasts and, with `prefetch`, for each range of its rows.
        """
        n = self.n_ranges(needs) if prefetch else 1
        own_tile, peer_tiles = needs.tiles(n)
        parts = -(-n_parts(needs, self.backward_pieces, self.backward_rows) // n)
        backward = (*(part for piece in peer_tiles for part in piece.cut(parts)), own_tile)
        if needs.size == 1:
            return Plan(needs.n_src, (own_tile,), backward, needs.degree)
        stages = [stage for root in range(needs.size) for stage in self._stages(needs, root, n, own_tile, peer_tiles)]
        if prefetch:
            stages = [own_tile, *(stage._replace(block=None) if stage.own else stage for stage in stages)]
        return Plan(needs.n_src, tuple(stages), backward, needs.degree)

    def _stages(self, needs: Needs, root: int, n: int, own_tile: Piece, peer_tiles: list[Piece]) -> list[Piece]:
        """Return a list of `n` pieces, one for each range of the rows of rank `root`, for the stage when `root` broadcasts. Their
        edges come from `own_tile`, the piece with the edges out of this rank's rows, or from `peer_tiles`, the pieces with the
        edges out of peers' rows.
        """
        ranges = needs.ranges(root, n)
        if root == needs.rank:
            return [Piece(own_tile.block, True, (Arrival(root, None, 0, True, rows),)) for rows, _ in ranges]
        tiles = [piece for piece in peer_tiles if piece.arrivals[0].source == root]
        arrivals = [Arrival(root, None, rows.stop - rows.start, True, slice(0, 0), needed) for rows, needed in ranges]
        return [Piece(tile.block, False, (arrival,), Fraction(1, n)) for tile, arrival in zip(tiles, arrivals)]

    def n_ranges(self, needs: Needs) -> int:
        """Return the number of ranges that a rank's rows are divided into, the same on every rank."""
        fits = min(needs.degree / needs.size // self.range_edges, needs.n_rows / needs.size // self.range_rows)
        return int(max(1, min(self.most_ranges, fits)))
