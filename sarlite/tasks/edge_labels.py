"""Reader of a table with labels of edges: one row for each labelled pair of nodes."""

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator, Solo
from sarlite.data.tables.labels import read_labels
from sarlite.data.tables.time_columns import time_column
from sarlite.data.targets import labelled
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_splits import READERS, DrawnSplits, of_times, pairs_table
from sarlite.tasks.time_split import TimeSplit
from sarlite.types import Array

_WORDS = ("labels", *READERS)


class EdgeLabels(NamedTuple):
    """Labelled pairs of nodes, each with its split (train, val or test) and, if the table has times, its time.

    Attributes
    ----------
    pairs : (n, 2) int64
        Sources and destinations, as ids within their node type. A pair may occur several times, and need not be an edge.
    labels : (n,) or (n, k) array
        Labels in the form of the task, like the labels of a `Dataset`.
    split : (n,) int64
        `link_splits.TRAIN`, `VAL` or `TEST` for each pair.
    task : {"classify", "multilabel", "regress"}
    n_outputs : int
        Number of classes, labels or values.
    class_names : list of str, optional
        Names of the classes, if the labels in the table are words.
    times : (n,) int64, optional
        Time of each pair.
    time_kind : {"dates", "integers"}, optional
        Kind of the times.
    """

    pairs: Array
    labels: Array
    split: Array
    task: str
    n_outputs: int
    class_names: list[str] | None = None
    times: Array | None = None
    time_kind: str | None = None

    def digest(self, comm: Communicator) -> str:
        """Return a hash (32 hexadecimal digits) of rank 0's pairs, labels and splits, the same on every rank. Collective."""
        hashed = sha256(repr(self.class_names).encode())
        for array in (self.pairs, self.labels, self.split):
            hashed.update(np.ascontiguousarray(array).tobytes())
        return str(comm.bcast(hashed.hexdigest()[:32]))


def read(spec: str, task: str | None, val: float, test: float, seed: int, ends: Sequence[Ends],
         time_split: str | None = None) -> EdgeLabels:
    """Read labelled node pairs as `EdgeLabels` from the table `spec`, "FILE,labels=COLUMN,...". The labels are for `task` (None:
    "classify"), and the sources and destinations have the node types `ends`. The splits come from a column of splits, or from a column of
    times and the two times `time_split` "A,B". Otherwise they have the shares `val` and `test`: the latest pairs, or pairs drawn with
    `seed`.

    Parameters
    ----------
    spec : str
        FILE,labels=COLUMN, a column of numbers or words; tasks other than classify take several columns of numbers,
        COLUMN+COLUMN. A column split=COLUMN contains train, val or test. With a column time=COLUMN, the latest share
        `test` of the labels is for testing, and the share `val` before is for validation. Without both columns, the
        splits are drawn from the ids of a pair's ends, in either order. src=COLUMN and dst=COLUMN name the columns of the
        ends, by default the first two columns.
    task : str, optional
        "classify" by default.
    val, test : float
        Shares of the labels.
    seed : int
        Seed of the drawn splits.
    ends : (Ends, Ends)
        Nodes that sources and destinations can be.
    time_split : str, optional
        A,B in place of shares, with time=COLUMN: the first time of validation and the first time of test.

    Returns
    -------
    EdgeLabels

    Raises
    ------
    ConfigError, DataError
        A value is wrong. The error names the file, the row, the column and the value.
    """
    form = "labels=COLUMN, and maybe split=COLUMN or time=COLUMN"
    with pairs_table("edge_labels", spec, form, _WORDS) as opened:
        table, named = opened.table, opened.columns
        by = [word for word in READERS if word in named]
        if "labels" not in named or len(by) > 1:
            raise ConfigError(f"edge_labels {spec}: expected FILE,{form}", "edge_labels")
        if time_split is not None and by != ["time"]:
            raise ConfigError(f"time_split {time_split}: edge_labels {spec} needs time=COLUMN, the column of the times",
                              "time_split")
        if "split" not in by and time_split is None and val + test >= 1:
            raise ConfigError(f"val {val} and test {test} leave no labels to train on")
        columns, task = named["labels"].split("+"), task or "classify"
        if task == "classify" and len(columns) > 1:
            raise ConfigError(f"edge_labels {spec}: several columns are labels of task multilabel or regress",
                              "edge_labels")
        pairs = opened.pairs(ends)
        read_splits = READERS[by[0]](table, named[by[0]]) if by else np.empty(0)
        kind = time_column(table, named["time"]).kind if by == ["time"] and read_splits.dtype == np.int64 else None
        target_columns = read_labels(table, columns, Workspace(), task, what="row")
    labels = np.asarray(target_columns.labels)
    has_label = labelled(labels, task)
    if not has_label.any():
        raise DataError(f"{table.where}: column {columns[0]!r}: no row has a label")
    pairs, labels = pairs[has_label], labels[has_label]
    times = read_splits[has_label] if kind else None
    if time_split is not None:
        borders = TimeSplit.of(time_split, kind)
        split = borders(read_splits[has_label])
        borders.check_counts(Solo(), split, "row with a label")
    elif by == ["time"]:
        split = of_times(table.where, read_splits[has_label], val, test)
    else:
        drawn = DrawnSplits(val, test, seed)
        split = read_splits[has_label] if by else drawn(*(pairs + [end.first for end in ends]).T)
    return EdgeLabels(pairs, labels, split, task, target_columns.n_outputs, target_columns.class_names, times, kind)
