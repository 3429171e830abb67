"""Measure the limits of this machine: memory bandwidth, random rows, matrix products, messages between two ranks.

| case | one pass | bytes counted |
|---|---|---|
| read | dot product of an array with itself | the array, once |
| copy | one half to the other | read and written |
| triad | a = b + 3 c, thirds, in pieces that stay in cache between its two operations | two read, one written |
| gather | sums of 64 rows each drawn at random (`sarlite.kernels.spmm`): hardly anything is written | the rows read |
| sgemm | (100,000, 256) x (256, 256), NumPy's BLAS on its own threads | flops: two a multiplication and addition |
| message | there and back between two ranks of mpiexec, halved | one way |

All cases use all threads; sgemm runs with one thread too. read, copy, triad and gather work on one array of `--gib` GiB:
choose several times the size of the cache. The rate is that of the fastest pass, since the time that other programs take
is no limit of the machine.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import harness
import numpy as np
import threadpoolctl

from sarlite import kernels
from sarlite.train.loop import set_threads

ROW_BYTES = (64, 128, 256, 512, 1024, 1600)
MESSAGE_BYTES = (8, 1 << 10, 1 << 15, 1 << 20, 1 << 24)
ROWS_A_SUM = 64
GEMM = (100_000, 256, 256)


class Probe(NamedTuple):
    """Rate to measure: a function `run`, the bytes or flops `amount` of one call, and the case and other entries of the result row."""

    case: str
    keys: dict
    amount: float
    run: object


class Allowed(NamedTuple):
    """Milliseconds that an amount of work takes at the machine's rates: a lower limit, and an estimate with random reads of rows.

    Attributes
    ----------
    least : float
        A lower limit: bytes that must move at least once, each array read and written once, at the rate of streams, and
        flops at sgemm's rate.
    gather : float
        An estimate, no limit: a row read at random for each edge, at the rate of such rows. A program that finds rows in
        the cache is faster.
    """

    least: float
    gather: float

    def shares(self, ms):
        """Return the lower limit and the estimate as fractions of a measured time of `ms` milliseconds."""
        return {"limit_fraction": self.least / ms, "gather_fraction": self.gather / ms}


class Limits(NamedTuple):
    """Rates of this machine, measured with a number of threads: bytes/s of streams and of random rows, flops/s of products.

    Attributes
    ----------
    stream : float
        Bytes a second of arrays read or written from end to end, by the fastest of the probes.
    gather : dict of int to float
        Bytes a second of rows read at random, by the bytes of a row.
    sgemm : float
        Flops a second.
    """

    stream: float
    gather: dict
    sgemm: float

    def least_ms(self, n_bytes, flops):
        """Return the milliseconds of reading or writing `n_bytes` as a stream and then computing `flops` operations."""
        return 1e3 * (n_bytes / self.stream + flops / self.sgemm)

    def gather_ms(self, n_rows, row_bytes):
        """Return the milliseconds of reading `n_rows` rows of `row_bytes` bytes at random.

        Widths between the measured ones are interpolated.
        """
        widths = sorted(self.gather)
        return 1e3 * n_rows * row_bytes / float(np.interp(row_bytes, widths, [self.gather[width] for width in widths]))


def measure(threads, gib=1.0, repeats=3):
    """Return the `Limits` of this machine with `threads` threads, measured in a few seconds on `gib` GiB of memory."""
    data = array_of(gib)
    set_threads(1)  # read is a BLAS call in each of the threads
    streams = [timed_row(probe, threads, repeats) for probe in stream_probes(data, threads)]
    set_threads(threads)
    gathers = [timed_row(probe, threads, repeats) for probe in gather_probes(data)]
    return Limits(1e9 * max(row["gb_per_s"] for row in streams),
                  {row["row_bytes"]: 1e9 * row["gb_per_s"] for row in gathers},
                  1e9 * gemm_row(threads, repeats)["gflop_per_s"])


def array_of(gib):
    """Return a float32 array of ones of `gib` GiB, whose pages all exist because they were written."""
    return np.ones(max(int(gib * 2**30) // 4, 1 << 16), np.float32)


def timed_row(probe, threads, repeats):
    """Time `probe.run`; return the result row with its milliseconds and its best rate in GB/s or GFLOP/s."""
    times = harness.timed(probe.run, repeats)
    unit = "gflop_per_s" if "gemm" in probe.case else "gb_per_s"
    return row_of(probe.case, times, 1, threads, **probe.keys, **{unit: probe.amount / min(times) / 1e6})


def row_of(case, times, ranks, threads, **more):
    return {"case": case, "graph": None, "ranks": ranks, "threads": threads, **harness.summary(times), "peak_mib": None,
            "limit_fraction": None, "gather_fraction": None, **more}


def stream_probes(data, threads):
    """Return the Probes read, copy and triad, which measure the memory bandwidth of streams over the array `data`.

    A Python thread takes each part of the array, as NumPy releases the interpreter's lock.
    """
    pool = ThreadPoolExecutor(threads)

    def in_parts(function, *arrays):
        parts = [np.array_split(array, threads) for array in arrays]
        return lambda: list(pool.map(function, *parts))

    halves, thirds = data[: len(data) // 2 * 2].reshape(2, -1), data[: len(data) // 3 * 3].reshape(3, -1)
    return [
        Probe("read", {}, data.nbytes, in_parts(lambda x: np.dot(x, x), data)),
        Probe("copy", {}, halves.nbytes, in_parts(np.copyto, *halves)),
        Probe("triad", {}, thirds.nbytes, in_parts(triad, *thirds)),
    ]


def triad(a, b, c, piece=1 << 15):
    for at in range(0, len(a), piece):
        part = slice(at, at + piece)
        np.multiply(c[part], np.float32(3), out=a[part])
        np.add(a[part], b[part], out=a[part])


def gather_probes(data):
    """Yield a Probe of reading rows of `data` at random for each width of `ROW_BYTES`; a call reads a quarter of the array."""
    draw = np.random.default_rng(0)
    for row_bytes in ROW_BYTES:
        rows = data[: len(data) // (row_bytes // 4) * (row_bytes // 4)].reshape(-1, row_bytes // 4)
        n_sums = max(len(rows) // 4 // ROWS_A_SUM, 1)
        indptr = np.arange(n_sums + 1) * ROWS_A_SUM
        indices = draw.integers(0, len(rows), n_sums * ROWS_A_SUM, dtype=np.int32)
        out = np.zeros((n_sums, rows.shape[1]), np.float32)
        yield Probe("gather", {"row_bytes": row_bytes}, indices.size * row_bytes,
                    partial(kernels.spmm, indptr, indices, rows, out))


def gemm_row(threads, repeats):
    """Time a float32 matrix product on `threads` threads of the BLAS; return the result row."""
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        return timed_row(gemm_probe(), threads, repeats)


def gemm_probe():
    n, k, m = GEMM
    a, b, out = np.ones((n, k), np.float32), np.ones((k, m), np.float32), np.zeros((n, m), np.float32)
    return Probe("sgemm", {}, 2.0 * n * k * m, partial(np.matmul, a, b, out=out))


def message_rows(repeats):
    """Time messages between two MPI ranks; return the result rows by size, or an empty list if MPI cannot be started."""
    try:
        return harness.last_json(harness.mpiexec(2, __file__, "--worker", "--repeats", repeats))
    except SystemExit as error:
        harness.note(f"messages between ranks are left out: {error}")
        return []


def ping_pong(repeats):
    """Exchange messages of each size as one of two MPI ranks; rank 0 prints the table's rows as JSON."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    peer, rows = 1 - comm.rank, []
    for n_bytes in MESSAGE_BYTES:
        buffer, trips = np.zeros(n_bytes, np.uint8), max(1, min(1000, (1 << 26) // n_bytes))
        times = []
        for _ in range(repeats + 1):
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(trips):
                if comm.rank == 0:
                    comm.Send(buffer, peer)
                    comm.Recv(buffer, peer)
                else:
                    comm.Recv(buffer, peer)
                    comm.Send(buffer, peer)
            times.append(1e3 * (time.perf_counter() - begin) / trips / 2)
        rows.append(row_of("message", times[1:], 2, 1, message_bytes=n_bytes, gb_per_s=n_bytes / min(times[1:]) / 1e6))
    if comm.rank == 0:
        print(json.dumps(rows))


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return ping_pong(args.repeats)
    set_threads(1)  # read is a BLAS call in each of the threads
    data = array_of(args.gib)
    rows = [timed_row(probe, args.threads, args.repeats) for probe in stream_probes(data, args.threads)]
    rows += [gemm_row(threads, args.repeats) for threads in (1, args.threads)]
    set_threads(args.threads)
    rows += [timed_row(probe, args.threads, args.repeats) for probe in gather_probes(data)]
    rows += message_rows(args.repeats)
    columns = {
        **{key: (lambda r, key=key: r[key]) for key in ("case", "ranks", "threads")},
        "row or message bytes": lambda r: r.get("row_bytes", r.get("message_bytes")),
        "GB/s": lambda r: r.get("gb_per_s"),
        "GFLOP/s": lambda r: r.get("gflop_per_s"),
        "ms": lambda r: r["ms"],
        "min": lambda r: r["ms_min"],
        "max": lambda r: r["ms_max"],
    }
    harness.report(f"Limits of this machine, {args.gib:g} GiB: rates of the fastest of {args.repeats} passes", rows,
                   columns, args.json)
    return None


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the array")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
