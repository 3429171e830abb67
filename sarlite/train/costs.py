"""What a run will cost, by setting: predictions for each rank, the table of them, the choice among them, and the limit of memory."""

import argparse
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite import optim
from sarlite.comm import Communicator, together
from sarlite.errors import ConfigError
from sarlite.minibatch.batch import LayerGraph
from sarlite.profile import resident
from sarlite.sar.cost import PartCounts, SetCounts, counts_of, counts_of_plan
from sarlite.sar.graph import Graph
from sarlite.sar.hetero import HeteroGraph, NodeType
from sarlite.sar.messages import row_bytes
from sarlite.sar.modes import MODES
from sarlite.sar.other_counts import with_hosts, with_others
from sarlite.sar.program import START, Counts, Found, growth
from sarlite.sar.schedule import turns
from sarlite.sar.structure import structure_bytes
from sarlite.train import batch_trial, flow_trial, relational_trial
from sarlite.train.facts import Facts, Relations
from sarlite.train.load import Part, widths
from sarlite.train.owners import PIECE_BYTES
from sarlite.train.trial import STEPS, n_layers, program

SPLITS = ("train", "val", "test")


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

SETTINGS = [*map(Setting, MODES), Setting("sar", (("backward", "fetch"),)), Setting("sar", (("halo", "recompute"),)),
            Setting("sar", (("columns", ALL),))]


class Cost(NamedTuple):
    """What one rank's run takes in a setting.

    Attributes
    ----------
    peak_bytes : int
        The most memory above what the process had before it read its rows, as a run's report measures it.
    found : Found
        Bytes by segment and phase, messages, flops, remote buffers; of minibatches a step's are those of an average one.
    n_steps : int
        Steps an epoch.
    row_bytes : int
        What a step's sums read of an edge, forward and over the reversed edges.
    """

    peak_bytes: int
    found: Found
    n_steps: int = 1
    row_bytes: int = 0

    @property
    def flops(self) -> int:
        """Of a step, forward and backward."""
        return sum(self.found.flops["step"])

    def per_epoch(self, what: str = "sent", eval_every: int = 1) -> dict[str, float]:
        """Bytes of one epoch but the first, by phase; of evaluation its share."""
        by_segment = getattr(self.found, what)
        total = {phase: n * self.n_steps for phase, n in by_segment["step"].items()}
        for phase, n in by_segment["evaluation"].items():
            total[phase] = total.get(phase, 0) + (n if eval_every == 1 else n / eval_every)
        return total

    def of_run(self, epochs: int, eval_every: int = 1) -> dict[str, int]:
        """Bytes sent in a whole run by phase, from the making of the trainer on."""
        n_evaluations = len({*range(eval_every, epochs + 1, eval_every), epochs})
        return self._sent((1, 1, 1, epochs * self.n_steps - 1, n_evaluations - 1))

    def of_first_epoch(self) -> dict[str, int]:
        """Bytes sent in the first epoch by phase, with its evaluation."""
        return self._sent((0, 1, 1, self.n_steps - 1, 0))

    def _sent(self, times):
        """Of so many times each segment."""
        total: dict[str, float] = {}
        for segment, n in zip((START, *STEPS), times):
            for phase, sent in self.found.sent[segment].items():
                total[phase] = total.get(phase, 0) + n * sent
        return {phase: round(n) for phase, n in total.items()}


class Sizes(NamedTuple):
    """One part: its exchanges, rows and splits.

    Attributes
    ----------
    counts : PartCounts, or dict of PartCounts
        Of a relational graph by the relations that one fetch serves.
    rows : dict of str to int
        The sizes of a `Program`.
    there_bytes : int
        Data, and what else the process has when its part is loaded, but for the graph's structure.
    load_bytes : int
        The most that loading takes.
    whole : Sizes, or None
        Of the same rank where all ranks share all rows by columns; None of a relational graph, and of one that is on a grid already.
    sampled, scored : Sampled, or None
        Of minibatches some of them; and of a sampled evaluation's.
    """

    counts: Counts
    rows: dict[str, int]
    there_bytes: int
    load_bytes: int = 0
    whole: Any = None
    sampled: batch_trial.Sampled | None = None
    scored: batch_trial.Sampled | None = None


