"""`Case`: one input of an operation or a layer, as the function under test gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.formats import dtype_of
from sarlite.types import Array

Attributes = Mapping[str, Any]  # of an operation or layer by name, such as {"reduce": "mean"}
AttributeDict = dict[str, Any]
State = Mapping[str, Array]  # parameters by name
Convert = Callable[[Array], object]  # makes a tensor of another library of a NumPy array


@dataclass(frozen=True, eq=False)
class Case:
    """Input of one call of the function under test: a graph, input arrays, parameters and attributes, read as `case.x` and so on.

    The function `run(case)` returns the output, and `vjp(case, g)` the gradients by name. A function under test reads a
    case by attributes, and each access returns a new copy:

    - `case.n_src`, `case.n_dst`, `case.n_edges`: numbers of source rows, destination rows and edges;
    - `case.src`, `case.dst`: the ends of each edge, shape (n_edges,);
    - `case.indptr`, `case.indices`, `case.eid`: the same edges as CSR by destination, `eid` being the edge numbers;
    - `case.x`, `case.weight` and so on: each array by its name;
    - `case.reduce` and so on: each attribute by its name;
    - `case.state`, `case.parameters`: parameters by name.

    Parameters
    ----------
    name : str
        Names of the graph and of the kind of values, such as "in-star-100000/integers".
    op : str
        Name of the operation or layer, such as "spmm".
    edges : EdgeList
    arrays : dict of str to array
        Inputs by name, of dtype `dtype`. The first axis of each is n_src, n_dst or n_edges long.
    attributes : dict
        Attributes of the operation, such as {"reduce": "mean"}.
    state : dict of str to array
        Parameters by the dialect's names; empty for an operation.
    format : str
        Floating type of inputs, state and outputs: "float64", "float32", "float16", "bfloat16" or "bfloat16-rows".
    accumulate : str
        Floating type in which sums are promised to be computed.
    index_dtype : str
        Dtype of `src`, `dst`, `indptr`, `indices` and `eid` as the function under test gets them.
    convert : (array) -> object, optional
        Applied to each array that the function under test reads, on a copy. `call.GuardedCase` sets it.

    Attributes
    ----------
    dtype : np.dtype
        NumPy dtype of the arrays. Values of bfloat16 are stored in float32 arrays, already rounded.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import oracle
    >>> edges = oracle.EdgeList([0, 1, 0], [1, 1, 0], n_src=2, n_dst=2)
    >>> x = np.array([[1.0], [2.0]], np.float32)
    >>> case = oracle.Case("by hand", "spmm", edges, {"x": x}, {"reduce": "sum"})
    >>> case.indptr.tolist(), case.indices.tolist(), case.eid.tolist()
    ([0, 1, 3], [0, 0, 1], [2, 0, 1])
    >>> case.x.shape, case.dtype, case.reduce
    ((2, 1), dtype('float32'), 'sum')
    """

    name: str
    op: str
    edges: EdgeList
    arrays: Mapping[str, Array]
    attributes: Attributes = field(default_factory=dict)
    state: State = field(default_factory=dict)
    format: str = "float32"
    accumulate: str = "float32"
    index_dtype: str = "int64"
    convert: Convert | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("n_src", "n_dst", "n_edges"):
            return getattr(self.edges, name)
        if name in ("src", "dst", "indptr", "indices", "eid"):
            return self._copied(getattr(self.edges, name).astype(self.index_dtype))
        if name in self.arrays:
            return self._copied(self.arrays[name])
        if name in self.attributes:
            return self.attributes[name]
        names = ", ".join(["src", "dst", "n_src", "n_dst", "n_edges", "indptr", "indices", "eid", "state", *self.arrays,
                           *self.attributes])
        raise AttributeError(f"{self.op} has no {name!r}: it has {names}")

    @property
    def dtype(self) -> np.dtype:
        """NumPy dtype of inputs, parameters and outputs; float32 for the bfloat16 formats."""
        return dtype_of(self.format)

    def _copied(self, array):
        """Return a new copy of an array, converted by `self.convert` unless that is None."""
        return np.array(array, order="C") if self.convert is None else self.convert(array)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters by name as the function under test gets them: new copies, passed through `convert`."""
        return {name: self._copied(value) for name, value in self.state.items()}


Run = Callable[[Case], object]  # a function under test: returns an array, or a dict of arrays by output
Vjp = Callable[[Case, Any], Mapping[str, object]]  # (case, cotangent or dict of cotangents) -> gradients by name
