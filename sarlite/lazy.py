"""Public names of a package that are imported when they are first asked for (PEP 562)."""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package whose public names `_homes` stand in other modules.

    A module of the package that has a public name's name does not cover the public name.
    """

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name not in self._homes:
            return _module(self.__name__, name)
        found = self.__dict__[name] = getattr(__import__(self._homes[name], fromlist=[name]), name)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._homes or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self).get("__all__", ()), *self._homes} - {"_homes"})


def names(package: str, homes: Mapping[str, str]) -> None:
    """Make public names of other modules available in a package, as `from home import name` would.

    Parameters
    ----------
    package : str
        The `__name__` of the package that calls this.
    homes : dict of str to str
        The module of each public name. The package's own modules need no line: `package.module` imports them.
    """
    module = sys.modules[package]
    vars(module)["_homes"] = homes
    module.__class__ = _Package


def _module(package, name):
    whole = f"{package}.{name}"
    try:
        return import_module(whole)
    except ModuleNotFoundError as error:
        if error.name != whole:
            raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
