"""Command line of the oracle: `sarlite-oracle`, or `python -m sarlite.oracle`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sarlite import oracle
from sarlite.command import Parser, run_command, show
from sarlite.errors import ConfigError, DataError
from sarlite.oracle.choices import ALLOWED, COMMAND_LEVELS, DTYPES, PARTS, check_choice

PASSED, FOUND, REFUSED = 0, 1, 77  # exit status; 77 means "skipped" in Automake's tests, too
# Operations of `export`, `check` and `selfcheck` if the command line names none.
OPERATIONS = ("spmm reduce=sum", "spmm reduce=sum weighted=true", "spmm reduce=mean", "spmm reduce=max",
              "spmm reduce=min",
              "spmm reduce=sym", "softmax", "sddmm", "attention kind=gat", "attention kind=gatv2", "attention kind=dot",
              "gather", "scatter")
_PROGRAM = """The program reads a case from a directory (case.json and .npy files, see docs/oracle.md). It writes
NAME.npy for each output to an empty directory, and dNAME.npy for each gradient if the case has cotangents. By exit status
77 it refuses a case."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of `sarlite-oracle` with all its commands, such as "check" and "replay"."""
    command = Parser(prog="sarlite-oracle",
                     description="Check graph kernels and layers in any language. Exit status: 0 nothing was found, "
                     "1 something was found, 2 wrong arguments or a wrong file, 77 nothing was checked, as the program "
                     "refused all cases, or no element was decided.")
    commands = command.add_subparsers(required=True, metavar="COMMAND", dest="action")

    def add(run, help, epilog=None):
        one = commands.add_parser(run.__name__.strip("_"), help=help, description=help, epilog=epilog)
        one.set_defaults(run=run)
        return one

    export = add(_export, "write cases of the corpus with expected results and bounds as .npy files, and their list, "
                 "cases.txt")
    export.add_argument("folder", type=Path, metavar="DIR")
    _operation(export)
    export.add_argument("--level", choices=("probe", "certified", "ci", "all"), default="ci",
                        help="default: %(default)s")
    export.add_argument("--most-edges", type=int, default=1000,
                        help="graphs of more edges are left out (default: %(default)s)")
    verify = add(_verify, "compare the results that a program wrote with the expected results of exported cases")
    verify.add_argument("folder", type=Path, metavar="DIR", help="folder that export has written")
    verify.add_argument("--results", type=Path, metavar="DIR",
                        help="folder with PATH/NAME.npy for each PATH of cases.txt (default: DIR/results)")
    replay = add(_replay, "show a saved case; with --command, check a program on it", _PROGRAM)
    replay.add_argument("case", type=Path, metavar="FAILURE.sarcase")
    check = add(_check, "check a program, which is run for each case; with --ranks, a distributed program, which is "
                "run for each case and division of the nodes", _PROGRAM)
    _operation(check)
    for one in (replay, check):
        one.add_argument("--command", dest="program", required=one is check, metavar="'./program {inputs} {outputs}'")
        one.add_argument("--gradients", action="store_true", help="the program writes gradients, too")
        one.add_argument("--time-limit", type=float, default=60.0, metavar="S",
                         help="seconds that one call may take (default: %(default)s)")
    check.add_argument("--level", choices=COMMAND_LEVELS, help="default: ci")
    check.add_argument("--ranks", metavar="1,2,3",
                       help="numbers of ranks: {inputs} and {outputs} have a folder for each rank, and {ranks} is the "
                       "number of ranks, as in 'mpiexec -n {ranks} ./program {inputs} {outputs}'")
    check.add_argument("--parts", metavar="KIND,KIND",
                       help="with --ranks, ways to divide the nodes: contiguous, random, skewed, one empty "
                       "(default: all)")
    check.add_argument("--expected-failure", action="append", default=[], metavar="PATTERN",
                       help="pattern of case names whose findings do not count")
    check.add_argument("--allow", action="append", default=[], choices=ALLOWED,
                       help="verdict whose findings do not count")
    check.add_argument("--no-shrink", action="store_true", help="do not make the case of the first finding small")
    check.add_argument("--save", type=Path, metavar="FAILURE.sarcase",
                       help="save the shrunk case of the first finding here")
    check.add_argument("--overwrite", action="store_true", help="let --save replace a saved case")
    check.add_argument("--widths", metavar="1,2,3",
                       help="further numbers of columns, which the graphs take in turn besides their own")
    check.add_argument("--repeats", type=int, default=1, metavar="N",
                       help="number of times that level repeat repeats an input (default: %(default)s)")
    listing = add(_list, "list the operations and layers with their arrays, shapes, attributes and parameters")
    listing.add_argument("operation", nargs="*", metavar="OPERATION", help="default: all")
    selfcheck = add(_selfcheck, "compare the references with a second implementation, and the corpus with its "
                    "published hashes")
    selfcheck.add_argument("--graphs", default="*", metavar="PATTERN",
                           help="pattern of names of the corpus's graphs (default: all)")
    selfcheck.add_argument("--most-edges", type=int, default=12,
                           help="largest number of edges of the graphs that are compared (default: %(default)s)")
    for one in (verify, replay, check, listing, selfcheck):
        one.add_argument("--json", action="store_true", help="print the result as JSON, one report on each line")
    return command


