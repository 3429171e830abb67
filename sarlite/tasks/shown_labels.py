"""Labels as inputs of a model: masked label prediction (Shi et al., 2020; used in section 4.2 of the SAR paper)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.errors import ConfigError, DataError, check_int, check_number
from sarlite.graph.shared_state import OutputRows
from sarlite.keys import key, splitmix64
from sarlite.minibatch.batch import Batch, TrainingBatch
from sarlite.tape import Tensor
from sarlite.types import Array


@dataclass(frozen=True)
class LabelInputs:
    """Option of `NodeTask`: in each step, the labels of a random share of the training rows are inputs of the model.

    The loss runs over the other training rows. A shown label is a one-hot vector after the features, and a hidden label
    is a vector of zeros. The first layer's weights of these columns are thus a learned embedding of each class. In
    evaluation all training rows show their labels. In a minibatch the seeds, which the loss runs over, hide their labels,
    and a share of the other training rows shows its labels.

    Parameters
    ----------
    share : float in (0, 1)
        Share of the training rows that show their labels.
    n_classes : int
        Number of columns after the features; the model takes n_features + n_classes columns.

    Examples
    --------
    >>> from sarlite.tasks.node_task import NodeTask
    >>> from sarlite.tasks.shown_labels import LabelInputs
    >>> task = NodeTask(label_inputs=LabelInputs(share=0.65, n_classes=3))
    >>> task.label_inputs
    LabelInputs(share=0.65, n_classes=3)
    """

    share: float
    n_classes: int


class ShownLabels:
    """Input rows for masked label prediction: the features, and further columns with the one-hot labels of some training rows, which are
    drawn anew in each step. Construction is collective.

    The class receives only the labels of training rows, so no other label can reach the model.

    Parameters
    ----------
    inputs : LabelInputs
    comm : Communicator
    x : (n, n_features) array
        Features.
    rows : (k,) int64
        Row numbers of the training rows.
    ids : (k,) int64
        Global ids of the training rows.
    labels : (k,) array of integers
        Labels of the training rows.
    others : (m,) int64
        Row numbers of the validation and test rows.
    seed : int
        Seed of the draws.

    Attributes
    ----------
    x : (n, n_features + n_classes) array
        Copy of the features, with columns for the shown labels, which change in every step.
    tensor : Tensor
        Tensor with the array `x`; not a constant tensor, because `x` changes.

    Raises
    ------
    ConfigError, DataError
        On every rank: the share is not in (0, 1), a training row is also in another split, or a label is not a class.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> x, rows = np.ones((3, 1)), np.array([0, 1])
    >>> shown = ShownLabels(LabelInputs(0.5, 2), Solo(), x, rows, ids=rows, labels=np.array([1, 0]), others=np.array([2]),
    ...                     seed=0)
    >>> shown.show_all()
    >>> shown.x.tolist()
    [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """

    def __init__(self, inputs: LabelInputs, comm: Communicator, x: Array, rows: Array, ids: Array, labels: Array,
                 others: Array, seed: int) -> None:
        self.inputs, self.comm, self.rows, self.ids, self.seed = inputs, comm, rows, ids, seed
        together(comm, lambda: self._check(labels, others))
        self.x = np.zeros((len(x), x.shape[1] + inputs.n_classes), x.dtype)
        self.x[:, : x.shape[1]] = x
        self.tensor = Tensor(self.x, placement="rows")
        self._columns = x.shape[1] + labels
        self._classes = np.full(len(x), -1, np.int64)
        self._classes[rows] = labels

    @classmethod
    def of(cls, inputs: LabelInputs, graph: OutputRows, x: Array, labels: Array, rows: Mapping[str, Array],
           seed: int) -> "ShownLabels":
        """Create the input rows of this rank from its features `x` and the labels of its training rows, whose row numbers are
        rows["train"]. `inputs` has the share of labels to show, and `graph` the ids of the rows. Collective.

        Parameters
        ----------
        inputs : LabelInputs
        graph : Graph
            This rank's part.
        x : (n, n_features) array
        labels : (n,) array of integers
            Labels of all rows; only those of training rows are read.
        rows : dict of str to (k,) int64
            Row numbers by split.
        seed : int

        Raises
        ------
        ConfigError
            On every rank: the labels are not classes.
        """
        train, others = rows["train"], np.concatenate([rows["val"], rows["test"]])
        classes = together(graph.comm, lambda: _classes(labels, train))
        return cls(inputs, graph.comm, x, train, np.asarray(graph.dst_ids)[train], classes, others, seed)

    def _check(self, labels, others):
        check_number("label inputs: the share", self.inputs.share, below=1, positive=True)
        check_int("label inputs: n_classes", self.inputs.n_classes, 1)
        both = np.isin(self.rows, others)
        if both.any():
            raise DataError(f"label inputs: node {self.ids[both][0]} is in the training split and in another split "
                            f"({both.sum()} nodes are), so labels that are to be predicted would be inputs")
        wrong = np.flatnonzero((labels < 0) | (labels >= self.inputs.n_classes))
        if len(wrong):
            raise DataError(f"label inputs: node {self.ids[wrong[0]]} has label {labels[wrong[0]]} of "
                            f"{self.inputs.n_classes} classes")

    def to_train(self, batches: Any, step: int) -> Iterator[TrainingBatch]:
        """Yield the training batches `batches` with inputs that have the labels of some training rows. The first batch has the global step
        `step`, which determines the drawn rows. Collective.

        The seeds of a sampled batch hide their labels. In a batch that is used in every step, randomly drawn training
        rows hide their labels, and the loss runs over these rows.
        """
        with closing(batches):
            for number, batch in enumerate(batches, step):
                if not batch.lasting:
                    x = Tensor(self.of_batch(batch, number), placement="rows")
                    yield batch.with_input(x, batch.rows, batch.n_global)
                    continue
                hidden, count = self.draw(number)
                rows = hidden if batch.outputs is None else batch.rows[np.isin(batch.outputs[batch.rows], hidden)]
                yield batch.with_input(Tensor(batch.take(self.x), placement="rows"), rows, count)

    def to_score(self, batches: Iterable[Any]) -> Iterator[TrainingBatch]:
        """Yield evaluation batches whose inputs have the labels of all training rows."""
        self.show_all()
        for batch in batches:
            yield batch.with_input(Tensor(batch.take(self.x), placement="rows"), batch.rows, batch.n_global)

    def draw(self, step: int) -> tuple[Array, int]:
        """Draw the training rows whose labels are inputs in the global step `step`. Return (row numbers of this rank's training rows whose
        labels stay hidden, number of these rows on all ranks). Collective.

        The drawn labels are written into the columns of `x`.

        Parameters
        ----------
        step : int
            The global step. The draw of a node depends only on the seed, the step and the node's id.

        Returns
        -------
        rows : (m,) int64
            This rank's training rows that hide their labels.
        count : int
            Number of hidden labels over all ranks, 1 or more: if all rows were drawn, all labels are hidden instead.
        """
        shown = self._is_drawn(self.ids, step)
        count = int(self.comm.allreduce(np.array([np.count_nonzero(~shown)]))[0])
        if not count:
            shown[:] = False
            count = int(self.comm.allreduce(np.array([len(shown)]))[0])
        self.x[self.rows, self._columns] = shown
        return self.rows[~shown], count

    def _is_drawn(self, ids, step):
        random_key = np.uint64(key(self.seed, "label inputs", "", step, 0))
        return splitmix64(ids.astype(np.uint64) ^ random_key) < np.uint64(int(self.inputs.share * 2**64))

    def of_batch(self, batch: Batch, step: int) -> Array:
        """Return the input rows of a sampled batch, (n_src, n_features + n_classes): features, and one-hot labels of the training rows
        drawn for the global step `step`. The labels of the seeds are hidden, because the batch predicts them.

        Another training node shows its label if it is drawn, which depends on the random seed, the step and the node's
        id. So the input rows are the same for any number of ranks.
        """
        with batch.buffers:
            x, n = batch.take(self.x), batch.n_dst
        first = x.shape[1] - self.inputs.n_classes
        x[:, first:] = 0
        classes = self._classes[batch.part_rows[n:]]  # without the seeds, which come first
        shown = np.flatnonzero((classes >= 0) & self._is_drawn(batch.src_ids[n:], step))
        x[n + shown, first + classes[shown]] = 1
        return x

    def show_all(self) -> None:
        """Write the labels of all training rows into the columns of `x`."""
        self.x[self.rows, self._columns] = 1


def _classes(labels, rows):
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError(f"label_inputs: labels are {labels.dtype} of shape {labels.shape}, but must be classes, (n_dst,) "
                          "integers")
    return labels[rows].astype(np.int64)
