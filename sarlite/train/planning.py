"""Before a run: the table of what each setting costs (`--dry-run`), the choice among them (`--mode auto`), and the limit of memory."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.comm.launch import host
from sarlite.command import readable
from sarlite.data.spec import is_relational
from sarlite.errors import ConfigError
from sarlite.profile import memory_limit
from sarlite.sar.graph.node_type import NodeType
from sarlite.sar.schedule.modes import MODES
from sarlite.train.config import OPTIONS
from sarlite.train.costs import SETTINGS, Cost, Model, Setting, Sizes
from sarlite.train.load import Shard
from sarlite.train.rates import Rates, in_step, rates_of, seconds_of

_SMALL = 0.5
"""Without --memory-limit a run is not looked at whose crude bound is below this share of the limit."""


class Limit(NamedTuple):
    """How much memory there is: for each rank, or without --memory-limit for all ranks of a host together.

    Attributes
    ----------
    n_bytes : float
        Of this rank's host.
    each : bool
    hosts : list
        By rank.
    base_bytes : list of int
        By rank, what it has before it reads its rows; of ranks that are threads of a process its share.
    """

    n_bytes: float
    each: bool
    hosts: list[Any]
    base_bytes: list[int]

    def needs(self, peaks: Sequence[int]) -> list[int]:
        """Return by rank what its limit is compared with, of each rank's bytes above its base."""
        total = [base + peak for base, peak in zip(self.base_bytes, peaks)]
        return total if self.each else [sum(n for n, where in zip(total, self.hosts) if where == own) for own in self.hosts]


class Row(NamedTuple):
    """A setting, and what all ranks told of it."""

    setting: Setting
    costs: list[Cost]
    fits: bool
    need: int  # the most that is compared with a limit
    seconds: float | None = None  # of packing, sending and waiting in a step, where it was asked for

    @property
    def peaks(self) -> list[int]:
        return [cost.peak_bytes for cost in self.costs]


def limit_of(comm: Communicator, config: argparse.Namespace, part: Shard) -> Limit:
    """Return the `Limit`. Collective."""
    base = part.memory.base // (comm.size if config.ranks > 1 else 1)
    given = config.memory_limit
    found = comm.allgather((host(), base))
    return Limit(memory_limit() if given is None else given, given is not None, [where for where, _ in found], [n for _, n in found])


def compare(comm: Communicator, model: Model, sizes: Sizes, limit: Limit, settings: Mapping[Setting, str], prefetch: int,
            rates: Rates | None = None) -> tuple[list[Row], dict[Setting, str]]:
    """Return a `Row` for each setting, the same on every rank, and of the others why each is left out. Collective.

    Parameters
    ----------
    comm, model, sizes, limit
    settings : dict of Setting to str
        Why one is left out, "" where it is not, as `candidates` returns it.
    prefetch : int
    rates : Rates, optional
        Given, a row tells seconds, too.
    """
    found: dict[Setting, Cost] = {}
    left_out = {}
    for setting, reason in settings.items():
        try:
            if not reason:  # on one rank all are alike
                alike = next(iter(found.values()), None) if comm.size == 1 else None
                found[setting] = alike or together(comm, partial(model.cost, setting, sizes, prefetch))
        except ConfigError as error:
            if not setting.options:
                raise
            reason = re.sub(r"^(rank \d+: )+", "", str(error))
        if reason:
            left_out[setting] = reason
    least, waited = min(cost.flops for cost in found.values()), _waited_edges(comm, sizes, prefetch) if rates else 0
    rows = []
    for setting, cost in found.items():
        edges = waited if MODES[setting.mode].in_step else 0
        ranks = comm.allgather((cost, limit.n_bytes, seconds_of(cost, rates, least, edges) if rates else None))
        needs = limit.needs([other.peak_bytes for other, _, _ in ranks])
        fits = all(need <= most for need, (_, most, _) in zip(needs, ranks))
        slowest = max(seconds for _, _, seconds in ranks) if rates else None
        rows.append(Row(setting, [other for other, _, _ in ranks], fits, max(needs), slowest))
    return rows, left_out


def _waited_edges(comm, sizes, prefetch):
    """The edges for whose time the slowest rank waits where ranks go in step; of several exchanges, as of relations, 0. Collective."""
    found = sizes.exchanged.get("edges")
    if found is None or found.size == 1 or found.size != comm.size:
        return 0.0
    tiles = np.array(comm.allgather(found.n_edges[0]), float)
    ranges = MODES["broadcast"].n_ranges(found.needs) if prefetch else 1
    return in_step(tiles, prefetch, ranges) - float(tiles.sum(1).max())