def _operation(parser):
    parser.add_argument("operation", nargs="*", metavar="OPERATION NAME=VALUE",
                        help="operations, each with its attributes, such as: spmm reduce=mean softmax; "
                        f"default: {' '.join(OPERATIONS)}")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    parser.add_argument("--index-dtype", choices=("int64", "int32"), default="int64", help="default: %(default)s")
    parser.add_argument("--graphs", default="*", metavar="PATTERN",
                        help="pattern of names of the corpus's graphs (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of random values (default: %(default)s)")


def main(words: Sequence[str] | None = None) -> int:
    """Run the `sarlite-oracle` command with the arguments `words` (None: the process's own arguments), and return its exit status.

    Parameters
    ----------
    words : sequence of str, optional
        Arguments; those of the process if omitted.

    Returns
    -------
    int
        0 if nothing was found, 1 if something was, 77 if nothing was checked; or as `run_command` returns.

    Examples
    --------
    >>> from sarlite.oracle.oracle_command import main
    >>> main(["list", "gather"])
    gather
      array x: (n_src, width)
      output out: edge
    0
    """
    def action():
        options = parser().parse_args(words)
        try:
            return int(options.run(options))
        except OSError as error:
            raise DataError(str(error)) from error

    return run_command(action)


def references(words: Sequence[str] = ()) -> "list[oracle.Reference]":
    """Return the list of References that command-line words name: ["spmm", "reduce=mean", "softmax"] gives spmm with a mean, and
    softmax. Without words, return all of OPERATIONS.

    Raises
    ------
    ConfigError
        An unknown operation, attribute or value.
    """
    chosen: list[tuple[str, dict[str, Any]]] = []
    for word in " ".join(words or OPERATIONS).split():
        name, equals, value = word.partition("=")
        if equals and chosen:
            chosen[-1][1][name] = _value(value)
        elif equals or name not in oracle.REFERENCES:
            raise ConfigError(f"{word!r} is not an operation"
                              + (": NAME=VALUE stands behind one" if equals else ", and no NAME=VALUE")
                              + f"; operations are {', '.join(oracle.REFERENCES)}")
        else:
            chosen.append((name, {}))
    return [oracle.Reference(name, **attributes) for name, attributes in chosen]


def _value(text):
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _export(options):
    from sarlite.oracle.exported import LIST, export

    def shown(text):
        show(f"writing {text}", sys.stderr)

    paths = export(options.folder, references(options.operation), level=options.level, dtype=options.dtype,
                   index_dtype=options.index_dtype,
                   seed=options.seed, most_edges=options.most_edges, graphs=options.graphs, shown=shown)
    show(f"{len(paths)} cases in {options.folder / LIST}")
    return PASSED


def _verify(options):
    from sarlite.oracle.exported import verify

    return _show_report(verify(options.folder, options.results), options)


