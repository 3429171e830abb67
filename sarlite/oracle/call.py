"""Calls a function under test on arrays of its own, in a time limit, and looks at its answer before it is read."""

from __future__ import annotations

import queue
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from sarlite.errors import SarliteError, one_line
from sarlite.oracle.case import Case
from sarlite.oracle.finding import Verdict
from sarlite.oracle.formats import as_array
from sarlite.types import Array

_FRAMES = 6  # of an exception that are told
LAYOUTS = ("plain", "read-only", "strided")  # of inputs
# Layouts of an incoming gradient, and how a finding names them. autograd passes all of them: out.sum() the last one.
GRADIENT_LAYOUTS = {"plain": "in contiguous rows", "transposed": "whose columns are contiguous",
                    "strided": "whose elements are two numbers apart"}
BROADCAST = "broadcast"  # one number with strides of 0
_MEMORY = re.compile(r"out ?of ?memory|not enough memory|(can't|cannot|unable to) allocate", re.IGNORECASE)


def outputs(worker: Worker, run: Callable, case: Case, shapes: Mapping[str, tuple[int, ...]], layout: str = "plain",
            threads: int | None = None) -> dict[str, Array]:
    """Return the outputs of one call by name, each of its own shape and dtype.

    Raises Failure where the call raised, hung, changed its inputs, or returned something else.
    """
    handed = Handed(case, layout)
    found = _call(worker, lambda: run(handed.case), handed, threads, "run")
    if not isinstance(found, Mapping):
        if len(shapes) != 1:
            raise Failure(Verdict.WRONG, f"returned {_kind(found)}, not a dict of {', '.join(shapes)}")
        found = {next(iter(shapes)): found}
    if missing := [name for name in shapes if name not in found]:
        raise Failure(Verdict.WRONG, f"returned no {missing[0]}: a dict of {', '.join(shapes)} is wanted", missing[0])
    return {name: checked(found[name], name, shape, case) for name, shape in shapes.items()}


def gradients(worker: Worker, vjp: Callable, case: Case, cotangents: Mapping[str, Array],
              shapes: Mapping[str, tuple[int, ...]], threads: int | None = None, layout: str = "plain"
              ) -> dict[str, Array]:
    """Return the gradients of one call by name, without the gradients that the call leaves out or gives as None.

    `layout` is the layout of the cotangents. Raises Failure as `outputs` does.
    """
    handed = Handed(case)

    def gradient():
        g = {name: handed.give(value, layout) for name, value in cotangents.items()}
        return vjp(handed.case, next(iter(g.values())) if len(g) == 1 else g)

    found = _call(worker, gradient, handed, threads, "vjp")
    if not isinstance(found, Mapping):
        raise Failure(Verdict.WRONG, f"vjp returned {_kind(found)}, not a dict of gradients by name")
    if unknown := [name for name in found if name not in {*shapes, *case.arrays, *case.state}]:
        raise Failure(Verdict.WRONG, f"vjp returned a gradient of {unknown[0]!r}, which is none of {', '.join(shapes)}",
                      f"d{unknown[0]}")
    return {name: checked(found[name], f"d{name}", shape, case) for name, shape in shapes.items()
            if found.get(name) is not None}


def laid_out(array: Array, layout: str) -> Array:
    """Return a copy of an array in a layout of LAYOUTS, of GRADIENT_LAYOUTS, or BROADCAST, which takes equal numbers."""
    if layout == BROADCAST and array.size:
        return np.ndarray(array.shape, array.dtype, np.array(array.flat[:1]), strides=(0,) * array.ndim)
    if layout == "transposed" and array.ndim > 1:
        return np.array(array, order="F")
    if layout in ("strided", "transposed") and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    copy = np.array(array, order="C")
    copy.flags.writeable = layout != "read-only"
    return copy


class Handed:
    """A case as one call gets it, `case`: every array is a copy, remembered, so that a change is noticed."""

    def __init__(self, case: Case, layout: str = "plain") -> None:
        self.layout, self.convert, self.original = layout, case.convert, case
        self.held: list[tuple[Array, Array]] = []  # (copy, what it is of)
        arrays, state = ({name: self._copy(value, layout) for name, value in values.items()}
                         for values in (case.arrays, case.state))
        self.case = replace(case, arrays=arrays, state=state, convert=self.give)

    def _copy(self, array, layout):
        copy = laid_out(array, layout)
        self.held.append((copy, array))
        return copy

    def give(self, array: Array, layout: str | None = None) -> Any:
        """Return an array as the function gets it, in the case's layout or in another."""
        copy = self._copy(array, self.layout if layout is None else layout)
        return copy if self.convert is None else self.convert(copy)

    def changed(self) -> str | None:
        """The name of an array that the call has written to."""
        kept = next((kept for copy, kept in self.held if not _same_bits(copy, kept)), None)
        if kept is None:
            return None
        known = {**self.original.arrays, **self.original.state}
        return next((name for name, value in known.items() if _same_bits(value, kept)), "of edges or cotangents")


