"""Files written whole or not at all."""

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator
from typing import IO

AnyPath = str | os.PathLike[str]


def write_whole(path: AnyPath, *pieces: bytes | memoryview, new: bool = False) -> None:
    """Write a regular file so that it appears whole or not at all, also where the machine dies.

    Parameters
    ----------
    path : path
        A symbolic link is followed. A file that stands there is replaced.
    *pieces : bytes-like
        The content, one after the other.
    new : bool
        Raise FileExistsError where `path` exists, instead of replacing it.

    Raises
    ------
    OSError
        The file cannot be written, or what stands there is no regular file. It stays as it was.

    Notes
    -----
    The bytes go to a file of a private name beside `path`, `.NAME.*.tmp`. This file is fsynced and takes the name by a
    rename; then the folder is fsynced. Private files that killed processes left are removed first: a process that lives
    holds a lock on its own one.
    """
    with whole(path, new=new) as (_, file):
        for piece in pieces:
            file.write(piece)


@contextlib.contextmanager
def whole(path: AnyPath, *, new: bool = False, trial: bool = False) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name of a private file beside `path` and the file, open for writing; it becomes `path` at the end.

    Others may write to the file by its private name meanwhile, and fsync what they wrote. Where the context raises, the
    file is removed, and `path` stays as it was. With `trial` the file is always removed: this only finds out whether it
    could be written. All else is as in `write_whole`. """
    target = _regular(path)
    with _temporary(target) as (temporary, file):
        yield temporary, file
        file.flush()
        os.fsync(file.fileno())
        if trial:
            return
        (_name_new if new else os.replace)(temporary, target)
    sync_folder(os.path.dirname(target))


def try_whole(path: AnyPath, *pieces: bytes | memoryview) -> None:
    """Write and remove again what `write_whole` would write; raises what `write_whole` would raise."""
    with whole(path, trial=True) as (_, file):
        for piece in pieces:
            file.write(piece)


def _regular(path):
    path = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
    return path


@contextlib.contextmanager
def _temporary(path: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Return a context with a private file beside `path`, open and locked; it is removed unless it was renamed."""
    folder, name = os.path.split(path)
    _remove_left(folder, name)
    temporary, file = _private(folder, name)
    try:
        with file:
            yield temporary, file
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _private(folder, name):
    while True:
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:12]}.tmp")
        file = open(temporary, "xb")  # noqa: SIM115, closed by `_temporary`
        _lock(file.fileno(), wait=True)
        if os.path.exists(temporary):
            return temporary, file
        file.close()  # before it was locked, another writer removed it as a killed process's


def _remove_left(folder, name):
    """Remove the files that killed writers of `name` left. The lock of a living writer, on any host, keeps its file."""
    with contextlib.suppress(OSError):
        form = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{12}}\.tmp")
        for entry in os.listdir(folder):
            if form.fullmatch(entry):
                with contextlib.suppress(OSError), open(os.path.join(folder, entry), "rb+") as file:
                    if _lock(file.fileno()):
                        os.unlink(os.path.join(folder, entry))


def _lock(descriptor, wait=False):
    """Lock a file for as long as it is open; return whether that was possible."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):  # a system, or a file system, without locks; another process has the lock
        return False
    return True


def _name_new(temporary, path):
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)


def sync_folder(folder: AnyPath) -> None:
    """Let the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
