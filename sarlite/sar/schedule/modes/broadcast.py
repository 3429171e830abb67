"""Staged broadcast (MG-GCN 4.1 to 4.3): at stage j rank j broadcasts its rows, and everybody multiplies its tile with them."""

from fractions import Fraction

from sarlite.sar.schedule.broadcast import Broadcasts
from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.pieces import Arrival, Piece, Plan


class Broadcast:
    """A piece a stage, in the order of ranks on every rank.

    A rank computes its own tile in the stage in which its rows are sent, when all others have a tile too; with prefetch first, which hides
    the first broadcast. With prefetch, where the tiles are dense, a stage comes in ranges of the root's rows (`Needs.n_ranges`), each with
    a tile of its own, so that what is computed after the last transfer is a part of a tile.

    Backward a linear message's gradient is the same over the reversed edges (`Schedule.reverse`): the destinations' gradients are
    broadcast, and nothing is pushed. Other messages' gradients go by the peers' rows that are needed, as in mode `sar`.
    """

    name, keeps, reverses, in_step = "broadcast", False, True, True
    fetch = Broadcasts

    def __repr__(self) -> str:
        return self.name

    def lay_out(self, needs: Needs, prefetch: int) -> Plan:
        n = needs.n_ranges if prefetch else 1
        own, peers = needs.tiles(n)
        backward = (*(part for piece in peers for part in piece.cut(-(-needs.n_parts // n))), own)
        if needs.size == 1:
            return Plan(needs.n_src, (own,), backward, needs.degree)
        tiles = {root: [piece for piece in peers if piece.arrivals[0].source == root] for root in range(needs.size)}
        stages = []
        for root in range(needs.size):
            ranges = needs.ranges(root, n)
            if root == needs.rank:
                sent = [(Arrival(root, None, 0, True, rows),) for rows, _ in ranges]
                stages += [Piece(None if prefetch else own.block, True, arrivals) for arrivals in sent]
            else:
                came = [(Arrival(root, None, rows.stop - rows.start, True, slice(0, 0), needed),) for rows, needed in ranges]
                stages += [Piece(tile.block, False, arrivals, Fraction(1, n)) for tile, arrivals in zip(tiles[root], came)]
        return Plan(needs.n_src, (own, *stages) if prefetch else tuple(stages), backward, needs.degree)
