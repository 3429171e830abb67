"""Public names of a package whose modules are imported when a name is first used (PEP 562)."""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """Package whose public names are imported at their first use; `_homes` maps each name to the module that defines it. Importing a
    submodule that is called like a public name does not replace the public name.
    """

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name not in self._homes:
            return _module(self.__name__, name)
        value = self.__dict__[name] = getattr(__import__(self._homes[name], fromlist=[name]), name)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._homes or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self).get("__all__", ()), *self._homes} - {"_homes"})


def names(package: str, homes: Mapping[str, str]) -> None:
    """Make the public names of `package` available without importing their modules. `homes` maps each name to its module, which is
    imported at the first use of the name.

    Parameters
    ----------
    package : str
        `__name__` of the package that calls this function.
    homes : dict of str to str
        Module that defines each public name. Modules of the package itself need no entry: `package.module` imports
        them.
    """
    module = sys.modules[package]
    vars(module)["_homes"] = homes
    module.__class__ = _Package


def _module(package, name):
    """Import and return the module `name` of a package; raise an AttributeError if there is none."""
    full_name = f"{package}.{name}"
    try:
        return import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:
            raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
