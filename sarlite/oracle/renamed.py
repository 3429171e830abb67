"""Former names of public functions and classes: each still works, and warns with the new name."""

import warnings
from collections.abc import Mapping
from importlib import import_module


def warn_renamed(name: str, new: str, stacklevel: int = 3) -> None:
    """Warn that `name` is the former name of `new`. `stacklevel`, as in `warnings.warn`, points at the caller of the caller by default."""
    warnings.warn(f"{name} is now {new}", FutureWarning, stacklevel=stacklevel)


def renamed(module: str, name: str, new_names: Mapping[str, str]) -> object:
    """Return the object that the former `name` in `module` stands for, and warn that the name has changed. `new_names` is {former
    name: module and new name}, such as "sarlite.oracle.parts.RankPart".

    Parameters
    ----------
    module : str
        Module that is asked for `name`.
    name : str
    new_names : dict of str to str
        Module and new name of each former name, such as "sarlite.oracle.parts.RankPart".

    Raises
    ------
    AttributeError
        `name` is no former name.
    """
    if name not in new_names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, _, new = new_names[name].rpartition(".")
    warn_renamed(name, new, 5)
    return getattr(import_module(home), new)


def __getattr__(name: str) -> object:
    return renamed(__name__, name, {"Part": "sarlite.oracle.parts.RankPart"})
