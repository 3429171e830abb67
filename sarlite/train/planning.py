"""Before a run: the table of what each setting costs (`--dry-run`), and the limit of memory.
"""

import gc
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.comm.launch import host
from sarlite.command import aligned, readable
from sarlite.errors import ConfigError
from sarlite.profile import memory_limit
from sarlite.sar.graph.node_type import NodeType
from sarlite.sar.schedule.modes import MODES
from sarlite.train.costs import Cost, Setting, settings_compared
from sarlite.train.load import Shard
from sarlite.train.rates import Rates, in_step, seconds_of
from sarlite.train.settings import Settings
from sarlite.train.small import Sizes
from sarlite.train.trial import cost

_SMALL = 0.5
"""Without --memory-limit a run is not looked at whose crude bound is below this share of the limit."""


class Limit(NamedTuple):
    """How much memory there is: for each rank, or without --memory-limit for all ranks of a host together.

    Attributes
    ----------
    n_bytes : float
        Of this rank's host.
    each : bool
        Whether it is for each rank.
    sharing : list
        By rank, a name that is the same of ranks that share the memory.
    base_bytes : list of int
        By rank, what it has before it reads its rows; of ranks that are threads of a process its share.
    """

    n_bytes: float
    each: bool
    sharing: list[Any]
    base_bytes: list[int]

    def needs(self, peaks: Sequence[int]) -> list[int]:
        """Return by rank what its limit is compared with, of each rank's bytes above its base."""
        total = Counter[Any]()
        for name, base, peak in zip(self.sharing, self.base_bytes, peaks):
            total[name] += base + peak
        return [total[name] for name in self.sharing]

    @property
    def where(self) -> str:
        return " on a rank" if self.each else " on all ranks of a host"

    def __str__(self) -> str:
        name = "--memory-limit" if self.each else "the memory of the machine or container,"
        return f"{name} {readable(self.n_bytes)}"


class Row(NamedTuple):
    """A setting, and what all ranks told of it."""

    setting: Setting
    costs: list[Cost]
    fits: bool
    need: int  # the most that is compared with a limit
    seconds: float | None = None  # of a step of the slowest rank, where it was asked for


