"""Training steps on tiny graphs, recorded as the program that any size is told from."""

import argparse
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from sarlite.comm import Solo
from sarlite.comm.interrupt import SIGNALS
from sarlite.data.part import Rows
from sarlite.errors import ConfigError
from sarlite.graph.block import Block, EdgeOrder
from sarlite.minibatch.flow import count_layers
from sarlite.profile import Profile
from sarlite.sar.columns import Counts, Grid
from sarlite.sar.cost import CountingTransport, Mirror, expected, schedule_of
from sarlite.sar.graph import Graph
from sarlite.sar.listening import Listening
from sarlite.sar.modes import MODES
from sarlite.sar.plan import Step
from sarlite.sar.program import START, Program, Tape, record
from sarlite.sar.schedule import Schedule, turns
from sarlite.tape import no_grad
from sarlite.train import batch_trial, flow_trial, relational_trial
from sarlite.train.facts import Facts
from sarlite.train.load import Part

SIZES = [dict(zip(("rows", "edges", "train", "val", "test"), at)) for at in (
    (40, 90, 8, 6, 5), (46, 90, 8, 6, 5), (40, 103, 8, 6, 5), (40, 90, 11, 6, 5), (40, 90, 8, 10, 5), (40, 90, 8, 6, 12),
    (49, 120, 10, 9, 8))]
GROUP = 40
"""Of a grid, rows of each rank of a group at these sizes."""
OWN_EDGES = 30
"""And the edges of one rank, where edges have values, which each rank brings of its own."""
HALO = 30
"""Halo rows at these sizes, where they are computed again."""
STEPS = ("first step", "first evaluation", "step", "evaluation")


def program(config: argparse.Namespace, make: Callable[[Any, argparse.Namespace, Part], Any], facts: Facts, mode: str,
            size: int, covers: bool = False, place: int = 0) -> Program:
    """Return the `Program` of two epochs of a run, with evaluation, on one of `size` ranks, the first.

    Parameters
    ----------
    config : Namespace of `train.config.OPTIONS`
    make : callable (comm, config, part) -> Trainer
        As the run makes its own.
    facts : Facts
    mode : str
        What is done beside the aggregations depends on it.
    size : int
    covers : bool
        Whether some edges are covered by their destinations, in mode `cover`.
    place : int
        Of a grid of ranks, which column this one stands in.

    Raises
    ------
    ConfigError
        The step does other things at other sizes.

    Notes
    -----
    Takes real steps on graphs of some 40 nodes, alone, with parameters as wide as the model's: milliseconds, and their memory. One more
    for each type and each relation of a graph.
    """
    batches = {} if facts.batch is None else batch_trial.options(config)
    config = argparse.Namespace(**{**vars(config), "propagated": None, **batches})

    def run(**at):
        profile = Profile()
        tape = Tape(profile)
        with tape.recorder:
            comm = Mirror(0, size)
            if facts.relations is None:
                part = _part(tape, profile, facts, config, mode, comm, covers, place, **at)
            else:
                part = relational_trial.part(tape, profile, facts, config, MODES[mode], comm, **at)
            with tape.segment(START):
                trainer = make(comm, config, part)
            if facts.flows is not None:
                flow_trial.listen(tape, trainer, part.graph.schedule.mode, facts.flows)
            if facts.batch is not None:
                batch_trial.listen(tape, trainer, part.graph.schedule.mode, facts, at)
            trainer.optimizer.touched = lambda group: np.arange(len(group.grad) - 1)  # of learned rows: more are none
            trainer.votes.ask = lambda: (0.0,) * (len(SIGNALS) + 2)
            trainer.buffers = trainer.training_step.buffers = tape.recorder
            best = {}
            for epoch in range(2):
                with tape.segment(STEPS[2 * epoch]):
                    trainer.epoch(epoch)
                with tape.segment(STEPS[2 * epoch + 1]), profile.phase("evaluation"):
                    trainer.evaluate()
                    best["state"] = trainer.model.state_dict()  # as where the epoch is the best
        return tape

    return record(run, _sizes(config, facts, size))


def n_layers(config: argparse.Namespace, make: Callable[..., Any], facts: Facts) -> int:
    """Return for how many layers the model asks; as for `program`.

    Raises
    ------
    ConfigError
        It asks for none.
    """
    tape = Tape(Profile())
    config = argparse.Namespace(**{**vars(config), "propagated": None, "mfg": False})
    part = _part(tape, tape.profile, facts, config, "sar", Mirror(0, 1), False, 0, **SIZES[0])
    trainer = make(part.graph.comm, config, part)
    with no_grad():
        return count_layers(trainer.model, part.graph, trainer.x)


