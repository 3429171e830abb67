"""What a run will cost by setting: bytes, messages and flops of its segments, remote buffers and memory of each rank."""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sarlite import kernels
from sarlite.minibatch.push import PHASE
from sarlite.sar.cost import moved
from sarlite.sar.schedule.messages import row_bytes
from sarlite.sar.schedule.modes import MODES
from sarlite.train import small, trial
from sarlite.train.settings import smoothing_of
from sarlite.train.small import Facts, Sizes
from sarlite.train.trial import SEGMENTS, WAYS, Mirror

TRIAL_ROWS = 2000
"""Rows of a trial, peers' rows too, of which a quarter at least are its own, else what does not grow with the rows outweighs them."""
WARM_BYTES = 4 << 20
"""What a run takes beside large arrays: modules and libraries that its first step needs, small arrays, Python's objects."""


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
    sent, received : dict of str to dict of str to int
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
        total: dict[str, float] = {}
        for segment, n in zip(SEGMENTS, times):
            for phase, sent in self.sent[segment].items():
                total[phase] = total.get(phase, 0) + n * sent
        return {phase: round(n) for phase, n in total.items()}


class Model:
    """The costs of one model on one data set, by setting.

    Parameters
    ----------
    config : Namespace of `config.OPTIONS`
    make : callable (comm, config, part) -> Trainer
        As the run makes its own.
    facts : Facts
    trial_rows : int
        As `TRIAL_ROWS`.
    """

    def __init__(self, config: argparse.Namespace, make: Callable[..., Any], facts: Facts, trial_rows: int = TRIAL_ROWS) -> None:
        self.config, self.make, self.facts, self.trial_rows = config, make, facts, trial_rows

    def cost(self, setting: Setting, sizes: Sizes, prefetch: int) -> Cost:
        """Return what a run of a part takes.

        Raises
        ------
        ConfigError
            The model cannot run in the setting, or its costs cannot be told there.
        """
        config = argparse.Namespace(**{**vars(self.config), **dict(setting.options), "mode": setting.mode, "prefetch": prefetch})
        n_halo, n_src = (sum(getattr(found, name) for found in sizes.exchanged.values()) for name in ("n_halo", "n_src"))
        n_rows = n_src if self.facts.relations else sizes.n_rows
        k = max(1.0, min(n_rows + n_halo, 4 * n_rows) / self.trial_rows)
        return _Telling(config, self.facts, sizes, k, self._trial(config, sizes, k)).cost()

    def _trial(self, config, sizes, k):
        n_threads = kernels.threads()
        try:
            kernels.set_threads(1)  # each takes a workspace that does not grow with the rows
            comm, config = Mirror(sizes.rank, sizes.size, config.columns), small.options(config)
            graph = small.graph(comm, config, self.facts, sizes, MODES[config.mode], k)
            return trial.run(comm, graph, lambda: self.make(comm, config, small.part(graph, config, self.facts, sizes, k)),
                             sizes.layer_sizes, smoothing_of(config) if config.correct_and_smooth else None, round(kernels.LARGE / k))
        finally:
            kernels.set_threads(n_threads)


