"""Measure training epochs while other programs keep all cores busy, for several settings of how threads and ranks wait.

The training command trains as `--places` say, in ranks x threads: once with the cores to itself, and once beside a
busy loop on each core that this process may use. The busy loops end with the measurement. Case `small` has the
tutorial's size: a GraphSAGE of 64 columns on 2,000 nodes and 30,000 edges, whose kernels take microseconds. Case
`medium` has 20,000 nodes and 400,000 edges.

`--ways` says how threads and ranks wait. `default` is what sarlite sets, and `spinning` is what libgomp does by itself.
With `sleeping` threads sleep at once. `napping` is for MPICH's ranks, which else spin and yield. The ways take turns,
`--rounds` times, quiet and busy.

`ms` is over all epochs of all rounds, without each run's first three. `to_quiet` is the busy mean over the quiet mean,
since a user waits for the slow epochs of a busy machine. `to_spinning` is the median over that of `spinning`; on a
quiet machine this is the cost of readiness. Other work on the machine makes `quiet` meaningless: see `load`, the mean
number of processes that wanted a core.
"""

import os
import statistics
import subprocess
import sys
from contextlib import contextmanager

import harness

WAYS = {"default": {}, "spinning": {"GOMP_SPINCOUNT": "300000"}, "sleeping": {"GOMP_SPINCOUNT": "0"},
        "napping": {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1"}}
CASES = {
    "small": dict(data="sbm:nodes=2000,classes=3,features=8,degree=30", epochs=60),
    "medium": dict(data="sbm:nodes=20000,classes=8,features=64,degree=20", epochs=20),
}
SHARED = dict(model="sage", hidden=64, eval_every=1000, verify=False)
WARM_UP = 3


@contextmanager
def busy_cores(busy):
    """Return a context inside which a busy loop runs on each core that this process may use; with `busy` False nothing runs."""
    cores = sorted(os.sched_getaffinity(0)) if busy else ()
    loops = [subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
             for core in cores]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(args):
    """Return {(case, "RANKSxTHREADS", key of `WAYS`, True if cores are busy): ([ms of each epoch], [load average after each run])}.

    `place` is "RANKSxTHREADS", and `way` is a key of `WAYS`. The times are milliseconds of each epoch. The loads are
    the machine's load averages after each run.
    """
    samples = {}
    for number in range(args.rounds):
        for busy in (False, True):
            with busy_cores(busy):
                for case in args.cases:
                    for place in args.places:
                        for way in args.ways:
                            harness.note(f"round {number + 1}: {case}, {place}, {way}, {'busy' if busy else 'quiet'}")
                            times, loads = samples.setdefault((case, place, way, busy), ([], []))
                            times += epochs(case, place, way)
                            loads.append(os.getloadavg()[0])
    return samples


def epochs(case, ranks_x_threads, way):
    """Run training `case` on "RANKSxTHREADS" with the environment WAYS[way]; return the ms of each epoch after the first `WARM_UP`."""
    n_ranks, threads = map(int, ranks_x_threads.split("x"))
    line = harness.train(n_ranks, **CASES[case], **SHARED, threads=threads, env={**os.environ, **WAYS[way]})
    return [1e3 * seconds for seconds in line["seconds"][WARM_UP:]]


def rows_of(samples):
    """Return the table's rows, one for each key of `samples`, the result of `measure`."""
    rows = []
    for (case, place, way, busy), (times, loads) in samples.items():
        n_ranks, threads = map(int, place.split("x"))
        quiet = samples[case, place, way, False][0]
        spinning = samples.get((case, place, "spinning", busy), (None,))[0]
        rows.append({"case": case, "ranks": n_ranks, "threads": threads, "way": way, "busy": busy,
                     **harness.summary(times), "mean_ms": statistics.mean(times), "load": max(loads),
                     "to_quiet": statistics.mean(times) / statistics.mean(quiet) if busy else None,
                     "to_spinning": statistics.median(times) / statistics.median(spinning) if spinning else None})
    return rows


COLUMNS = {
    **harness.named("case", "ranks", "threads", "way"),
    "machine": lambda r: "busy" if r["busy"] else "quiet",
    "ms": harness.times(digits=1),
    "mean": lambda r: f"{r['mean_ms']:,.1f}",
    "to quiet": lambda r: r["to_quiet"] and f"{r['to_quiet']:.2f}",
    "to spinning": lambda r: r["to_spinning"] and f"{r['to_spinning']:.2f}",
    "load": lambda r: f"{r['load']:.1f}",
}


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--cases", type=harness.words, default=list(CASES))
    parser.add_argument("--places", type=harness.words, default=["1x2", "2x1", "4x1"], help="ranks x threads")
    parser.add_argument("--ways", type=harness.words, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    rows = rows_of(measure(args))
    harness.report("An epoch, alone and beside a busy loop on each core", rows, COLUMNS, args.json)


if __name__ == "__main__":
    sys.exit(main())
