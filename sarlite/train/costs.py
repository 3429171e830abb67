"""What a run will cost by setting: bytes, messages and flops of its segments, remote buffers and memory of each rank."""

import argparse
import gc
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sarlite import kernels
from sarlite.minibatch.push import PHASE
from sarlite.profile import resident, trim
from sarlite.sar.cost import moved
from sarlite.sar.schedule.messages import row_bytes
from sarlite.sar.schedule.modes import MODES
from sarlite.train import small, trial
from sarlite.train.owners import PIECE_BYTES
from sarlite.train.settings import smoothing_of
from sarlite.train.small import Facts, Sizes
from sarlite.train.trial import SEGMENTS, Mirror, Segment, Trial

TRIAL_ROWS, TINY_ROWS = 2000, 40
"""Rows of a mode's trial, peers' rows too, of which a quarter at least are its own, else parameters outweigh them; and of the tiny trial,
which tells what does not grow with the rows."""
MOST_RANKS, FEW_RANKS = 16, (2, 3)
"""Of more ranks trials are on few: what a further peer takes there, each peer takes."""
_ONE_AT_A_TIME = threading.Lock()  # ranks may be threads of one process, whose arrays are traced together


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
    trial_rows, most_ranks : int
        As `TRIAL_ROWS` and `MOST_RANKS`.
    """

    def __init__(self, config: argparse.Namespace, make: Callable[..., Any], facts: Facts, trial_rows: int = TRIAL_ROWS,
                 most_ranks: int = MOST_RANKS) -> None:
        self.config, self.make, self.facts, self.warm_bytes = config, make, facts, 0
        self._tiny: dict[Any, Trial] = {}
        self.trial_rows, self.most_ranks = trial_rows, most_ranks

    def cost(self, setting: Setting, sizes: Sizes, prefetch: int) -> Cost:
        """Return what a run of a part takes.

        Raises
        ------
        ConfigError
            The model cannot run in the setting, or its costs cannot be told there.
        """
        config = argparse.Namespace(**{**vars(self.config), **dict(setting.options), "mode": setting.mode, "prefetch": prefetch})
        with _ONE_AT_A_TIME:
            trials = self._trials(config, sizes)
        return _Telling(config, self.facts, sizes, trials).cost(self.warm_bytes)

    def _trials(self, config, sizes):
        """The trials: on how many ranks each is, how many times smaller, its `Trial`, and the tiny one's; of many ranks on few."""
        few = not self.facts.relations and config.columns == sizes.laid_out == 1 and sizes.size > self.most_ranks
        on_ranks = FEW_RANKS if few else (sizes.size,)
        n_halo, n_src = sum(found.n_halo for found in sizes.exchanged.values()), sum(found.n_src for found in sizes.exchanged.values())
        n_halo = n_halo * on_ranks[-1] // sizes.size
        n_rows = n_src if self.facts.relations else sizes.n_rows
        k = max(1.0, min(n_rows + n_halo, 4 * n_rows) / self.trial_rows)
        tiny = [self._tiny_one(config, sizes, k, n_ranks) for n_ranks in on_ranks]  # first, as it measures by how much the process grows
        return [(n_ranks, k, self._trial(config, sizes, k, n_ranks), few_rows) for n_ranks, few_rows in zip(on_ranks, tiny)]

    def _tiny_one(self, config, sizes, k, n_ranks):
        """The trial of `TINY_ROWS`, one of a part for all modes; the first trial makes the process larger, as modules and libraries do."""
        key = sizes.rank, n_ranks, config.columns
        if key not in self._tiny:
            before = _resident()
            self._tiny[key] = self._trial(config, sizes, k * self.trial_rows / TINY_ROWS, n_ranks)
            self.warm_bytes = self.warm_bytes or max(1, _resident() - before)
        return self._tiny[key]

    def _trial(self, config, sizes, k, n_ranks):
        tracemalloc.start()
        others_frozen, n_threads = gc.get_freeze_count() > 0, kernels.threads()  # frozen by who embeds us: such objects stay so
        try:
            kernels.set_threads(1)  # each takes a workspace that does not grow with the rows
            comm, config = Mirror(sizes.rank if n_ranks == sizes.size else 0, n_ranks, config.columns), small.options(config)
            gc.disable()  # what is freed is freed where it is let go of
            if not others_frozen:
                gc.freeze()  # a trial collects its own objects alone
            graph = small.graph(comm, config, self.facts, sizes, MODES[config.mode], k)
            return trial.run(comm, graph, lambda: self.make(comm, config, small.part(graph, config, self.facts, sizes, k)),
                             sizes.layer_sizes, smoothing_of(config) if config.correct_and_smooth else None, round(kernels.LARGE / k))
        finally:
            if not others_frozen:
                gc.unfreeze()
            gc.enable()
            kernels.set_threads(n_threads)
            tracemalloc.stop()


