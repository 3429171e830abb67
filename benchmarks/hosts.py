"""Several hosts on one machine: Linux network namespaces joined by a bridge, each on a link of limited rate.

Needs Linux, root, and iproute2 (`ip` and `tc`).

The module also computes what share of a transfer between hosts is hidden, for `overlap.py` and `push_overlap.py`. T0 is
the time where nothing overlaps, T1 the time where it may overlap, and `comm` the time of the transfer by itself. `compute`
is T0 - comm, and the hidden share is (T0 - T1) / min(comm, compute).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

COLUMNS = {
    "T0": harness.times("t0_"),
    "T1": harness.times(),
    "comm": lambda r: f"{r['comm_ms']:.0f}",
    "compute": lambda r: f"{r['compute_ms']:.0f}",
    "hidden": lambda r: f"{100 * r['hidden']:.0f} %",
}
SHAPE = ("root", "tbf", "rate", "{rate}", "burst", "256kb", "latency", "50ms")

# MPICH's UCX device detects that the hosts share memory; its OFI device does not
TCP = ("MPIR_CVAR_CH4_NETMOD=ofi", "FI_PROVIDER=tcp", "UCX_TLS=tcp,self")

# mpiexec calls this as `SCRIPT [-x] HOST COMMAND`, as it would ssh; a host's last number is its namespace's
LAUNCHER = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec {name}-${{host##*.}} sh -c "$*"
"""


def missing():
    """Return the reason why this machine cannot run network namespaces as hosts, or None if it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if absent:
        return f"no {' and no '.join(absent)}: apt-get install iproute2"
    name = f"sarlite-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"ip netns add: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def hidden(ms_prefetch_0, ms_prefetch_1, transfer_ms):
    """Return a dict for the result row: times, and the share of the transfer that prefetch 1 hides, from lists of ms of the repeats.

    The arguments have one value for each repeat. The entries are the times, and the share of the shorter of computing and
    transfer that prefetch 1 hides.
    """
    t0, t1, transfer = map(harness.summary, (ms_prefetch_0, ms_prefetch_1, transfer_ms))
    compute = t0["ms"] - transfer["ms"]
    return {"threads": 1, **t1, "peak_mib": None, "limit_fraction": None, **{f"t0_{key}": ms for key, ms in t0.items()},
            "comm_ms": transfer["ms"], "compute_ms": compute,
            "hidden": (t0["ms"] - t1["ms"]) / min(transfer["ms"], compute)}


def report_skipped(case, reason, path):
    """Print a results table that only states the `reason` why `case` was not measured, and write it to the file `path`."""
    keys = ("graph", "ranks", "threads", "ms", "ms_min", "ms_max", "peak_mib", "limit_fraction")
    row = {"case": case, **dict.fromkeys(keys), "skipped": reason}
    harness.report(case, [row], harness.named("case", "skipped"), path)


class Hosts:
    """Context manager that simulates `n` hosts by network namespaces, 10.77.0.1 to 10.77.0.n, each on a link of limited `rate`.

    Parameters
    ----------
    n : int
    rate : str
        Of each host's link, both ways, as `tc` reads it.

    Notes
    -----
    A host is a namespace with one end of a veth pair; the other end is on a bridge in a namespace of its own. A token
    bucket on both ends limits what each sends. Names hold the process id, and deleting a namespace deletes what is in
    it.
    """

    def __init__(self, n, rate="1gbit"):
        self.n, self.rate, self.name = n, rate, f"sarlite-{os.getpid()}"
        self.addresses = [f"10.77.0.{i}" for i in range(1, n + 1)]

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="sarlite-hosts-")
        self.script = Path(self._folder.name, "launch")
        self.script.write_text(LAUNCHER.format(name=self.name))
        self.script.chmod(0o700)
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for space in [f"{self.name}-{i}" for i in ("bridge", *range(1, self.n + 1))]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        self._folder.cleanup()

    def _make(self):
        bridge = f"{self.name}-bridge"
        _do("ip", "netns", "add", bridge)
        _do("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", bridge, "link", "set", "bridge", "up")
        for i, address in enumerate(self.addresses, 1):
            space, port = f"{self.name}-{i}", f"port{i}"
            _do("ip", "netns", "add", space)
            _do("ip", "-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _do("ip", "-n", bridge, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _do("ip", "-n", space, "link", "set", link, "up")
            shape = [word.format(rate=self.rate) for word in SHAPE]
            _do("tc", "-n", bridge, "qdisc", "add", "dev", port, *shape)
            _do("tc", "-n", space, "qdisc", "add", "dev", "eth0", *shape)

    def launcher(self, mpiexec_path, ranks_per_host=1):
        """Return the words to put before a command so that `mpiexec_path` starts it as `ranks_per_host` MPI ranks on each host."""
        first, hosts = self.addresses[0], ",".join(f"{a}:{ranks_per_host}" for a in self.addresses)
        return ("ip", "netns", "exec", f"{self.name}-1", "env", *TCP, mpiexec_path, "-launcher", "ssh",
                "-launcher-exec", str(self.script), "-localhost", first, "-hosts", hosts, "-n", str(ranks_per_host * self.n))


def _do(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
