"""Calls of the function under test: on copies of its inputs, within a time limit, and with checks of the returned values."""

from __future__ import annotations

import queue
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from sarlite.errors import SarliteError, one_line
from sarlite.oracle.case import Case, Run, Vjp
from sarlite.oracle.finding import Verdict
from sarlite.oracle.formats import as_array
from sarlite.types import Array

T = TypeVar("T")
_FRAMES = 6  # frames of a traceback in a report
LAYOUTS = ("plain", "read-only", "strided")  # layouts of inputs
# Layouts of an incoming gradient, with their descriptions in findings. PyTorch's autograd passes gradients in all of
# them, and in BROADCAST, which is what out.sum().backward() passes.
GRADIENT_LAYOUTS = {"plain": "in contiguous rows", "transposed": "whose columns are contiguous",
                    "strided": "whose elements are two numbers apart"}
BROADCAST = "broadcast"  # one element with strides of 0
_MEMORY = re.compile(r"out ?of ?memory|not enough memory|(can't|cannot|unable to) allocate", re.IGNORECASE)


def outputs(worker: Worker, run: Run, case: Case, shapes: Mapping[str, tuple[int, ...]], layout: str = "plain",
            threads: int | None = None) -> dict[str, Array]:
    """Call `run(case)` in the worker's thread, and return its outputs by name. The inputs are copies in the memory layout
    `layout`, and BLAS uses `threads` threads (None: no limit is set). Outputs that do not have these `shapes` raise
    CallFailure.

    Parameters
    ----------
    worker : Worker
    run : (Case) -> array, or {output: array}
    case : Case
    shapes : dict of str to shape
        Expected shape of each output.
    layout : str
        Layout of the input arrays, one of LAYOUTS.
    threads : int, optional
        Number of threads of BLAS and OpenMP.

    Raises
    ------
    CallFailure
        The call raised an exception, did not return, changed its inputs, or returned something else.
    """
    guarded = GuardedCase(case, layout)
    returned = _call(worker, lambda: run(guarded.case), guarded, threads, "run")
    if not isinstance(returned, Mapping):
        if len(shapes) != 1:
            raise CallFailure(Verdict.WRONG, f"returned {_kind(returned)}, not a dict of {', '.join(shapes)}")
        returned = {next(iter(shapes)): returned}
    if missing := [name for name in shapes if name not in returned]:
        raise CallFailure(Verdict.WRONG, f"returned no {missing[0]}, but must return a dict of {', '.join(shapes)}", missing[0])
    return {name: checked(returned[name], name, shape, case) for name, shape in shapes.items()}


def gradients(worker: Worker, vjp: Vjp, case: Case, cotangents: Mapping[str, Array],
              shapes: Mapping[str, tuple[int, ...]], threads: int | None = None, layout: str = "plain"
              ) -> dict[str, Array]:
    """Call `vjp(case, cotangents)` in the worker's thread, and return the gradients by name. `cotangents`, the gradients of the
    outputs, are copied to the memory layout `layout`; BLAS uses `threads` threads (None: no limit is set). Gradients that do
    not have these `shapes` raise CallFailure.

    Gradients that the vjp leaves out or returns as None are left out.

    Raises
    ------
    CallFailure
        See `outputs`.
    """
    guarded = GuardedCase(case)

    def gradient():
        g = {name: guarded.give(value, layout) for name, value in cotangents.items()}
        return vjp(guarded.case, next(iter(g.values())) if len(g) == 1 else g)

    returned = _call(worker, gradient, guarded, threads, "vjp")
    if not isinstance(returned, Mapping):
        raise CallFailure(Verdict.WRONG, f"vjp returned {_kind(returned)}, not a dict of gradients by name")
    if unknown := [name for name in returned if name not in {*shapes, *case.arrays, *case.state}]:
        raise CallFailure(Verdict.WRONG, f"vjp returned a gradient of {unknown[0]!r}, which is not one of {', '.join(shapes)}",
                      f"d{unknown[0]}")
    return {name: checked(returned[name], f"d{name}", shape, case) for name, shape in shapes.items()
            if returned.get(name) is not None}


