"""Measure sarlite and other libraries in alternation, with one process for each measurement.

The environment variable SARLITE_PEERS names a folder with an environment for each library:

| environment | packages | library |
|---|---|---|
| `DIR/dgl/bin/python` | dgl, torch, scipy | `dgl`, `torch`, `scipy` |
| `DIR/pyg/bin/python` | torch, torch_geometric, without torch-sparse and pyg-lib | `pyg`, and `pyg-compiled` by `torch.compile` |
| `DIR/mkl/bin/python` | numpy, mkl | `mkl`, sums alone |

A script runs a library: `peers_pyg.py` and `peers_mkl.py` of this folder, and for the others `peer.py`, in DIR or at
`../shared/peers/` beside the checkout:

    python SCRIPT LIBRARY CASE GRAPH.npz --threads T --repeats N ...

The script prints a line of JSON with ms, ms_min, ms_max (of at most N runs after one that warms up) and peak_mib
(resident, above the moment when graph, inputs and model exist). Without the variable only sarlite is measured.
"""

import os
import resource
import statistics
import subprocess
from pathlib import Path

import harness

ENVIRONMENTS = {"dgl": "dgl", "pyg": "pyg", "pyg-compiled": "pyg", "torch": "dgl", "scipy": "dgl", "mkl": "mkl"}
"""Name of the folder with each library's environment."""
SCRIPTS = {"pyg": "peers_pyg.py", "pyg-compiled": "peers_pyg.py", "mkl": "peers_mkl.py"}
"""The libraries that a script of this folder runs; `peer.py` runs the others."""
TIMEOUT = 3600


def find(requested, able_libraries):
    """Return {name: command} of the `requested` libraries (None: all) that are installed and among `able_libraries`, which have the case.

    Parameters
    ----------
    requested : list of str or None
        Names from `--peers`; None: all libraries that are installed.
    able_libraries : tuple of str
        The libraries that have this case; other libraries are left out.

    Raises
    ------
    SystemExit
        A library was asked for and is not installed, or its name is unknown.
    """
    if requested == ["none"]:
        return {}
    folder = os.environ.get("SARLITE_PEERS")
    present = {name: Path(folder, home, "bin", "python") for name, home in ENVIRONMENTS.items()} if folder else {}
    present = {name: python for name, python in present.items() if python.exists()}
    missing = [name for name in requested or () if name not in present]
    if missing:
        raise SystemExit(f"--peers: {', '.join(missing)} not found in SARLITE_PEERS ({folder or 'not set'})")
    chosen = [name for name in (requested or present) if name in able_libraries]
    return {name: [str(present[name]), str(_script(folder, name)), name] for name in chosen}


def _script(folder, name):
    if name in SCRIPTS:
        return Path(__file__).with_name(SCRIPTS[name])
    places = [Path(folder, "peer.py"), Path(__file__).parents[2] / "shared" / "peers" / "peer.py"]
    for place in places:
        if place.exists():
            return place
    raise SystemExit(f"no peer.py for the libraries in SARLITE_PEERS: neither {places[0]} nor {places[1]}")


def run(command, arguments):
    """Run a library's process, `command` with `arguments`; return the measurement that it prints as JSON, or {"error": last line}."""
    line = [*command, *map(str, arguments)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT, preexec_fn=_stay_in_memory)
        if done.returncode == 0:
            return harness.last_json(done.stdout)
        return _failed(line, done.stderr or f"status {done.returncode}")
    except subprocess.TimeoutExpired:
        return _failed(line, f"not done in {TIMEOUT} s")


def _failed(line, text):
    last = text.strip().splitlines()[-1][:200]
    harness.note(f"{' '.join(line)}\nfailed: {last}")
    return {"error": last}


def _stay_in_memory():
    """Limit the address space to the free memory, so that a library that wants more fails by itself.

    Without the limit the system could end another process.
    """
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    limit = int(0.9 * 1024 * int(fields["MemAvailable"].split()[0]))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def pool(results):
    """Combine the measurements `results` of several processes into one: median of medians, extreme minimum, maximum and peak.

    `results` are measurements of one case.
    """
    failed = [result for result in results if "error" in result]
    if failed:
        return {"ms": None, "ms_min": None, "ms_max": None, "peak_mib": None, "error": failed[0]["error"]}
    values = {key: [result[key] for result in results] for key in results[0]}
    medians = {key: statistics.median(samples) for key, samples in values.items() if key == "ms" or key.endswith("_ms")}
    return {**medians, "ms_min": min(values["ms_min"]), "ms_max": max(values["ms_max"]),
            "peak_mib": max(values["peak_mib"])}


def compare(args, row: dict, own_arguments: list, peer_arguments: list, peer_commands: dict, machine_limits):
    """Measure sarlite by `own_arguments` and each library in alternation; return `row` with the results, a copy for each library.

    Without peers the result is a single row.

    Parameters
    ----------
    args : Namespace
        From `harness.suite_parser`.
    row : dict
        `case`, `graph` and further keys that describe the measurement.
    own_arguments, peer_arguments : list
        Arguments of this Python, and arguments of peer.py after the library's name; `--threads` and `--repeats` are
        added to both.
    peer_commands : dict
        From `find`.
    machine_limits : limits.Allowed
    """
    counts = ["--threads", args.threads, "--repeats", args.repeats]
    mine, theirs = [], {name: [] for name in peer_commands}
    for _ in range(args.rounds):
        mine.append(harness.last_json(harness.python(*own_arguments, *counts)))
        for name, results in theirs.items():
            if not (results and "error" in results[-1]):
                results.append(run(peer_commands[name], [*peer_arguments, *counts]))
    rows = beside(row, args.threads, pool(mine), {name: pool(results) for name, results in theirs.items()}, machine_limits)
    others_ms = "".join(f", {r['peer']} {r['peer_ms'] or 'failed'}" for r in rows if r["peer"])
    harness.note(f"{' '.join(map(str, row.values()))}: {rows[0]['ms']:.1f} ms{others_ms}")
    return rows


def beside(row, threads, own_result, peer_results, machine_limits):
    """Return copies of `row`, one for each library in `peer_results`, each with sarlite's `own_result` and the library's result.

    Without peers the list has one row with sarlite alone. `machine_limits` is a `limits.Allowed`.
    """
    base = {**row, "ranks": 1, "threads": threads, **own_result, **machine_limits.shares(own_result["ms"])}
    rows = [{**base, "peer": name, **{f"peer_{key}": value for key, value in result.items()},
             "ratio": result["ms"] / own_result["ms"] if result["ms"] else None} for name, result in peer_results.items()]
    return rows or [{**base, "peer": None, "peer_ms": None, "peer_peak_mib": None, "ratio": None}]
