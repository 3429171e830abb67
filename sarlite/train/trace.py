"""`--trace FILE`: a timeline of every rank in the Trace Event format, which ui.perfetto.dev and chrome://tracing open.

Each rank is a process of the timeline, with several tracks. Spans of the track `compute` nest (epoch, step, primitive of
the tape, block, wait) and contain the thread's processor time. The other tracks are `fetch` and `push`, and with
minibatches `sample` and `lookup`. If spans of these tracks overlap, the later one lies on a further track, such as
"push 2".
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from sarlite.comm import Communicator, together
from sarlite.errors import ConfigError, writing
from sarlite.files import atomic_write, check_writable
from sarlite.profile import Profile, Span, Trace
from sarlite.tape.recording import Observer, observed
from sarlite.types import Path as AnyPath

TRACKS = ("compute", "fetch", "push", "sample", "lookup")
"""Names of the tracks, in the order in which a viewer shows them."""


def check_path(comm: Communicator, path: AnyPath) -> None:
    """Raise a ConfigError on every rank, before training, unless rank 0 can write the trace file. Collective.

    Raises
    ------
    ConfigError
        On every rank: the file cannot be written.
    """
    def attempt():
        with writing(path, "trace", ConfigError):
            check_writable(path)

    together(comm, lambda: comm.rank == 0 and attempt())


@contextmanager
def recording(comm: Communicator, profile: Profile) -> Iterator[Trace]:
    """Return a context that records what this rank does as spans (named intervals of time) from `profile`, and that yields their `Trace`.
    Collective.

    Parameters
    ----------
    comm : Communicator
        Each rank's clock starts at 0 after a barrier of this communicator.
    profile : Profile
        Profile of the graph. Recording ends early if its `trace` is set to None.

    Yields
    ------
    Trace
        The recorded spans, about 0.5 kB each; the argument of `write`.
    """
    comm.barrier()
    profile.trace = trace = Trace()
    try:
        with observed(Spans(profile)):
            yield trace
    finally:
        profile.trace = None


class Spans(Observer):
    """Observer of the tape that records a span (a named interval of time) for the forward and the backward pass of each primitive
    operation.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    def forward(self, name: str, params: dict[str, object]) -> Span:
        return self.profile.span(_label(name, params))

    def backward(self, name: str, params: dict[str, object]) -> Span:
        return self.profile.span(f"{_label(name, params)} backward")


def _label(name, params):
    return f"{name} ({type(params['operator']).__name__})" if "operator" in params else name


def write(comm: Communicator, path: AnyPath, trace: Trace) -> None:
    """Gather the spans of all ranks, and write the trace file atomically from rank 0. Collective.

    Raises
    ------
    ConfigError
        On every rank: the file cannot be written.
    """
    ranks = comm.allgather(trace.spans)

    def write_all():
        events = [event for rank, spans in enumerate(ranks) for event in _events(rank, spans)]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))
        with writing(path, "trace", ConfigError):
            atomic_write(path, text.encode())

    together(comm, lambda: comm.rank == 0 and write_all())


def _events(rank, spans):
    """Return a list of the trace events of one rank, ready for JSON: the names of its process and its tracks (rows of the timeline), then
    its spans.
    """
    names, events, lanes = {1000: TRACKS[0]}, [], defaultdict(list)
    for name, track, begin, end, args in sorted(spans, key=lambda span: (span[2], -span[3])):
        lane = 0 if track == "compute" else _free_track(lanes[track], begin, end)
        tid = 1000 * (1 + TRACKS.index(track)) + lane  # Perfetto takes process and thread 0 for the idle ones
        names[tid] = f"{track} {lane + 1}" if lane else track
        events.append({"name": name, "ph": "X", "pid": 1 + rank, "tid": tid, "ts": begin / 1000,
                       "dur": (end - begin) / 1000, "args": args})
    about = [("process_name", 1000, {"name": f"rank {rank}"}), ("process_sort_index", 1000, {"sort_index": rank})]
    for tid in sorted(names):
        about += [("thread_name", tid, {"name": names[tid]}), ("thread_sort_index", tid, {"sort_index": tid})]
    return [{"name": name, "ph": "M", "pid": 1 + rank, "tid": tid, "args": args} for name, tid, args in about] + events


def _free_track(ends: list[int], begin: int, end: int) -> int:
    """Find a track (row of the timeline) that is free from the time `begin` on, and mark it as used until `end`. ends[i] is the time when
    track i becomes free; a new track is appended if none is free. Return the track's index.
    """
    lane = next((k for k, free in enumerate(ends) if free <= begin), len(ends))
    ends[lane : lane + 1] = [end]
    return lane
