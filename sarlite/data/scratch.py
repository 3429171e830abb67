"""Temporary folders that the next run removes where a process died over them, and locks on data sets: both by flock."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import uuid
from pathlib import Path

from sarlite.errors import ConfigError, writing

_HELD = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def folder(parent, prefix, mode=0o777):
    """Make a private folder, give its path, and remove it; first remove folders of the prefix whose processes are gone.

    Parameters
    ----------
    parent : path
        Made where it is missing.
    prefix : str
        The name goes on with the host, the process's number and a random word.
    mode : int
        Permissions, which the process's umask narrows.

    Raises
    ------
    OSError
        It cannot be made.

    Notes
    -----
    A process holds a lock on its folder as long as it lives, in whatever container or on whatever host; the folder has
    its name only once it is locked. Where the file system knows no locks on folders nothing is removed.
    """
    parent = Path(parent)
    parent.mkdir(parents=True, exist_ok=True)
    remove_left(parent, prefix)
    path = parent / f".sarlite-new-{uuid.uuid4().hex}"
    path.mkdir(mode)
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        named = parent / f"{prefix}{socket.gethostname().replace('/', '-')}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        os.replace(path, named)
        path = named
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


@contextlib.contextmanager
def beside(out):
    """Make a `folder` for sorts beside the output; raises a DataError where it cannot be made."""
    out = Path(os.path.realpath(out))
    with contextlib.ExitStack() as held:
        with writing(out):
            made = held.enter_context(folder(out.parent, f".{out.name}.sort-", 0o700))
        yield made


def remove_left(parent, prefix):
    """Remove the folders that `folder` made and whose processes are gone."""
    form = re.compile(rf"{re.escape(prefix)}.+-\d+-[0-9a-f]{{8}}")
    for path in Path(parent).iterdir():
        if not form.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


@contextlib.contextmanager
def locked(file, *, exclusive):
    """Hold a lock on a file: many may read its data set at once, or one may replace the data set.

    Raises
    ------
    ConfigError
        Another process holds it, or put another file in its place just now.

    Notes
    -----
    Where there is no such file, or the file system knows no locks, there is none.
    """
    try:
        handle = os.open(file, (os.O_RDWR if exclusive else os.O_RDONLY) | os.O_NONBLOCK)  # a pipe is refused later
    except OSError:
        yield
        return
    try:
        _lock(handle, file, exclusive)
        yield
    finally:
        os.close(handle)


def _lock(handle, file, exclusive):
    where = Path(file).parent
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            doing = "reads or writes" if exclusive else "writes"
            raise ConfigError(f"{where}: another process {doing} this data set; try again when it is done") from None
        return
    here, there = os.fstat(handle), _stat(file)
    if there is None or (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        raise ConfigError(f"{where}: another process has just replaced this data set; try again")


def _stat(file):
    with contextlib.suppress(OSError):
        return os.stat(file)
    return None
