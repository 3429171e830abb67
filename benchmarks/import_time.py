"""Measure how long `import sarlite` takes, and check that it does not load MPI. Target: under 0.5 s."""

import sys
import time

import harness

TARGET_SECONDS = 0.5


def seconds(code):
    """Return the seconds that a fresh process takes to run `code`."""
    begin = time.perf_counter()
    harness.python("-c", code)
    return time.perf_counter() - begin


def own_times(module):
    """Return [(microseconds of its own code, module's name), ...] for the modules that `import MODULE` loads, the slowest first."""
    code = f"""
import subprocess, sys
words = [sys.executable, "-X", "importtime", "-c", "import {module}"]
print(subprocess.run(words, capture_output=True, text=True).stderr)
"""
    fields = [line.removeprefix("import time:").split("|") for line in harness.python("-c", code).splitlines()
              if "|" in line]
    return sorted(((int(microseconds), name.strip()) for microseconds, _, name in fields[1:]), reverse=True)


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--top", type=int, default=8, help="modules to list")
    args = parser.parse_args()
    seconds("import sarlite")  # files into the page cache
    times = {code: [seconds(code) for _ in range(args.runs)] for code in ("pass", "import numpy", "import sarlite")}
    start = min(times["pass"])
    mpi = harness.python("-c", "import sys, sarlite; print('mpi4py' in sys.modules)").strip() == "True"
    rows = [{"code": code, "seconds": [value - start for value in values]} for code, values in times.items()]
    rows[-1]["imports_mpi4py"] = mpi
    columns = {
        "python -c": lambda r: repr(r["code"]),
        "ms beyond the start of python": lambda r: harness.spread(r["seconds"], 1e3, 0),
        "target": lambda r: f"{1e3 * TARGET_SECONDS:.0f}" if "sarlite" in r["code"] else None,
        "mpi4py": lambda r: {True: "imported", False: "not imported", None: None}[r.get("imports_mpi4py")],
    }
    harness.report(f"Import, median (min..max) of {args.runs} processes", rows, columns, args.json)
    top = [{"module": name, "microseconds": microseconds} for microseconds, name in own_times("sarlite")[: args.top]]
    harness.report("Largest own times, of one process", top,
                   {"module": lambda r: r["module"], "ms": lambda r: r["microseconds"] / 1e3})


if __name__ == "__main__":
    sys.exit(main())
