"""What a run will cost by setting: bytes, messages and flops of its segments, remote buffers, memory of each rank."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sarlite import kernels
from sarlite.minibatch.push import PHASE
from sarlite.sar.cost import moved
from sarlite.sar.schedule.messages import row_bytes
from sarlite.sar.schedule.modes import MODES
from sarlite.train import small, trial
from sarlite.train.settings import Settings
from sarlite.train.small import Sizes
from sarlite.train.trial import SEGMENTS, WAYS, Mirror

TRIAL_ROWS = 4000
"""Rows of a trial, peers' too, of which a quarter at least are its own: else what does not grow outweighs them."""
WARM_BYTES = 4 << 20
"""What a run takes beside large arrays: modules and libraries that its first step needs, small arrays, objects."""


class Setting(NamedTuple):
    """A way to run: a mode, and options that go with it. What `--mode auto` chooses among is a list of these."""

    mode: str
    options: tuple[tuple[str, Any], ...] = ()

    def on(self, size: int) -> "Setting":
        """Return that of so many ranks."""
        return self._replace(options=tuple((name, size if value == ALL else value) for name, value in self.options))

    def __str__(self) -> str:
        return " ".join([self.mode, *(f"--{name} {'N' if value == ALL else value}" for name, value in self.options)])


ALL = 0
"""Of option columns in `SETTINGS`: as many as there are ranks."""

SETTINGS = [*map(Setting, MODES), Setting("sar", (("backward", "fetch"),)), Setting("sar", (("columns", ALL),))]


class Cost(NamedTuple):
    """What one rank's run takes in a setting.

    Attributes
    ----------
    peak_bytes : int
        The most memory above what the process had before it read its rows, as a run's report measures it.
    sent, received : dict of str to dict of str to number
        Bytes by segment, of `SEGMENTS`, and phase; of minibatches a step's are those of an average one.
    n_messages, packed_bytes : int
        Messages sent in a step, and bytes of them that are copied.
    flops : int
        Of a step, forward and backward.
    remote_buffers : number
        Peers whose rows are held at most.
    n_steps : int
        Steps an epoch.
    row_bytes : int
        What a step's sums read of an edge, forward and over the reversed edges.
    work : dict of str to (int, int)
        Flops of a step and of an evaluation, and bytes that they read and write.
    """

    peak_bytes: int
    sent: dict[str, dict[str, float]]
    received: dict[str, dict[str, float]]
    n_messages: int
    packed_bytes: int
    flops: int
    remote_buffers: Any
    n_steps: int = 1
    row_bytes: int = 0
    work: Mapping[str, tuple[int, int]] = {}

    def per_epoch(self, what: str = "sent", eval_every: int = 1) -> dict[str, float]:
        """Bytes of one epoch but the first, by phase; of evaluation its share."""
        by_segment = getattr(self, what)
        total = {phase: n * self.n_steps for phase, n in by_segment["step"].items()}
        for phase, n in by_segment["evaluation"].items():
            total[phase] = total.get(phase, 0) + (n if eval_every == 1 else n / eval_every)
        return total

    def of_run(self, epochs: int, eval_every: int = 1) -> dict[str, int]:
        """Bytes sent in a whole run by phase, from the making of the trainer on."""
        n_evaluations = len({*range(eval_every, epochs + 1, eval_every), epochs})
        smooths = bool(self.sent["smoothing"])  # after one more evaluation
        return self._sent((1, 1, 1, epochs * self.n_steps - 1, n_evaluations - 1 + smooths, smooths))

    def of_first_epoch(self) -> dict[str, int]:
        """Bytes sent in the first epoch by phase, with its evaluation."""
        return self._sent((0, 1, 1, self.n_steps - 1, 0, 0))

    def _sent(self, times):
        total = Counter()
        for segment, n in zip(SEGMENTS, times):
            total.update({phase: n * sent for phase, sent in self.sent[segment].items()})
        return {phase: round(n) for phase, n in total.items()}


