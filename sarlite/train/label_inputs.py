"""Labels as inputs: masked label prediction (Shi et al., 2020; SAR 4.2)."""

from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.errors import ConfigError, DataError
from sarlite.keys import key, splitmix64
from sarlite.types import Array


class LabelInputs(NamedTuple):
    """Each step a random share of the training rows shows its label to the model, and the loss runs over the others.

    The label stands as a one-hot row behind the features, zeros where it is not shown; so the first layer's weights of these columns are a
    learned embedding of each class, added to what the layer makes of the features. In evaluation all training rows show theirs.

    Attributes
    ----------
    share : float in (0, 1)
    n_classes : int
        Columns that join the features: the model takes n_features + n_classes.
    """

    share: float
    n_classes: int


class ShownLabels:
    """This rank's input rows, of features and shown labels. Construction is collective.

    Of labels it is given the training rows' alone, so no other label can reach the model.

    Parameters
    ----------
    inputs : LabelInputs
    comm : Communicator
    x : (n, n_features) array
    rows : (k,) int64
        Training rows.
    ids : (k,) int64
        Their global ids.
    labels : (k,) array of integers
    others : (m,) int64
        Rows of the other splits.
    seed : int

    Attributes
    ----------
    x : (n, n_features + n_classes) array, of x's dtype
        New; its last columns change with every draw.

    Raises
    ------
    ConfigError, DataError
        On every rank: the share is not above 0 and below 1, a training row is in another split too, a label is no class.
    """

    def __init__(self, inputs: LabelInputs, comm: Communicator, x: Array, rows: Array, ids: Array, labels: Array, others: Array,
                 seed: int) -> None:
        self.inputs, self.comm, self.rows, self.ids, self.seed = inputs, comm, rows, ids, seed
        together(comm, lambda: self._check(labels, others))
        self.x = np.zeros((len(x), x.shape[1] + inputs.n_classes), x.dtype)
        self.x[:, : x.shape[1]] = x
        self._columns = x.shape[1] + labels

    def _check(self, labels, others):
        if not 0 < self.inputs.share < 1:
            raise ConfigError(f"label inputs: the share {self.inputs.share} is not above 0 and below 1")
        both = np.isin(self.rows, others)
        if both.any():
            raise DataError(f"label inputs: node {self.ids[both][0]} is in the training split and in another ({both.sum()} nodes are), so "
                            "what is to be predicted would be an input")
        wrong = np.flatnonzero((labels < 0) | (labels >= self.inputs.n_classes))
        if len(wrong):
            raise DataError(f"label inputs: node {self.ids[wrong[0]]} has label {labels[wrong[0]]} of {self.inputs.n_classes} classes")

    def draw(self, step: int) -> tuple[Array, int]:
        """Show the labels of a share of the training rows, and hide the others'. Collective.

        Parameters
        ----------
        step : int
            The global step. Whether a node shows its label depends on the seed, the step and its id alone.

        Returns
        -------
        rows : (m,) int64
            This rank's training rows that hide their labels.
        count : int
            Of those over all ranks, 1 or more: where chance would show all labels, none is.
        """
        own = np.uint64(key(self.seed, "label inputs", "", step, 0))
        shown = splitmix64(self.ids.astype(np.uint64) ^ own) < np.uint64(int(self.inputs.share * 2**64))
        count = int(self.comm.allreduce(np.array([np.count_nonzero(~shown)]))[0])
        if not count:
            shown[:] = False
            count = int(self.comm.allreduce(np.array([len(shown)]))[0])
        self.x[self.rows, self._columns] = shown
        return self.rows[~shown], count

    def show_all(self) -> None:
        """Show the labels of all training rows."""
        self.x[self.rows, self._columns] = 1
