"""`python -m sarlite.info`: print versions and capabilities of sarlite on this machine; `--json` prints one object."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sarlite import kernels
from sarlite.comm import Solo
from sarlite.comm.launch import default_threads
from sarlite.command import Parser, run_command, show
from sarlite.errors import EXTRAS
from sarlite.types import JsonObject

ALWAYS = ("numpy", "scipy", "cffi", "threadpoolctl")  # packages that are needed without any extra
CPU_FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl")
_COMPILERS = (rb"GNU C\d+ [^\0]+", rb"clang version [^\0]+", rb"GCC: \([^\0]+")


def collect(extras: Mapping[str, Sequence[str]] = EXTRAS) -> JsonObject:
    """Return facts about this installation and this machine as a dict for JSON. `extras` maps each optional feature to the packages
    that it needs.

    Parameters
    ----------
    extras : dict of str to sequence of str
        Packages of each extra.

    Returns
    -------
    dict
        "versions" by package; "extras", the missing packages of each extra; "mpi", library and thread level; "kernels",
        instruction sets, threads and compiler; "blas", a dict for each BLAS library; "cpu"; and "memory" in bytes. None
        stands for facts that this machine does not provide.

    Notes
    -----
    If mpi4py is installed, the function initialises MPI.

    Examples
    --------
    >>> sorted(collect())
    ['blas', 'cpu', 'extras', 'kernels', 'memory', 'mpi', 'versions']
    """
    import threadpoolctl

    packages_shown = dict.fromkeys([*ALWAYS, *(package for packages in extras.values() for package in packages)])
    blas = [{key: library.get(key) for key in ("internal_api", "version", "num_threads", "architecture")}
            for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
    return {
        "versions": {"sarlite": sys.modules["sarlite"].__version__, "python": platform.python_version(),
                     **{name: _version(name) for name in packages_shown}},
        "extras": {extra: [name for name in packages if _version(name) is None] for extra, packages in extras.items()},
        "mpi": _mpi(),
        "kernels": {"instruction_set": kernels.instruction_set(), "instruction_sets": list(kernels.instruction_sets()),
                    "threads": kernels.threads(), "compiler": _compiler()},
        "blas": blas,
        "cpu": {"model": _cpuinfo("model name") or platform.processor() or platform.machine(),
                "cores": default_threads(Solo()),
                "features": [name for name in CPU_FEATURES if name in (_cpuinfo("flags") or "").split()]},
        "memory": {"bytes": _sysconf("SC_PHYS_PAGES") and _sysconf("SC_PHYS_PAGES") * _sysconf("SC_PAGE_SIZE"),
                   "page_bytes": _sysconf("SC_PAGE_SIZE"), "huge_pages": _huge_pages()},
    }


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi():
    if importlib.util.find_spec("mpi4py") is None:
        return None
    try:
        from sarlite.comm import mpi
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError when it finds no MPI library
        first = str(error).partition("\n")[0]  # then it lists what it tried
        return {"library": None, "thread_level": None, "error": first}
    return dict(zip(("library", "thread_level"), mpi.library()))


def _compiler():
    """Return the version string of the compiler that built the extension, read from the extension's file; None if the file has
    none. With debug information, the string includes the compiler's flags.
    """
    data = Path(importlib.util.find_spec("sarlite._native").origin).read_bytes()
    matches = (re.search(pattern, data) for pattern in _COMPILERS)
    return next((match[0].decode(errors="replace") for match in matches if match), None)


def _read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _cpuinfo(field):
    match = re.search(rf"^{field}\s*: (.*)$", _read("/proc/cpuinfo"), re.M)
    return match and match[1]


def _sysconf(name):
    return os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else None


def _huge_pages():
    """Return Linux's setting of transparent huge pages, such as "madvise"; None if the system has none."""
    match = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return match and match[1]


def text(facts: JsonObject) -> str:
    """Return the facts of `collect` as text, one line for each fact."""
    mpi, native, cpu, memory = (facts[name] for name in ("mpi", "kernels", "cpu", "memory"))
    rows = [(name, version or "not installed") for name, version in facts["versions"].items()]
    rows += [
        ("extras", "; ".join(extra if not missing else f"{extra} lacks {' '.join(missing)}"
                             for extra, missing in facts["extras"].items())),
        ("MPI", "none: mpi4py is not installed" if mpi is None else
         mpi.get("error") or f"{mpi['library']}, {mpi['thread_level']}"),
        ("kernels", f"{native['instruction_set']} of {', '.join(native['instruction_sets'])}; "
                    f"{native['threads']} threads"),
        ("compiler", _or_unknown(native["compiler"])),
        *(("BLAS", "{internal_api} {version}, {num_threads} threads, {architecture}".format(**blas))
          for blas in facts["blas"]),
        ("CPU", f"{cpu['model']}, {cpu['cores']} cores"),
        ("CPU features", " ".join(cpu["features"]) or "unknown"),
        ("memory", "unknown" if memory["bytes"] is None else f"{memory['bytes'] / 2**30:.1f} GiB"),
        ("pages", f"{_or_unknown(memory['page_bytes'])} bytes, transparent huge pages: {_or_unknown(memory['huge_pages'])}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _or_unknown(value):
    return "unknown" if value is None else value


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.info` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    return run_command(lambda: _main(argv))


def _main(argv):
    parser = Parser(prog="python -m sarlite.info", description="Show versions and capabilities of sarlite on this machine.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, facts = parser.parse_args(argv), collect()
    show(json.dumps(facts) if options.json else text(facts))


if __name__ == "__main__":
    sys.exit(main())
