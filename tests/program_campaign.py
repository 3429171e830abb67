"""Run random programs against plain NumPy and differences: `python -m tests.program_campaign --programs 20000 --seed 0`.

Kinds: "tape", operations of tensors alone; "graph", aggregations over a graph in parts; "relations", over a graph of
several types; "batches", sampled, whole and message-flow batches; "exact", models of rows, replicated tensors, arrays and
owned tables in exact numerics.

Program number i depends on the seed, the kind and i alone. A program is right if its values are those of formulas in long
doubles and its gradients are differences of these formulas. A model in exact numerics is right if its bits are those of
one rank and its values those of fast numerics, or if it is refused as it must be. Ranks are threads. After each run they
must have made the same collective calls.
"""

import argparse
import faulthandler
from collections import Counter

import numpy as np
import pytest

from tests.helpers.comm.counting_communicator import CountingWorld, count_collectives
from tests.helpers.graph import exact_programs, graph_programs, relation_programs
from tests.helpers.minibatch import batch_programs
from tests.helpers.tape import tape_programs
from tests.helpers.tape.slopes import Unclear

KINDS = {"tape": tape_programs, "graph": graph_programs, "relations": relation_programs, "batches": batch_programs,
         "exact": exact_programs}
SECONDS = 60  # seconds for one program


def attempt(program, dice):
    """Draw programs until one can be judged; return its outcome, in a word."""
    while True:
        try:
            return program(dice).check()
        except Unclear:
            pass


def campaign(kind, n, seed, first=0):
    """Return the number of programs of a kind by outcome."""
    counts = Counter()
    for i in range(first, first + n):
        try:
            counts[attempt(KINDS[kind].Program, np.random.default_rng([seed, list(KINDS).index(kind), i]))] += 1
        except Exception as error:
            again = f"--kind {kind} --seed {seed} --first {i} --programs 1"
            raise AssertionError(f"program {i}: python -m tests.program_campaign {again}\n{error}") from error
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, action="append", help="by default all")
    for name, default in (("programs", 2000), ("seed", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    counts, wrong = Counter(), 0
    count_collectives(pytest.MonkeyPatch())
    try:
        for i in range(options.first, options.first + options.programs):
            for kind in options.kind or KINDS:
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                try:
                    counts += Counter({(kind, end): k for end, k in campaign(kind, 1, options.seed, i).items()})
                except AssertionError as error:
                    wrong += 1
                    print(error, flush=True)
    except KeyboardInterrupt:
        print(f"interrupted before program {i}")
    for (kind, end), k in sorted(counts.items()):
        print(f"{kind}: {k} {end}")
    print(f"{counts.total() + wrong} programs, {wrong} wrong; collective calls of rank 0: {dict(CountingWorld.finished)}")
    raise SystemExit(min(wrong, 1))


if __name__ == "__main__":
    main()