def _sizes(config, facts, size):
    """The sizes; of a grid also a group's rows, and its edges in place of a rank's, which are a size more where edges have values; or also
    the halo rows that are computed again.
    """
    if facts.relations is not None:
        return relational_trial.sizes(facts.relations)
    if facts.flows is not None:
        return flow_trial.sizes(len(facts.flows) // 2)
    if facts.batch is not None:
        return batch_trial.sizes(len(facts.batch), facts.loops, facts.kept is not None)
    if config.columns > 1:
        more = {"group": GROUP * config.columns}
        if facts.edge_bytes:
            more["own edges"] = OWN_EDGES
    elif getattr(config, "halo", "fetch") == "recompute" and size > 1:
        more = {"halo": HALO}
    else:
        return SIZES
    grown = [{**SIZES[0], **more, name: n + 9} for name, n in more.items()]
    return [*({**at, **more} for at in SIZES[:-1]), *grown, {**SIZES[-1], **{name: n + 21 - k for k, (name, n) in enumerate(more.items())}}]


def _part(tape, profile, facts, config, mode, comm, covers, place, rows, edges, train, val, test, group=None, halo=0, **at):
    """A tiny part, of which every peer has the like; `at` are sizes of message-flow graphs, of a batch, or on a grid a rank's own edges."""
    whole, n_own, C, n_edges = comm, rows, config.columns, at.pop("own edges", 0)
    if group is not None:
        comm, rows = Mirror(0, comm.size // C), group
    loops = np.zeros(rows, bool) if facts.loops else None
    if facts.batch is not None:
        ends, sources, loops = batch_trial.edges(rows, edges, train, val + test, at, config.fanouts, facts.loops)
    elif at:
        ends, sources = flow_trial.edges(rows, edges, train, val + test, at)
    else:
        ends, sources = _even(rows, edges)
    graph = Graph.from_part(Solo(), ends, sources)
    plan = _with_halo(graph.plan, halo) if halo else graph.plan
    schedule = Schedule(plan, SimpleNamespace(profile=profile), Listening(MODES[mode], tape.recorder, comm.size))
    schedule = schedule if comm.size == 1 else _with_others(schedule, config.backward, covers)
    graph = Graph(comm, schedule, profile, n_nodes=rows, dst_ids=graph.dst_ids, src_ids=graph.src_ids, edge_ids=None,
                  in_degrees=graph.in_degrees, added_loops=loops, halo=getattr(config, "halo", "fetch"))
    if len(schedule_of(expected(8 * comm.size, 8 * comm.size, comm.size), mode, 0).plan.blocks) > 1:  # then edges' places are kept
        graph.plan.local.order = EdgeOrder(rows, [(None, graph.plan.local.indptr)]), 0
    if group is not None:
        graph, rows = _on_grid(tape, whole, graph, n_own, n_edges, C, place), n_own
    weight, features = (None if a is None else np.ones((graph.n_edges, *a.shape[1:]), a.dtype) for a in facts.edge_values)
    graph = graph if weight is features is None else graph.with_edge_values(weight, features)
    return Part(graph, Rows(np.ones((rows, facts.n_features), config.dtype), *facts.targets(rows, train, val, test)),
                facts.n_classes, {}, None, {}, facts.task)


def _even(rows, edges):
    """(indptr, indices) of rows that have as many edges each."""
    ends = np.arange(rows + 1) * edges // rows
    return ends, 5 * (np.arange(edges) - np.repeat(ends[:-1], np.diff(ends)))


def _on_grid(tape, comm, whole, rows, n_edges, columns, place):
    """The graph of `rows` of those of `whole`, which `columns` ranks share, and of `n_edges` of the edges."""
    def shares(n, own):
        found = [(n - own) * (k + 1) // (columns - 1) - (n - own) * k // (columns - 1) for k in range(columns - 1)]
        return (*found[:place], own, *found[place:])

    tape.transport = CountingTransport(place, columns, 0)
    tape.transport.profile = whole.profile
    of_rows, loops, own = shares(whole.n_dst, rows), whole.added_loops, Graph.from_part(Solo(), *_even(rows, n_edges))
    schedule = Schedule(own.plan, SimpleNamespace(profile=whole.profile), _SettingUp())
    return Graph(comm, schedule, whole.profile, n_nodes=comm.size * rows, dst_ids=own.dst_ids, src_ids=own.src_ids, edge_ids=None,
                 in_degrees=own.in_degrees, added_loops=None if loops is None else loops[:rows],
                 grid=Grid(comm, columns, whole, tape.transport, Counts(of_rows, of_rows, shares(whole.n_edges, n_edges))))


class _SettingUp:
    """A mode of a rank's own rows and no others, for what is exchanged by rows as edges' values are made ready; else it refuses."""

    def __getattr__(self, name):
        return getattr(MODES["sar"], name)

    def run(self, schedule, arrays, visit, phase="forward"):
        if schedule.transport.profile._phase != "setup":
            raise ConfigError("--columns: the costs of a model are not counted whose messages are computed by rows")
        return [visit(schedule.plan.local, arrays)]


def _with_halo(plan, n):
    """A plan with the rows of a peer, whose edges are counted among the local ones."""
    start = plan.n_src
    block = Block(np.zeros(1, np.int64), np.empty(0, plan.local.indices.dtype), np.arange(start, start + n), start,
                  np.empty(0, plan.local.indices.dtype), offset=start, source=1)
    return plan._replace(steps=(Step(1, 1, block, n, False, slice(0, 0)),))


class _Summed(Schedule):
    """Of edges that the part's are counted with already."""

    __slots__ = ()
    n_edges = 0


def _with_others(made, backward, covers):
    """Give a schedule those of the other edges, as `schedule.make` does; all are over the same block."""
    listening = made.mode
    reverse = made._replace(mode=listening.over("reverse")) if turns(listening, backward) else None
    summed = _Summed(made.plan, made.transport, listening.over("summed"))
    cover = made._replace(mode=listening.over("cover"), summed=summed) if covers else None
    return made._replace(reverse=reverse, fetches=backward == "fetch", cover=cover)
