"""List of the modules whose docstrings have examples, for the tests that run the examples."""

from pathlib import Path

import sarlite

FOLDER = Path(sarlite.__file__).parent
NOT_INSTALLED = {"sarlite.interop.torch": "PyTorch"}
"""Modules whose examples need a package that the tests do without."""


def modules_with_examples():
    """Return the names of those modules, in sarlite or among the models, whose source contains a docstring example."""
    files = [(path.relative_to(FOLDER.parent), path) for path in FOLDER.rglob("*.py") if path.relative_to(FOLDER).parts[0] != "models"]
    files += [(Path("sarlite/models") / path.name, path) for path in (FOLDER.parent / "models").glob("*.py")]
    names = {".".join(name.with_suffix("").parts).removesuffix(".__init__") for name, path in files if ">>> " in path.read_text()}
    return sorted(names - NOT_INSTALLED.keys())
