"""Lines about a data set that `python -m sarlite.data info` and `partition` print."""

import numpy as np

from sarlite.command import readable
from sarlite.data.graph_tables import SPLITS
from sarlite.data.mapped import dtype_name
from sarlite.data.tables import account
from sarlite.data.targets import labelled
from sarlite.structure.edges import destinations, is_symmetric


def summary(dataset):
    """Return the numbers of nodes, edges and classes, degrees, split sizes and bytes of a data set as a dict that JSON can hold.

    Notes
    -----
    Memory: for a graph of one kind, 24 bytes per edge for the check of symmetry.
    """
    labels = np.asarray(dataset.labels)
    return {
        "name": dataset.name,
        "source": dataset.source,
        **(_of_types(dataset) if dataset.relational else _of_one_kind(dataset, labels)),
        "task": dataset.task,
        "classes": dataset.n_classes,
        "split": {name: int(np.count_nonzero(getattr(dataset, name))) for name in SPLITS},
        "unlabelled": int(np.count_nonzero(~labelled(labels, dataset.task))),
        "division": dataset.division and {**dataset.division, "nodes": _nodes_by_part(dataset)},
        "total_bytes": int(dataset.n_bytes),
        **({"tables": dataset.provenance["tables"]} if "tables" in dataset.provenance else {}),
    }


def _of_one_kind(dataset, labels):
    """Return the entries of `summary` for a graph of one node type, such as degrees, self loops and, from `labels`, nodes per class."""
    indptr, indices = np.asarray(dataset.indptr), np.asarray(dataset.indices)
    degrees = np.diff(indptr)
    touched = degrees > 0
    touched[indices] = True
    classify = dataset.task == "classify"
    return {
        "nodes": dataset.n_nodes,
        "edges": dataset.n_edges,
        "degree": {
            "min": int(degrees.min()) if degrees.size else 0,
            "median": float(np.median(degrees)) if degrees.size else 0.0,
            "max": int(degrees.max(initial=0)),
        },
        "isolated_nodes": int(np.count_nonzero(~touched)),
        "self_loops": int(np.count_nonzero(destinations(indptr) == indices)),
        "symmetric": is_symmetric(indptr, indices),
        "features": dataset.n_features,
        "feature_dtype": dtype_name(dataset.features.dtype),
        "class_nodes": np.bincount(labels[labels >= 0], minlength=dataset.n_classes).tolist() if classify else None,
        "bytes": {name: int(array.nbytes) for table in dataset.tables for name, array in table.arrays().items()},
    }


def _of_types(dataset):
    """Return the entries of `summary` for a heterogeneous graph, such as node counts by type and degrees by relation."""
    relations = {".".join(relation): table for relation, table in dataset.edges.items()}
    widths = {name: table.n_features for name, table in dataset.nodes.items()}
    return {
        "nodes": dataset.n_nodes_by_type,
        "features": {name: width for name, width in widths.items() if width is not None},
        "edges": {name: table.n_edges for name, table in relations.items()},
        "in_degrees": {name: _degrees(np.diff(table.indptr)) for name, table in relations.items()},
        "target": dataset.target,
    }


def _degrees(degrees):
    return {"mean": float(degrees.mean()) if degrees.size else 0.0, "max": int(degrees.max(initial=0))}


def _nodes_by_part(dataset):
    counts = {name: np.diff(table.offsets).tolist() for name, table in dataset.nodes.items()}
    return counts if dataset.relational else counts[dataset.target]


def part_bytes(dataset, costs):
    """Return (bytes of each part's rows and edges, bytes of each part's halo features), two lists. They are estimated from `costs`,
    the counts that `quality` returns for `dataset`.

    The data set has one node type and one relation.
    """
    row, label = dataset.features.dtype.itemsize * dataset.n_features, dataset.labels.nbytes // max(1, dataset.n_nodes)
    index = dataset.indices.dtype.itemsize
    local = [nodes * (row + 19 + label) + edges * index for nodes, edges in zip(costs["nodes"], costs["edges"])]
    return local, [rows * row for rows in costs["halo_rows"]]


