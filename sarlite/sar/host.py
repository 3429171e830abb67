"""The ranks of each host, what they need together, and the rounds in which rows come to them."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError
from sarlite.sar.plan import cut_rows


class Round(NamedTuple):
    """One round of the schedule: rows of `source` come to this host, and rows of this rank go to another one, or either.

    Attributes
    ----------
    source : int, or None
        Whose rows come; None where none do.
    filler : int
        Who puts them into the window: one of this host's ranks, of a part of this host its owner.
    block : Edges, or Bundle, or None
        Whose columns they are; None where this rank is their owner.
    n_rows : int
    contiguous : bool
        Whether they follow each other at their owner.
    target : int, or None
        The filler of the host to which this rank's `send_rows` go; None where they go nowhere, or into the window of this host.
    send_rows : slice or (n_send,) int
    share : Fraction
        What part of the owner's rows that come these are.
    """

    source: Any
    filler: Any
    block: Any
    n_rows: int
    contiguous: bool
    target: Any
    send_rows: Any
    share: Fraction = Fraction(1)

    @property
    def root(self):
        return self.source

    @property
    def n_send(self):
        rows = self.send_rows
        return rows.stop - rows.start if isinstance(rows, slice) else len(rows)

    def cut(self, n):
        """Divide the round into `n`, as `Step.cut`."""
        if n == 1:
            return [self]
        columns, rows = ((np.arange(n + 1) * m // n).tolist() for m in (self.n_rows, self.n_send))
        blocks = [None if self.block is None else self.block.columns(a, b) for a, b in zip(columns, columns[1:])]
        return [self._replace(block=blocks[k], n_rows=columns[k + 1] - columns[k], send_rows=cut_rows(self.send_rows, rows[k], rows[k + 1]),
                              share=Fraction(1, n)) for k in range(n)]


class Host:
    """The hosts of a communicator's ranks, and the windows of this one. Making one is collective.

    Attributes
    ----------
    members : list of list of int
        The ranks of each host.
    number : int
        This rank's.
    ranks : list of int
        Of this host.
    group, tokens : Communicator
        Of these ranks, and its channel of tokens.
    windows : dict of str to Shared
        Memory of these ranks, by what it is for.
    """

    def __init__(self, comm):
        if not (hasattr(comm, "hosts") and hasattr(comm, "share")):
            raise ConfigError(f"mode 'host' needs memory that ranks share: {type(comm).__name__} has no `hosts` and `share`")
        by_host = {}
        for rank, host in enumerate(comm.hosts()):
            by_host.setdefault(host, []).append(rank)
        self.members = list(by_host.values())
        self.number = next(k for k, ranks in enumerate(self.members) if comm.rank in ranks)
        self.rank, self.ranks = comm.rank, self.members[self.number]
        self.group = comm.group("host", self.number)
        self.tokens, self.windows = self.group.channel("tokens"), {}

    @classmethod
    def of(cls, comm):
        """Return that of a communicator, made at the first call. Collective."""
        kept = comm.channel("fetch").__dict__
        if "_host" not in kept:
            kept["_host"] = cls(comm)
        return kept["_host"]

    def needed(self, needs):
        """Return by rank the rows that this host's other ranks need of it, of which this rank needs `needs`. Collective.

        Memory: the rows that each rank of the host needs, 8 bytes each, while it runs.
        """
        lengths = self.group.alltoall([np.array([len(need) for need in needs])] * len(self.ranks))
        rows = self.group.alltoall([np.concatenate(needs)] * len(self.ranks))
        by_rank = [np.split(found, np.cumsum(n)[:-1]) for found, n in zip(rows, lengths)]
        return [np.unique(np.concatenate(found)) if q != self.rank else needs[q] for q, found in enumerate(zip(*by_rank))]

    def rounds(self, plan):
        """Return the rounds of a plan whose steps bring what the host needs, other hosts' parts first."""
        comes, goes = {step.source: step for step in plan.steps}, {step.target: step for step in plan.steps}
        n_hosts, index, found = len(self.members), self.ranks.index(self.rank), []
        for shift in range(1, n_hosts + 1):
            sources = self.members[(self.number + shift) % n_hosts]
            for j in range(max(map(len, self.members))):
                source = sources[j] if j < len(sources) else None
                target = self._filler((self.number - shift) % n_hosts, self.rank) if shift < n_hosts and j == index else None
                sends = goes[target].send_rows if target is not None else slice(0, 0)
                if source == self.rank:
                    if len(self.ranks) > 1:
                        step = goes[next(rank for rank in self.ranks if rank != self.rank)]
                        found.append(Round(source, source, None, step.n_send, False, None, step.send_rows))
                elif source is not None:
                    step = comes[source]
                    found.append(Round(source, self._filler(self.number, source), step.block, step.n_rows, step.contiguous, target, sends))
                elif target is not None:
                    found.append(Round(None, None, None, 0, False, target, sends))
        return tuple(found)

    def _filler(self, host, source):
        """Who receives the rows of `source` for a host: its owner where it is there, else each of the host's ranks in turn."""
        k = next(k for k, ranks in enumerate(self.members) if source in ranks)
        here = self.members[host]
        return source if k == host else here[(k + self.members[k].index(source)) % len(here)]