def limit_of(comm: Communicator, part: Shard, given: float | None, sharing: int = 1) -> Limit:
    """Return the `Limit`, of `sharing` ranks that are one process. Collective."""
    found = comm.allgather((host() if given is None else comm.rank, part.memory.base // sharing))
    return Limit(memory_limit() if given is None else given, given is not None, *map(list, zip(*found)))


def compare(comm: Communicator, sizes: Sizes, limit: Limit, settings: Mapping[Setting, str],
            rates: Rates | None = None) -> tuple[list[Row], dict[Setting, str]]:
    """Return a `Row` for each setting, the same on every rank, and of the others why each is left out. Collective.

    Parameters
    ----------
    comm : Communicator
    sizes, limit
    settings : dict of Setting to str
        Why one is left out, "" where it is not, as `candidates` returns it.
    rates : Rates, optional
        Given, a row tells seconds, too.
    """
    found: dict[Setting, Cost] = {}
    left_out = {}
    for setting, reason in settings.items():
        try:
            if not reason:  # on one rank all are alike
                alike = next(iter(found.values()), None) if comm.size == 1 else None
                found[setting] = alike or together(comm, partial(cost, sizes, setting))
        except ConfigError as error:
            if not setting.options:
                raise
            reason = re.sub(r"^(rank \d+: )+", "", str(error))
        if reason:
            left_out[setting] = reason
    rows = []
    for setting, own in found.items():
        edges = _waited_edges(comm, sizes, MODES[setting.mode]) if rates and MODES[setting.mode].in_step else 0
        ranks = comm.allgather((own, limit.n_bytes, seconds_of(own.step, rates, edges) if rates else None))
        costs, limits, seconds = (list(each) for each in zip(*ranks))
        needs = limit.needs([other.peak_bytes for other in costs])
        fits = all(need <= most for need, most in zip(needs, limits))
        rows.append(Row(setting, costs, fits, max(needs), max(seconds) if rates else None))
    return rows, left_out


def _waited_edges(comm, sizes, mode):
    """The edges for whose time the slowest rank waits, where ranks go in step; of several exchanges, 0. Collective."""
    found, prefetch = sizes.exchanged.get("edges"), sizes.run.graph.prefetch
    if found is None or found.size == 1 or found.size != comm.size:
        return 0.0
    tiles = np.array(comm.allgather(found.n_edges[0]), float)
    ranges = mode.n_ranges(found.needs) if prefetch else 1
    return in_step(tiles, prefetch, ranges) - float(tiles.sum(1).max())


def candidates(sizes: Sizes, settings: Sequence[Setting] = ()) -> dict[Setting, str]:
    """Return the settings that a run may be compared in, by default all, and of each why it is left out, "" where it
    is not.

    An option that is given goes with each setting. Message-flow graphs and batches have no reversed edges; of
    relational graphs costs are not counted with these.
    """
    run = sizes.run
    kind = "a message-flow graph" if run.training.mfg else "a batch" if run.batches else ""
    given = {"backward": run.graph.backward is not None}

    def left_out(options):
        for name in options:
            if given[name]:
                return f"--{name} is given"
        if options and sizes.relational:
            return "its costs are not counted of a relational graph"
        if kind and options:
            return f"{kind} has no such edges"
        return ""

    return {setting: left_out(dict(setting.options)) for setting in settings or settings_compared()}


# ---- what the command does with it


def dry_run(comm: Communicator, sizes: Sizes, limit: Limit) -> dict[str, Any]:
    """Print what each setting costs. Collective."""
    rows, left_out = compare(comm, sizes, limit, candidates(sizes))
    found = {"ranks": comm.size, "prefetch": sizes.run.graph.prefetch, "limit_bytes": limit.n_bytes,
             "base_bytes": limit.base_bytes, "settings": [record(row, sizes.run) for row in rows],
             "left_out": {str(setting): why for setting, why in left_out.items()}}
    if comm.rank == 0:
        print(table(rows, sizes, left_out), flush=True)
        if sizes.run.output.json:
            print(json.dumps(found), flush=True)
    return found


def check(comm: Communicator, find: Callable[[], Sizes], part: Shard, limit: Limit, n_widths: int) -> None:
    """Refuse a run that does not fit. Collective.

    Parameters
    ----------
    find : callable
        As `part_sizes.of_run`; asked only where the run is not surely small.
    n_widths : int
        The widths of all parameters together, which bound what a row takes in a step.

    Raises
    ------
    ConfigError
        On every rank, naming what the run takes, the limit, and a mode that fits; or, with --memory-limit, why costs
        cannot be counted.
    """
    if not limit.each:
        n_rows, n_edges = _most(part.graph)
        crude = comm.allgather(32 * (n_rows * (n_widths + 16) + n_edges) + part.memory.peak())
        if max(limit.needs(crude)) < _SMALL * min(comm.allgather(limit.n_bytes)):
            return
    try:
        sizes = find()
    except ConfigError:  # costs that cannot be counted
        if limit.each:
            raise
        return
    own = Setting(sizes.run.graph.mode)
    (row,), _ = compare(comm, sizes, limit, {own: ""})
    gc.collect()  # a trial's objects hold each other, and its buffers
    if row.fits:
        return
    others = {setting: reason for setting, reason in candidates(sizes).items() if setting != own}
    fitting = [other for other in compare(comm, sizes, limit, others)[0] if other.fits]
    hint = "no other mode fits; more ranks take less each"
    if fitting:
        least = min(fitting, key=lambda other: other.need)
        hint = f"--mode {least.setting} takes {readable(least.need)} and fits"
    raise ConfigError(f"mode {own} would take {readable(row.need)}{limit.where}, more than {limit}: {hint}")


def _most(graph):
    """How many rows a rank has and fetches, at most, and its edges."""
    if isinstance(graph, NodeType):
        n_edges = sum(map(len, graph.graph.edge_ids.values()))
        own = sum(map(len, graph.graph.node_ids.values()))
        return min(sum(graph.graph.n_nodes.values()), own + n_edges), n_edges
    return graph.plan.n_src + graph.plan.n_halo, graph.n_edges


def record(row: Row, run: Settings) -> dict[str, Any]:
    """Return what `--json` says of a row."""
    epochs, eval_every, costs = run.training.epochs, run.training.eval_every, row.costs
    return {"setting": str(row.setting), "mode": row.setting.mode, "options": dict(row.setting.options),
            "fits": row.fits, "peak_bytes": [cost.peak_bytes for cost in costs],
            "sent_bytes": _summed(cost.per_epoch(eval_every).sent for cost in costs),
            "received_bytes": [cost.per_epoch(eval_every).received.total() for cost in costs],
            "run_sent_bytes": _summed(cost.of_run(epochs, eval_every) for cost in costs),
            "first_epoch_sent_bytes": _summed(cost.of_first_epoch() for cost in costs),
            "messages": [cost.step.n_messages for cost in costs], "flops": [cost.step.flops for cost in costs],
            "remote_buffers": float(max(cost.remote_buffers for cost in costs)), "seconds": row.seconds}


def _summed(counters):
    return dict(sorted(sum(counters, Counter()).items()))


def table(rows: Sequence[Row], sizes: Sizes, left_out: Mapping[Setting, str]) -> str:
    """Return the settings as text: the largest rank's memory and messages, bytes of an epoch and flops of all ranks;
    and what is left out.

    Of minibatches memory is that of the largest batch that was sampled, and the rest of the average one.
    """
    run, graph, summary = sizes.run, sizes.run.graph, sizes.part.summary
    size, timed = len(rows[0].costs), rows[0].seconds is not None
    given = f", backward {graph.backward}" if graph.backward else ""
    span = "an epoch of batches as the first ones" if run.batches else "an epoch after the first"
    head = (f"{run.model.spec} on {summary['data'].rstrip(':')}: {summary['nodes']:,} nodes, {summary['edges']:,} "
            f"edges; {size} rank{'s' if size > 1 else ''}, prefetch {graph.prefetch}{given}; {span}; memory "
            "without Python and its libraries")
    lines = [["mode", "fits", "peak memory", "remote buffers", "messages", "Gflop",
              *["ms a step"] * timed, "sent by phase"]]
    for row in rows:
        found = record(row, run)
        peaks = [readable(n) for n in (found["peak_bytes"] if size <= 4 else [max(found["peak_bytes"])])]
        sent = [f"{phase} {readable(n)}" for phase, n in found["sent_bytes"].items() if n]
        lines.append([str(row.setting), "yes" if row.fits else "no", ", ".join(peaks), f"{found['remote_buffers']:.3g}",
                      str(max(found["messages"])), f"{sum(found['flops']) / 1e9:.4g}",
                      *([] if row.seconds is None else [f"{1e3 * row.seconds:.3g}"]), ", ".join(sent) or "nothing"])
    return "\n".join([head, aligned(lines), *(f"{setting} is left out: {why}" for setting, why in left_out.items())])
