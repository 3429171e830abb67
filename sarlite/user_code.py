"""Classes that a user defines in a file, named path/to/file.py:Class, and errors that quote the user's file."""

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
    """Tuple of the names that an option accepts; `in` is also True for any text of the form path/to/file.py:Class."""

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or (isinstance(value, str) and names_file(value))


def load_class(argument: str, spec: str, base: type = object) -> type:
    """Run the user's file and return the class in it that `spec`, a text path/to/file.py:Class, names. The class must derive from
    `base`; errors name `argument`, the option whose value is `spec`.

    Parameters
    ----------
    argument : str
        Name of the option, for errors.
    spec : str
        path/to/file.py:Class.
    base : type
        Class that the user's class must derive from.

    Raises
    ------
    ConfigError
        There is no such file or class, or running the file fails; the message quotes the file.

    Notes
    -----
    The module's name in `sys.modules` is the path of the file, so that no file hides a package of the same name.
    """
    path, _, name = spec.rpartition(":")
    if not os.path.isfile(path):
        raise ConfigError(f"{argument} {spec}: no file {path}", argument)
    module_spec = importlib.util.spec_from_file_location(os.path.abspath(path), path)
    assert module_spec is not None and module_spec.loader is not None  # true for every path that ends in .py
    module = sys.modules[module_spec.name] = importlib.util.module_from_spec(module_spec)
    with errors_of(spec, argument):
        module_spec.loader.exec_module(module)
    cls = getattr(module, name, None)
    classes = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
    derived = "" if base is object else f" that derives from {base.__module__.split('.')[1]}.{base.__name__}"
    if cls is None:
        choices = ", ".join(classes) or f"no class{derived}"
        raise ConfigError(f"{argument} {spec}: {path} has no class {name}; it has {choices}", argument)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(f"{argument} {spec}: {name} is not a class{derived}", argument)
    return cls


@contextmanager
def errors_of(spec: str, argument: str = "model") -> Iterator[None]:
    """Return a context that turns an exception of the user's file into a ConfigError that quotes the file's lines. `spec` is a text
    path/to/file.py:Class, the value of the option `argument`; with any other text nothing changes.

    Parameters
    ----------
    spec : str
        path/to/file.py:Class. With a text of another form the context changes nothing.
    argument : str
        Name of the option whose value is `spec`.
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
        raise ConfigError(f"{argument} {spec}:\n{quoted}", argument) from None  # hides the traceback through sarlite


def _quoted(error: Exception, path: str) -> str | None:
    """Return the traceback of `error` as text, limited to lines of the user's file `path`; None if the file is not at fault. The
    file is not at fault if it has no line in the traceback, or if it called sarlite and sarlite failed with an error other than a
    SarliteError.
    """
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
