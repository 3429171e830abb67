"""`--trace FILE`: a timeline of every rank in the Trace Event format, which ui.perfetto.dev and chrome://tracing open.

A rank is a process of the timeline. Its tracks: `compute`, where spans nest (epoch, step, primitive of the tape, block,
wait), `fetch` and `push`, and with minibatches `sample` and `lookup`; spans of these that overlap lie on tracks of
their own ("push 2"). Spans of `compute` say the thread's processor time too.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sarlite.comm import Communicator, together
from sarlite.errors import ConfigError, writing
from sarlite.files import try_whole, write_whole
from sarlite.profile import Profile, Span, Trace
from sarlite.tape.recording import Observer, observed
from sarlite.types import Path as AnyPath

TRACKS = ("compute", "fetch", "push", "sample", "lookup")


def check_path(comm: Communicator, path: AnyPath) -> None:
    """Check before training that rank 0 can write the file. Collective.

    Raises
    ------
    ConfigError
        On every rank together.
    """
    def attempt():
        with writing(path, "trace", ConfigError):
            try_whole(path)

    together(comm, lambda: comm.rank == 0 and attempt())


@contextmanager
def recording(comm: Communicator, profile: Profile) -> Iterator[Trace]:
    """Return a context that records the spans of this rank. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks' clocks are set to 0 as each leaves a barrier.
    profile : Profile
        The graph's. Recording ends early where its `trace` is set to None.

    Yields
    ------
    Trace
        To give to `write`; about 0.5 kB a span.
    """
    comm.barrier()
    profile.trace = trace = Trace()
    try:
        with observed(Spans(profile)):
            yield trace
    finally:
        profile.trace = None


class Spans(Observer):
    """A span for each primitive of the tape, forward and backward."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    def forward(self, name: str, params: dict[str, Any]) -> Span:
        return self.profile.span(_label(name, params))

    def backward(self, name: str, params: dict[str, Any]) -> Span:
        return self.profile.span(f"{_label(name, params)} backward")


def _label(name, params):
    return f"{name} ({type(params['operator']).__name__})" if "operator" in params else name


def write(comm: Communicator, path: AnyPath, trace: Trace) -> None:
    """Gather the ranks' spans and write them, the file whole or not at all. Collective.

    Raises
    ------
    ConfigError
        On every rank together, where the file cannot be written.
    """
    ranks = comm.allgather(trace.spans)

    def write_all():
        events = [event for rank, spans in enumerate(ranks) for event in _events(rank, spans)]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))
        with writing(path, "trace", ConfigError):
            write_whole(path, text.encode())

    together(comm, lambda: comm.rank == 0 and write_all())


def _events(rank, spans):
    """Return one rank's events, first those that name it and its tracks."""
    names, events, lanes = {1000: TRACKS[0]}, [], defaultdict(list)
    for name, track, begin, end, args in sorted(spans, key=lambda span: (span[2], -span[3])):
        lane = 0 if track == "compute" else _lane(lanes[track], begin, end)
        tid = 1000 * (1 + TRACKS.index(track)) + lane  # Perfetto takes process and thread 0 for the idle ones
        names[tid] = f"{track} {lane + 1}" if lane else track
        events.append({"name": name, "ph": "X", "pid": 1 + rank, "tid": tid, "ts": begin / 1000,
                       "dur": (end - begin) / 1000, "args": args})
    about = [("process_name", 1000, {"name": f"rank {rank}"}), ("process_sort_index", 1000, {"sort_index": rank})]
    for tid in sorted(names):
        about += [("thread_name", tid, {"name": names[tid]}), ("thread_sort_index", tid, {"sort_index": tid})]
    return [{"name": name, "ph": "M", "pid": 1 + rank, "tid": tid, "args": args} for name, tid, args in about] + events


def _lane(ends, begin, end):
    """Return the first lane that is free at `begin`; `ends` has the time when each lane becomes free."""
    lane = next((k for k, free in enumerate(ends) if free <= begin), len(ends))
    ends[lane : lane + 1] = [end]
    return lane
