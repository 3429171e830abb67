"""What a run costs: the settings that it may run in, and what one rank takes in one of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sarlite.sar.schedule.modes import MODES

SEGMENTS = "start", "first step", "first evaluation", "step", "evaluation", "smoothing"
"""Parts of a run; the last one of a run with Correct and Smooth alone."""


class Setting(NamedTuple):
    """A way to run: a mode, and options that go with it."""

    mode: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.mode, *(f"--{name} {value}" for name, value in self.options)])


def settings_compared() -> list[Setting]:
    """Return the settings that are compared."""
    return [*map(Setting, MODES), Setting("sar", (("backward", "fetch"),))]


@dataclass
class Segment:
    """What one rank does in a part of a run, of `SEGMENTS`.

    Attributes
    ----------
    sent, received : Counter of str
        Bytes by phase; of minibatches a step's are those of an average one.
    n_messages, packed_bytes : int
        Messages that are sent; bytes of rows that are copied into messages, and of gradients that are added out of
        them.
    flops, touched_bytes : int
        Forward and backward: operations, and bytes of arrays that are read and written.
    row_bytes : int
        What sums read of an edge, forward and over the reversed edges.
    """

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    n_messages: int = 0
    packed_bytes: int = 0
    flops: int = 0
    touched_bytes: int = 0
    row_bytes: int = 0


class Cost(NamedTuple):
    """What one rank's run takes in a setting.

    Attributes
    ----------
    peak_bytes : int
        The most memory above what the process had before it read its rows, as a run's report measures it.
    remote_buffers : number
        Peers whose rows are held at most.
    segments : dict of str to Segment
    n_steps : int
        Steps an epoch.
    """

    peak_bytes: int
    remote_buffers: Any
    segments: Mapping[str, Segment]
    n_steps: int = 1

    @property
    def step(self) -> Segment:
        """A step but the first."""
        return self.segments["step"]

    def per_epoch(self, eval_every: int = 1) -> Segment:
        """Return the bytes of one epoch but the first, with its share of evaluation."""
        return self._of((0, 0, 0, self.n_steps, 1 if eval_every == 1 else 1 / eval_every))

    def of_run(self, epochs: int, eval_every: int = 1) -> Counter[str]:
        """Return the bytes sent in a whole run by phase, from the making of the trainer on."""
        n_evaluations = len({*range(eval_every, epochs + 1, eval_every), epochs})
        smooths = "smoothing" in self.segments  # after one more evaluation
        times = 1, 1, 1, epochs * self.n_steps - 1, n_evaluations - 1 + smooths, smooths
        return Counter({phase: round(n) for phase, n in self._of(times).sent.items()})

    def of_first_epoch(self) -> Counter[str]:
        """Return the bytes sent in the first epoch by phase, with its evaluation."""
        return Counter({phase: round(n) for phase, n in self._of((0, 1, 1, self.n_steps - 1)).sent.items()})

    def _of(self, times):
        """The bytes of segments, each so many times."""
        found = Segment()
        for segment, n in zip(map(self.segments.get, SEGMENTS), times):
            for total, own in ((found.sent, segment.sent), (found.received, segment.received)) if segment and n else ():
                total.update({phase: n * n_bytes for phase, n_bytes in own.items()})
        return found
