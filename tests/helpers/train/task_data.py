"""Small data sets of each task, on one graph."""

import numpy as np

from sarlite.data import format, load
from sarlite.data.targets import MISSING

SPEC = "sbm:nodes=300,classes=4,features=16,degree=8"


def dataset(task, columns=3):
    """A data set whose labels can be learned; some nodes outside the splits have none."""
    found = load(SPEC)
    draw = np.random.default_rng(3)
    numbers = np.array(found.features) @ draw.standard_normal((16, columns)).astype(np.float32)
    test = np.array(found.test)
    out = np.flatnonzero(test)[:20]
    test[out] = False
    labels = {"classify": np.array(found.labels), "multilabel": (numbers > 0).astype(np.uint8), "regress": numbers}[task]
    labels[out] = {"classify": -1, "multilabel": MISSING, "regress": np.nan}[task]
    labels = labels[:, 0] if columns == 1 and task == "regress" else labels
    found.labels, found.test, found.task, found.n_classes = labels, test, task, 4 if task == "classify" else columns
    return found


def stored(folder, task, columns=3):
    """Write one, and return its folder."""
    path = folder / f"{task}{columns}"
    format.write(path, dataset(task, columns))
    return path
