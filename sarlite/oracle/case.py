"""`Case`: one input of an operation or a layer, as the function under test gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.formats import dtype_of
from sarlite.types import Array


@dataclass(frozen=True, eq=False)
class Case:
    """The input of the function under test: `run(case)` returns the output, `vjp(case, g)` the gradients by name.

    Values are attributes: `case.src`, `case.dst`, `case.n_src`, `case.n_dst`, `case.n_edges`, `case.indptr`,
    `case.indices`, `case.eid` (CSR by destination), each array by its name (`case.x`, `case.weight`), each attribute by
    its name (`case.reduce`), and `case.state`.

    Attributes
    ----------
    name : str
        Which graph and which values, as `star-in-100000/integers`.
    op : str
        Name of the operation or layer, as "spmm".
    edges : EdgeList
    arrays : dict of str to array
        The inputs, (n_src | n_dst | n_edges, ...), of dtype `dtype`.
    attributes : dict
        As {"reduce": "mean"}.
    state : dict of str to array
        Parameters by the names of the dialect; empty for an operation.
    format : str
        Of inputs, state and expected outputs: "float64", "float32", "float16"; "bfloat16" values stand in float32
        arrays, already rounded.
    dtype : np.dtype
        Of the arrays.
    accumulate : str
        The dtype that sums are promised to be made in.
    index_dtype : str
        Of `src`, `dst`, `indptr`, `indices`, `eid` as the function gets them.
    convert : function, optional
        What makes what the function gets of an array, a copy; `call.Handed` sets it.
    """

    name: str
    op: str
    edges: EdgeList
    arrays: Mapping[str, Array]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Array] = field(default_factory=dict)
    format: str = "float32"
    accumulate: str = "float32"
    index_dtype: str = "int64"
    convert: Callable[[Array], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("n_src", "n_dst", "n_edges"):
            return getattr(self.edges, name)
        if name in ("src", "dst", "indptr", "indices", "eid"):
            return self._given(getattr(self.edges, name).astype(self.index_dtype))
        if name in self.arrays:
            return self._given(self.arrays[name])
        if name in self.attributes:
            return self.attributes[name]
        known = ", ".join(["src", "dst", "n_src", "n_dst", "n_edges", "indptr", "indices", "eid", "state", *self.arrays,
                           *self.attributes])
        raise AttributeError(f"{self.op} has no {name!r}: it has {known}")

    @property
    def dtype(self) -> np.dtype:
        return dtype_of(self.format)

    def _given(self, array: Array) -> Any:
        """The function's own copy."""
        return np.array(array, order="C") if self.convert is None else self.convert(array)

    @property
    def parameters(self) -> dict[str, Any]:
        """The state as the function gets it: own copies, converted."""
        return {name: self._given(value) for name, value in self.state.items()}
