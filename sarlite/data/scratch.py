"""Private temporary folders for sorts, and locks on data sets by flock."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from sarlite.errors import ConfigError, writing
from sarlite.files import private_folder

_HELD = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def beside(out):
    """Yield a private temporary folder in the parent folder of the output `out`; the folder is removed as the context ends.

    A DataError is raised if the folder cannot be created.
    """
    out = Path(os.path.realpath(out))
    with contextlib.ExitStack() as held:
        with writing(out):
            folder = held.enter_context(private_folder(out.parent, 0o700))
        yield folder


@contextlib.contextmanager
def locked(file, *, exclusive):
    """Return a context that locks `file` of a data set: `exclusive` for a process that replaces the data set, else shared with
    other processes that read it.

    Raises
    ------
    ConfigError
        If another process holds the lock, or has just replaced the file.

    Notes
    -----
    Without such a file, or on a file system without locks, nothing is locked.
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
    locked_file, current = os.fstat(handle), _stat(file)
    if current is None or (locked_file.st_dev, locked_file.st_ino) != (current.st_dev, current.st_ino):
        raise ConfigError(f"{where}: another process has just replaced this data set; try again")


def _stat(file):
    with contextlib.suppress(OSError):
        return os.stat(file)
    return None
