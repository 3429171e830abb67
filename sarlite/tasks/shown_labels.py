"""Labels as inputs: masked label prediction (Shi et al., 2020; SAR 4.2)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.errors import ConfigError, DataError, number, whole
from sarlite.keys import key, splitmix64
from sarlite.minibatch.batch import Batch
from sarlite.tape import Tensor
from sarlite.types import Array


@dataclass(frozen=True)
class LabelInputs:
    """Each step a random share of the training rows shows its label to the model, and the loss runs over the others.

    The label stands as a one-hot row behind the features, zeros where it is not shown; so the first layer's weights of
    these columns are a learned embedding of each class, added to what the layer makes of the features. In evaluation
    all training rows show theirs.
    In a minibatch its seeds, which the loss runs over, hide theirs, and the share is of the other training rows.

    Attributes
    ----------
    share : float in (0, 1)
    n_classes : int
        Columns that join the features: the model takes n_features + n_classes.
    """

    share: float
    n_classes: int


class ShownLabels:
    """This rank's input rows: features beside shown labels. Construction is collective.

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
    tensor : Tensor
        Of `x`. It is no constant tensor, as `x` changes.

    Raises
    ------
    ConfigError, DataError
        On every rank: the share is not above 0 and below 1, a training row is in another split too, a label is no
        class.
    """

    def __init__(self, inputs: LabelInputs, comm: Communicator, x: Array, rows: Array, ids: Array, labels: Array,
                 others: Array, seed: int) -> None:
        self.inputs, self.comm, self.rows, self.ids, self.seed = inputs, comm, rows, ids, seed
        together(comm, lambda: self._check(labels, others))
        self.x = np.zeros((len(x), x.shape[1] + inputs.n_classes), x.dtype)
        self.x[:, : x.shape[1]] = x
        self.tensor = Tensor(self.x)
        self._columns = x.shape[1] + labels
        self._classes = np.full(len(x), -1, np.int64)
        self._classes[rows] = labels

    @classmethod
    def of(cls, inputs: LabelInputs, graph: Any, x: Array, labels: Array, rows: Mapping[str, Array],
           seed: int) -> "ShownLabels":
        """Return those of a graph's rows, of which `rows` tells the numbers by split. Collective; raises, too, a
        ConfigError where labels are no classes."""
        train, others = rows["train"], np.concatenate([rows["val"], rows["test"]])
        classes = together(graph.comm, lambda: _classes(labels, train))
        return cls(inputs, graph.comm, x, train, np.asarray(graph.dst_ids)[train], classes, others, seed)

    def _check(self, labels, others):
        number("label inputs: the share", self.inputs.share, below=1, positive=True)
        whole("label inputs: n_classes", self.inputs.n_classes, 1)
        both = np.isin(self.rows, others)
        if both.any():
            raise DataError(f"label inputs: node {self.ids[both][0]} is in the training split and in another "
                            f"({both.sum()} nodes are), so what is to be predicted would be an input")
        wrong = np.flatnonzero((labels < 0) | (labels >= self.inputs.n_classes))
        if len(wrong):
            raise DataError(f"label inputs: node {self.ids[wrong[0]]} has label {labels[wrong[0]]} of "
                            f"{self.inputs.n_classes} classes")

    def to_train(self, batches: Any, step: int) -> Iterator[Any]:
        """Yield batches with labels shown, from the global step `step` on. Collective.

        Of a sampled batch the seeds hide their labels. Of a batch that stays the drawn training rows do, and the loss
        is over these.
        """
        with closing(batches):
            for number, batch in enumerate(batches, step):
                if not batch.lasting:
                    with batch.buffers:
                        yield batch.with_input(Tensor(self.of_batch(batch, number)), batch.rows, batch.n_global)
                    continue
                hidden, count = self.draw(number)
                rows = hidden if batch.outputs is None else batch.rows[np.isin(batch.outputs[batch.rows], hidden)]
                yield batch.with_input(Tensor(batch.take(self.x)), rows, count)

    def to_score(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches with the labels of all training rows shown."""
        self.show_all()
        for batch in batches:
            yield batch.with_input(Tensor(batch.take(self.x)), batch.rows, batch.n_global)

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
        shown = self._coins(self.ids, step)
        count = int(self.comm.allreduce(np.array([np.count_nonzero(~shown)]))[0])
        if not count:
            shown[:] = False
            count = int(self.comm.allreduce(np.array([len(shown)]))[0])
        self.x[self.rows, self._columns] = shown
        return self.rows[~shown], count

    def _coins(self, ids, step):
        own = np.uint64(key(self.seed, "label inputs", "", step, 0))
        return splitmix64(ids.astype(np.uint64) ^ own) < np.uint64(int(self.inputs.share * 2**64))

    def of_batch(self, batch: Batch, step: int) -> Array:
        """Return a batch's input rows, (n_src, n_features + n_classes), new.

        No seed of the step shows its label, on whichever rank, and of the other training nodes those do whose coin, by
        (seed, step, id), says so; the loss of all seeds counts. So a row's input is the same for any number of ranks.
        """
        x, n = batch.take(self.x), batch.n_dst
        first = x.shape[1] - self.inputs.n_classes
        x[:, first:] = 0
        classes = self._classes[batch.part_rows[n:]]  # the seeds, which come first, are this rank's own
        shown = np.flatnonzero((classes >= 0) & self._coins(batch.src_ids[n:], step))
        x[n + shown, first + classes[shown]] = 1
        return x

    def show_all(self) -> None:
        """Show the labels of all training rows."""
        self.x[self.rows, self._columns] = 1


def _classes(labels, rows):
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError(f"label_inputs: labels are {labels.dtype} of shape {labels.shape}, but classes are (n_dst,) "
                          "integers")
    return labels[rows].astype(np.int64)