class Worker:
    """A thread that makes the calls one after another. A call that does not return is left behind, in a daemon.

    Attributes
    ----------
    seconds : float or None
        Time limit of a call.
    limits : (n) -> context manager
        Sets the number of threads of BLAS and OpenMP for a call.
    overwritten : bool
        True once a call has written to the result of an earlier call.
    """

    def __init__(self, seconds: float | None = None, limits: Callable[[int], Any] = threadpool_limits,
                 name: str = "sarlite.oracle") -> None:
        self.seconds, self.limits, self.name, self.overwritten = seconds, limits, name, False
        self._jobs: queue.SimpleQueue | None = None
        self._results: dict[str, tuple[Any, Any]] = {}  # kind of call -> its last result, and a copy made at once

    def hold(self, kind: str, result: Any, copy: Any) -> None:
        """Hold a result until the next call of its kind, and notice where an earlier result has changed since."""
        if not self.overwritten:
            self.overwritten = any(not _same(_plain(held), kept) for held, kept in self._results.values())
            self._results[kind] = result, copy
        if self.overwritten:
            self._results.clear()

    def start(self, job: Callable[[], Any]) -> Future:
        """Return what will have the result of `job`, or its exception."""
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._jobs,), name=self.name, daemon=True).start()
        answer: Future = Future()
        self._jobs.put((job, answer))
        return answer

    def call(self, job: Callable[[], Any]) -> Any:
        """Return what `job` returns; raises Failure, whatever it raises, and once the time is over."""
        answer = self.start(job)
        wait([answer], self.seconds)
        if not answer.done():
            self.close()
            raise Failure(Verdict.LIMIT, f"did not return within {self.seconds:g} s", hangs=True)
        error = answer.exception()
        if error is None or isinstance(error, (Failure, KeyboardInterrupt)):
            return answer.result()
        raise Failure(_verdict(error), told(error), trace=_trace(error)) from error

    def close(self) -> None:
        if self._jobs is not None:
            self._jobs.put(None)
        self._jobs = None


def _serve(jobs):
    while (item := jobs.get()) is not None:
        job, answer = item
        try:
            answer.set_result(job())
        except BaseException as error:  # a function under test may raise anything: SystemExit too
            answer.set_exception(error)
        del job, answer, item


def threads_of_pools() -> int:
    """Return the most threads that a pool of BLAS or OpenMP in this process has; 1 where there is no pool."""
    return max((pool["num_threads"] for pool in threadpool_info()), default=1)


def _verdict(error):
    if isinstance(error, (MemoryError, TimeoutError)) or _MEMORY.search(f"{type(error).__name__}: {error}"):
        return Verdict.LIMIT
    return Verdict.UNSUPPORTED if isinstance(error, NotImplementedError) else Verdict.WRONG


def _call(worker, function, handed, threads, kind):
    """Return the result of a function with every array in it copied to NumPy; notice writes to inputs and results."""

    def job():
        with nullcontext() if threads is None else worker.limits(threads):
            result = function()
            return result, _plain(result)

    result, copy = worker.call(job)
    if (name := handed.changed()) is not None:
        raise Failure(Verdict.WRONG, f"changed its input {name}", name)
    worker.hold(kind, result, copy)
    return copy


def _trace(error):
    """The last frames of an exception that are not this package's."""
    own = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return "".join(traceback.format_list(frames[-_FRAMES:])).rstrip()


def told(error: BaseException) -> str:
    text = one_line(str(error))
    return f"raised {type(error).__name__}" + (f": {text}" if text else "")


def _plain(found):
    return {name: as_array(value) for name, value in found.items()} if isinstance(found, Mapping) else as_array(found)


def _kind(value):
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")


def checked(value: Any, name: str, shape: tuple[int, ...], case: Case) -> Array:
    """Return an array that has the shape promised and the case's dtype; raises Failure."""
    if not isinstance(value, np.ndarray):
        raise Failure(Verdict.WRONG, f"{name} is {_kind(value)}, not an array", name)
    if value.shape != tuple(shape):
        raise Failure(Verdict.WRONG, f"{name} has shape {value.shape}, not {tuple(shape)}", name)
    if value.dtype != case.dtype:
        raise Failure(Verdict.WRONG, f"{name} is {value.dtype}, not {case.format}", name)
    return value


def _same(a, b):
    """Return True if two results, arrays or dicts of arrays, have the same bits."""
    if isinstance(a, Mapping):
        return all(_same(a[name], b[name]) for name in b)
    return not isinstance(a, np.ndarray) or _same_bits(a, b)


def _same_bits(a, b):
    return a.shape == b.shape and a.tobytes() == b.astype(a.dtype, copy=False).tobytes()


class Unsupported(SarliteError, NotImplementedError):
    """Raise it in a function under test for a case that it does not promise: the case counts as not covered."""


class Failure(Exception):
    """A call gave no answer that can be compared; `hangs` where it never returned, `trace` where it raised."""

    def __init__(self, verdict: Verdict, cause: str, output: str = "", hangs: bool = False, trace: str = "") -> None:
        super().__init__(cause)
        self.verdict, self.cause, self.output, self.hangs, self.trace = verdict, cause, output, hangs, trace