def _replay(options):
    from sarlite.oracle.reference import reference_of
    from sarlite.oracle.replay import summary

    saved = oracle.load(options.case)
    show(summary(saved), sys.stderr if options.json else sys.stdout)
    if options.program is None:
        reference_of(saved.case)
        return PASSED if saved.finding is None else FOUND
    program = _program(options, reference_of(saved.case))
    return _show_report(oracle.replay(options.case, program.run, vjp=program.vjp if options.gradients else None,
                               time_limit=_call_time_limit(options)), options)


def _check(options):
    chosen = references(options.operation)
    shared = {"dtype": options.dtype, "seed": options.seed, "time_limit": _call_time_limit(options), "graphs": options.graphs,
              "expected_failures": options.expected_failure, "allow": options.allow, **_check_options(options)}

    def report(program, wanted):
        if options.ranks is None:
            result = oracle.check(program.run, wanted, vjp=program.vjp if options.gradients else None, **shared)
            result.skip("other numbers of threads, other layouts: the program is a process of its own, and reads files")
            return result
        return oracle.check_ranks(program.run_ranks, wanted, gradients=options.gradients, **shared)

    programs = [_program(options, wanted) for wanted in chosen]
    statuses = [_checked(options, wanted, report(program, wanted), len(chosen) == 1)
             for program, wanted in zip(programs, chosen)]
    return next((status for status in (FOUND, PASSED) if status in statuses), REFUSED)


def _check_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments from the command line: with --ranks the arguments that `check_ranks` takes and `check` does not,
    without --ranks the reverse. Raise ConfigError for options that exclude each other.
    """
    if options.ranks is None:
        if options.parts is not None:
            raise ConfigError("--parts: needs --ranks")
        return {"level": options.level or "ci", "index_dtype": options.index_dtype, "shrink": not options.no_shrink,
                "widths": _numbers("--widths", options.widths), "repeats": options.repeats}
    refused = [("--level", options.level), ("--widths", options.widths), ("--repeats", options.repeats != 1),
               ("--index-dtype", options.index_dtype != "int64")]
    if conflicts := [name for name, value in refused if value]:
        raise ConfigError(f"{conflicts[0]}: cannot be combined with --ranks")
    parts = PARTS if options.parts is None else [word.strip() for word in options.parts.split(",")]
    return {"ranks": _numbers("--ranks", options.ranks), "parts": parts}


def _numbers(flag: str, text: str | None) -> list[int] | None:
    """Parse `text`, the value of the option `flag` such as "1,2,3", to a list of integers; return None if the option is not set."""
    try:
        return None if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a list of whole numbers, such as 1,2,3") from None


def _checked(options, wanted, report, single_operation):
    status = _show_report(report, options)
    if options.save is not None and report.first_bad is not None:
        path = options.save if single_operation else options.save.with_name(f"{wanted.name}-{options.save.name}")
        saved = report.save(path, options.overwrite)
        show(f"  saved {saved}", sys.stderr if options.json else sys.stdout)
    return status


def _list(options):
    from sarlite.oracle.catalogue import entry, lines

    for name in options.operation:
        check_choice("operation", name, oracle.REFERENCES)
    for name in options.operation or oracle.REFERENCES:
        description = entry(name)
        show(json.dumps(description) if options.json else "\n".join(lines(description)))
    return PASSED


def _selfcheck(options):
    from sarlite.oracle.selfcheck import selfcheck

    return _show_report(selfcheck(references(), options.most_edges, graphs=options.graphs), options)


def _program(options, wanted):
    from sarlite.oracle.external_program import ExternalProgram

    if not options.time_limit > 0:
        raise ConfigError(f"--time-limit is {options.time_limit:g}, but must be more than 0")
    return ExternalProgram(options.program, tuple(wanted.outputs_by), options.time_limit)


def _call_time_limit(options: argparse.Namespace) -> float:
    """Return the time limit, in seconds, of a call that runs an external program. It is longer than --time-limit, the limit of the
    program itself, because a program that takes too long can be killed, but a call cannot.
    """
    return 2 * options.time_limit + 60


def _show_report(report: "oracle.Report", options: argparse.Namespace) -> int:
    show(json.dumps(report.to_dict()) if options.json else report)
    return {"PASS": PASSED, "UNSUPPORTED": REFUSED}.get(report.verdict.name, FOUND)
