"""A trial: two epochs of the run's own trainer on a part in small (`small`), which tells what the run costs.

The trial does what the run does, so the trial's passes over edges are the run's. What a pass moves is told by the run's
plan, which the mode lays out of what the run's parts need. Whatever else is counted, the run counts too. Memory,
operations and rows that are not exchanged grow with the rows.
"""

from collections import Counter
from contextlib import contextmanager, nullcontext
from contextvars import Context
from fractions import Fraction

import numpy as np

from sarlite import kernels
from sarlite.comm.interrupt import SIGNALS
from sarlite.minibatch.push import PHASE
from sarlite.sar.cost import fetched, pushed
from sarlite.sar.schedule.messages import row_bytes, templates_of
from sarlite.tape.recording import Observer, observed
from sarlite.tape.shapes import record
from sarlite.train import small
from sarlite.train.costs import Cost, Segment, Setting
from sarlite.train.mirror import Mirror
from sarlite.train.sampled import pushed_bytes
from sarlite.train.small import Sizes
from sarlite.train.smoothing import smoothed

TRIAL_ROWS = 4000
"""Rows of a trial, peers' too, of which a quarter at least are its own: else what does not grow outweighs them."""
WARM_BYTES = 4 << 20
"""What a run takes beside large arrays: modules and libraries that its first step needs, small arrays, objects."""


def cost(sizes: Sizes, setting: Setting, trial_rows: int = TRIAL_ROWS) -> Cost:
    """Return what a run takes of one rank in a setting. `trial_rows` are as `TRIAL_ROWS`.

    Raises
    ------
    ConfigError
        The model cannot run in the setting, or its costs cannot be told there.
    """
    run = sizes.run._replace(graph=sizes.run.graph._replace(mode=setting.mode, **dict(setting.options)))
    k, n_threads = sizes.times_smaller(trial_rows), kernels.threads()
    comm, fewer = Mirror(sizes.rank, sizes.size), small.options(run, k)
    try:
        kernels.set_threads(1)  # each takes a workspace that does not grow with the rows
        graph = small.graph(comm, fewer, sizes, k)
        trial = _Trial(run, sizes, k, comm, graph)
        return trial.cost(lambda: sizes.make(comm, fewer, small.part(graph, fewer, sizes, k)))
    finally:
        kernels.set_threads(n_threads)


