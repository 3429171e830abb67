"""Labels of edges, from a table with one row for each pair of nodes."""

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator, Solo
from sarlite.data.tables.checks import time_column
from sarlite.data.tables.labels import read_labels
from sarlite.data.targets import labelled
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_splits import READERS, DrawnSplits, of_times, pairs_table
from sarlite.tasks.time_split import TimeSplit
from sarlite.types import Array

_WORDS = ("labels", *READERS)


class EdgeLabels(NamedTuple):
    """Labelled pairs of nodes.

    Attributes
    ----------
    pairs : (n, 2) int64
        Sources and destinations, numbered within their type. A pair may occur several times, and need not be an edge.
    labels : (n,) or (n, k) array
        In the task's form, as of a `Dataset`.
    split : (n,) int64
        Of `link_splits.TRAIN`, `VAL` and `TEST`.
    task : {"classify", "multilabel", "regress"}
    n_outputs : int
        Number of classes, labels or values.
    class_names : list of str, optional
        Names of the classes, if the labels are words.
    times : (n,) int64, optional
        Time of each pair.
    time_kind : {"dates", "integers"}, optional
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
        """Return a hash of rank 0's pairs, labels and splits. Collective."""
        found = sha256(repr(self.class_names).encode())
        for array in (self.pairs, self.labels, self.split):
            found.update(np.ascontiguousarray(array).tobytes())
        return str(comm.bcast(found.hexdigest()[:32]))


def read(spec: str, task: str | None, val: float, test: float, seed: int, ends: Sequence[Ends],
         time_split: str | None = None) -> EdgeLabels:
    """Return the labels of pairs of nodes in a table. Rows without a label are left out.

    Parameters
    ----------
    spec : str
        FILE,labels=COLUMN, with numbers or words. Tasks other than classify take several columns of numbers,
        COLUMN+COLUMN. split=COLUMN has train, val or test for each row. With time=COLUMN the latest labels, a share
        `test`, are to test on, and a share `val` before these labels is to validate on. Without either, splits are
        drawn from the ids of a pair's ends, in either order. src=COLUMN and dst=COLUMN name the ends, by default the
        first two columns.
    task : str, optional
        "classify" by default.
    val, test : float
        Shares of the labels.
    seed : int
    ends : (Ends, Ends)
    time_split : str, optional
        A,B: with time=COLUMN, in place of shares, the first time to validate on and the first time to test on.

    Raises
    ------
    ConfigError, DataError
        A value is wrong. The error names the file, the row, the column and the value.
    """
    form = "labels=COLUMN, and maybe split=COLUMN or time=COLUMN"
    with pairs_table("edge_labels", spec, form, _WORDS) as told:
        table, named = told.table, told.columns
        by = [word for word in READERS if word in named]
        if "labels" not in named or len(by) > 1:
            raise ConfigError(f"edge_labels {spec}: expected FILE,{form}", "edge_labels")
        if time_split is not None and by != ["time"]:
            raise ConfigError(f"time_split {time_split}: time=COLUMN in edge_labels {spec} says the times of the rows",
                              "time_split")
        if "split" not in by and time_split is None and val + test >= 1:
            raise ConfigError(f"val {val} and test {test} leave no labels to train on")
        columns, task = named["labels"].split("+"), task or "classify"
        if task == "classify" and len(columns) > 1:
            raise ConfigError(f"edge_labels {spec}: several columns are labels of task multilabel or regress",
                              "edge_labels")
        pairs = told.pairs(ends)
        read_splits = READERS[by[0]](table, named[by[0]]) if by else np.empty(0)
        kind = time_column(table, named["time"]).kind if by == ["time"] and read_splits.dtype == np.int64 else None
        found = read_labels(table, columns, Workspace(), task, what="row")
    labels = np.asarray(found.labels)
    there = labelled(labels, task)
    if not there.any():
        raise DataError(f"{table.where}: column {columns[0]!r}: no row has a label")
    pairs, labels = pairs[there], labels[there]
    times = read_splits[there] if kind else None
    if time_split is not None:
        borders = TimeSplit.of(time_split, kind)
        split = borders(times)
        borders.check_counts(Solo(), split, "row with a label")
    elif by == ["time"]:
        split = of_times(table.where, read_splits[there], val, test)
    else:
        drawn = DrawnSplits(val, test, seed)
        split = read_splits[there] if by else drawn(*(pairs + [end.first for end in ends]).T)
    return EdgeLabels(pairs, labels, split, task, found.n_outputs, found.class_names, times, kind)
