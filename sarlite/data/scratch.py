"""Private folders for sorts, and locks on data sets by flock."""

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
    """Make a private folder for sorts beside the output; raises a DataError where it cannot be made."""
    out = Path(os.path.realpath(out))
    with contextlib.ExitStack() as held:
        with writing(out):
            made = held.enter_context(private_folder(out.parent, 0o700))
        yield made


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
