"""Writer of a directory that appears whole or not at all: .npy files in pieces, meta.json last, then one rename."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from pathlib import Path

from sarlite.data import npyfile, scratch
from sarlite.errors import ConfigError, regular, writing
from sarlite.files import atomic_write, private_folder, sync_folder
from sarlite.progress import Step

META = "meta.json"
_ROOTS = re.compile("(nodes|edges|names)/")


class DirectoryWriter:
    """Context manager that writes a data set's directory; the directory appears only when `finish` is called.

    All files are written to a temporary directory beside `directory` and fsynced. A rename then gives the temporary
    directory its final name. Whatever fails, `directory` is absent, the old data set, or the new one. With `overwrite` the
    old data set is first renamed to `.NAME.old-*`; only a process that ends between the two renames leaves it there.
    Leftovers of a killed process are removed by the next writer. A data set that is replaced stays locked during the context,
    so a caller that reads the data set it replaces opens it inside the context.

    Parameters
    ----------
    directory : path
        A symbolic link is followed: the directory that it points to is replaced.
    overwrite : bool
        If True, replace an existing native directory. Any other existing path is refused, except an empty directory.
    step : progress.Step, optional
        Counts the bytes that are written.

    Attributes
    ----------
    step : progress.Step
        Counter for the arrays that are started from now on.
    records : dict of str to dict
        Records of the files by name, as `npyfile.Stream` makes them, once `finish` has closed the files.

    Raises
    ------
    ConfigError
        If `directory` exists and may not be replaced, or, on entering the context, if another process uses it.
    DataError
        From every method, if a file cannot be written. The message names the file.
    """

    def __init__(self, directory, *, overwrite=False, step=None):
        self.directory, self._overwrite = Path(os.path.realpath(directory)), overwrite
        self.records, self._files = {}, {}
        _check_replaceable(self.directory, overwrite)
        self._held, self.step = contextlib.ExitStack(), step or Step("write")

    def __enter__(self):
        with self._held, writing(self.directory):
            self._held.enter_context(scratch.locked(self.directory / META, exclusive=True))
            _remove_old(self.directory)
            self._temporary = self._held.enter_context(private_folder(self.directory.parent))
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *error):
        for file in self._files.values():
            file.abandon()
        self._held.close()

    def start(self, name, shape, dtype):
        """Start the file `name`.npy for an array of `shape` and `dtype`, and return its writer, an `npyfile.Stream`. Several files
        may be open at once.
        """
        with writing(self.directory / f"{name}.npy"):
            path = self._temporary / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = npyfile.Stream(path, shape, dtype, self.directory / f"{name}.npy", self.step)
        return self._files[name]

    def finish(self, meta):
        """Close all files, write meta.json and rename the directory to its final name. `meta(records)` returns the dict for
        meta.json; records are dtype, shape and sha256 by file.

        Parameters
        ----------
        meta : callable
            meta(records) returns the content of meta.json, given the records of the files by name.
        """
        for name, file in self._files.items():
            with writing(file.shown):
                file.close()
            self.records[name] = file.record
        with writing(self.directory / META):
            write_meta(self._temporary, meta(self.records))
            for folder in {(self._temporary / name).parent for name in self._files}:
                while folder != self._temporary:
                    sync_folder(folder)
                    folder = folder.parent
            sync_folder(self._temporary)
        _check_replaceable(self.directory, self._overwrite)  # another process may have made it meanwhile
        with writing(self.directory):
            _replace(self._temporary, self.directory)


def write_meta(directory, meta):
    """Write `meta`, a dict, to meta.json in `directory`, together with the sha256 of its content."""
    meta = json.loads(json.dumps(meta))
    text = json.dumps({**meta, "sha256": meta_hash(meta)}, indent=1) + "\n"
    atomic_write(Path(directory) / META, text.encode())


def meta_hash(meta):
    """Return the sha256 of `meta`, the content of a meta.json without the entry `sha256`."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _check_replaceable(directory, overwrite):
    """Raise a ConfigError unless `directory` does not exist, is empty or, if `overwrite` is True, is a data set in the native format."""
    if not os.path.lexists(directory) or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not _is_ours(directory):
        raise ConfigError(f"{directory}: exists and is not a data set in the native format; it is not replaced")
    other = _other_file(directory)
    if other is not None:
        raise ConfigError(f"{directory}: holds {other}, which is not part of the data set, as meta.json does not name it; "
                          "the directory is not replaced")
    if not overwrite:
        raise ConfigError(f"{directory}: exists already; --overwrite (overwrite=True) replaces it")


def _is_ours(directory):
    """Return True if a directory has a meta.json of the native format, of any version and even with wrong values."""
    return bool(_meta_of(directory))


def _meta_of(directory):
    """Return the unchecked content of a directory's meta.json as a dict; {} if it has none of the native format."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        path = regular(Path(directory) / META)
        meta = json.loads(path.read_bytes())
        if isinstance(meta, dict) and type(meta.get("schema")) is int and {"nodes", "provenance"} <= meta.keys():
            return meta
    return {}


def _other_file(directory):
    """Return the relative path of the first file in a directory that its meta.json does not list; None if all are listed. A
    directory with such a file is not overwritten.
    """
    named = {*_named_arrays(_meta_of(directory))}
    for path in sorted(directory.rglob("*")):
        inner = path.relative_to(directory)
        ours = inner == Path(META) or (inner.suffix == ".npy" and {inner.stem, str(inner.with_suffix(""))} & named)
        if path.is_symlink() or (not path.is_dir() and not ours):
            return inner
    return None


def _named_arrays(meta, folder=""):
    """Yield the path, without suffix, of each array that `meta`, the content of a meta.json, lists; paths are relative to the data set's
    directory. Older versions used other folders: only the array's name is then yielded. `folder` is the path of `meta` in recursive calls.
    """
    for name, value in meta.items() if isinstance(meta, dict) else ():
        here = folder if name == "arrays" else f"{folder}/{name}".lstrip("/")
        if isinstance(value, dict) and isinstance(value.get("sha256"), str):
            yield here if _ROOTS.match(here) else name
        else:
            yield from _named_arrays(value, here)


def _replace(temporary, directory):
    """Rename the folder `temporary` to `directory`, which it replaces. If the renaming fails or a signal interrupts it, the old
    directory is restored.
    """
    old = directory.with_name(f".{directory.name}.old-{uuid.uuid4().hex[:8]}")
    replaces = directory.exists()
    try:
        if replaces:
            os.rename(directory, old)
        os.rename(temporary, directory)
    except BaseException:
        if old.exists() and not directory.exists():
            os.rename(old, directory)
        raise
    if replaces:
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(directory.parent)


def _remove_old(directory):
    """Remove old copies of a data set that a killed process had renamed while it replaced `directory`. An old data set is kept if
    `directory` does not exist, as it is then the only copy.
    """
    if (directory / META).is_file():
        for path in old_copies(directory):
            if _is_ours(path) and _other_file(path) is None:
                shutil.rmtree(path, ignore_errors=True)


def old_copies(directory):
    """Return a list of the old copies beside `directory`. While `directory` is replaced, its old data set is renamed to such a copy, which
    stays if the process is killed.
    """
    form = re.compile(rf"\.{re.escape(directory.name)}\.old-[0-9a-f]{{8}}")
    with contextlib.suppress(OSError):
        return [path for path in directory.parent.iterdir() if form.fullmatch(path.name) and (path / META).is_file()]
    return []
