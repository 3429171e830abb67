"""Small data sets of each kind of node task (classes, several labels, numbers), on one graph."""

import numpy as np

from sarlite.data import format, load
from sarlite.data.targets import MISSING

SPEC = "sbm:nodes=300,classes=4,features=16,degree=8"


def dataset(task, columns=3):
    """Return a data set for `task` with `columns` learnable labels per node; some nodes outside the splits have no labels."""
    data = load(SPEC)
    draw = np.random.default_rng(3)
    numbers = np.array(data.features) @ draw.standard_normal((16, columns)).astype(np.float32)
    test = np.array(data.test)
    out = np.flatnonzero(test)[:20]
    test[out] = False
    labels = {"classify": np.array(data.labels), "multilabel": (numbers > 0).astype(np.uint8), "regress": numbers}[task]
    labels[out] = {"classify": -1, "multilabel": MISSING, "regress": np.nan}[task]
    labels = labels[:, 0] if columns == 1 and task == "regress" else labels
    data.labels, data.test, data.task, data.n_classes = labels, test, task, 4 if task == "classify" else columns
    return data


def rare(n_classes=2, share=0.05, class_names: list[str] | None = None, flip=False):
    """Return a data set with a `share` of nodes in a rare class: 1, or 0 if `flip`. The features predict the class in part."""
    data, draw = load("sbm:nodes=600,classes=2,features=8,degree=8"), np.random.default_rng(5)
    labels = (draw.random(600) < share).astype(np.int64)
    if n_classes > 2:
        labels[(labels == 0) & (draw.random(600) < 0.5)] = 2
    data.features = draw.standard_normal((600, 8)).astype(np.float32)
    data.features[:, 0] += 1.2 * (labels == 1)
    data.features[:, 1] += 2.0 * (labels == 2)
    split = draw.permutation(600)
    data.train, data.val, data.test = (np.isin(np.arange(600), split[a:b]) for a, b in ((0, 300), (300, 450), (450, 600)))
    data.labels, data.n_classes, data.class_names = 1 - labels if flip else labels, n_classes, class_names
    return data


def stored(folder, task, columns=3):
    """Write `dataset(task, columns)` to a new folder in `folder`, and return the path of the data set."""
    path = folder / f"{task}{columns}"
    format.write(path, dataset(task, columns))
    return path