def account_lines(dataset):
    """Return lines that tell how each column of the user's tables was used; none if `dataset` was not built from tables."""
    account_of_columns = dataset.provenance.get("tables")
    return [*account.lines(account_of_columns)] if isinstance(account_of_columns, dict) else []


def summary_lines(facts):
    """Yield lines of a table with `facts`, the result of `summary`."""
    rows = [("name", facts["name"]), *(_lines_of_types(facts) if "target" in facts else _lines_of_one_kind(facts)),
            ("unlabelled", f"{facts['unlabelled']:,}"),
            *((name, f"{count:,} nodes") for name, count in facts["split"].items()),
            ("parts", _division(facts)), ("memory", readable(facts["total_bytes"]) + " for all arrays")]
    yield from (f"{name:<15} {value}" for name, value in rows)


def _lines_of_one_kind(facts):
    degree, classes = facts["degree"], facts["class_nodes"]
    kind = "symmetric" if facts["symmetric"] else "directed"
    yield "nodes", f"{facts['nodes']:,}"
    yield "edges", f"{facts['edges']:,} ({kind}, {facts['self_loops']:,} self loops)"
    yield "in-degree", f"{degree['min']:,} / {degree['median']:,g} / {degree['max']:,} (minimum / median / maximum)"
    yield "isolated nodes", f"{facts['isolated_nodes']:,}"
    yield "features", f"{facts['features']:,} {facts['feature_dtype']}"
    if classes is None:
        yield "classes", f"none: {facts['classes']:,} {_OUTPUTS[facts['task']]} a node"
    else:
        sizes = f"largest {max(classes, default=0):,} nodes, smallest {min(classes, default=0):,}"
        yield "classes", f"{facts['classes']:,} ({sizes})"


def _lines_of_types(facts):
    for name, n in facts["nodes"].items():
        width = facts["features"].get(name)
        yield "type", f"{name}: {n:,} nodes, {'no features' if width is None else f'{width:,} features'}"
    for name, n in facts["edges"].items():
        degrees = facts["in_degrees"][name]
        yield "relation", f"{name}: {n:,} edges, in-degree {degrees['mean']:.3g} / {degrees['max']:,} (mean / maximum)"
    what = "classes" if facts["task"] == "classify" else "outputs"
    yield "labels", f"{facts['target']}: {facts['task']}, {facts['classes']:,} {what}"


_OUTPUTS = {"multilabel": "labels of 0 or 1", "regress": "numbers"}


def _division(facts):
    division = facts["division"]
    if division is None:
        return "1 (not divided)"
    nodes, largest = division["nodes"], ""
    if "target" in facts:
        nodes = nodes[facts["target"]]
    else:
        largest = f" (largest {max(nodes):,} nodes)"
    return f"{len(nodes):,} by {division['partition']}, order {division['order']}{largest}"


def report_lines(costs, local_bytes=None, halo_bytes=None):
    """Yield the lines of a table of `costs`, the counts by part that `quality` returns. `local_bytes` and `halo_bytes` add columns
    with each part's sizes; None leaves them out.
    """
    names = ("nodes", "edges", "train_nodes", "halo_rows")
    heads = ("part", "nodes", "edges", "train", "halo rows") + (("own data", "halo data") if local_bytes else ())
    yield " ".join(f"{head:>12}" for head in heads)
    for part in range(costs["n_parts"]):
        cells = [str(part)] + [f"{costs[name][part]:,}" for name in names]
        if local_bytes:
            cells += [readable(local_bytes[part]), readable(halo_bytes[part])]
        yield " ".join(f"{cell:>12}" for cell in cells)
    yield " ".join(f"{cell:>12}" for cell in ["max / mean"] + [f"{costs['imbalance'][name]:.3f}" for name in names])
    yield f"cut edges {costs['cut_edges']:,} ({100 * costs['cut_share']:.1f} %)"
    for name, counts in costs.get("types", {}).items():
        yield f"{name}: {min(counts):,} to {max(counts):,} nodes a part"