def candidates(config: argparse.Namespace, n_ranks: int, settings: Sequence[Setting] = tuple(SETTINGS)) -> dict[Setting, str]:
    """Return the settings that a run may be compared in, and of each why it is left out, "" where it is not.

    An option that is given goes with each setting. Relational graphs, message-flow graphs and batches have neither reversed edges nor
    columns.
    """
    return {setting: _left_out(config, n_ranks, setting) for setting in (each.on(n_ranks) for each in settings)}


def _left_out(config, n_ranks, setting):
    options = dict(setting.options)
    given = [name for name in options if getattr(config, name) != OPTIONS[name][0]]
    if given:
        return f"--{given[0]} is given"
    if "columns" in options and n_ranks == 1:
        return "one rank has all columns"
    kind = "a message-flow graph" if config.mfg else "a batch" if config.batch_size else ""
    kind = "a relational graph" if is_relational(config.data) else kind
    if kind and options:
        return f"{kind} has no {'columns' if 'columns' in options else 'such edges'}"
    return ""


# ---- what the command does with it


def dry_run(comm: Communicator, config: argparse.Namespace, model: Model, sizes: Sizes, part: Shard) -> dict[str, Any]:
    """Print what each setting costs. Collective."""
    limit = limit_of(comm, config, part)
    rows, left_out = compare(comm, model, sizes, limit, candidates(config, comm.size), config.prefetch)
    found = {"ranks": comm.size, "prefetch": config.prefetch, "limit_bytes": limit.n_bytes, "base_bytes": limit.base_bytes,
             "settings": [record(row, config) for row in rows], "left_out": {str(setting): why for setting, why in left_out.items()}}
    if comm.rank == 0:
        print(table(rows, config, part.summary, left_out), flush=True)
        if config.json:
            print(json.dumps(found), flush=True)
    return found


def choose(comm: Communicator, config: argparse.Namespace, model: Model, sizes: Sizes, part: Shard) -> Setting:
    """Return the cheapest setting that fits, and print the table that it is from. Collective.

    Raises
    ------
    ConfigError
        On every rank: none fits, or costs cannot be counted.
    """
    limit = limit_of(comm, config, part)
    rows, left_out = compare(comm, model, sizes, limit, candidates(config, comm.size), config.prefetch, rates_of(comm))
    fitting = [row for row in rows if row.fits]
    if not fitting:
        least = min(rows, key=lambda row: row.need)
        raise ConfigError(f"--mode auto: no mode fits {_limit_words(limit)}; {least.setting}, the smallest, takes {readable(least.need)}"
                               f"{_WHERE[limit.each]}; more ranks take less each")
    best = min(fitting, key=lambda row: (row.seconds, row.need))
    if comm.rank == 0:
        print(f"{table(rows, config, part.summary, left_out)}\n--mode auto takes {best.setting}", file=sys.stderr, flush=True)
    return best.setting


def check(comm: Communicator, config: argparse.Namespace, make: Callable[[], tuple[Model, Sizes]], part: Shard,
          n_widths: int) -> None:
    """Refuse a run that does not fit. Collective.

    Parameters
    ----------
    make : callable -> (Model, Sizes)
        As of `part_sizes.of_run`; asked only where the run is not surely small.
    n_widths : int
        The widths of all parameters together, which bound what a row takes in a step.

    Raises
    ------
    ConfigError
        On every rank, naming what the run takes, the limit, and a mode that fits; or, with --memory-limit, why costs cannot be counted.
    """
    limit = limit_of(comm, config, part)
    if not limit.each:
        crude = comm.allgather(32 * (_most_rows(part.graph) * (n_widths + 16) + _n_edges(part.graph)) + part.memory.peak())
        if max(limit.needs(crude)) < _SMALL * min(comm.allgather(limit.n_bytes)):
            return
    own = Setting(config.mode)
    try:
        model, sizes = make()
    except ConfigError:  # costs that cannot be counted
        if limit.each:
            raise
        return
    (row,), _ = compare(comm, model, sizes, limit, {own: ""}, config.prefetch)
    if row.fits:
        return
    others, _ = compare(comm, model, sizes, limit, {setting: reason for setting, reason in candidates(config, comm.size).items()
                                                    if setting != own}, config.prefetch)
    fitting = sorted((other for other in others if other.fits), key=lambda other: other.need)
    hint = f"--mode {fitting[0].setting} takes {readable(fitting[0].need)} and fits" if fitting else _NONE
    raise ConfigError(f"mode {own} would take {readable(row.need)}{_WHERE[limit.each]}, more than {_limit_words(limit)}: {hint}")


