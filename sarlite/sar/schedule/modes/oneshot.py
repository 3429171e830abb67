"""Vanilla domain-parallel training: one exchange of all rows, one aggregation."""

from dataclasses import dataclass
from typing import Any, ClassVar

from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.pieces import Plan
from sarlite.sar.schedule.transport import Fetch


@dataclass(frozen=True)
class OneShot:
    """One piece: every peer's rows come at once, behind the local rows, for one block of all edges.

    All peers' rows are held.
    """

    name: str = "oneshot"

    fetch: ClassVar[Any] = Fetch
    keeps: ClassVar[bool] = True
    reverses: ClassVar[bool] = False
    in_step: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    def lay_out(self, needs: Needs, prefetch: int) -> Plan:
        piece = needs.whole()
        return Plan(needs.n_src, (piece,), (piece,), needs.degree)