def laid_out(array: Array, layout: str) -> Array:
    """Return a copy of an array in the memory layout `layout`: "plain", "read-only", "strided", "transposed" or "broadcast".

    `layout` is a name in LAYOUTS or GRADIENT_LAYOUTS, or is BROADCAST, for arrays whose elements are all equal.
    """
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


class GuardedCase:
    """Copy of a case that is passed to one call of the function under test. Its method `changed` tells after the call which
    input the function wrote to.

    Attributes
    ----------
    case : Case
        The case to pass to the function under test.
    """

    def __init__(self, case: Case, layout: str = "plain") -> None:
        self.layout, self.convert, self.original = layout, case.convert, case
        self.copies: list[tuple[Array, Array]] = []  # (copy, original)
        arrays, state = ({name: self._copy(value, layout) for name, value in values.items()}
                         for values in (case.arrays, case.state))
        self.case = replace(case, arrays=arrays, state=state, convert=self.give)

    def _copy(self, array, layout):
        copy = laid_out(array, layout)
        self.copies.append((copy, array))
        return copy

    def give(self, array: Array, layout: str | None = None) -> object:
        """Return a copy of an array in the memory layout `layout` (None: the layout of the case's arrays), converted to a tensor if
        the function under test wants tensors.
        """
        copy = self._copy(array, self.layout if layout is None else layout)
        return copy if self.convert is None else self.convert(copy)

    def changed(self) -> str | None:
        """Return the name of an input array that the function under test has written to; None if it has written to no input."""
        original = next((original for copy, original in self.copies if not _same_bits(copy, original)), None)
        if original is None:
            return None
        named_arrays = {**self.original.arrays, **self.original.state}
        return next((name for name, value in named_arrays.items() if _same_bits(value, original)), "of edges or cotangents")


class Worker:
    """Daemon thread that runs calls of the function under test one after the other; a call over the time limit is abandoned.

    Attributes
    ----------
    seconds : float or None
        Time limit of a call.
    limits : (n) -> context manager
        Sets the number of threads of BLAS and OpenMP.
    overwritten : bool
        True once a call has written to the array that an earlier call returned.
    """

    def __init__(self, seconds: float | None = None, limits: Callable[[int], AbstractContextManager[object]] = threadpool_limits,
                 name: str = "sarlite.oracle") -> None:
        self.seconds, self.limits, self.name, self.overwritten = seconds, limits, name, False
        self._jobs: queue.SimpleQueue | None = None
        self._results: dict[str, tuple[object, object]] = {}  # kind of call -> (last result, copy of it)

    def hold(self, kind: str, result: object, copy: object) -> None:
        """Store the `result` of a call of `kind` "run" or "vjp", and `copy`, a copy taken right after the call. Set `overwritten`
        to True if a result that was stored earlier no longer equals its copy.
        """
        if not self.overwritten:
            self.overwritten = any(not _same(_plain(held), copied) for held, copied in self._results.values())
            self._results[kind] = result, copy
        if self.overwritten:
            self._results.clear()

    def start(self, job: Callable[[], T]) -> Future[T]:
        """Queue the call job() for the thread, and return a future of the call's result."""
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._jobs,), name=self.name, daemon=True).start()
        answer: Future[T] = Future()
        self._jobs.put((job, answer))
        return answer

    def call(self, job: Callable[[], T]) -> T:
        """Call job() in the thread, wait for the call up to the time limit, and return its result.

        Raises
        ------
        CallFailure
            `job` raised any exception, or the time limit is over.
        """
        answer = self.start(job)
        wait([answer], self.seconds)
        if not answer.done():
            self.close()
            raise CallFailure(Verdict.LIMIT, f"did not return within {self.seconds:g} s", hangs=True)
        error = answer.exception()
        if error is None or isinstance(error, (CallFailure, KeyboardInterrupt)):
            return answer.result()
        raise CallFailure(_verdict(error), raised_text(error), trace=_trace(error)) from error

    def close(self) -> None:
        """End the thread after the current call."""
        if self._jobs is not None:
            self._jobs.put(None)
        self._jobs = None