def cost(run: Settings, make: Callable[..., Any], sizes: Sizes, setting: Setting, trial_rows: int = TRIAL_ROWS) -> Cost:
    """Return what a run of a part takes in a setting: a trial is made, and what it did is added up at the run's sizes.

    Parameters
    ----------
    run : Settings
    make : callable (comm, run, part) -> Trainer
        As the run makes its own.
    sizes : Sizes
    setting : Setting
    trial_rows : int
        As `TRIAL_ROWS`.

    Raises
    ------
    ConfigError
        The model cannot run in the setting, or its costs cannot be told there.
    """
    run = run._replace(graph=run.graph._replace(mode=setting.mode, **dict(setting.options)))
    k, n_threads = sizes.times_smaller(trial_rows), kernels.threads()
    comm, fewer = Mirror(sizes.rank, sizes.size, run.graph.columns), small.options(run, k)
    try:
        kernels.set_threads(1)  # each takes a workspace that does not grow with the rows
        graph = small.graph(comm, fewer, sizes, k)
        found = trial.run(comm, graph, lambda: make(comm, fewer, small.part(graph, fewer, sizes, k)), sizes.layer_sizes,
                          run.training.smooth, round(kernels.LARGE / k))
    finally:
        kernels.set_threads(n_threads)
    return _Telling(run, sizes, k, found).cost()


