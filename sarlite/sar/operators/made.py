"""Which operators a numerics has: `made` makes those that the table asks for."""

from typing import Any

from sarlite.errors import ConfigError
from sarlite.numerics import current
from sarlite.sar.operators.attention import Attend
from sarlite.sar.operators.custom import Custom
from sarlite.sar.operators.exact import ExactAttend, ExactExtremum, ExactSum
from sarlite.sar.operators.exact_functions import ExactCustom
from sarlite.sar.operators.extremum import Extremum
from sarlite.sar.operators.sums import Sum

EXACT = {Sum: ExactSum, Extremum: ExactExtremum, Attend: ExactAttend, Custom: ExactCustom}


def made(kind: Any, graph: Any, *arguments: Any) -> Any:
    """Return an operator of a kind over a graph, as the numerics in use has it. Collective.

    Raises
    ------
    ConfigError
        The numerics has no such operator, or not over such a graph.
    """
    numerics = current()
    if numerics is None:
        return kind(*arguments)
    kinds = getattr(numerics, "operators", EXACT)
    if kind not in kinds:
        raise ConfigError(f"numerics exact: messages that are evaluated as {kind.__name__} are not exact yet")
    if not graph.whole_edges:
        raise ConfigError(f"numerics exact: sums over a {type(graph).__name__} are not exact yet")
    return kinds[kind](numerics.on(graph.comm), graph.most_edges(), *arguments)
