"""Row formats, values of the schedule: the dtype of rows that are stored and sent for edges to gather."""

from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.types import Array


class RowFormat(NamedTuple):
    """Storage format of rows. The schedule rounds rows once, when it receives them; kernels dispatch on their dtype.

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
        """Return source rows as the schedule stores them. Arrays of a kind other than "rows" are not changed."""
        if not self.is_narrow:
            return arrays
        return tuple(self._narrow(x) if kind == "rows" else x for x, kind in zip(arrays, kinds))

    def _narrow(self, x):
        if x.dtype != np.float32:
            raise ConfigError(f"rows {self.name}: stand for rows of float32, but these are {x.dtype}")
        return kernels.narrow(x)

    def gradient(self, g: Array, scale: Array | None = None) -> tuple[Array, Array | None]:
        """Return rows of an output's gradient as the schedule stores them, and the scale that is not yet applied.

        Notes
        -----
        The rounding of a row depends on the row alone, so all ranks that sum the gradient rows use the same values. The
        sums over edges and ranks are float32.

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
