"""Files written whole or not at all, and private files and folders, which go once their process is gone."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import socket
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # a system without these locks
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]
_PRIVATE = re.compile(r"\.sarlite-([0-9a-f]{8})-([0-9]{1,7})-([0-9]{1,20})-[0-9a-f]{8}\.tmp")


def write_whole(path: AnyPath, *pieces: bytes | memoryview, new: bool = False) -> None:
    """Write a regular file so that it appears whole or not at all, also where the machine dies.

    Parameters
    ----------
    path : path
        A file that stands there is replaced.
    *pieces : bytes-like
        The content, one after the other.
    new : bool
        Raise FileExistsError where `path` exists, instead of replacing it.

    Raises
    ------
    OSError
        The file cannot be written, or what stands there is a symbolic link or no regular file. It stays as it was.

    Notes
    -----
    The bytes go to a private file beside `path`. This file is fsynced and takes the name by a rename, which follows no
    link; then the folder is fsynced. What killed processes left in the folder is removed first (`remove_left`).
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
    folder = os.path.dirname(target)
    remove_left(folder)
    temporary, handle = _private(folder, lambda name: os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    file = open(handle, "wb")  # noqa: SIM115, closed below
    try:
        yield temporary, file
        file.flush()
        os.fsync(file.fileno())
        if trial:
            return
        (_name_new if new else os.replace)(temporary, target)
        sync_folder(folder)
    finally:
        with contextlib.suppress(OSError):  # after an error what is still in the buffer cannot be written either
            file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def try_whole(path: AnyPath, *pieces: bytes | memoryview) -> None:
    """Write and remove again what `write_whole` would write; raises what `write_whole` would raise."""
    with whole(path, trial=True) as (_, file):
        for piece in pieces:
            file.write(piece)


def no_follow(path: str, flags: int) -> int:
    """Open a file unless a symbolic link stands there: an `opener` for Python's `open`, which raises an OSError."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def private_folder(parent: AnyPath, mode: int = 0o777) -> Iterator[Path]:
    """Make a private folder in `parent`, yield its path, and remove the folder, unless it was renamed.

    Parameters
    ----------
    parent : path
        Made if it is missing. What killed processes left there is removed first (`remove_left`).
    mode : int
        Permissions, which the process's umask narrows.

    Raises
    ------
    OSError
        The folder cannot be made.
    """
    def make(name):
        os.mkdir(name, mode)
        return os.open(name, os.O_RDONLY)

    Path(parent).mkdir(parents=True, exist_ok=True)
    remove_left(parent)
    name, handle = _private(os.fspath(parent), make)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
        os.close(handle)


def remove_left(folder: AnyPath) -> None:
    """Remove the private files and folders in `folder` whose processes are gone; what cannot be removed stays.

    Notes
    -----
    A process holds a lock on each of its own as long as it lives, in whatever container or on whatever host. Where the
    file system has no locks, the name tells the process: its machine, boot and container, number and start. Of another
    machine nothing is then known, and its files stay.
    """
    with contextlib.suppress(OSError):
        for name in filter(_PRIVATE.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                _remove_if_left(os.path.join(folder, name))


def _remove_if_left(path):
    is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    handle = os.open(path, (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        locked = _lock(handle)
        if locked or (locked is None and _is_gone(os.path.basename(path))):
            shutil.rmtree(path, ignore_errors=True) if is_folder else os.unlink(path)
    finally:
        os.close(handle)


def _private(folder, make):
    """Return the name of a new private file or folder, and its handle, which holds the lock."""
    while True:
        own = f"{_machine()}-{os.getpid()}-{_start(os.getpid())}-{uuid.uuid4().hex[:8]}"
        name = os.path.join(folder, f".sarlite-{own}.tmp")
        try:
            handle = make(name)
        except FileNotFoundError:
            if not os.path.isdir(folder):
                raise
            continue  # another process removed it as a killed one's before it was locked
        _lock(handle, wait=True)
        if os.path.lexists(name):
            return name, handle
        os.close(handle)  # likewise


def _lock(handle, wait=False):
    """Lock an open file or folder; return True, False if another process has the lock, None if there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _is_gone(name):
    """Return True if the name of a private file is of this machine and of a process that has ended."""
    machine, pid, start = _PRIVATE.fullmatch(name).groups()
    if machine != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's
    return 0 != _start(pid) != int(start)  # another process has its number by now


def _machine():
    """Return 8 hex digits of this machine, its boot and its container: there a process number means one process."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=4).hexdigest()


def _start(pid):
    """Return when a process started, in ticks since the boot; 0 where that cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _regular(path):
    """Return the absolute path of a file to write; an OSError refuses links, folders and devices."""
    path = os.path.abspath(path)
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, "is a symbolic link: name the file itself", path)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
    return path


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
