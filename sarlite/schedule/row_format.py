"""Row formats: the dtype, float32 or bfloat16, of stored and sent rows that edges gather."""

from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.types import Array


class RowFormat(NamedTuple):
    """Storage format of rows, a value of the schedule.

    The schedule rounds rows once, when an aggregation gives it the rows. Kernels choose their code by the rows' dtype.

    Attributes
    ----------
    name : {"float32", "bfloat16"}
        "float32" leaves rows of any dtype unchanged; "bfloat16" rounds rows of float32.
    """

    name: str

    @property
    def is_narrow(self) -> bool:
        """True if rows of float32 are stored as bfloat16."""
        return self.name != "float32"

    def rows(self, arrays: tuple[Array, ...], kinds: tuple[str, ...]) -> tuple[Array, ...]:
        """Return the fetched inputs of an operator in this format.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) array
        kinds : tuple of {"rows", "scores"}
            Kind of each array. Scores are returned unchanged.

        Raises
        ------
        ConfigError
            The format is bfloat16, and rows are not float32.
        """
        if not self.is_narrow:
            return arrays
        return tuple(self._narrow(x) if kind == "rows" else x for x, kind in zip(arrays, kinds))

    def _narrow(self, x):
        if x.dtype != np.float32:
            raise ConfigError(f"rows {self.name}: stand for rows of float32, but these are {x.dtype}")
        return kernels.narrow(x)

    def gradient(self, g: Array, scale: Array | None = None) -> tuple[Array, Array | None]:
        """Return the gradient of an output in this format, and the scale that the result does not contain yet.

        Parameters
        ----------
        g : (n_dst, ...) array
            Gradient of an output, whose rows edges gather in the backward pass.
        scale : (n_dst,) array, optional
            Factor of each row. With bfloat16 the rows are multiplied before they are rounded.

        Returns
        -------
        g : (n_dst, ...) array
        scale : (n_dst,) array, or None
            Factor of each row that is still to be applied.

        Notes
        -----
        The rounding of a row depends on the row alone, so all ranks that sum rows of the gradient use the same values.
        The sums over edges and ranks are float32.
        """
        if not self.is_narrow:
            return g, scale
        return kernels.narrow(g, scale, g.flags.writeable), None  # a writable gradient is not read by anyone else


FLOAT32 = RowFormat("float32")
ROW_FORMATS = {name: RowFormat(name) for name in ("float32", "bfloat16")}
