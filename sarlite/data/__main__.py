"""python -m sarlite.data: convert, info, partition. Runs on one process, without MPI."""

import argparse
import faulthandler
import json
import os
import sys
from pathlib import Path

from sarlite.data import format
from sarlite.data.divide import divide, make_order, make_parts, record, structure
from sarlite.data.spec import FORMS, load
from sarlite.data.summary import part_bytes, report_lines, summary, summary_lines
from sarlite.errors import ConfigError, SarliteError
from sarlite.graph import order as orders
from sarlite.graph.partition import METHODS, report


def main(arguments=None):
    """Run one command and return the exit status: 0, or 2 with a message on stderr where the input is at fault."""
    faulthandler.enable(2)  # a crash in C names its place
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except SarliteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output left, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser():
    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m sarlite.data", description=__doc__, epilog=f"SPEC is one of\n{FORMS}", formatter_class=form
    )
    commands = top.add_subparsers(required=True, metavar="{convert,info,partition}")

    convert = commands.add_parser(
        "convert", help="write SPEC into DIR in the native format", epilog=f"SPEC is one of\n{FORMS}", formatter_class=form
    )
    convert.set_defaults(run=_convert)
    convert.add_argument("spec", metavar="SPEC")
    convert.add_argument("directory", metavar="DIR")
    convert.add_argument("--undirected", action="store_true", default=None, help="add the reverse of every edge; keep each edge once")
    convert.add_argument("--self-loops", action="store_true", default=None, help="add the self loops that are missing")
    convert.add_argument("--deduplicate", action="store_true", default=None, help="keep equal edges once")
    convert.add_argument("--normalize-features", action="store_true", default=None, help="make each row of the features sum to one")
    convert.add_argument("--overwrite", action="store_true", help="replace DIR if it is a data set")
    _add_allow_empty(convert)

    info = commands.add_parser("info", help="describe SPEC", epilog=f"SPEC is one of\n{FORMS}", formatter_class=form)
    info.set_defaults(run=_info)
    info.add_argument("spec", metavar="SPEC")
    info.add_argument("--parts", type=int, metavar="N", help="partition into N and describe that too")
    _add_method(info)
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.add_argument("--verify", action="store_true", help="compare the hashes of a native data set's files")
    _add_allow_empty(info)

    divided = commands.add_parser("partition", help="write the rows and edges of DIR by part, in place or into DIR2")
    divided.set_defaults(run=_partition)
    divided.add_argument("directory", metavar="DIR")
    divided.add_argument("--parts", type=int, metavar="N", required=True)
    _add_method(divided)
    divided.add_argument("--order", choices=("none", *orders.METHODS), default="none",
                         help="of the rows of a part: ids ascend [none], or nodes that share neighbours together")  # fmt: skip
    divided.add_argument("--output", metavar="DIR2", help="leave DIR as it is")
    divided.add_argument("--overwrite", action="store_true", help="replace DIR2 if it is a data set")
    return top


def _add_method(command):
    command.add_argument(
        "--method", default="metis", metavar="|".join((*METHODS, "FILE")), help="default metis; FILE has one part a line, or is .npy"
    )
    command.add_argument("--seed", type=int, default=0)


def _add_allow_empty(command):
    splits = ("train", "val", "test")
    command.add_argument(
        "--allow-empty", action="append", choices=splits, default=[], help="accept this split with no node; may be repeated"
    )


def _convert(options):
    changes = {name: getattr(options, name) for name in ("undirected", "self_loops", "deduplicate")}
    dataset = load(options.spec, verify=True, allow_empty=options.allow_empty, normalize=options.normalize_features, **changes)
    format.write(options.directory, dataset, overwrite=options.overwrite)
    print(f"{options.directory}: {dataset.n_nodes:,} nodes, {dataset.n_edges:,} edges, {dataset.n_features:,} features")


def _info(options):
    dataset = load(options.spec, verify=options.verify, allow_empty=options.allow_empty)
    facts, found = summary(dataset), None
    if options.parts is not None:
        _check_method(options)
        parts, graph = make_parts(dataset, options.parts, options.method, seed=options.seed), structure(dataset)
        found = report(graph.indptr, graph.indices, parts, options.parts, graph.train)
    if options.json:
        print(json.dumps({**facts, **({"partition": found} if found else {})}))
        return
    print("\n".join(summary_lines(facts)))
    if found:
        print("\n".join(("", *report_lines(found, *part_bytes(dataset, found)))))


def _partition(options):
    _check_method(options)
    dataset = format.open(options.directory, verify=True).check(allow_empty=("train", "val", "test"))
    parts = make_parts(dataset, options.parts, options.method, seed=options.seed)
    order = make_order(dataset, options.order, seed=options.seed)
    division = record(options.parts, options.method, options.order, options.seed)
    near = None if order is None else _near_shares(dataset, order)  # before the files that it is read from are replaced
    with format.GraphWriter(options.output or options.directory, overwrite=options.overwrite or not options.output) as out:
        found = divide(dataset, parts, options.parts, out, order=order, division=division)
    print("\n".join(report_lines(found, *part_bytes(dataset, found))))
    if near is not None:
        print(near)


def _near_shares(dataset, order):
    graph = structure(dataset)
    near, by_id = (100 * orders.near_share(graph.indptr, graph.indices, nodes) for nodes in (order, None))
    return f"edges between nodes less than {orders.CLUSTER_NODES:,} places apart: {near:.1f} %, by node id {by_id:.1f} %"


def _check_method(options):
    if options.parts < 1:
        raise ConfigError(f"--parts: {options.parts} is below 1")
    if options.method not in METHODS and not Path(options.method).exists():
        raise ConfigError(f"--method: {options.method!r} is none of {', '.join(METHODS)}, and no such file exists")


if __name__ == "__main__":
    sys.exit(main())
