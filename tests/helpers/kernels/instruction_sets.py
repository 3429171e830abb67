"""Kernel calls that must give the same bits on every instruction set, with any index type, alignment and number of threads."""

from functools import cache, lru_cache
from typing import NamedTuple
from zlib import crc32

import numpy as np

from sarlite import kernels
from tests.helpers.kernels.kernel_references import Csr


class Setting(NamedTuple):
    """Settings of a kernel call that must not change its result: instruction set, threads, index type, and alignment of the arrays.

    Where a kernel's docstring says so, the result depends on the number of threads.
    """

    isa: str
    threads: int = 1
    itype: type = np.int64
    offset: int | None = None       # bytes from a cache line to each array's start; None: as NumPy allocates it

    def put(self):
        kernels.set_instruction_set(self.isa)
        kernels.set_threads(self.threads)


WAYS = [[(2, np.int32, 4), (1, np.int64, None)], [(2, np.int64, None), (1, np.int32, 8)]]
PER_TEAM = {"ddst", "mean", "m2", "sums", "db"}     # summed in thread order: the same for the same number of threads


class Arrays(NamedTuple):
    """Factory of arrays for a kernel call, in one value type and one index type, that begin `offset` bytes into a cache line."""

    dtype: type
    itype: type
    offset: int | None

    def place(self, array, dtype=None):
        """Return a copy of `array` that begins `self.offset` bytes into a cache line, rounded up to the dtype's alignment."""
        array = np.array(array, dtype or array.dtype)
        if self.offset is None:
            return array
        memory = np.empty(array.nbytes + 128, np.uint8)
        start = -memory.ctypes.data % 64 + max(self.offset, array.itemsize)
        placed = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        placed[...] = array
        return placed

    def values(self, seed, *shape, dtype=None):
        return self.place(random(seed, shape), dtype or self.dtype)

    def index(self, a):
        return self.place(a, self.itype)


@lru_cache(32)
def random(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape)


@cache
def graph(kind):
    """Return the small graph of this kind as a `Csr`: "hard", "long", "one node", "no edges" or "ranges".

    In graph "hard" rows are a little longer than prefetching, steps and chunks, and some are empty. In graph "ranges"
    x of 256 columns is summed in ranges; a row's edges are in both ranges, in one, or in none.
    """
    rows = {"hard": [0, 1, 17, 33, 0, 257, 0], "long": [3, 0, 100_000, 40], "one node": [1], "no edges": [0, 0, 0],
            "ranges": [300, 0, 1, 40_000, 600]}[kind]
    n_src = {"hard": 70, "long": 50, "one node": 1, "no edges": 4, "ranges": 1100}[kind]
    src = np.random.default_rng(len(rows)).integers(0, n_src, sum(rows))
    dst = np.repeat(np.arange(len(rows)), rows)
    return Csr(dst, src[np.lexsort((src, dst))] if kind == "ranges" else src, len(rows), n_src)


def same_bits(actual, expected, note):
    np.testing.assert_array_equal(actual, expected, err_msg=note)
    bits = np.dtype(f"i{actual.itemsize}")
    np.testing.assert_array_equal(actual.view(bits), expected.view(bits), err_msg=note)      # 0 is not -0


def check(case, dtype, *args, instruction_sets=None):
    """Check that `case(arrays, *args)` gives the same bits on every instruction set, with one or two threads and two alignments."""
    instruction_sets = instruction_sets or kernels.instruction_sets()

    def run(setting):
        setting.put()
        return case(Arrays(dtype, setting.itype, setting.offset), *args)

    one = run(Setting(instruction_sets[0]))
    two = run(Setting(instruction_sets[0], threads=2)) if PER_TEAM & set(one) else one
    ways = WAYS[crc32(repr(args).encode()) % 2]
    for setting in [Setting(isa, *way) for isa in instruction_sets for way in ways]:
        for name, a in run(setting).items():
            expected = two if name in PER_TEAM and setting.threads == 2 else one
            same_bits(a, expected[name], f"{name} of {case.__name__} {args}: {setting}")
