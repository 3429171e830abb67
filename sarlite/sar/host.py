"""The ranks of each host, what they need together, and the rounds in which rows come to them."""

import numpy as np

from sarlite.errors import ConfigError
from sarlite.sar.plan import Step


class Host:
    """The hosts of some ranks, and the windows of one of these ranks' host.

    Parameters
    ----------
    hosts : list
        Of each rank the host that it is on.
    rank : int
        This one.
    group, tokens : Communicator
        Of this host's ranks, and its channel of tokens.

    Attributes
    ----------
    members : list of list of int
        The ranks of each host.
    number : int
        This rank's host.
    ranks : list of int
        Of this host.
    windows : dict of str to Shared
        Memory of these ranks, by what it is for.
    """

    def __init__(self, hosts, rank, group, tokens):
        self.members, self.number = _members(hosts, rank)
        self.rank, self.ranks = rank, self.members[self.number]
        self.group, self.tokens, self.windows = group, tokens, {}

    @classmethod
    def of(cls, comm):
        """Return that of a communicator, made at the first call. Collective."""
        kept = comm.channel("fetch").__dict__
        if "_host" not in kept:
            if not (hasattr(comm, "hosts") and hasattr(comm, "share")):
                raise ConfigError(f"mode 'host' needs memory that ranks share: {type(comm).__name__} has no `hosts` and `share`")
            hosts = comm.hosts()
            group = comm.group("host", _members(hosts, comm.rank)[1])
            kept["_host"] = cls(hosts, comm.rank, group, group.channel("tokens"))
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
                        found.append(Step(source, None, None, step.n_send, False, step.send_rows, filler=source))
                elif source is not None:
                    found.append(comes[source]._replace(target=target, send_rows=sends, filler=self._filler(self.number, source)))
                elif target is not None:
                    found.append(Step(None, target, None, 0, False, sends))
        return tuple(found)

    def _filler(self, host, source):
        """Who receives the rows of `source` for a host: its owner where it is there, else each of the host's ranks in turn."""
        k = next(k for k, ranks in enumerate(self.members) if source in ranks)
        here = self.members[host]
        return source if k == host else here[(k + self.members[k].index(source)) % len(here)]


def _members(hosts, rank):
    """Return the ranks of each host, and the number of that which `rank` is on."""
    names = list(dict.fromkeys(hosts))
    return [[k for k, host in enumerate(hosts) if host == name] for name in names], names.index(hosts[rank])
