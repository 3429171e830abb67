"""`python -m sarlite.info`: versions and capabilities of sarlite on this machine. `--json` prints one object."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sarlite import kernels
from sarlite.comm import Solo
from sarlite.comm.launch import default_threads
from sarlite.command import Parser, returns_status, run_command, show
from sarlite.errors import EXTRAS

ALWAYS = ("numpy", "scipy", "cffi", "threadpoolctl")  # packages that are needed without any extra
CPU_FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl")
_COMPILERS = (rb"GNU C\d+ [^\0]+", rb"clang version [^\0]+", rb"GCC: \([^\0]+")


def collect(extras: Mapping[str, Sequence[str]] = EXTRAS) -> dict[str, Any]:
    """Return what there is to know, JSON-able by `text`'s names; None for what this machine does not tell.

    "extras" has for each extra the packages that are missing, none where it is installed.

    Parameters
    ----------
    extras : dict of str to sequence of str
        The packages of each extra.

    Notes
    -----
    Loads MPI where mpi4py is installed, and so initialises it, as training on ranks does.
    """
    import threadpoolctl

    wanted = dict.fromkeys([*ALWAYS, *(package for packages in extras.values() for package in packages)])
    blas = [{key: found.get(key) for key in ("internal_api", "version", "num_threads", "architecture")}
            for found in threadpoolctl.threadpool_info() if found["user_api"] == "blas"]
    return {
        "versions": {"sarlite": sys.modules["sarlite"].__version__, "python": platform.python_version(),
                     **{name: _version(name) for name in wanted}},
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
    """Return the compiler's identification string in the compiled module, or None.

    With debug information the string includes the compiler flags.
    """
    data = Path(importlib.util.find_spec("sarlite._native").origin).read_bytes()
    found = (re.search(pattern, data) for pattern in _COMPILERS)
    return next((match[0].decode(errors="replace") for match in found if match), None)


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
    """Return Linux's setting of transparent huge pages, the word in brackets."""
    match = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return match and match[1]


def text(found: dict[str, Any]) -> str:
    """Return `collect`'s result as lines for people."""
    known = lambda value: "unknown" if value is None else value  # noqa: E731
    mpi, native, cpu, memory = (found[name] for name in ("mpi", "kernels", "cpu", "memory"))
    rows = [(name, version or "not installed") for name, version in found["versions"].items()]
    rows += [
        ("extras", "; ".join(extra if not missing else f"{extra} lacks {' '.join(missing)}"
                             for extra, missing in found["extras"].items())),
        ("MPI", "none: mpi4py is not installed" if mpi is None else
         mpi.get("error") or f"{mpi['library']}, {mpi['thread_level']}"),
        ("kernels", f"{native['instruction_set']} of {', '.join(native['instruction_sets'])}; "
                    f"{native['threads']} threads"),
        ("compiler", known(native["compiler"])),
        *(("BLAS", "{internal_api} {version}, {num_threads} threads, {architecture}".format(**blas))
          for blas in found["blas"]),
        ("CPU", f"{cpu['model']}, {cpu['cores']} cores"),
        ("CPU features", " ".join(cpu["features"]) or "unknown"),
        ("memory", "unknown" if memory["bytes"] is None else f"{memory['bytes'] / 2**30:.1f} GiB"),
        ("pages", f"{known(memory['page_bytes'])} bytes, transparent huge pages: {known(memory['huge_pages'])}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


@returns_status
def main(argv: list[str] | None = None) -> int:
    """Print what sarlite runs on, as the command line says; return the exit status."""
    return run_command(lambda: _main(argv))


def _main(argv):
    parser = Parser(prog="python -m sarlite.info", description="Show what sarlite runs on here.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, found = parser.parse_args(argv), collect()
    show(json.dumps(found) if options.json else text(found))


if __name__ == "__main__":
    sys.exit(main())
