"""What `python -m sarlite.data` does with relational data sets: convert, info, partition."""

import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np

from sarlite.command import readable
from sarlite.data import budget, names, scratch
from sarlite.data.dataset import SPLITS
from sarlite.data.divide import record
from sarlite.data.relational import format
from sarlite.data.relational.divide import (
    divide,
    joined,
    make_order,
    make_parts,
    training,
)
from sarlite.data.relational.divide_streamed import divide_streamed
from sarlite.data.relational.quality import quality
from sarlite.data.spec import (
    load_relational,
    load_relational_streamed,
    native_directory,
    relational_names,
    source_path,
)
from sarlite.data.summary import report_lines
from sarlite.data.targets import labelled
from sarlite.data.writer import META
from sarlite.graph import balance as balancing
from sarlite.graph.metis import EDGE_BYTES
from sarlite.graph.partition import report
from sarlite.progress import Progress


def convert(options):
    """Write a relational data set in the native format, as the options of the command say."""
    changes = {name: getattr(options, name) for name in ("undirected", "self_loops", "deduplicate")}
    changes |= {"allow_empty": options.allow_empty, "normalize": options.normalize_features}
    source, progress, out = native_directory(options.spec), Progress(options.progress), Path(os.path.realpath(options.directory))
    n_bytes = None if options.memory is None else budget.left(options.memory)
    format.RelationalWriter(out, overwrite=options.overwrite)  # which refuses, before anything is read, what may not be replaced
    with contextlib.ExitStack() as held:
        held.enter_context(_reading(source, out))
        folder = held.enter_context(scratch.beside(out))
        with progress.step(f"read {options.spec}", reads=source_path(options.spec)) as step:
            if n_bytes is None:
                dataset = load_relational(options.spec, verify=True, **changes)
            else:
                dataset = load_relational_streamed(options.spec, folder, n_bytes, tell=step.tell, **changes)
            kept = relational_names(options.spec, folder, n_bytes or budget.LEAST)
        format.write(out, dataset, names=kept, overwrite=options.overwrite, progress=progress)
    nodes, edges = sum(dataset.n_nodes.values()), sum(dataset.n_edges.values())
    print(f"{options.directory}: {nodes:,} nodes of {len(dataset.nodes)} types, {edges:,} edges of {len(dataset.edges)} relations")


def info(options):
    """Describe a relational data set, and a partition of it."""
    dataset = load_relational(options.spec, verify=options.verify, allow_empty=options.allow_empty)
    facts, found = summary(dataset), None
    if options.parts is not None:
        graph = joined(dataset)
        parts = make_parts(dataset, options.parts, options.method, balance=options.balance, seed=options.seed, graph=graph)
        found = measured(graph, parts, options.parts, training(dataset))
    if options.json:
        print(json.dumps({**facts, **({"partition": found} if found else {})}))
        return
    print("\n".join(summary_lines(facts)))
    if found:
        print()
        _tell(found)


def partition(options):
    """Write a native directory anew, rows and edges by part."""
    output, progress = options.output or options.directory, Progress(options.progress)
    n_bytes = None if options.memory is None else budget.left(options.memory)
    with contextlib.ExitStack() as held:
        held.enter_context(_reading(options.directory, output))
        overwrite, kept = options.overwrite or not options.output, names.arrays(options.directory)
        out = held.enter_context(format.RelationalWriter(output, names=kept, overwrite=overwrite))  # which locks it
        with progress.step(f"check {options.directory}", reads=options.directory):
            dataset = format.open(options.directory, verify=True).check(allow_empty=SPLITS)
        graph = None
        if options.method == "metis" or options.order != "none":
            budget.check(EDGE_BYTES * sum(dataset.n_edges.values()), n_bytes, "one graph of all types, for METIS and orders,")
            graph = joined(dataset)
        with progress.step(f"divide into {options.parts} parts by {options.method}") as step:
            parts = make_parts(dataset, options.parts, options.method, balance=options.balance, seed=options.seed, graph=graph,
                               n_bytes=n_bytes, tell=step.tell)
        with progress.step(f"order {options.order}"):
            order = make_order(dataset, options.order, seed=options.seed, graph=graph)
        del graph
        division = record(options.parts, options.method, options.order, options.seed, options.balance)
        with progress.step(f"write {output}", dataset.n_bytes) as out.step:
            if n_bytes is None:
                divide(dataset, parts, options.parts, out, order=order, division=division)
            else:
                folder = held.enter_context(scratch.beside(output))
                divide_streamed(dataset, parts, options.parts, out, folder, n_bytes, order=order, division=division)
        found = quality(format.open(output))
    _tell(found)


