"""python -m sarlite.data: convert, describe, partition and export data sets. Runs in one process, without MPI."""

import contextlib
import faulthandler
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sarlite.command import Parser, byte_size, run_command, show
from sarlite.data import budget, format, scratch
from sarlite.data.assignment import make_parts, plan, structure
from sarlite.data.divide import divide
from sarlite.data.graph_tables import SPLITS
from sarlite.data.quality import measured, quality, quality_lines
from sarlite.data.readers import pigo
from sarlite.data.schema import is_schema, matched, transforms_of
from sarlite.data.spec import (
    FORMS,
    generated_lines,
    has_transforms,
    is_relational,
    load,
    native_directory,
    source_path,
)
from sarlite.data.summary import account_lines, part_bytes, report_lines, summary, summary_lines
from sarlite.errors import ConfigError
from sarlite.progress import KINDS, Progress
from sarlite.structure import balance as balancing
from sarlite.structure import order as orders
from sarlite.structure.partition import METHODS
from sarlite.types import Path as AnyPath

_MOST_PARTS = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.data` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    faulthandler.enable(2)  # a crash in C prints the Python traceback
    return run_command(lambda: _main(argv))


def _main(argv):
    options = _parser().parse_args(argv)
    if "all" in getattr(options, "allow_empty", ()):
        options.allow_empty = SPLITS
    options.run(options)


def _parser():
    what = "Convert, describe, divide and export data sets. Runs in one process, without MPI."
    top = Parser(prog="python -m sarlite.data", description=what, epilog=f"SPEC is one of\n{FORMS}")
    commands = top.add_subparsers(required=True, metavar="{convert,info,partition,report,export}")

    forms = f"SPEC is one of\n{FORMS}"
    convert = commands.add_parser("convert", help="write SPEC into DIR in the native format", epilog=forms)
    convert.set_defaults(run=_convert)
    convert.add_argument("spec", metavar="SPEC", help="the data set: see below")
    convert.add_argument("directory", metavar="DIR", help="the directory to write")
    for flag, text in (("--undirected", "add the reverse of every edge; keep each edge once"),
                       ("--self-loops", "add the self loops that are missing"),
                       ("--deduplicate", "keep equal edges once"),
                       ("--normalize-features", "make each row of the features sum to one")):
        convert.add_argument(flag, action="store_true", default=None, help=text)
    convert.add_argument("--features-dtype", choices=("bfloat16",),
                         help="round the nodes' features to bfloat16: half the bytes of float32 [as they are]")
    convert.add_argument("--transforms-of", metavar="RUN",
                         help="make the features of new tables with the statistics that this run's checkpoint keeps, so "
                              "that predict takes DIR; the tables must fit the run by name")
    _add_memory(convert, "edges:, tables:, npz: and mag: are read in pieces and sorted on disk, beside DIR")
    convert.add_argument("--overwrite", action="store_true", help="replace DIR if it is a data set")
    _add_allow_empty(convert)
    _add_progress(convert)

    info = commands.add_parser("info", help="describe the data set SPEC", epilog=forms)
    info.set_defaults(run=_info)
    info.add_argument("spec", metavar="SPEC", help="the data set: see below")
    info.add_argument("--parts", type=int, metavar="N",
                      help="also divide the nodes into N parts, and describe the parts; nothing is written")
    _add_method(info)
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.add_argument("--verify", action="store_true", help="check the hashes of a native data set's files")
    _add_allow_empty(info)

    divided = commands.add_parser("partition", help="divide the nodes of DIR, and write rows and edges by part, in place "
                                                     "or into DIR2")
    divided.set_defaults(run=_partition)
    divided.add_argument("directory", metavar="DIR", help="a directory in the native format")
    divided.add_argument("--parts", type=int, metavar="N", required=True, help="number of parts")
    _add_method(divided)
    rows = "order of a part's rows: none, by id; metis and cluster, nodes that share neighbours together [none]"
    divided.add_argument("--order", choices=("none", *orders.METHODS), default="none", help=rows)
    _add_memory(divided, "rows and edges are sorted on disk, beside the output; METIS is refused if METIS needs "
                         "more memory")
    _add_progress(divided)
    divided.add_argument("--output", metavar="DIR2", help="write to this directory, and leave DIR as it is")
    divided.add_argument("--overwrite", action="store_true", help="replace DIR2 if it is a data set")

    export = commands.add_parser("export", help="write SPEC in another program's format, by original id", epilog=forms)
    export.set_defaults(run=_export)
    export.add_argument("spec", metavar="SPEC", help="the data set: see below")
    export.add_argument("output", metavar="OUT", help="a file of format pigo, a folder of format mggcn")
    written = "PIGO's binary CSR of the graph alone, or MG-GCN's four files"
    export.add_argument("--format", choices=pigo.WRITERS, required=True, help=written)
    export.add_argument("--overwrite", action="store_true", help="replace files that are there")
    _add_allow_empty(export)

    report = commands.add_parser("report", help="show the costs of the parts of DIR: cut, halo rows, balance, edges by pair "
                                                "of parts")
    report.set_defaults(run=_report)
    report.add_argument("directory", metavar="DIR", help="a directory in the native format")
    report.add_argument("--json", action="store_true", help="print one JSON object")
    _add_memory(report, "edges are read in pieces; less than a byte per node is refused")
    _add_progress(report)
    return top


def _add_memory(command, method):
    command.add_argument("--memory", type=byte_size, metavar="SIZE",
                         help=f"most memory of this process, such as 2GiB: {method} [no limit]")


def _add_progress(command):
    command.add_argument("--progress", choices=KINDS, default="auto",
                         help="bar, or a line every few seconds [bar on a terminal]")


def _add_method(command):
    command.add_argument("--method", default="metis", metavar="|".join((*METHODS, "FILE")),
                         help="method of the division; FILE has the part of each node, one per line, or .npy [metis]")
    command.add_argument("--balance", default="auto", metavar="nodes,edges,train", help="quantities that METIS or Fennel "
                         "balances between parts [nodes and train, and edges if the degrees are skewed]")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the division [0]")


def _add_allow_empty(command):
    command.add_argument("--allow-empty", action="append", choices=(*SPLITS, "all"), default=[],
                         help="accept a split without nodes; may be repeated; all: for data without labels")


def _convert(options):
    changes = {name: getattr(options, name) for name in ("undirected", "self_loops", "deduplicate")}
    allow_empty = options.allow_empty if options.transforms_of is None else SPLITS  # new tables need no labels
    changes |= {"normalize": options.normalize_features, "allow_empty": allow_empty}
    n_bytes, progress, out = _memory(options), Progress(options.progress), Path(os.path.realpath(options.directory))
    format.GraphWriter(out, overwrite=options.overwrite)  # raises, before reading, if the output must not be replaced
    schema = None if options.transforms_of is None else _schema_of_run(options.transforms_of, options.spec)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_reading(native_directory(options.spec), but=out))
        with progress.step(f"read {options.spec}", reads=source_path(options.spec)) as step:
            folder = None if n_bytes is None else stack.enter_context(scratch.beside(out))
            dataset = load(options.spec, verify=True, relational=is_relational(options.spec), folder=folder,
                           n_bytes=n_bytes, tell=step.tell, transforms=transforms_of(schema) if schema else None,
                           **changes)
        if schema is not None:
            matched(dataset, schema, options.spec)  # raises now an error that predict would raise
        format.write(out, dataset, overwrite=options.overwrite, progress=progress,
                     bfloat16=options.features_dtype is not None)
    if dataset.relational:
        counts = (f"{dataset.n_nodes:,} nodes of {len(dataset.nodes)} types, "
                  f"{dataset.n_edges:,} edges of {len(dataset.edges)} relations")
    else:
        counts = f"{dataset.n_nodes:,} nodes, {dataset.n_edges:,} edges, {dataset.n_features:,} features"
    show("\n".join((f"{options.directory}: {counts}", *generated_lines(options.spec, dataset), *account_lines(dataset))))


def _schema_of_run(run, spec):
    """Return the schema (columns and fitted feature transforms) of the data that the run with checkpoint `run` was trained on, so that the
    data set `spec` can be made with the same transforms.
    """
    from sarlite.train.checkpoint import load_metadata

    if not has_transforms(spec):
        raise ConfigError(f"--transforms-of: {spec}: only edges: and tables: have transforms")
    schema = load_metadata(run).get("schema")
    if not is_schema(schema) or not transforms_of(schema):
        raise ConfigError(f"--transforms-of: {run}: its data have no transforms")
    return schema


def _info(options):
    if options.parts is not None:
        _check_method(options)
    relational = is_relational(options.spec)
    dataset = load(options.spec, verify=options.verify, allow_empty=options.allow_empty, relational=relational)
    facts, costs = summary(dataset), None
    if options.parts is not None:
        parts = make_parts(dataset, options.parts, options.method, balance=options.balance, seed=options.seed)
        costs = measured(dataset, parts, options.parts)
    if options.json:
        print(json.dumps({**facts, **({"partition": costs} if costs else {})}))
        return
    show("\n".join((*summary_lines(facts), *generated_lines(options.spec, dataset), *account_lines(dataset))))
    if costs:
        print()
        _show_parts(dataset, costs, options.method, options.balance)


def _partition(options):
    _check_method(options)
    output, progress, n_bytes = options.output or options.directory, Progress(options.progress), _memory(options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_reading(options.directory, but=output))
        overwrite = options.overwrite or not options.output
        out = stack.enter_context(format.GraphWriter(output, overwrite=overwrite))  # locks the output
        with progress.step(f"check {options.directory}", reads=options.directory):
            dataset = format.open(options.directory, verify=True).check(allow_empty=SPLITS)
        if options.parts > max(1, dataset.n_nodes // 10):
            most = dataset.n_nodes // 100
            remedy = f"with {most} parts or fewer each rank has some work" if most > 1 else "one part is enough"
            show(f"warning: --parts {options.parts}: fewer than ten nodes per part, of {dataset.n_nodes:,} nodes; "
                 f"{remedy}", sys.stderr)
        parts, order, division = plan(dataset, options.parts, options.method, options.order, balance=options.balance,
                                      seed=options.seed, n_bytes=n_bytes, progress=progress)
        near = None
        if order is not None and not n_bytes and len(dataset.nodes) == 1:  # compute before the input files are replaced
            near = _near_shares(dataset, order)
        with progress.step(f"write {output}", dataset.n_bytes) as out.step:
            folder = None if n_bytes is None else stack.enter_context(scratch.beside(output))
            divide(dataset, parts, options.parts, out, order=order, division=division, folder=folder, n_bytes=n_bytes)
        del parts, order
        dataset = format.open(output)
        with progress.step(f"count {output}", dataset.n_edges) as step:
            costs = quality(dataset, n_bytes, step, tiles=False)
    _show_parts(dataset, costs, **_stored_division(dataset))
    if near is not None:
        print(near)


def _export(options):
    with _reading(native_directory(options.spec)):
        dataset = load(options.spec, verify=True, allow_empty=options.allow_empty)
        pigo.WRITERS[options.format](options.output, dataset, overwrite=options.overwrite)
    print(f"{options.output}: {dataset.n_nodes:,} nodes, {dataset.n_edges:,} edges")


def _report(options):
    n_bytes, progress = _memory(options), Progress(options.progress)
    with _reading(options.directory):
        dataset = format.open(options.directory)
        dataset.check_edges()
        with progress.step(f"count {options.directory}", dataset.n_edges) as step:
            costs = quality(dataset, n_bytes, step)
    if options.json:
        print(json.dumps(costs))
        return
    _show_parts(dataset, costs, **_stored_division(dataset), more=quality_lines(costs))


def _memory(options):
    return None if options.memory is None else budget.left(options.memory)


def _reading(directory: AnyPath | None, but: AnyPath | None = None) -> AbstractContextManager[object]:
    """Return a context that keeps other processes from replacing the data set in the folder `directory`. Nothing is locked if
    `directory` is None, or is the folder `but`, which the caller locks itself.
    """
    if directory is None or (but is not None and os.path.realpath(directory) == os.path.realpath(but)):
        return contextlib.nullcontext()
    return scratch.locked(Path(directory) / format.META, exclusive=False)


def _near_shares(dataset, order):
    """Return a line of text with the share of edges whose two nodes are near, less than `cluster_size` (a number) places apart: first in
    the node order `order`, then in the order of ids.
    """
    graph = structure(dataset)
    near, by_id = (100 * orders.near_share(graph.indptr, graph.indices, nodes) for nodes in (order, None))
    places = f"{orders.cluster_size(graph.indptr.size - 1):,} places apart"
    return f"edges between nodes less than {places}: {near:.1f} %, by node id {by_id:.1f} %"


def _stored_division(dataset):
    division = dataset.division or {}
    return {"method": division.get("partition"), "balance": division.get("balance")}


def _show_parts(dataset, costs, method, balance, more=()):
    """Print the numbers of nodes, edges and cut edges in `costs`, measured for a division of the data set into parts, and then the lines
    `more`. Warn if parts are empty or uneven; `method` and `balance` say how the parts were made.
    """
    n_bytes = () if dataset.relational else part_bytes(dataset, costs)
    show("\n".join((*report_lines(costs, *n_bytes), *more)))
    n_empty = list(costs["nodes"]).count(0)
    empty = f"{n_empty:,} of {costs['n_parts']:,} parts have no nodes" if n_empty else None
    for text in filter(None, (empty, balancing.warning(costs, method, balance))):
        show(f"warning: {text}", sys.stderr)


def _check_method(options):
    if not 1 <= options.parts <= _MOST_PARTS:
        raise ConfigError(f"--parts: {options.parts} is outside 1 <= parts <= {_MOST_PARTS}")
    if options.method not in METHODS and not Path(options.method).exists():
        raise ConfigError(f"--method: {options.method!r} is not one of {', '.join(METHODS)}, and no such file exists")


if __name__ == "__main__":
    sys.exit(main())