def _most_rows(graph):
    """How many rows a rank has and fetches, at most."""
    if not isinstance(graph, NodeType):
        plan = _aggregated(graph).plan
        return plan.n_src + plan.n_halo
    own = sum(map(len, graph.graph.node_ids.values()))
    return min(sum(graph.graph.n_nodes.values()), own + _n_edges(graph))


def _n_edges(graph):
    return sum(map(len, graph.graph.edge_ids.values())) if isinstance(graph, NodeType) else _aggregated(graph).n_edges


def _aggregated(graph):
    """The graph that is aggregated over: on a grid of ranks that of the group's rows."""
    return graph if graph.grid is None else graph.grid.graph


_NONE = "no other mode fits; more ranks take less each"
_WHERE = {True: " on a rank", False: " on all ranks of a host"}


def _limit_words(limit):
    return f"{'--memory-limit' if limit.each else 'the memory of the machine or container,'} {readable(limit.n_bytes)}"


def record(row: Row, config: argparse.Namespace) -> dict[str, Any]:
    """Return what `--json` says of a row."""
    sent = [cost.per_epoch("sent", config.eval_every) for cost in row.costs]
    phases = sorted({phase for own in sent for phase in own})
    return {"setting": str(row.setting), "mode": row.setting.mode, "options": dict(row.setting.options), "fits": row.fits,
            "peak_bytes": row.peaks, "sent_bytes": {phase: sum(own.get(phase, 0) for own in sent) for phase in phases},
            "received_bytes": [sum(cost.per_epoch("received", config.eval_every).values()) for cost in row.costs],
            "run_sent_bytes": _summed([cost.of_run(config.epochs, config.eval_every) for cost in row.costs]),
            "first_epoch_sent_bytes": _summed([cost.of_first_epoch() for cost in row.costs]),
            "messages": [cost.n_messages for cost in row.costs],
            "flops": [cost.flops for cost in row.costs],
            "remote_buffers": float(max(cost.remote_buffers for cost in row.costs)), "seconds": row.seconds}


def _summed(dicts):
    return {phase: sum(own.get(phase, 0) for own in dicts) for phase in sorted({phase for own in dicts for phase in own})}


def table(rows: Sequence[Row], config: argparse.Namespace, summary: dict[str, Any], left_out: Mapping[Setting, str]) -> str:
    """Return the settings as text: the largest rank's memory and messages, bytes of an epoch and flops of all ranks; and what is left out.

    Of minibatches memory is that of the largest batch that was sampled, and the rest of the average one.
    """
    size = len(rows[0].costs)
    given = (f", backward {config.backward}" if config.backward else "") + (f", columns {config.columns}" if config.columns > 1 else "")
    span = "an epoch of batches as the first ones" if config.batch_size else "an epoch after the first"
    head = [f"{config.model} on {summary['data'].rstrip(':')}: {summary['nodes']:,} nodes, {summary['edges']:,} edges; {size} "
            f"rank{'s' if size > 1 else ''}, prefetch {config.prefetch}{given}; {span}; memory without Python and its libraries"]
    lines = [["mode", "fits", "peak memory", "remote buffers", "messages", "Gflop", "sent by phase"]]
    for row in rows:
        found = record(row, config)
        peaks = [readable(n) for n in (found["peak_bytes"] if size <= 4 else [max(found["peak_bytes"])])]
        lines.append([str(row.setting), "yes" if row.fits else "no", ", ".join(peaks), f"{found['remote_buffers']:.3g}",
                      str(max(found["messages"])), f"{sum(found['flops']) / 1e9:.4g}",
                      ", ".join(f"{phase} {readable(n)}" for phase, n in found["sent_bytes"].items() if n) or "nothing"])
        if row.seconds is not None:
            lines[-1].insert(6, f"{1e3 * row.seconds:.3g}")
    if rows[0].seconds is not None:
        lines[0].insert(6, "ms to pack, send, wait")
    widths = [max(map(len, column)) for column in zip(*lines)]
    others = [f"{setting} is left out: {why}" for setting, why in left_out.items()]
    return "\n".join(head + ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines] + others)