@contextlib.contextmanager
def _reading(source, output):
    """Hold what keeps other processes from replacing a native data set, unless it is what will be replaced."""
    same = source is None or os.path.realpath(source) == os.path.realpath(output)
    with contextlib.nullcontext() if same else scratch.locked(Path(source) / META, exclusive=False):
        yield


def measured(graph, parts, n_parts, train):
    """Return what a partition costs, as `graph.partition.report` of all types together, with "types": each one's nodes by part."""
    whole = np.concatenate([train.get(name, np.zeros(n, bool)) for name, n in graph.n_nodes.items()])
    found = report(graph.indptr, graph.indices, np.concatenate([*parts.values()]), n_parts, whole)
    return {**found, "types": {name: np.bincount(own, minlength=n_parts).tolist() for name, own in parts.items()}}


def _tell(found):
    print("\n".join(report_lines(found)))
    for name, counts in found["types"].items():
        print(f"{name}: {min(counts):,} to {max(counts):,} nodes a part")
    uneven = balancing.warning(found)
    if uneven:
        print(f"warning: {uneven}", file=sys.stderr)


def summary(dataset):
    """Return the counts, splits and sizes of a relational data set as a dict that JSON can hold."""
    target = dataset.nodes[dataset.target]
    return {
        "name": dataset.name,
        "source": dataset.source,
        "nodes": dataset.n_nodes,
        "features": dataset.n_features,
        "edges": {".".join(relation): n for relation, n in dataset.n_edges.items()},
        "in_degrees": {".".join(relation): _degrees(edges) for relation, edges in dataset.edges.items()},
        "target": dataset.target,
        "task": dataset.task,
        "classes": dataset.n_classes,
        "split": {name: int(np.count_nonzero(getattr(target, name))) for name in SPLITS},
        "unlabelled": int(np.count_nonzero(~labelled(np.asarray(target.labels), dataset.task))),
        "division": dataset.division and {**dataset.division, "nodes": {name: np.diff(table.offsets).tolist()
                                                                        for name, table in dataset.nodes.items()}},
        "total_bytes": dataset.n_bytes,
    }  # fmt: skip


def _degrees(edges):
    degrees = np.diff(edges.indptr)
    return {"mean": float(degrees.mean()) if degrees.size else 0.0, "max": int(degrees.max(initial=0))}


def summary_lines(facts):
    """Yield the lines of a table of `summary`."""
    division = facts["division"]
    rows = [("name", facts["name"])]
    for name, n in facts["nodes"].items():
        width = facts["features"].get(name)
        rows.append(("type", f"{name}: {n:,} nodes, {'no features' if width is None else f'{width:,} features'}"))
    for name, n in facts["edges"].items():
        degrees = facts["in_degrees"][name]
        rows.append(("relation", f"{name}: {n:,} edges, in-degree {degrees['mean']:.3g} / {degrees['max']:,} (mean / maximum)"))
    what = "classes" if facts["task"] == "classify" else "outputs"
    rows += [("labels", f"{facts['target']}: {facts['task']}, {facts['classes']:,} {what}"),
             ("unlabelled", f"{facts['unlabelled']:,}"), *((name, f"{n:,} nodes") for name, n in facts["split"].items()),
             ("parts", "1 (not divided)" if division is None else
              f"{len(division['nodes'][facts['target']]):,} by {division['partition']}, order {division['order']}"),
             ("memory", readable(facts["total_bytes"]) + " for all arrays")]
    yield from (f"{name:<15} {text}" for name, text in rows)

