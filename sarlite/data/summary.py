"""What `python -m sarlite.data info` and `partition` say."""

import numpy as np

from sarlite.command import readable
from sarlite.data.targets import labelled
from sarlite.graph.edges import destinations, is_symmetric


def summary(dataset):
    """Return the counts, degrees, splits and sizes of a data set as a dict that JSON can hold.

    Notes
    -----
    Memory: 24 bytes an edge, for the symmetry check.
    """
    indptr, indices = np.asarray(dataset.indptr), np.asarray(dataset.indices)
    degrees = np.diff(indptr)
    touched = degrees > 0
    touched[indices] = True
    labels, classify = np.asarray(dataset.labels), dataset.task == "classify"
    return {
        "name": dataset.name,
        "source": dataset.source,
        "nodes": dataset.n_nodes,
        "edges": dataset.n_edges,
        "degree": {
            "min": _int(degrees, np.min),
            "median": float(np.median(degrees)) if degrees.size else 0.0,
            "max": _int(degrees, np.max),
        },
        "isolated_nodes": int(np.count_nonzero(~touched)),
        "self_loops": int(np.count_nonzero(destinations(indptr) == indices)),
        "symmetric": is_symmetric(indptr, indices),
        "features": dataset.n_features,
        "feature_dtype": dataset.features.dtype.name,
        "task": dataset.task,
        "classes": dataset.n_classes,
        "split": {name: int(np.count_nonzero(getattr(dataset, name))) for name in ("train", "val", "test")},
        "unlabelled": int(np.count_nonzero(~labelled(labels, dataset.task))),
        "class_nodes": np.bincount(labels[labels >= 0], minlength=dataset.n_classes).tolist() if classify else None,
        "bytes": {name: int(array.nbytes) for name, array in dataset.arrays().items()},
        "division": dataset.division and {**dataset.division, "nodes": np.diff(dataset.offsets).tolist()},
        "total_bytes": sum(int(array.nbytes) for array in dataset.arrays().values()),
    }


def part_bytes(dataset, found):
    """Return the bytes of the input that each part holds: (local rows and edges, halo rows of features)."""
    row, label = dataset.features.dtype.itemsize * dataset.n_features, dataset.labels.nbytes // max(1, dataset.n_nodes)
    local = [nodes * (row + 19 + label) + edges * dataset.indices.dtype.itemsize for nodes, edges in zip(found["nodes"], found["edges"])]
    return local, [rows * row for rows in found["halo_rows"]]


def summary_lines(facts):
    """Yield the lines of a table of `summary`."""
    degree, classes = facts["degree"], facts["class_nodes"]
    rows = {
        "name": facts["name"],
        "nodes": f"{facts['nodes']:,}",
        "edges": f"{facts['edges']:,} ({'symmetric' if facts['symmetric'] else 'directed'}, {facts['self_loops']:,} self loops)",
        "in-degree": f"{degree['min']:,} / {degree['median']:,g} / {degree['max']:,} (minimum / median / maximum)",
        "isolated nodes": f"{facts['isolated_nodes']:,}",
        "features": f"{facts['features']:,} {facts['feature_dtype']}",
        "classes": f"{facts['classes']:,} (largest {max(classes, default=0):,} nodes, smallest {min(classes, default=0):,})"
                   if classes is not None else f"none: {facts['classes']:,} {_OUTPUTS[facts['task']]} a node",
        "unlabelled": f"{facts['unlabelled']:,}",
        **{name: f"{count:,} nodes" for name, count in facts["split"].items()},
        "parts": _division(facts["division"]),
        "memory": readable(facts["total_bytes"]) + " for all arrays",
    }
    yield from (f"{name:<15} {value}" for name, value in rows.items())


_OUTPUTS = {"multilabel": "labels of 0 or 1", "regress": "numbers"}


def _division(division):
    if division is None:
        return "1 (not divided)"
    largest = max(division["nodes"])
    return f"{len(division['nodes']):,} by {division['partition']}, order {division['order']} (largest {largest:,} nodes)"


def report_lines(found, local_bytes=None, halo_bytes=None):
    """Yield the lines of a table of `graph.partition.report`."""
    names = ("nodes", "edges", "train_nodes", "halo_rows")
    heads = ("part", "nodes", "edges", "train", "halo rows") + (("own data", "halo data") if local_bytes else ())
    yield " ".join(f"{head:>12}" for head in heads)
    for part in range(found["n_parts"]):
        cells = [str(part)] + [f"{found[name][part]:,}" for name in names]
        if local_bytes:
            cells += [readable(local_bytes[part]), readable(halo_bytes[part])]
        yield " ".join(f"{cell:>12}" for cell in cells)
    yield " ".join(f"{cell:>12}" for cell in ["max / mean"] + [f"{found['imbalance'][name]:.3f}" for name in names])
    yield f"cut edges {found['cut_edges']:,} ({100 * found['cut_share']:.1f} %)"


def _int(values, reduce):
    return int(reduce(values)) if values.size else 0
