"""The house rule: a module imports from floors below its own or from its own package, never up or across.

And no two files import each other.
"""

import ast
import configparser
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, MODELS = ROOT / "sarlite", ROOT / "models"
FLOORS = [
    {"errors", "keys", "profile", "types", "files", "lazy", "charts"},
    {"_native", "progress", "command"},
    {"kernels"},
    {"numerics"},
    {"tape", "graph", "comm"},
    {"sar"},
    {"minibatch", "propagation"},
    {"nn"},
    {"optim"},
    {"data"},
    {"models", "tasks"},
    {"train", "oracle", "info"},
    {"cli"},
    {"smooth", "predict", "estimate", "report", "interop"},
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
PUBLIC = {"sarlite", "sarlite.nn", "sarlite.fn", "sarlite.errors"}


def _imports(path, package):
    """Yield (line, dotted name) of everything a file imports; of `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


@cache
def imports(folder, name):
    """Return (path, line, dotted name) of every import below a folder that is the package `name`."""
    packages = {path: (name, *path.relative_to(folder).parent.parts) for path in sorted(folder.rglob("*.py"))}
    return [(path, line, target) for path, package in packages.items() for line, target in _imports(path, package)]


def _part(dotted):
    """The part of sarlite that a dotted name belongs to; None for other packages and for the package itself."""
    words = dotted.split(".")
    return words[1] if words[0] == "sarlite" and len(words) > 1 else None


def _breaks(part, target):
    """Whether a module of `part` may not import `target`."""
    other = _part(target)
    if other is None or other == part:
        return False
    return FLOOR_OF.get(other, -1) >= FLOOR_OF[part]



def test_every_part_has_a_floor():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} <= set(FLOOR_OF), "give the new part a floor in FLOORS"


def test_every_package_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py") if "models" not in path.parts}
    assert set(config["options"]["packages"].split()) == {*folders, "sarlite.models"}


def test_imports_go_down():
    found = []
    for path, line, target in imports(PACKAGE, "sarlite"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part != "__init__" and path.name != "__main__.py" and _breaks(part, target):
            found.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert not found, "\n".join(found)


def test_parts_do_not_import_the_whole_package():
    """`import sarlite` or `from sarlite import Graph` below would be a circle; `from sarlite import kernels` names a part."""
    found = []
    for path, line, target in imports(PACKAGE, "sarlite"):
        words = target.split(".")
        whole = words[0] == "sarlite" and len(words) == 2 and words[1] not in FLOOR_OF
        if whole and path != PACKAGE / "__init__.py":
            found.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert not found, "\n".join(found)


IMPORT_FOR_TYPES = {"sar"}
"""Packages whose imports under TYPE_CHECKING may still close a circle. Add no package to this list."""


def _file_imports(name, path, files):
    """Return the files that a file imports: also inside functions, and for types unless the list above allows it."""
    tree, found = ast.parse(path.read_text(), str(path)), set()
    for node in ast.walk(tree) if _part(name) in IMPORT_FOR_TYPES else ():
        for field in ("body", "orelse"):
            if isinstance(getattr(node, field, None), list):
                setattr(node, field, [inner for inner in getattr(node, field) if not _for_types(inner)])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & files
            found |= inner if len(inner) == len(node.names) else {*inner, node.module}
    return (found & files) - {name}


def _for_types(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def circles(files):
    """Return the files, by dotted name, that import each other, at however many steps; `files` is {name: path}."""
    names = set(files)
    reached = {name: _file_imports(name, path, names) for name, path in files.items()}
    while True:
        further = {name: found.union(*(reached[other] for other in found)) for name, found in reached.items()}
        if further == reached:
            return sorted(name for name, found in reached.items() if name in found)
        reached = further


def attached(tree):
    """Return the assignments in class bodies that bind a function of another module, by class."""
    imported = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
                for alias in node.names}
    found = []
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for assign in (node for node in owner.body if isinstance(node, ast.Assign)):
            values = assign.value.elts if isinstance(assign.value, ast.Tuple) else [assign.value]
            values = [value.args[0] if isinstance(value, ast.Call) and value.args else value for value in values]
            roots = {ast.unparse(value).partition(".")[0] for value in values if isinstance(value, (ast.Name, ast.Attribute))}
            if any(name in imported and not name.isupper() for name in roots):
                found.append(f"{owner.name}: {ast.unparse(assign)}")
    return found


def test_a_class_is_defined_in_one_file():
    paths = [path for name, path in _files().items() if not name.startswith(("sarlite.tape", "sarlite.oracle"))]
    found = [f"{path.relative_to(ROOT)}: {line}" for path in paths for line in attached(ast.parse(path.read_text()))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("lines, n", [
    ("from a import f\nclass C:\n    f = classmethod(f)", 1), ("import a\nclass C:\n    f, g = a.f, a.g", 1),
    ("from a import F\nclass C:\n    f = F", 0), ("class C:\n    def f(self): ...\n    g = f", 0),
])  # fmt: skip
def test_attached_methods_are_found(lines, n):
    assert len(attached(ast.parse(lines))) == n


def test_no_file_imports_for_types_alone():
    """A package's `__init__` may, whose names are imported when they are asked for."""
    found = [str(path.relative_to(ROOT)) for path in _files().values() if any(map(_for_types, ast.walk(ast.parse(path.read_text()))))]
    assert [path for path in found if not path.endswith("__init__.py")] in ([], ["sarlite/tape/arraylike.py"])


def _files():
    found = {}
    for folder, package in ((PACKAGE, "sarlite"), (MODELS, "sarlite.models")):
        for path in folder.rglob("*.py"):
            words = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def test_no_two_files_import_each_other():
    assert circles(_files()) == []


@pytest.mark.parametrize("lines, circle", [
    ("import sarlite.b", True), ("def f():\n    from sarlite import b", True), ("import os", False),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sarlite import b", True),
])  # fmt: skip
def test_circles_are_found(lines, circle, tmp_path):
    (tmp_path / "a.py").write_text(lines)
    (tmp_path / "b.py").write_text("from sarlite.c import d")
    (tmp_path / "c.py").write_text("import sarlite.a")
    files = {f"sarlite.{name}": tmp_path / f"{name}.py" for name in "abc"}
    assert circles(files) == (["sarlite.a", "sarlite.b", "sarlite.c"] if circle else [])


@pytest.mark.parametrize("part, target, breaks", [
    ("tape", "sarlite.kernels", False), ("graph", "sarlite.kernels", False), ("tape", "sarlite.tape.tensor", False),
    ("tape", "sarlite.nn", True), ("tape", "sarlite.comm", True), ("graph", "sarlite.sar.plan", True), ("sar", "sarlite.nn", True),
    ("nn", "sarlite.optim", True), ("kernels", "sarlite.tape", True), ("data", "sarlite.graph.edges", False),
    ("train", "sarlite.models", False), ("sar", "sarlite.models", True), ("nn", "numpy", False),
    ("errors", "sarlite.profile", True), ("comm", "sarlite.nowhere", False),
])  # fmt: skip
def test_the_rule_itself(part, target, breaks):
    assert _breaks(part, target) is breaks


def test_relative_imports_are_resolved(tmp_path):
    (tmp_path / "inner").mkdir()
    lines = ["from . import b", "from .b import c", "from .. import nn", "from ..nn import layers", "import os.path"]
    (tmp_path / "inner" / "a.py").write_text("\n".join(lines))
    found = [target for _, _, target in imports(tmp_path, "sarlite")]
    assert found == ["sarlite.inner", "sarlite.inner.b", "sarlite.inner.b", "sarlite.inner.b.c", "sarlite", "sarlite.nn",
                     "sarlite.nn", "sarlite.nn.layers", "os.path"]  # fmt: skip


def _importers(prefix):
    everything = [*imports(PACKAGE, "sarlite"), *imports(MODELS, "sarlite.models")]
    return {str(path.relative_to(ROOT)) for path, _, target in everything if f"{target}.".startswith(f"{prefix}.")}


def test_only_the_mpi_communicator_imports_mpi4py():
    assert _importers("mpi4py") == {"sarlite/comm/mpi.py", "sarlite/comm/mpi_transfers.py"}


def test_only_one_module_imports_the_compiled_module():
    assert _importers("sarlite._native") == {"sarlite/kernels/native.py"}


def test_models_import_public_names_alone():
    found = []
    for path, line, target in imports(MODELS, "sarlite.models"):
        words = target.split(".")
        if words[0] != "sarlite" or target.startswith("sarlite.models"):
            continue
        owner = target if target in PUBLIC else ".".join(words[:-1])
        if owner not in PUBLIC or (owner == "sarlite" and target != "sarlite" and words[1] in FLOOR_OF and target not in PUBLIC):
            found.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert not found, "\n".join(found)


def _loaded(statement, names):
    """Which of `names` a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*[name for name in {names!r} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_importing_sarlite_is_light():
    heavy = ["mpi4py", "scipy", "scipy.sparse", "pymetis", "tqdm", "safetensors", "hypothesis"]
    assert _loaded("import sarlite", heavy) == []
    assert _loaded("import sarlite; import sarlite.models; import sarlite.comm.threads; import sarlite.comm.launch", heavy) == []
    assert _loaded("import mpi4py, scipy.sparse", heavy) == ["mpi4py", "scipy", "scipy.sparse"]


def test_the_oracle_needs_few_parts():
    """Neither ranks nor tape nor layers; and pytest loads the plugin in everybody's tests, so that it loads nothing."""
    others = ["mpi4py", "torch", "scipy", *(f"sarlite.{part}" for part in ("comm", "tape", "sar", "nn", "train", "data"))]
    modules = ", ".join(f"sarlite.oracle.{path.stem}" for path in sorted((PACKAGE / "oracle").glob("*.py")) if path.stem != "__main__")
    assert _loaded(f"import {modules.replace('.__init__', '')}", others) == []
    assert _loaded("import sarlite.oracle", ["numpy", "scipy", *others]) == []


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
