"""Edge weights and edge features of a run: which the model uses, and this rank's of them."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data.graph_tables import RELATION
from sarlite.data.part import EdgePart
from sarlite.errors import ConfigError, DataError
from sarlite.minibatch.temporal import ALWAYS
from sarlite.structure.edges import with_added_loops
from sarlite.types import Array

ARRAYS = {"edge_weight": "edge_weights", "edge_features": "edge_features"}
"""The data's arrays, and the option of each."""
_LOOPS = {"edge_weight": 1, "edge_features": 0, "edge_time": ALWAYS}  # of a self loop that is added


class Wanted(NamedTuple):
    """A run's use of each array of edge values, and whether weights may be negative.

    True requires the array; "there" uses the array if the data have it; False ignores it. None raises an error with
    `reason` if the data have it.
    """

    edge_weight: bool | str | None = None
    edge_features: bool | str | None = None
    signed: bool = True
    reason: str = "the model uses them only where asked"


NONE = Wanted()


def wanted(cls: Any, edge_weights: bool | None, edge_features: bool | None, signed: bool) -> Wanted:
    """Return the use of each array: the given options, or by default "there" if the model class supports the array."""

    def how(option: str, told: bool | None) -> bool | str | None:
        return told if told is not None else "there" if getattr(cls, option, None) is True else None

    return Wanted(how("edge_weights", edge_weights), how("edge_features", edge_features), signed)


def used(comm: Communicator, dataset: Any, wanted: Wanted, spec: str) -> list[str]:
    """Return the names of the arrays that the graph gets, of relational data where any relation has them. Collective.

    Raises
    ------
    ConfigError
        On every rank: an array is missing, or there and nothing is told of it, naming the option that tells.
    """
    return together(comm, lambda: [name for name in ARRAYS if _is_used(name, dataset, wanted, spec)])


def _is_used(name, dataset, wanted, spec):
    how, option = getattr(wanted, name), ARRAYS[name]
    there = any(getattr(edges, name) is not None for edges in dataset.edges.values())
    yes, no = hints = f"{option}=True", f"{option}=False"
    if how is True and not there:
        raise ConfigError(f"{option}: the data {spec} have no {option.replace('_', ' ')}; {no} goes without", option,
                          hints)
    if there and how is None:
        raise ConfigError(f"data {spec}: {name}: {wanted.reason}: {yes} uses them, {no} leaves them out", "data", hints)
    return there and bool(how)


def read(edges: EdgePart, names: list[str], wanted: Wanted, dtype: Any, spec: str) -> dict[str, Array | None]:
    """Return a relation's values on this part's edges, each of `ARRAYS` of `dtype`, None of those that `names` lack.

    Raises
    ------
    DataError
        A weight is not finite, or negative where degrees are taken, naming the data, the edge's original position, and
        the value.
    """
    found = {name: edges.values(name, dtype) if name in names else None for name in ARRAYS}
    weight = found["edge_weight"]
    if weight is not None and len(weight):
        bad = ~np.isfinite(weight) if wanted.signed else ~(np.isfinite(weight) & (weight >= 0))
        if bad.any():
            at = int(np.argmax(bad))
            least = "finite" if wanted.signed else "0 or more, and finite, as their sums are degrees"
            edge, of = edges.ids()[at], "" if edges.table.relation == RELATION else f" of {edges.table.relation}"
            raise DataError(f"data {spec}: edge_weight of edge {edge}{of} is {weight[at]}, but must be {least}", "data")
    return found


def with_loops(values: dict[str, Array | None], indptr: Array, indices: Array, added: Array,
               first_row: int) -> dict[str, Array | None]:
    """Return the values extended to the self loops that `add_self_loops` added.

    Loops have weights of 1 and features of 0, and are there from the beginning.
    """
    return {name: None if array is None else with_added_loops(array, indptr, indices, added, first_row, _LOOPS[name])
            for name, array in values.items()}
