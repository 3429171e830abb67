"""How rows that edges gather are stored and sent: a value of the schedule."""

from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.types import Array


class RowFormat(NamedTuple):
    """A format of rows. Rows are rounded once, where they enter the schedule; kernels dispatch on the rows' dtype.

    Attributes
    ----------
    name : {"float32", "bfloat16"}
    """

    name: str

    @property
    def is_narrow(self) -> bool:
        """True if rows of float32 are stored as bfloat16."""
        return self.name != "float32"

    def rows(self, arrays: tuple[Array, ...], kinds: tuple[str, ...]) -> tuple[Array, ...]:
        """Return source rows as the schedule stores them; arrays of another kind than "rows" stay as they are."""
        if not self.is_narrow:
            return arrays
        return tuple(self._narrow(x) if kind == "rows" else x for x, kind in zip(arrays, kinds))

    def _narrow(self, x):
        if x.dtype != np.float32:
            raise ConfigError(f"rows {self.name}: stand for rows of float32, but these are {x.dtype}")
        return kernels.narrow(x)

    def gradient(self, g: Array, scale: Array | None = None) -> tuple[Array, Array | None]:
        """Return rows of an output's gradient as the schedule stores them, and the scale that is still to be applied.

        Notes
        -----
        A rounding depends on the row alone. So every rank that sums rows of a gradient sums the same values, and what
        edges or ranks add up is float32.
        """
        if not self.is_narrow:
            return g, scale
        return kernels.narrow(g, scale, g.flags.writeable), None  # a gradient that may be written to is this pass's own


FLOAT32 = RowFormat("float32")
ROW_FORMATS = {name: RowFormat(name) for name in ("float32", "bfloat16")}