def sizes_of(part: Part, there: int, peak: int, sharing: int, flows: Mapping[str, list[LayerGraph]] | None = None,
             sampled: batch_trial.Sampled | None = None, scored: batch_trial.Sampled | None = None, others: bool = True,
             covers: bool = True) -> Sizes:
    """Return the `Sizes` of a part that was loaded. Collective.

    Parameters
    ----------
    there, peak : int
        What the process has now above its state before loading, and had at most; of `sharing` ranks together.
    flows : dict of str to list of LayerGraph, optional
        As of `flow_trial.of_run`.
    sampled, scored : Sampled, optional
    others : bool
        Whether other edges are counted too, as some settings exchange: `over_others`.
    covers : bool
        Whether those of a cover are among them.
    """
    rows: Any = part.rows
    splits = {name: int(np.count_nonzero(getattr(rows, name))) for name in SPLITS}
    features = [*rows.features.values()] if isinstance(rows.features, dict) else [rows.features]
    missing = sum(x.dtype.itemsize * x.size for x in features if not x.strides[0])  # of features that were not read
    counts: Any
    if isinstance(part.graph, NodeType):
        hetero = part.graph.graph
        with hetero.profile.phase("setup"):
            counts = {chosen: with_hosts(hetero.comm, plan, counts_of_plan(hetero.comm, plan, [
                (len(hetero.node_ids[r[2]]), len(hetero.edge_ids[r])) for r in chosen])) for chosen, (plan, _) in hetero.exchanges.items()}
        return Sizes(counts, {**relational_trial.sizes_of(hetero), **splits}, there // sharing + missing, peak // sharing + missing)
    graph = aggregated(part.graph)
    whole = counts_of(graph)
    if flows is not None or sampled is not None:
        counts = {"edges": whole, **flow_trial.counts_of(flows or {})}
    else:
        counts = with_others(graph, whole, covers) if others else whole
    built = structure_bytes(counts, graph.schedule.mode.name, turns=graph.schedule.reverse is not None)
    there_bytes = max(there // sharing + missing, built + sum(x.dtype.itemsize * x.size for x in features)) - built
    sizes = {"rows": part.graph.n_dst, "edges": graph.n_edges, **splits, "group": graph.n_dst, "own edges": part.graph.n_edges,
             **flow_trial.sizes_of(flows or {})}
    if sampled is not None and sampled.held is not None:
        there_bytes += sampled.held.n_kept * row_bytes((rows.features.shape[1:], rows.features.dtype))
    found = Sizes(counts, sizes, there_bytes, peak // sharing + missing, sampled=sampled, scored=scored)
    return found if part.graph.grid or flows is not None or sampled is not None else found._replace(whole=_on_one_group(graph, found))


def _on_one_group(graph, sizes):
    """The `Sizes` of a part whose rank, as each other, has the structure of the whole graph, beside its own edges. Collective.

    With values on edges a rank has its own plan too, for those.
    """
    n_rows, n_edges = np.sum(graph.comm.allgather((graph.n_dst, graph.n_edges)), 0).tolist()
    counts = PartCounts(0, np.array([0, n_rows]), [SetCounts(n_rows, [n_edges], [n_rows])], [(0, True)], [(0, True)])
    valued = graph.edge_weight is not None or graph.edge_features is not None
    there = sizes.there_bytes + (structure_bytes(sizes.counts, graph.schedule.mode.name) if valued else
                                 graph.plan.local.indices.itemsize * graph.n_edges)
    return Sizes(counts, {**sizes.rows, "edges": n_edges, "group": n_rows}, there, sizes.load_bytes)


def over_others(setting: Setting, config: argparse.Namespace) -> bool:
    """Tell whether a setting may go over the reversed edges, or over those of a cover: counting these takes time and memory."""
    mode = MODES[setting.mode]
    return mode.covers or turns(mode, dict(setting.options).get("backward", config.backward))


def aggregated(graph: Graph) -> Graph:
    """Return the graph that is aggregated over: on a grid of ranks that of the group's rows."""
    return graph if graph.grid is None else graph.grid.graph


class Model:
    """The costs of one model on one data set, by setting; programs are recorded as they are asked for.

    Parameters
    ----------
    config : Namespace of `config.OPTIONS`
    make : callable (comm, config, part) -> Trainer
    facts : Facts
    comm : Communicator
        Of its ranks the first records, for all; on a grid of ranks the first group.
    size : int
        Number of ranks of the run.
    """

    def __init__(self, config: argparse.Namespace, make: Callable[..., Any], facts: Facts, comm: Communicator, size: int) -> None:
        self.config, self.make, self.facts, self.comm, self.size = config, make, facts, comm, size
        self._programs: dict[tuple[Any, ...], Any] = {}
        self.fixed_bytes = 0
        self._scipy_bytes: int | None = None

    def cost(self, setting: Setting, sizes: Sizes, prefetch: int) -> Cost:
        """Return one part's `Cost`. Collective."""
        mode, backward = MODES[setting.mode], dict(setting.options).get("backward", self.config.backward)
        if dict(setting.options).get("columns", self.config.columns) != self.config.columns:
            sizes = sizes.whole
        counts, rows = sizes.counts, sizes.rows
        if isinstance(counts, PartCounts):
            rows = {**rows, "halo": sum(n for n, _ in counts.of(mode).needs)}
        steps = self.program(setting, mode.covers and isinstance(counts, PartCounts) and counts.cover is not None)
        batches, scored, n_steps = sizes.sampled, sizes.scored, 1
        once = self.config.epochs == 1 or (batches is not None and self.config.epochs <= self.config.eval_every)
        until = STEPS[2] if once else None  # no step follows on the first evaluation, which leaves an aggregated constant behind
        if batches is None:
            found = steps.replay(counts, setting.mode, prefetch, rows, until=until)
        else:
            plays = {STEPS[0]: (batches.batches[: None if until else 1], 1), STEPS[2]: (batches.batches, 1)}
            plays |= {name: (scored.batches, scored.n_steps) for name in STEPS[1::2] if scored}
            found, n_steps = steps.replay(counts, setting.mode, prefetch, rows, plays, until), batches.n_steps
            for way, own in enumerate((found.sent, found.received)):
                own[STEPS[2]]["alltoall"] = batches.moved[way] + batches.cut[way] / n_steps
                own[STEPS[0]] = own[STEPS[2]]
                if scored:
                    for name, cut in zip(STEPS[1::2], (scored.cut[way], 0)):
                        own[name].pop("alltoall", None)
                        own[name]["evaluation"] = own[name].get("evaluation", 0) + scored.moved[way] * scored.n_steps + cut
        transposed = steps.transposed
        if "halo" in steps.names:  # the second layer walks all edges
            transposed.setdefault("edges", set()).add((0, "transpose"))
        structure = structure_bytes(sizes.counts, setting.mode, transposed, self.size > 1 and turns(mode, backward))
        if batches is not None and batches.held is not None:
            structure += batches.held.n_bytes(steps, found)
        elif batches is not None:
            structure += batches.ahead * max(structure_bytes(own, setting.mode, transposed) - structure_bytes(own, setting.mode)
                                             for own, _ in batches.batches)
        stays = self.fixed_bytes + sizes.there_bytes + structure
        if mode.covers and self.size > 1:
            stays += self.cover_bytes()
        most = max(found.start_peak_bytes, found.start_bytes + max(found.peak_bytes, self._writing_bytes()))
        return Cost(max(sizes.load_bytes, round(stays + most)), found, n_steps, steps.row_bytes(STEPS[2]))

    def program(self, setting: Setting, covers: bool = False) -> Any:
        """Return the `Program` of a setting; `covers` is as for `trial.program`. Collective."""
        config = argparse.Namespace(**{**vars(self.config), **dict(setting.options), "mode": setting.mode})
        key = setting, covers
        if key not in self._programs:
            self._programs[key] = self._recorded(config, setting.mode, covers)
            warm = max(self.comm.allgather(self._programs[key].warm_bytes))
            self.fixed_bytes = max(self.fixed_bytes, warm // (config.ranks if config.ranks > 1 else 1))
        return self._programs[key]

    def cover_bytes(self) -> int:
        """Return what the modules take that find covers; measured once, where it is first asked for, as they stay. Collective."""
        if self._scipy_bytes is None:
            self._scipy_bytes = max(self.comm.allgather(_loading_scipy())) // (self.comm.size if self.config.ranks > 1 else 1)
        return self._scipy_bytes

    def _writing_bytes(self):
        """What the pieces of learned rows take that a checkpoint is written of (`Owners`), when a step's memory was given back."""
        relations = self.facts.relations
        if relations is None or relations.n_nodes.keys() <= self.facts.n_features.keys():
            return 0
        return (1 if self.comm.rank else 3) * PIECE_BYTES

    def refusal(self, setting: Setting) -> str:
        """Return why the model cannot run in a setting, "" where it can: not each computes halo rows again, or divides messages by columns.

        Collective.
        """
        if {"halo", "columns"} & dict(setting.options).keys():
            try:
                self.program(setting)
            except ConfigError as error:
                return str(error)
        return ""

    def _recorded(self, config, mode, covers):
        """By the first rank for all; on a grid by the ranks of the first group, for those that have the same columns."""
        args, rank = (config, self.make, self.facts, mode, self.size, covers), self.comm.rank
        own = together(self.comm, lambda: program(*args, rank) if rank < config.columns else None)
        return self.comm.allgather(own)[rank % config.columns]


def of_run(comm: Communicator, config: argparse.Namespace, cls: Any, part: Part, make_trainer: Callable[..., Any],
           there: int | None = None, trainer: Any = None, others: bool = True, covers: bool = True) -> tuple[Model, Sizes]:
    """Return the `Model` and the `Sizes` of a run whose part was loaded. Collective.

    Parameters
    ----------
    there : int, optional
        As for `sizes_of`; by default now.
    trainer : Trainer, optional
        The run's, where it was made: then its message-flow graphs are not made again.
    others, covers : bool
        As for `sizes_of`.
    """
    graph: Any = part.graph
    hetero = isinstance(graph, NodeType)
    schedule = optim.schedule(config.lr_schedule, config.epochs)

    def make(comm, config, part):
        return make_trainer(comm, config, cls, schedule, part, None)

    facts, warm, flows = facts_of(part), 0, None
    if config.mfg:
        if trainer is None:
            flows = flow_trial.of_run(part, together(comm, lambda: n_layers(config, make, facts)))
        else:
            flows = flow_trial.of_trainer(trainer)
        facts = facts._replace(flows=flow_trial.of_all_ranks(flows))
    sampled = scored = None
    if config.batch_size:
        if hasattr(cls, "powers"):
            raise ConfigError(f"the costs of minibatches of the model {config.model}, which have no edges, are not counted")
        before = part.memory.now()
        sampled, scored, grown = batch_trial.of_run(config, part)
        there = (before if there is None else there) + grown
        facts = facts._replace(batch=sampled.sizes[0], scored=scored and scored.sizes[0],
                               kept=None if sampled.held is None else sampled.held.keeps)
    there, peak = part.memory.now() if there is None or flows else there, part.memory.peak()
    sharing = comm.size if config.ranks > 1 else 1
    if hetero:
        facts, warm = with_halo(comm, config, make, facts, graph.graph)
    model = Model(config, make, facts, comm, comm.size)
    model.program(Setting("sar"))  # before SciPy is there, which finds covers: what a step loads of it is the step's
    model.fixed_bytes += warm // sharing
    if others and covers and comm.size > 1 and not hetero and not flows and sampled is None:
        model.cover_bytes()  # before covers are counted, which loads the modules
    sizes = sizes_of(part, there, peak, sharing, flows, sampled, scored, others, covers)
    if flows and trainer is not None:  # whose own arrays are counted, and there
        own = model.program(Setting("sar")).replay(sizes.counts, "sar", 0, sizes.rows).start_bytes
        sizes = sizes._replace(there_bytes=max(0, sizes.there_bytes - own))
    return model, sizes


def facts_of(part: Part) -> Facts:
    """Return the `Facts` of a part's data."""
    graph: Any = part.graph
    rows: Any = part.rows
    if isinstance(graph, NodeType):
        relations = Relations(graph.node_type, graph.graph.n_nodes, graph.graph.n_edges)
        return Facts(widths(rows), part.n_classes, part.task, rows.labels[:0], relations=relations)
    values = tuple(None if a is None else a[:0] for a in (graph.edge_weight, graph.edge_features))
    return Facts(rows.features.shape[1], part.n_classes, part.task, rows.labels[:0], graph.added_loops is not None, values)


def with_halo(comm: Communicator, config: argparse.Namespace, make: Callable[..., Any], facts: Facts,
               graph: HeteroGraph) -> tuple[Facts, int]:
    """Find the exchanges of a relational model; return `facts` with their rows, and by how much a tiny step made the process larger.

    Collective.
    """
    chosen, warm = growth(lambda: relational_trial.bundles(config, make, facts))
    found = {each: graph.exchange(each) for each in chosen}
    assert facts.relations is not None
    relations = facts.relations._replace(n_halo={each: n_halo for each, (_, n_halo) in found.items()})
    return facts._replace(relations=relations), max(comm.allgather(warm))


def _loading_scipy():
    """By how much the modules that find covers make the process larger."""
    before = resident()
    importlib.import_module("scipy.sparse.csgraph")
    return max(0, resident() - before)