def _serve(jobs):
    while (item := jobs.get()) is not None:
        job, answer = item
        try:
            answer.set_result(job())
        except BaseException as error:  # a function under test may raise anything, such as SystemExit
            answer.set_exception(error)
        del job, answer, item


def threads_of_pools() -> int:
    """Return the number of threads of the largest BLAS or OpenMP pool in this process; 1 if there is none."""
    return max((pool["num_threads"] for pool in threadpool_info()), default=1)


def _verdict(error):
    if isinstance(error, (MemoryError, TimeoutError)) or _MEMORY.search(f"{type(error).__name__}: {error}"):
        return Verdict.LIMIT
    return Verdict.UNSUPPORTED if isinstance(error, NotImplementedError) else Verdict.WRONG


def _call(worker: Worker, function: Callable[[], object], guarded: GuardedCase, threads: int | None, kind: str) -> Any:
    """Call function() in the worker's thread with `threads` BLAS threads (None: no limit is set); return its result as NumPy
    arrays. Raise CallFailure if the call has written to an input in `guarded`. The worker stores the result, as one of `kind` "run"
    or "vjp", to see if a later call overwrites it.
    """

    def job():
        with nullcontext() if threads is None else worker.limits(threads):
            result = function()
            return result, _plain(result)

    result, copy = worker.call(job)
    if (name := guarded.changed()) is not None:
        raise CallFailure(Verdict.WRONG, f"changed its input {name}", name)
    worker.hold(kind, result, copy)
    return copy


def _trace(error: BaseException) -> str:
    """Return the last frames of an exception's traceback as text, without frames of this package."""
    package = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(package)]
    return "".join(traceback.format_list(frames[-_FRAMES:])).rstrip()


def raised_text(error: BaseException) -> str:
    """Return the class and the message of an exception, such as "raised ValueError: negative"."""
    text = one_line(str(error))
    return f"raised {type(error).__name__}" + (f": {text}" if text else "")


def _plain(result):
    return {name: as_array(value) for name, value in result.items()} if isinstance(result, Mapping) else as_array(result)


def _kind(value):
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")


def checked(value: object, name: str, shape: tuple[int, ...], case: Case) -> Array:
    """Return `value` if it is an array of this shape and of the case's dtype; otherwise raise a CallFailure about the output `name`."""
    if not isinstance(value, np.ndarray):
        raise CallFailure(Verdict.WRONG, f"{name} is {_kind(value)}, not an array", name)
    if value.shape != tuple(shape):
        raise CallFailure(Verdict.WRONG, f"{name} has shape {value.shape}, not {tuple(shape)}", name)
    if value.dtype != case.dtype:
        raise CallFailure(Verdict.WRONG, f"{name} is {value.dtype}, not {case.format}", name)
    return value


def _same(a, b):
    """Return True if two results, arrays or dicts of arrays, are equal bit by bit."""
    if isinstance(a, Mapping):
        return all(_same(a[name], b[name]) for name in b)
    return not isinstance(a, np.ndarray) or _same_bits(a, b)


def _same_bits(a, b):
    return a.shape == b.shape and a.tobytes() == b.astype(a.dtype, copy=False).tobytes()


class Unsupported(SarliteError, NotImplementedError):
    """Exception that a function under test raises to decline a case; the case then counts as not covered. Any other
    NotImplementedError does the same.

    Examples
    --------
    >>> from sarlite import oracle
    >>> def run(case):
    ...     raise oracle.Unsupported("graphs need 8 edges or more")
    >>> oracle.check(run, "spmm", level="probe", graphs="ring-3").verdict.name
    'UNSUPPORTED'
    """


class CallFailure(Exception):
    """Exception for a call of the function under test that raised, hung, wrote to its input, or returned something of a wrong kind.

    Attributes
    ----------
    verdict : Verdict
    cause : str
    output : str
        Name of the output or input that is at fault; empty if there is none.
    hangs : bool
        True if the call did not return.
    trace : str
        Traceback of the exception that the call raised.
    """

    def __init__(self, verdict: Verdict, cause: str, output: str = "", hangs: bool = False, trace: str = "") -> None:
        super().__init__(cause)
        self.verdict, self.cause, self.output, self.hangs, self.trace = verdict, cause, output, hangs, trace