class _Telling:
    """Tells a run's costs from its trial, which is `k` times smaller."""

    def __init__(self, run, sizes, k, trial):
        self.run, self.sizes, self.k, self.trial, self._plans = run, sizes, k, trial, {}

    def cost(self):
        sent, received, packed, batches = {}, {}, {}, self.sizes.batches
        for name in SEGMENTS:
            found, packed[name] = self._moved(name) if name in self.trial.segments else ({}, 0)
            for way, by_phase in zip(WAYS, (sent, received)):
                by_phase[name] = {phase: n for (phase, which), n in found.items() if which == way and n}
        step = self.trial.segments["step"]
        rows = [made.fetched for made in step.aggregations if made.phase == "forward" or made.over == "reverse"]
        work = {name: self._work(name) for name in ("step", "evaluation")}
        peers, ahead_bytes = self._ahead()
        return Cost(max(self.sizes.load_bytes, round(self._peak() + ahead_bytes)), sent, received, step.n_messages,
                    packed["step"], work["step"][0], self.trial.remote_buffers + peers,
                    batches.n_steps if batches else 1, sum(map(_row_bytes, rows)), work)

    def _work(self, name):
        segment, scale = self.trial.segments[name], self._scale(name)
        return round(scale * segment.flops), round(scale * segment.touched_bytes)

    def _scale(self, name):
        """How many times more rows than the trial's segment has the run's; of batches the largest."""
        rows, several = self.trial.segments[name].rows, self._several(name)
        batches = several.batches if several else [{}]
        n_rows = max(sum(self._part(over, batch).n_src for over in rows) for batch in batches)
        return n_rows / sum(rows.values()) if rows else self.k

    def _several(self, name):
        """The batches of a segment, where there are several."""
        if name in ("start", "smoothing"):
            return None
        return self.sizes.scored if "evaluation" in name else self.sizes.batches

    def _part(self, over, batch):
        """What the run exchanges where the trial did over some edges."""
        exchanged = {**self.sizes.exchanged, **batch}
        if over in ("edges", "reverse") and self.run.graph.columns > 1:
            exchanged = self.sizes.of_group(self.run.graph.columns)
        part = exchanged["edges" if over == "reverse" else over]
        return part.turned or part if over == "reverse" else part

    def _plan(self, made, batch):
        """The plan of the run's part, or of a graph that is not there the trial's; and the number of its ranks."""
        part = self._part(made.over, batch)
        if part.needs is None:
            return made.plan, part.size
        key = made.over, id(part)
        if key not in self._plans:
            self._plans[key] = self.run.graph.made_mode.lay_out(part.needs, self.run.graph.prefetch)
        return self._plans[key], part.size

    # ---- bytes

    def _moved(self, name):
        """Bytes by (phase, way) of a segment, and bytes packed; of batches an average step's, or an evaluation's."""
        segment, several, evaluates = self.trial.segments[name], self._several(name), "evaluation" in name
        total, packed = Counter(), 0
        for k, batch in enumerate(several.batches if several else [{}]):
            packed += self._aggregated(name, batch, total)
            if several and several.pushes:
                self._pushed(several.pushes[k], total)
        beside = {key: n * (self._scale(name) if key[0] == "alltoall" else 1) for key, n in segment.counted.items()}
        if several:
            beside = {key: n for key, n in beside.items() if key[0] not in ("alltoall", PHASE)}
            n, times = len(several.batches), several.n_steps if evaluates else 1
            total, packed = Counter({key: times * n_bytes / n for key, n_bytes in total.items()}), packed // n
            cuts = (name == "first evaluation") if evaluates else 1 / several.n_steps
            total.update({("alltoall", way): times * sampling + cuts * cut
                          for way, sampling, cut in zip(WAYS, several.moved, several.cut)})
        total.update(beside)
        if evaluates:
            merged = Counter()
            for (phase, way), n in total.items():
                merged["evaluation", way] += n if phase != "setup" else 0
            total = merged
        return total, packed

    def _aggregated(self, name, batch, total):
        """Add what all aggregations, and rows turned into columns, move; return the bytes packed."""
        packed, segment = 0, self.trial.segments[name]
        for made in segment.aggregations:
            plan, size = self._plan(made, batch)
            sent, received, copied = moved(plan, size, made)
            times = self._scale(name) if plan is made.plan else 1
            packed += round(times * copied)
            for way, n_bytes in zip(WAYS, (sent, received)):
                total.update({(phase, way): times * n for phase, n in n_bytes.items()})
        for turn in segment.turns:
            sent, received = turn.moved(*self.sizes.group[turn.place])
            total.update({(turn.phase, "sent"): sent, (turn.phase, "received"): received})
            packed += sent
        return packed

    def _pushed(self, pushes, total):
        """Add what rows of caches move."""
        for layer, own in pushes.items():
            if layer in self.trial.widths:
                sent, received = own.n_bytes(self.trial.widths[layer])
                total.update({(PHASE, "sent"): sent, (PHASE, "received"): received})

    # ---- memory

    def _peak(self):
        """The most memory: steps' buffers keep what they took in each segment; of other arrays the segment counts that
        has most.
        """
        sizes, training, columns = self.sizes, self.run.training, self.run.graph.columns
        once = training.epochs == 1 or (sizes.batches and training.epochs <= training.eval_every)
        grown, arrays = 0.0, 0.0
        for name, segment in self.trial.segments.items():
            if not once or name not in ("step", "evaluation"):  # none follows on the only evaluation
                grown += self._scale(name) * segment.grown_bytes
                arrays = max(arrays, grown + self.k * segment.other_bytes)
        structure = 0
        if columns > 1 and sizes.laid_out == 1:  # other parts' edges and rows, which the part has not yet
            structure = (columns - 1) * (4 * sum(sizes.exchanged["edges"].n_edges[0]) + 32 * sizes.n_rows)
        sampled = sizes.batches.ahead_bytes if sizes.batches else 0
        return sizes.there_bytes + WARM_BYTES + self.trial.parameter_bytes + arrays + sampled + structure

    def _ahead(self):
        """Peers whose rows a thread has fetched ahead, at most, and the bytes of these and of gradients meanwhile."""
        peers, most, prefetch = 0, 0.0, self.run.graph.prefetch
        for name, segment in self.trial.segments.items() if prefetch else ():
            several = self._several(name)
            for made in segment.aggregations:
                plan, size = self._plan(made, several.batches[0] if several else {})
                pieces = plan.forward if made.gradients is None else plan.backward
                rows = max(piece.n_rows * piece.share.denominator for piece in pieces)
                if len(pieces) > 1 and rows:
                    rows *= self._scale(name) if plan is made.plan else 1
                    ahead = min(prefetch, size - 2) if made.fetched else 0
                    bytes_ahead = ahead * _row_bytes(made.fetched) + 2 * _row_bytes(made.gradients)
                    peers, most = max(peers, ahead), max(most, rows * bytes_ahead)
        return peers, most


def _row_bytes(templates):
    """The bytes of a row of several arrays."""
    return sum(row_bytes(template) for template in templates or () if template)
