"""The house rules of imports: modules import from lower floors alone, no modules import each other, no file name repeats."""

import ast
import configparser
import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE, MODELS = ROOT / "sarlite", ROOT / "models"
FLOORS = [
    {"errors", "keys", "types", "files", "lazy", "loading", "profile"},
    {"_native", "progress", "command", "user_code"},
    {"kernels"},
    {"structure", "numerics", "comm"},
    {"tape"},
    {"schedule"},
    {"operators"},
    {"graph"},
    {"minibatch", "nn"},
    {"optim"},
    {"data"},
    {"tasks"},
    {"models", "oracle"},
    {"train"},
    {"cli", "interop"},
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
# `python -m sarlite.NAME`, and nothing else, goes through these modules into sarlite.cli.
DOORS = {"predict", "smooth", "estimate", "report", "sweep", "verify", "explain", "info", "data.__main__", "train.__main__"}
PUBLIC = {"sarlite", "sarlite.nn", "sarlite.fn", "sarlite.errors"}
# Known exceptions to the rules. The tests fail until an exception that no module needs any more is removed.
UPWARD: set[tuple[str, str]] = set()
CIRCLES: tuple[tuple[str, ...], ...] = ()


def imports_of(path, package):
    """Yield (line, module, name or None) of every import in a file, also inside functions and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def module_name(path, folder, package):
    """Return the dotted name of a file below the folder of a package."""
    words = [package, *path.relative_to(folder).with_suffix("").parts]
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


@cache
def modules():
    """Return {dotted name: path} of the modules of sarlite, models included."""
    files = {module_name(path, PACKAGE, "sarlite"): path for path in sorted(PACKAGE.rglob("*.py"))
             if path.relative_to(PACKAGE).parts[0] != "models"}
    return {**files, **{module_name(path, MODELS, "sarlite.models"): path for path in sorted(MODELS.rglob("*.py"))}}


def import_graph(files):
    """Return {module: {imported module: line}} between the modules of `files`, which is {dotted name: path}."""
    graph = {}
    for name, path in files.items():
        package = tuple(name.split(".") if path.stem == "__init__" else name.split(".")[:-1])
        graph[name] = {}
        for line, module, imported in imports_of(path, package):
            target = f"{module}.{imported}" if f"{module}.{imported}" in files else module
            if target in files and target != name:
                graph[name].setdefault(target, line)
    return graph


def circles(graph):
    """Return the sets of two or more modules that reach each other (the strongly connected components)."""
    number, lowest, stack, components = {}, {}, [], []

    def visit(name):
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for target in graph[name]:
            if target not in number:
                visit(target)
            if target in stack:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == number[name]:
            members = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(members) > 1:
                components.append(members)

    for name in graph:
        if name not in number:
            visit(name)
    return components


def part_of(module):
    """Return the package of sarlite, or the module beside the packages, to which a module belongs; None for others."""
    words = module.split(".")
    return words[1] if words[0] == "sarlite" and len(words) > 1 else None


def is_upward(module, target):
    """Return True if `module` stands on the floor of `target` or below, and they are not of the same package."""
    part, other = part_of(module), part_of(target)
    return other is not None and part != other and FLOOR_OF[other] >= FLOOR_OF[part]


def is_door(module):
    return module.removeprefix("sarlite.") in DOORS


def test_every_package_has_a_floor():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - DOORS - {"__init__"} <= set(FLOOR_OF), "give the new package a floor in FLOORS"


def test_every_package_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py") if "models" not in path.parts}
    assert set(config["options"]["packages"].split()) == {*folders, "sarlite.models"}


def test_imports_go_down():
    graph = import_graph(modules())
    upward = {(name, target) for name, targets in graph.items() for target in targets
              if name != "sarlite" and target != "sarlite" and not is_door(name) and (is_door(target) or is_upward(name, target))}
    assert sorted(upward - UPWARD) == [], "these imports go up or across"
    assert sorted(UPWARD - upward) == [], "these lines of UPWARD are not needed any more"


def test_no_modules_import_each_other():
    components = circles(import_graph(modules()))
    new = [sorted(circle) for circle in components if not any(circle <= set(listed) for listed in CIRCLES)]
    assert new == [], "these modules import each other"
    members = set().union(*components)
    mended = {listed: sorted(set(listed) - members) for listed in CIRCLES if not set(listed) <= members}
    assert mended == {}, "these modules are in no circle any more: take them out of CIRCLES"


@pytest.mark.parametrize("lines, is_circle", [
    ("import sarlite.b", True), ("def f():\n    from sarlite import b", True), ("from . import b", True), ("from .b import x", True),
    ("import os", False),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sarlite import b", True),
])  # fmt: skip
def test_circles_are_found(lines, is_circle, tmp_path):
    (tmp_path / "a.py").write_text(lines)
    (tmp_path / "b.py").write_text("from sarlite.c import d")
    (tmp_path / "c.py").write_text("import sarlite.a")
    (tmp_path / "d.py").write_text("import sarlite.a")
    files = {f"sarlite.{name}": tmp_path / f"{name}.py" for name in "abcd"}
    assert circles(import_graph(files)) == ([{"sarlite.a", "sarlite.b", "sarlite.c"}] if is_circle else [])


@pytest.mark.parametrize("module, target, upward", [
    ("tape.x", "kernels", False), ("structure.x", "kernels", False), ("tape.x", "tape.y", False), ("tape.x", "nn", True),
    ("tape.x", "comm", False), ("comm.x", "tape", True), ("structure.x", "operators.y", True), ("operators.x", "nn", True),
    ("nn.x", "minibatch.y", True), ("kernels.x", "tape", True), ("data.x", "structure.edges", False), ("train.x", "models", False),
    ("train.x", "cli.y", True), ("oracle.x", "models", True),
])  # fmt: skip
def test_upward_imports_are_found(module, target, upward):
    assert is_upward(f"sarlite.{module}", f"sarlite.{target}") is upward
    assert not is_upward(f"sarlite.{module}", "numpy.linalg")


def test_modules_do_not_import_the_whole_package():
    """`from sarlite import Graph` in a module below would be a circle; `from sarlite import kernels` names a package."""
    allowed = {"sarlite.models", "sarlite.cli", "sarlite.interop"}
    importing = {name for name, targets in import_graph(modules()).items()
                 if "sarlite" in targets and ".".join(name.split(".")[:2]) not in allowed}
    assert importing == set()


def repeats(files):
    """Return the file names that several modules have, with their paths."""
    by_name = defaultdict(list)
    for path in files:
        if path.name not in ("__init__.py", "__main__.py", "conftest.py"):
            by_name[path.name].append(str(path))
    return {name: paths for name, paths in by_name.items() if len(paths) > 1}


def test_no_two_modules_share_a_file_name():
    folders = ("sarlite", "models", "tests", "benchmarks", "examples")
    files = {path.resolve().relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py")}
    assert repeats(sorted(files)) == {}
    assert repeats([Path("a/x.py"), Path("b/x.py"), Path("a/__init__.py"), Path("b/__init__.py")]) == {"x.py": ["a/x.py", "b/x.py"]}


def test_a_folder_of_tests_has_at_most_30_files():
    by_folder = defaultdict(int)
    for path in (ROOT / "tests").rglob("*.py"):
        by_folder[path.parent] += path.name != "__init__.py"
    assert {str(folder): n for folder, n in by_folder.items() if n > 30} == {}


def importers(prefix):
    """Return the files that import a module or anything in it."""
    files = set()
    for path in modules().values():
        for _, module, name in imports_of(path, ()):
            if f"{module}.".startswith(f"{prefix}.") or f"{module}.{name}" == prefix:
                files.add(str(path.relative_to(ROOT)))
    return files


def test_only_the_mpi_communicator_imports_mpi4py():
    assert importers("mpi4py") == {"sarlite/comm/mpi.py", "sarlite/comm/mpi_transfers.py"}


def test_only_one_module_imports_the_compiled_module():
    assert importers("sarlite._native") == {"sarlite/kernels/native.py"}


def test_models_import_public_names_alone():
    private = []
    for path in MODELS.rglob("*.py"):
        for line, module, name in imports_of(path, ("sarlite", "models")):
            if module.split(".")[0] != "sarlite" or module.startswith("sarlite.models"):
                continue
            whole = f"{module}.{name}"
            if module not in PUBLIC or (module == "sarlite" and name in FLOOR_OF and whole not in PUBLIC):
                private.append(f"{path.relative_to(ROOT)}:{line} imports {whole}")
    assert private == []


def loaded(statement, names):
    """Return the members of `names` that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*[name for name in {names!r} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_importing_sarlite_is_light():
    heavy = ["mpi4py", "scipy", "scipy.sparse", "pymetis", "tqdm", "safetensors", "hypothesis"]
    assert loaded("import sarlite", heavy) == []
    assert loaded("import sarlite; import sarlite.models; import sarlite.comm.threads; import sarlite.comm.launch", heavy) == []
    assert loaded("import mpi4py, scipy.sparse", heavy) == ["mpi4py", "scipy", "scipy.sparse"]


def test_the_oracle_needs_few_packages():
    """The oracle needs no ranks, no tape and no layers. pytest loads its plugin in all tests, so the plugin imports little."""
    others = ["mpi4py", "torch", "scipy", *(f"sarlite.{part}" for part in ("comm", "tape", "graph", "nn", "train", "data", "cli"))]
    stems = sorted(path.stem for path in (PACKAGE / "oracle").glob("*.py") if path.stem not in ("__main__", "__init__"))
    assert loaded(f"import {', '.join(f'sarlite.oracle.{stem}' for stem in stems)}", others) == []
    assert loaded("import sarlite.oracle", ["numpy", "scipy", *others]) == []


def test_public_names_are_found_when_asked_for():
    import sarlite
    from sarlite import oracle

    for package in (sarlite, oracle):
        assert set(package.__all__) <= set(dir(package)) and all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="module 'sarlite' has no attribute 'Grahp'"):
        _ = sarlite.Grahp


def test_a_module_does_not_cover_the_public_name_it_is_called_by(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lazily").mkdir()
    (tmp_path / "lazily" / "__init__.py").write_text("from sarlite import lazy\nlazy.names(__name__, {'check': 'lazily.check'})")
    (tmp_path / "lazily" / "check.py").write_text("def check(): return 1")
    import lazily
    from lazily.check import check

    assert lazily.check is check and lazily.check() == 1
