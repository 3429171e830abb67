"""Classes in a file of the user's, named path/to/file.py:Class, and errors that quote the file."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sarlite.errors import ConfigError, PeerError, SarliteError

_MOST_LINES = 20
_SARLITE = str(Path(__file__).parent) + os.sep


def names_file(spec: str) -> bool:
    """Return True if `spec` has the form path/to/file.py:Class."""
    path, colon, _ = spec.rpartition(":")
    return bool(colon) and path.endswith(".py")


class NamesOrFile(tuple[str, ...]):
    """Names to choose from. The form path/to/file.py:Class is a choice, too, but not listed."""

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or (isinstance(value, str) and names_file(value))


def load_class(argument: str, spec: str, base: type = object) -> type:
    """Run a file and return a class of it.

    Parameters
    ----------
    argument : str
        Name of the option, with which a message begins.
    spec : str
        path/to/file.py:Class.
    base : type
        Class that the class must derive from.

    Raises
    ------
    ConfigError
        There is no such file or class, or the file fails; the message quotes the file.

    Notes
    -----
    The module goes by its whole path in `sys.modules`, so that no file hides a package of the same name.
    """
    path, _, name = spec.rpartition(":")
    if not os.path.isfile(path):
        raise ConfigError(f"{argument} {spec}: no file {path}", argument)
    found = importlib.util.spec_from_file_location(os.path.abspath(path), path)
    assert found is not None and found.loader is not None  # it ends in .py
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    with errors_of(spec, argument):
        found.loader.exec_module(module)
    cls = getattr(module, name, None)
    own = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
    what = "" if base is object else f" that derives from {base.__module__.split('.')[1]}.{base.__name__}"
    if cls is None:
        known = ", ".join(own) or f"no class{what}"
        raise ConfigError(f"{argument} {spec}: {path} has no class {name}; it has {known}", argument)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(f"{argument} {spec}: {name} is no class{what}", argument)
    return cls


@contextmanager
def errors_of(spec: str, argument: str = "model") -> Iterator[None]:
    """Return a context that converts exceptions from a user's file to a ConfigError quoting lines of that file.

    Parameters
    ----------
    spec : str
        path/to/file.py:Class; with any other text nothing is changed.
    argument : str
        Name of the option that has `spec`.
    """
    try:
        yield
    except PeerError:
        raise
    except Exception as error:
        path = spec.rpartition(":")[0]
        quoted = _quoted(error, path) if path.endswith(".py") else None
        if quoted is None:
            raise
        raise ConfigError(f"{argument} {spec}:\n{quoted}", argument) from None  # the rest of it is sarlite's


def _quoted(error, path):
    """The traceback's lines of the file and the error; None where it came past the file, or is sarlite's own."""
    every = traceback.extract_tb(error.__traceback__)
    places = [k for k, frame in enumerate(every) if _same(frame.filename, path)]
    if isinstance(error, SyntaxError) and _same(error.filename, path):
        return "".join(traceback.format_exception_only(error)).rstrip()
    if not places:
        return None
    ours = any(frame.filename.startswith(_SARLITE) for frame in every[places[-1] + 1:])
    if ours and not isinstance(error, SarliteError):
        return None
    lines = [*traceback.format_list([every[k] for k in places[-_MOST_LINES:]]), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


def _same(filename, path):
    return filename is not None and Path(filename).resolve() == Path(path).resolve()
