"""Edge weights and edge features of a run: the arrays that the model uses, read for this rank's edges."""

from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data.dataset import Dataset
from sarlite.data.graph_tables import RELATION
from sarlite.data.part import EdgePart
from sarlite.errors import ConfigError, DataError
from sarlite.minibatch.temporal import ALWAYS
from sarlite.structure.edges import with_added_loops
from sarlite.types import Array, DType

ARRAYS = {"edge_weight": "edge_weights", "edge_features": "edge_features"}
"""Name of each array of edge values in the data -> name of the option that requests the array."""
_LOOPS = {"edge_weight": 1, "edge_features": 0, "edge_time": ALWAYS}  # values of an added self loop


class EdgeValueUse(NamedTuple):
    """How a run uses the edge weights and the edge features of the data: an array is required, used if the data have it, ignored, or
    refused.

    Attributes
    ----------
    edge_weight, edge_features : bool, "there" or None
        True requires the array, "there" uses the array if the data have it, and False ignores the array. None raises an
        error if the data have the array.
    signed : bool
        True if weights may be negative.
    reason : str
        Reason that the error for None gives.
    """

    edge_weight: bool | str | None = None
    edge_features: bool | str | None = None
    signed: bool = True
    reason: str = "the model uses them only where asked"


NONE = EdgeValueUse()


def edge_value_use(cls: type, edge_weights: bool | None, edge_features: bool | None, signed: bool) -> EdgeValueUse:
    """Return an `EdgeValueUse`: for edge weights and for edge features True (required), "there" (used if the data have them), False
    (ignored) or None (refused). The options `edge_weights` and `edge_features` decide; None becomes "there" if the model class `cls`
    supports the array. `signed` is True if weights may be negative.

    Parameters
    ----------
    cls : class
        Model class. Its attributes `edge_weights` and `edge_features` are True if it supports the array.
    edge_weights, edge_features : bool, optional
        Options of the run. By default an array is used if the class supports the array and the data have it.
    signed : bool
        True if weights may be negative.
    """

    def how(option: str, value: bool | None) -> bool | str | None:
        return value if value is not None else "there" if getattr(cls, option, None) is True else None

    return EdgeValueUse(how("edge_weights", edge_weights), how("edge_features", edge_features), signed)


def used(comm: Communicator, dataset: Dataset, use: EdgeValueUse, spec: str) -> list[str]:
    """Return the names, among "edge_weight" and "edge_features", of the arrays that the run uses: `dataset` has them, and `use` does not
    ignore them. Raise a ConfigError if `use` requires an array that is missing or refuses an array that exists; `spec` names the data.
    Collective.

    Relational data have an array if any relation has it.

    Raises
    ------
    ConfigError
        On every rank, naming the option: a required array is missing, or the data have an array and the use is None.
    """
    return together(comm, lambda: [name for name in ARRAYS if _is_used(name, dataset, use, spec)])


def _is_used(name, dataset, use, spec):
    how, option = getattr(use, name), ARRAYS[name]
    is_stored = any(getattr(edges, name) is not None for edges in dataset.edges.values())
    yes, no = hints = f"{option}=True", f"{option}=False"
    if how is True and not is_stored:
        raise ConfigError(f"{option}: the data {spec} have no {option.replace('_', ' ')}; {no} trains without them", option,
                          hints)
    if is_stored and how is None:
        raise ConfigError(f"data {spec}: {name}: {use.reason}: {yes} uses them, {no} leaves them out", "data", hints)
    return is_stored and bool(how)


def read(edges: EdgePart, names: list[str], use: EdgeValueUse, dtype: DType | None, spec: str) -> dict[str, Array | None]:
    """Read the arrays in `names`, "edge_weight" or "edge_features", for this rank's `edges`, as `dtype`. Return {array name: values, or
    None if `names` lacks it}. Raise a DataError, which names the data `spec`, for a weight that is not finite or, unless `use.signed`,
    negative.

    Parameters
    ----------
    edges : EdgePart
    names : list of str
        Arrays to read, among the keys of `ARRAYS`.
    use : EdgeValueUse
    dtype : dtype, or None for the stored dtype
    spec : str
        Name of the data in error messages.

    Returns
    -------
    dict of str to (array or None)
        Array for each key of `ARRAYS`; None if `names` lacks the key.

    Raises
    ------
    DataError
        A weight is not finite, or is negative although its sums are degrees. The error names the data, the edge's
        original position and the value.
    """
    values = {name: edges.values(name, dtype) if name in names else None for name in ARRAYS}
    weight = values["edge_weight"]
    if weight is not None and len(weight):
        bad = ~np.isfinite(weight) if use.signed else ~(np.isfinite(weight) & (weight >= 0))
        if bad.any():
            at = int(np.argmax(bad))
            least = "finite" if use.signed else "finite and 0 or more, because sums of weights are degrees"
            edge, of = edges.ids()[at], "" if edges.table.relation == RELATION else f" of {edges.table.relation}"
            raise DataError(f"data {spec}: edge_weight of edge {edge}{of} is {weight[at]}, but must be {least}", "data")
    return values


def with_loops(values: dict[str, Array | None], indptr: Array, indices: Array, added: Array,
               first_row: int) -> dict[str, Array | None]:
    """Return the arrays of edge values in `values` with entries for new self loops. (indptr, indices) are the edges including the loops,
    the mask `added` is True for each row with a new loop, and `first_row` is the global number of local row 0.

    An added loop has the weight 1 and features 0, and its time is before all other times.

    Parameters
    ----------
    values : dict of str to (array or None)
    indptr, indices, added : array
        Results of `add_self_loops`.
    first_row : int
        Global number of this rank's first row.
    """
    return {name: None if array is None else with_added_loops(array, indptr, indices, added, first_row, _LOOPS[name])
            for name, array in values.items()}