class _Trial(Observer):
    """Listens to a trial, which is `k` times smaller than the run, and adds up what the run does in each segment."""

    def __init__(self, run, sizes, k, comm, graph):
        self.run, self.sizes, self.k, self.comm, self.graph = run, sizes, k, comm, graph
        self.segments, self._plans = dict[str, Segment](), {}
        self._others = kernels.Buffers()  # of all large arrays but those of steps, which have buffers of their own
        self._grown, self._arrays = 0.0, 0.0  # bytes of steps' buffers so far; the most of these and of other arrays
        self._ahead = 0, 0.0  # peers whose rows a thread has fetched ahead; bytes of these, and of gradients meanwhile
        self.profile = graph.profile
        self.profile.reset()
        self.profile.listener = self

    def cost(self, make_trainer):
        """Make a trainer, take two epochs, each with an evaluation, and smooth; return what the run takes."""
        large, smooth = round(kernels.LARGE / self.k), self.run.training.smooth
        self._others.set_large(large)
        with kernels.watched_buffers(self._others) as self._steps:
            with self._segment("start"):
                trainer = make_trainer()
            for buffers in self._steps:
                buffers.set_large(large)
            trainer.riders.own = lambda: (0.0,) * (len(SIGNALS) + 2)  # the votes of `Saving`
            for epoch, kind in enumerate(("first ", "")):
                with self._segment(f"{kind}step", trainer):
                    trainer.epoch(epoch)
                with self._segment(f"{kind}evaluation"), self.profile.phase("evaluation"):
                    trainer.evaluate()
            if smooth is not None:
                with self.profile.phase("setup"):  # an evaluation as those before
                    logits = trainer.predict()
                with self._segment("smoothing"):
                    smoothed(trainer, smooth, logits)
        self.profile.listener = None
        sizes, batches, (peers, ahead_bytes) = self.sizes, self.sizes.batches, self._ahead
        peak = sizes.there_bytes + WARM_BYTES + self._grows(trainer) + ahead_bytes
        peak += batches.ahead_bytes if batches else 0
        return Cost(max(sizes.load_bytes, round(peak)), self.profile.peak_remote_buffers + peers, self.segments,
                    batches.n_steps if batches else 1)

    def _grows(self, trainer):
        """The bytes of arrays, which grow, and of parameters that all ranks hold, which do not."""
        flat = trainer.flat
        fixed = flat.data.nbytes * (2 + len(trainer.optimizer.keeps))  # values, gradients, what the optimizer keeps
        learned = sum(group.data.nbytes for group in flat.owned)  # the best model's copy of learned rows
        return max(0.0, self._arrays - self.k * (fixed - learned)) + fixed + flat.data.nbytes  # the best model's copy

    @contextmanager
    def _segment(self, name, trainer=None):
        """Note what is done meanwhile, in a part of the run, and by how much arrays grow."""
        now, self._rows, self.batches = Segment(), {}, self.sizes.batches_of(name)
        self.now, evaluates = now, "evaluation" in name
        self._n_steps = self.batches.n_steps if self.batches and evaluates else 1  # that this segment is
        self._others.trim()
        idle, n_messages = self._others.n_idle, self.comm.sent["messages"]  # a run gives idle memory back
        before = sum(buffers.n_bytes for buffers in self._steps)
        with observed(self):
            yield
        grown, others = sum(buffers.n_bytes for buffers in self._steps) - before, self._others.n_bytes - idle
        scale, training = self._scale(), self.run.training
        if training.epochs > training.eval_every or name not in ("step", "evaluation"):  # else one evaluation is last
            self._grown += scale * grown
            self._arrays = max(self._arrays, self._grown + self.k * others)
        if self.batches:
            self._add_batches(evaluates, name == "first evaluation", trainer)
        now.n_messages, now.packed_bytes = self.comm.sent["messages"] - n_messages, round(now.packed_bytes)
        now.flops, now.touched_bytes = round(scale * now.flops), round(scale * now.touched_bytes)
        now.sent, now.received = _plain(now.sent), _plain(now.received)
        self.segments[name] = now

    # ---- what the run has where the trial has less

    def sizes_of(self, over):
        """The run's `evaluation.Sizes` of a layer of its batches, by which the trial's layer chooses its order."""
        return self.batches.sizes[over]

    def _exchanged(self, over):
        """What the run exchanges over these edges: of a layer of batches, of each of them."""
        sizes = self.sizes
        if isinstance(over, int):
            return [layers[over] for layers in self.batches.layers]
        return [sizes.reverse or sizes.exchanged["edges"] if over == "reverse" else sizes.exchanged[over]]

    def _plan(self, own, there):
        """The run's plan, and of a graph that is not there the trial's; how many times the plan's rows the run has."""
        if own.needs is None:
            return there, Fraction(own.n_src, there.n_src)
        if id(own) not in self._plans:
            lay_out = self.run.graph.made_mode.lay_out  # outside of the buffers that count the trial's arrays
            self._plans[id(own)] = Context().run(lay_out, own.needs, self.run.graph.prefetch)
        return self._plans[id(own)], 1

    def _scale(self):
        """How many times more rows than the trial the run has in this segment; of batches the largest."""
        n_rows = sum(np.array([own.n_src for own in self._exchanged(over)]) for over in self._rows)
        return np.max(n_rows) / sum(self._rows.values()) if self._rows else self.k

    # ---- what is heard and seen

    def aggregates(self, schedule, arrays, d_arrays, phase, within):
        if within == "setup":
            return
        rows, gradients = (None if each is None else templates_of(each) for each in (arrays, d_arrays))
        self._rows[schedule.over] = schedule.plan.n_src
        exchanged = self._exchanged(schedule.over)
        for own in exchanged:
            plan, times = self._plan(own, schedule.plan)
            pieces = plan.forward if gradients is None else plan.backward
            share = Fraction(times * self._n_steps, len(exchanged))
            if rows is not None:
                sent, received, packed = fetched(pieces, own.size, rows)
                self._add(within or f"{phase}_fetch", sent, received, share, packed)
            if gradients is not None:
                sent, received = pushed(pieces, gradients)
                self._add(within or f"{phase}_push", sent, received, share, received)
            self._holds_ahead(pieces, times, own.size, rows, gradients)
        if phase == "forward" or schedule.over == "reverse":
            self.now.row_bytes += _row_bytes(rows)

    def _holds_ahead(self, pieces, times, size, rows, gradients):
        """Note what a thread has fetched ahead of a pass's computing, and the gradients that travel meanwhile."""
        n_rows = times * max(piece.n_rows * piece.share.denominator for piece in pieces)
        if self.run.graph.prefetch and len(pieces) > 1 and n_rows:
            ahead = min(self.run.graph.prefetch, size - 2) if rows else 0
            n_bytes = float(n_rows * (ahead * _row_bytes(rows) + 2 * _row_bytes(gradients)))
            self._ahead = max(self._ahead[0], ahead), max(self._ahead[1], n_bytes)

    def counts(self, phase, within, sent, received):
        if within == "setup" or phase == PHASE or phase.endswith(("_fetch", "_push")):
            return  # of passes, and of rows of caches, the run's are told
        if phase == "alltoall":
            if self.batches and not self.batches.stay:
                return  # of sampling
            sent, received = self.k * sent, self.k * received
        self._add(within or phase, sent, received)

    def _add(self, phase, sent, received, share=1, packed=0):
        self.now.sent[phase] += share * sent
        self.now.received[phase] += share * received
        self.now.packed_bytes += share * packed

    def _add_batches(self, evaluates, first, trainer):
        """Add what sampling moved, and what the rows of caches that the batches push do."""
        batches = self.batches
        if not batches.stay:
            cuts = first if evaluates else 1 / batches.n_steps
            self._add("evaluation" if evaluates else "alltoall", *(self._n_steps * batches.moved + cuts * batches.cut))
        for by_layer in batches.pushes:
            caches = trainer.batches.caches
            for layer in by_layer.keys() & caches.pushed.keys():
                _, *row = caches.pushed[layer]
                sent, received = pushed_bytes(by_layer[layer], caches.dated, *row).tolist()
                self._add(PHASE, sent, received, Fraction(1, len(batches.pushes)))

    def forward(self, name, params):
        return nullcontext()

    def backward(self, name, params):
        return nullcontext()

    def applied(self, application):
        found = record(application)
        self.now.flops += found.flops + found.backward_flops
        self.now.touched_bytes += found.touched_bytes


def _plain(by_phase):
    """The bytes that are not 0, as plain numbers."""
    return Counter({phase: int(n) if n == int(n) else float(n) for phase, n in by_phase.items() if n})


def _row_bytes(templates):
    """The bytes of a row of several arrays."""
    return sum(row_bytes(template) for template in templates or () if template)