def _resident():
    gc.collect()
    trim()
    return resident()


class _Telling:
    """Tells a run's costs from its trials."""

    def __init__(self, config, facts, sizes, trials):
        self.config, self.facts, self.sizes, self.trials = config, facts, sizes, trials
        self.mode, self._plans = MODES[config.mode], {}
        self.trial: Trial = trials[0][2]

    def cost(self, warm_bytes):
        sent, received = ({name: {} for name in SEGMENTS} for _ in range(2))
        packed = 0
        for name, segment in self.trial.segments.items():
            found, copied = self._moved(name, segment)
            for (phase, way), n in found.items():
                (sent if way == "sent" else received)[name][phase] = n
            packed = copied if name == "step" else packed
        step = self.trial.segments["step"]
        rows = [made.fetched for made in step.aggregations if made.phase == "forward" or made.over == "reverse"]
        work = {name: self._work(name) for name in ("step", "evaluation")}
        batches = self.sizes.batches
        return Cost(max(self.sizes.load_bytes, round(self._peak() + warm_bytes)), sent, received,
                    round(self._counted(lambda found: found.segments["step"].n_messages)), packed, work["step"][0],
                    self._counted(lambda found: found.remote_buffers) + self._ahead()[0], 1 if batches is None else batches.n_steps,
                    sum(row_bytes(template) for templates in rows for template in templates or () if template), work)

    def _work(self, name):
        return tuple(round(sum(self._line(name, lambda segment, of=of, way=way: getattr(segment, of)[way]) for way in range(2)))
                     for of in ("flops", "touched_bytes"))

    # ---- bytes

    def _moved(self, name, segment):
        """Bytes by (phase, way) of a segment, and bytes packed; of minibatches an average step's, or all of an evaluation."""
        beside = {key: self._line(name, lambda other, key=key: other.counted[key]) for key in segment.counted}
        several = self._several(name)
        if several is None:
            found, packed = self._aggregated(segment, self.sizes.exchanged)
        else:
            total, packed, times = Counter(), 0, several.n_steps if "evaluation" in name else 1
            for k, batch in enumerate(several.batches):
                own, copied = self._aggregated(segment, {**self.sizes.exchanged, **batch})
                packed += copied
                total.update(own)
                total.update(self._pushed(several.pushes[k] if several.pushes else {}))
            found = Counter({key: times * n / len(several.batches) for key, n in total.items()})
            beside = {key: n for key, n in beside.items() if key[0] not in ("alltoall", PHASE)}
            for way, n, cut in zip(("sent", "received"), several.moved, several.cut):
                key = ("evaluation", way) if "evaluation" in name else ("alltoall", way)
                more = n * times + (cut if name == "first evaluation" else 0) if "evaluation" in name else n + cut / several.n_steps
                found[key] = found[key] + more
            packed //= len(several.batches)
        found.update({key: round(n) for key, n in beside.items()})
        return {key: n for key, n in found.items() if n}, packed

    def _several(self, name):
        if name in ("start", "smoothing"):
            return None
        return self.sizes.scored if "evaluation" in name else self.sizes.batches

    def _aggregated(self, segment, parts):
        """Of all aggregations, and of rows turned into columns."""
        found, packed = Counter(), 0
        for made in segment.aggregations:
            plan, size = self._plan(made.over, parts)
            sent, received, copied = moved(plan, size, made)
            packed += copied
            for way, n_bytes in (("sent", sent), ("received", received)):
                found.update({(phase, way): n for phase, n in n_bytes.items()})
        for turn in segment.turns:
            for way, n in zip(("sent", "received"), turn.moved(*self.sizes.group[turn.place])):
                found[turn.phase, way] += n
                packed += n if way == "sent" else 0
        return found, packed

    def _plan(self, over, parts):
        """The plan of the real part, and the number of its ranks."""
        part = self._part(over, parts)
        key = over, id(part)
        if key not in self._plans:
            self._plans[key] = part.plan(self.mode, self.config.prefetch), part.needs.size
        return self._plans[key]

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

    # ---- sizes

    def _line(self, name: str, number: Callable[[Segment], float], scales: bool = False) -> float:
        """A number of a segment at the real size, and on all ranks: on the line through the trial's and the tiny trial's numbers; where
        it `scales` on that through 0, as of what has no part that does not grow.
        """
        found = []
        for n_ranks, k, own, tiny in self.trials:
            segment, small = own.segments[name], tiny.segments[name]
            at = [(sum(segment.rows.values()), number(segment)), (0, 0) if scales else (sum(small.rows.values()), number(small))]
            found.append((n_ranks, _on_line(at[: 2 if k > 1 else 1], self._real_rows(name, segment, k))))
        return _on_line(found, self.sizes.size)

    def _counted(self, number):
        """A number of messages or of peers, which are not more on larger parts."""
        return _on_line([(n_ranks, number(own)) for n_ranks, _, own, _ in self.trials], self.sizes.size)

    def _real_rows(self, name, segment, k):
        several, rows = self._several(name), segment.rows
        if several is None:
            return sum(self._part(over, self.sizes.exchanged).n_src for over in rows) or k
        return max(sum(self._part(over, {**self.sizes.exchanged, **batch}).n_src for over in rows) for batch in several.batches)

    def _peak(self):
        """The most memory."""
        once = self.config.epochs == 1 or (self.sizes.batches is not None and self.config.epochs <= self.config.eval_every)
        # No step follows on the only evaluation, which leaves an aggregated constant behind.
        names = [name for name in self.trial.segments if not once or name not in ("step", "evaluation")]
        evaluated = "first evaluation" if once else "evaluation"  # where checkpoints are written
        left = {name: self._line(name, lambda segment: segment.left_bytes) for name in names}
        idle = {name: self._line(name, lambda segment: segment.idle_bytes, scales=True) for name in names}
        peak = max(self._line(name, lambda segment: segment.peak_bytes) for name in names)
        arrays = max(peak, *(left[name] + idle[name] for name in names), left[evaluated] + self._writing())
        held = self.sizes.batches.held_bytes(self.trial.widths) if self.sizes.batches else 0
        return self.sizes.there_bytes + held + arrays + self._ahead()[1] + self._structure()

    def _ahead(self):
        """Peers whose rows a thread has fetched ahead, at most, and the bytes of these and of gradients that travel meanwhile."""
        peers, most, parts = 0, 0, dict(self.sizes.exchanged)
        for several in (self.sizes.batches, self.sizes.scored):
            parts |= several.batches[0] if several else {}
        for made in (made for segment in self.trial.segments.values() for made in segment.aggregations):
            plan, size = self._plan(made.over, parts)
            pieces = plan.forward if made.gradients is None else plan.backward
            coming = [piece for piece in pieces if piece.n_rows]
            if not self.config.prefetch or len(pieces) == 1 or not coming:
                continue
            rows = max(piece.n_rows * piece.share.denominator for piece in coming)
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

    def _writing(self):
        """What the pieces of learned rows take that a checkpoint is written of (`Owners`)."""
        relations = self.facts.relations
        if relations is None or relations.n_nodes.keys() <= self.facts.n_features.keys():
            return 0
        return (1 if self.sizes.rank else 3) * PIECE_BYTES


def _on_line(points, x):
    """The value at x on the line through the first two (x, value); the first's where there is but one."""
    (a, value), *others = points
    if not others or others[0][0] == a or others[0][1] == value:
        return value
    (b, other), *_ = others
    return value + (value - other) / (a - b) * (x - a)
