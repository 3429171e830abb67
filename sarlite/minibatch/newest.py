"""The newest row of each local row that a peer has as halo: what an owner answers with where peers ask (push "demand")."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import SarliteError, ShapeError
from sarlite.minibatch.borders import Borders
from sarlite.types import Array


class Newest:
    """One layer's newest rows, and the step in which each was made.

    Parameters
    ----------
    borders : Borders
    once : bool
        Answer with a row once a peer: whoever asks keeps what it has got. Else it is sent as often as it is asked for.

    Attributes
    ----------
    made : (n_border,) int64
        Steps, in the order of `borders.rows`; -1 before the first row.

    Notes
    -----
    Memory: n_border x (8 + bytes of a row), the rows from the first `update` on; with `once` 8 bytes an entry of the borders. Local: no
    rank waits for another.
    """

    def __init__(self, borders: Borders, once: bool = False) -> None:
        self.borders, self.made, self._once = borders, np.full(len(borders.rows), -1, np.int64), once
        self._rows: Any = None
        self._sent = self._nothing_sent()

    def _nothing_sent(self):
        """By peer and slot, the step that made the row which was sent last."""
        return [np.full(n, -1, np.int64) for n in self.borders.lengths] if self._once else []

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.made.nbytes + sum(sent.nbytes for sent in self._sent) + (0 if self._rows is None else self._rows.nbytes)

    def update(self, rows: Array, made: int, values: Array) -> None:
        """Keep what this step made; rows that no peer has as halo are passed over.

        Parameters
        ----------
        rows : (n,) int array
            Distinct local rows.
        made : int
            The step.
        values : (n, ...) array
            Of one dtype and row shape in all calls. Copied. Without rows too they tell dtype and shape.

        Raises
        ------
        ShapeError
            Values of another number of rows, row shape or dtype.
        """
        self._check(values, len(rows))
        numbers = self.borders.numbers(rows)
        places = np.flatnonzero(numbers >= 0)
        numbers = numbers[places]
        self._rows[numbers] = values[places]
        self.made[numbers] = made

    def answers(self, asked: Sequence[Array], now: int, life: int) -> list[tuple[Array, Array, Array]]:
        """Return what peers asked for and is young enough, as messages for `Pusher.submit`.

        Parameters
        ----------
        asked : list by rank of (m,) int arrays
            Slots.
        now : int
            The step.
        life : int
            The largest age, in steps.

        Returns
        -------
        list by rank of (slots (k,) int32, made (k,) int64, rows (k, ...))
            Those with now - made <= life, in the order asked; with `once` not what that peer has got. New arrays.

        Raises
        ------
        SarliteError
            Before the first `update`, when the rows' width is not known.
        """
        if self._rows is None:
            raise SarliteError("rows were asked for before any was made")
        found = []
        for peer, slots in enumerate(asked):
            numbers = self.borders.asked(peer, slots)
            made = self.made[numbers]
            young = (made >= 0) & (now - made <= life)
            if self._once:
                young &= made != self._sent[peer][slots]
                self._sent[peer][slots[young]] = made[young]
            found.append((slots[young].astype(np.int32), made[young], self._rows[numbers[young]]))
        return found

    def state(self) -> dict[str, Array]:
        """Return copies: "made", and "rows", (k, ...), of those rows alone that were made; without "rows" before the first `update`."""
        return {"made": self.made.copy()} | ({} if self._rows is None else {"rows": self._rows[self.made >= 0]})

    def load(self, state: dict[str, Array]) -> None:
        """Take over what `state` returned; with `once` each row goes once more.

        Raises
        ------
        ShapeError
            It is of other borders.
        """
        there = state["made"] >= 0
        if len(there) != len(self.made) or there.sum() != len(state.get("rows", ())):
            raise ShapeError(f"newest rows of {len(there)} border rows do not fit the {len(self.made)} of this part")
        self.made, self._rows, self._sent = state["made"].astype(np.int64), None, self._nothing_sent()
        if "rows" in state:
            self._check(state["rows"], there.sum())
            self._rows[there] = state["rows"]

    def _check(self, values, n):
        if self._rows is None:
            self._rows = kernels.unbuffered(np.empty, (len(self.made), *values.shape[1:]), values.dtype)
        if (values.dtype, values.shape) != (self._rows.dtype, (n, *self._rows.shape[1:])):
            raise ShapeError(f"{values.dtype} {values.shape} are not {n} rows of {self._rows.dtype} {self._rows.shape[1:]}")
