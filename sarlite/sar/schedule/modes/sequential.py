"""Sequential aggregation, with rematerialization (`sar`) or without (`sa`): one peer's rows at a time (SAR algorithms 1 and 2)."""

from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.pieces import Plan
from sarlite.sar.schedule.transport import Fetch


class Sequential:
    """A piece a peer: its rows are fetched, its block is computed, the rows are freed. Forward the own tile comes first, backward last.

    Backward in `sar` a peer's rows come in parts, so that little is held of what is fetched again and of the gradients.

    Attributes
    ----------
    name : str
    keeps : bool
        Whether what each block's gradient needs is kept (`sa`); else rows are fetched again (`sar`).
    """

    reverses = in_step = False
    fetch = Fetch

    def __init__(self, name: str, keeps: bool) -> None:
        self.name, self.keeps = name, keeps

    def __repr__(self) -> str:
        return self.name

    def lay_out(self, needs: Needs, prefetch: int) -> Plan:
        own, peers = needs.tiles()
        parts = peers if self.keeps else [part for piece in peers for part in piece.cut(needs.n_parts)]
        return Plan(needs.n_src, (own, *peers), (*parts, own), needs.degree)
