"""Row formats: how rows that edges gather are rounded, stored and sent."""

from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.kernels import Rows
from sarlite.types import Array

ROWS = "rows"
"""Kind of the arrays that have a row format. Scores of attention stay as they are."""


class RowFormat(NamedTuple):
    """Number format of the rows that edges gather, for storing and sending them: float32, bfloat16 or int8.

    The schedule rounds rows once, when an aggregation gives it the rows. Rows of bfloat16 are stored, sent and read by
    kernels as 16-bit numbers; kernels choose their code by the dtype. Rows of int8 are rounded to multiples of
    a power of two, one for each row. Kernels read these rows as float32, and ranks send them as integers.

    Attributes
    ----------
    name : {"float32", "bfloat16", "int8"}
        "float32" leaves rows of any dtype unchanged; the other formats round rows of float32.
    """

    name: str

    @property
    def is_narrow(self) -> bool:
        """True if the format rounds rows, as bfloat16 and int8 do; False for float32."""
        return self.name != "float32"

    @property
    def is_integer(self) -> bool:
        """True for int8: rows are sent as integers, and kernels read them as float32."""
        return self.name == "int8"

    def rows(self, arrays: tuple[Array, ...], array_kinds: tuple[str, ...]) -> tuple[Array, ...]:
        """Return `arrays`, each one of kind "rows" rounded to this format; arrays of kind "scores" are unchanged.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) array
        array_kinds : tuple of {"rows", "scores"}
            Kind of each array. Scores are returned unchanged.

        Raises
        ------
        ConfigError
            The format is not float32, and rows are not float32.
        """
        if not self.is_narrow:
            return arrays
        return tuple(self._rounded(x) if kind == ROWS else x for x, kind in zip(arrays, array_kinds))

    def _rounded(self, x: Array | Rows) -> Array:
        if x.dtype != np.float32:
            raise ConfigError(f"rows {self.name}: the rows are {x.dtype}, but must be float32")
        return kernels.round_rows(x) if self.is_integer else kernels.narrow(x)

    def gradient(self, g: Array, scale: Array | None = None) -> tuple[Array, Array | None]:
        """Prepare an output's gradient `g` for the edges that gather its rows; return (gradient, row factors that are still to be
        applied). A format that rounds returns `g` times the row factors `scale` (None: 1), rounded, and None. Float32 returns `g`
        and `scale` unchanged.

        Parameters
        ----------
        g : (n_dst, ...) array
            Gradient of an output, whose rows edges gather in the backward pass.
        scale : (n_dst,) array, optional
            Factor of each row, applied before the rounding.

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
        in_place = g.flags.writeable  # a writable gradient is not read by anyone else
        if not self.is_integer:
            return kernels.narrow(g, scale, in_place), None
        if scale is not None:
            g, in_place = np.multiply(g, scale.reshape(-1, *[1] * (g.ndim - 1)), out=g if in_place else None), True
        return kernels.round_rows(g, in_place), None

    def encode(self, arrays: tuple[Array, ...], array_kinds: tuple[str, ...]) -> tuple[Array, ...]:
        """Return `arrays` in the form that is sent to peers: int8 turns arrays of kind "rows" into integers; all other arrays, and all
        other formats, are unchanged. Empty `array_kinds` means that no array changes.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) array
            Rows from `rows`.
        array_kinds : tuple of {"rows", "scores"}
            Kind of each array; empty if no array has a row format. Only rows of an integer format change: they become
            int8 arrays, as `kernels.quantize` returns them.
        """
        if not self.is_integer or not array_kinds:
            return arrays
        return tuple(kernels.quantize(x) if kind == ROWS else x for x, kind in zip(arrays, array_kinds))

    def decode(self, arrived: tuple[Array, ...], local: tuple[Array, ...], array_kinds: tuple[str, ...]) -> tuple[Array, ...]:
        """Return the rows `arrived` from a peer in the form that kernels read; it undoes `encode`. The arrays `local`, this rank's
        rows, show the shape of a row.

        Parameters
        ----------
        arrived : tuple of (n_rows, ...) array
            Result of `encode` on the peer.
        local : tuple of (n_src, ...) array
            This rank's rounded rows, which show the shape of a row.
        array_kinds : tuple of {"rows", "scores"}
            Kind of each array, as for `encode`.
        """
        if not self.is_integer or not array_kinds:
            return arrived
        return tuple(kernels.dequantize(q, x.shape[1:]) if kind == ROWS else q
                     for q, x, kind in zip(arrived, local, array_kinds))


FLOAT32 = RowFormat("float32")
ROW_FORMATS = {name: RowFormat(name) for name in ("float32", "bfloat16", "int8")}