class _Telling:
    """Tells a run's costs from its trial, which is `k` times smaller."""

    def __init__(self, config, facts, sizes, k, trial):
        self.config, self.facts, self.sizes, self.k, self.trial = config, facts, sizes, k, trial
        self.mode, self._plans = MODES[config.mode], {}

    def cost(self):
        found = {name: self._moved(name, segment) for name, segment in self.trial.segments.items()}
        sent, received = ({name: {} for name in SEGMENTS} for _ in range(2))
        for name, (by_key, _) in found.items():
            for (phase, way), n in by_key.items():
                (sent if way == "sent" else received)[name][phase] = n
        step, batches = self.trial.segments["step"], self.sizes.batches
        rows = [made.fetched for made in step.aggregations if made.phase == "forward" or made.over == "reverse"]
        work = {name: self._work(name) for name in ("step", "evaluation")}
        return Cost(max(self.sizes.load_bytes, self._peak()), sent, received, step.n_messages, found["step"][1],
                    work["step"][0], self.trial.remote_buffers + self._ahead()[0], 1 if batches is None else batches.n_steps,
                    sum(row_bytes(template) for templates in rows for template in templates or () if template), work)

    def _work(self, name):
        segment = self.trial.segments[name]
        return tuple(round(self._scale(name) * getattr(segment, of)) for of in ("flops", "touched_bytes"))

    def _scale(self, name):
        """How many times more rows than the trial's segment has the run's; of batches the largest."""
        several, rows = self._several(name), self.trial.segments[name].rows
        parts = [self.sizes.exchanged] if several is None else [{**self.sizes.exchanged, **batch} for batch in several.batches]
        return max(sum(self._part(over, each).n_src for over in rows) for each in parts) / sum(rows.values()) if rows else self.k

    # ---- bytes

    def _moved(self, name, segment):
        """Bytes by (phase, way) of a segment, and bytes packed; of minibatches an average step's, or all of an evaluation."""
        several, evaluates = self._several(name), "evaluation" in name
        found = {key: n * (self._scale(name) if key[0] == "alltoall" else 1) for key, n in segment.counted.items()}  # which sends rows
        total, packed = Counter(), 0
        for k, batch in enumerate(several.batches if several else [{}]):
            own, copied = self._aggregated(name, {**self.sizes.exchanged, **batch})
            packed += copied
            total.update(own)
            total.update(self._pushed(several.pushes[k] if several and several.pushes else {}))
        if several:
            found = {key: n for key, n in found.items() if key[0] not in ("alltoall", PHASE)}
            n, times = len(several.batches), several.n_steps if evaluates else 1
            total, packed = Counter({key: times * n_bytes / n for key, n_bytes in total.items()}), packed // n
            cuts = (name == "first evaluation") if evaluates else 1 / several.n_steps
            total.update({("alltoall", way): n * times + cut * cuts for way, n, cut in zip(WAYS, several.moved, several.cut)})
        total.update(found)
        if evaluates:
            total = Counter({("evaluation", way): sum(n for (phase, which), n in total.items() if phase != "setup" and which == way)
                             for way in WAYS})
        return {key: n for key, n in total.items() if n}, packed

    def _several(self, name):
        if name in ("start", "smoothing"):
            return None
        return self.sizes.scored if "evaluation" in name else self.sizes.batches

    def _aggregated(self, name, parts):
        """Of all aggregations, and of rows turned into columns."""
        found, packed, segment = Counter(), 0, self.trial.segments[name]
        for made in segment.aggregations:
            plan, size = self._plan(made, parts)
            sent, received, copied = moved(plan, size, made)
            times = self._scale(name) if plan is made.plan else 1
            packed += round(times * copied)
            for way, n_bytes in zip(WAYS, (sent, received)):
                found.update({(phase, way): times * n for phase, n in n_bytes.items()})
        for turn in segment.turns:
            for way, n in zip(WAYS, turn.moved(*self.sizes.group[turn.place])):
                found[turn.phase, way] += n
                packed += n if way == "sent" else 0
        return found, packed

    def _plan(self, made, parts):
        """The plan of the real part, or of a graph that is not there the trial's; and the number of its ranks."""
        part = self._part(made.over, parts)
        if part.needs is None:
            return made.plan, part.size
        key = made.over, id(part)
        if key not in self._plans:
            self._plans[key] = self.mode.lay_out(part.needs, self.config.prefetch)
        return self._plans[key], part.size

    def _part(self, over, parts):
        if over in ("edges", "reverse") and self.config.columns > 1:
            parts = self.sizes.of_group(self.config.columns)
        part = parts["edges" if over == "reverse" else over]
        return (part.turned or part) if over == "reverse" else part

    def _pushed(self, pushes):
        found = Counter()
        for layer, own in pushes.items():
            if layer in self.trial.widths:
                for way, n in zip(("sent", "received"), own.n_bytes(self.trial.widths[layer])):
                    found[PHASE, way] += n
        return found

    # ---- memory

    def _peak(self):
        """The most memory: steps' buffers keep what they took in each segment; of other arrays the segment counts that has most."""
        once = self.config.epochs == 1 or (self.sizes.batches is not None and self.config.epochs <= self.config.eval_every)
        # No step follows on the only evaluation, which leaves an aggregated constant behind.
        grown, arrays = 0.0, 0.0
        for name, segment in self.trial.segments.items():
            if not once or name not in ("step", "evaluation"):
                grown += self._scale(name) * segment.grown_bytes
                arrays = max(arrays, grown + self.k * segment.other_bytes)
        sampled = self.sizes.batches.ahead_bytes if self.sizes.batches else 0
        return round(self.sizes.there_bytes + WARM_BYTES + self.trial.parameter_bytes + arrays + sampled + self._ahead()[1]
                     + self._structure())

    def _ahead(self):
        """Peers whose rows a thread has fetched ahead, at most, and the bytes of these and of gradients that travel meanwhile."""
        peers, most, parts = 0, 0, dict(self.sizes.exchanged)
        for several in (self.sizes.batches, self.sizes.scored):
            parts |= several.batches[0] if several else {}
        for name, made in ((name, made) for name, segment in self.trial.segments.items() for made in segment.aggregations):
            plan, size = self._plan(made, parts)
            pieces = plan.forward if made.gradients is None else plan.backward
            coming = [piece for piece in pieces if piece.n_rows]
            if not self.config.prefetch or len(pieces) == 1 or not coming:
                continue
            rows = max(piece.n_rows * piece.share.denominator for piece in coming) * (self._scale(name) if plan is made.plan else 1)
            fetched, gradients = (sum(row_bytes(t) for t in templates or () if t) for templates in (made.fetched, made.gradients))
            ahead = min(self.config.prefetch, size - 2) if made.fetched else 0
            peers, most = max(peers, ahead), max(most, rows * (ahead * fetched + 2 * gradients))
        return peers, most

    def _structure(self):
        """What the real graph has that neither the part, as it was laid out, nor a trial has: other parts' edges of a group."""
        sizes, columns = self.sizes, self.config.columns
        found = sizes.exchanged.get("edges")
        if found is None or columns <= 1 or sizes.laid_out > 1:
            return 0
        return (columns - 1) * (4 * sum(found.n_edges[0]) + 32 * sizes.n_rows)
