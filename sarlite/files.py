"""Files that are written completely or not at all, and private files and folders.

A private file or folder is temporary: it is removed at the end of its context. Its name contains the process that made
it, so a later process can remove what a killed process has left.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import socket
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # the operating system has no such locks
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]
_PRIVATE = re.compile(r"\.sarlite-([0-9a-f]{8})-([0-9]{1,7})-([0-9]{1,20})-[0-9a-f]{8}\.tmp")


def atomic_write(path: AnyPath, *pieces: bytes | memoryview, new: bool = False) -> None:
    """Write `pieces`, one after the other, as the whole content of `path`, completely or not at all. An existing file is replaced
    or, if `new` is True, refused with a FileExistsError.

    Parameters
    ----------
    path : path
        File to write; an existing file is replaced.
    *pieces : bytes-like
        Content, in order.
    new : bool
        True to raise a FileExistsError if `path` exists.

    Raises
    ------
    OSError
        The file cannot be written, or `path` is a symbolic link, a folder or a device. Nothing is changed then.

    Notes
    -----
    The bytes are written to a private file in the same folder, which is fsynced and renamed to `path`; then the folder
    is fsynced. Private files that killed processes left in the folder are removed first (`remove_left`).

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     atomic_write(os.path.join(folder, "a.bin"), b"12", b"34")
    ...     os.listdir(folder), os.path.getsize(os.path.join(folder, "a.bin"))
    (['a.bin'], 4)
    """
    with atomic_file(path, new=new) as (_, file):
        for piece in pieces:
            file.write(piece)


@contextlib.contextmanager
def atomic_file(path: AnyPath, *, new: bool = False, trial: bool = False) -> Iterator[tuple[str, IO[bytes]]]:
    """Return a context that yields (name, file) of a new temporary file beside `path`. At its end the file is renamed to `path`,
    which must not exist if `new`; if `trial`, it is removed instead.

    Parameters
    ----------
    path : path
        File to write; an existing file is replaced.
    new : bool
        True to raise a FileExistsError if `path` exists.
    trial : bool
        True to remove the private file at the end, to find out only whether `path` could be written.

    Yields
    ------
    str
        Name of the private file, in the folder of `path`. Other processes may write to the file by this name, and must
        fsync what they write.
    file
        Private file, open for writing.

    Notes
    -----
    If the body of the context raises, the private file is removed, and `path` is not changed. See `atomic_write`.
    """
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
        with contextlib.suppress(OSError):  # after a write error the rest of the buffer cannot be written either
            file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def check_writable(path: AnyPath, *pieces: bytes | memoryview) -> None:
    """Raise the OSError that writing `pieces`, or an empty file, to `path` would raise. The trial writes a temporary file beside
    `path` and removes it.
    """
    with atomic_file(path, trial=True) as (_, file):
        for piece in pieces:
            file.write(piece)


def no_follow(path: str, flags: int) -> int:
    """Open the file `path` with `flags` of `os.open` and return its descriptor; raise an OSError if `path` is a symbolic link.

    The function is an `opener` for Python's `open`.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def private_folder(parent: AnyPath, mode: int = 0o777) -> Iterator[Path]:
    """Return a context that yields the path of a new temporary folder in `parent`, with the permissions `mode`. Its end removes the
    folder, unless the folder was renamed.

    Parameters
    ----------
    parent : path
        Folder of the private folder; created if it is missing. Private files that killed processes left in it are
        removed first (`remove_left`).
    mode : int
        Permissions, without those that the umask of the process takes away.

    Yields
    ------
    Path
        Path of the private folder.

    Raises
    ------
    OSError
        The folder cannot be created.
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
    """Remove from `folder` the temporary files and folders that this module made for processes that have ended, for example because
    they were killed.

    Files that cannot be removed stay, without an error.

    Notes
    -----
    A process locks its private files and folders as long as it runs, so an unlocked file is removed. On a file system
    without locks the name decides, which contains the machine with its boot and container, and the number and start
    time of the process. Files of other machines are then not removed.
    """
    with contextlib.suppress(OSError):
        for name in filter(_PRIVATE.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                _remove_if_left(os.path.join(folder, name))


def _remove_if_left(path):
    """Remove a temporary file or folder of this module if the process that created it has ended."""
    is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    handle = os.open(path, (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        locked = _lock(handle)
        if locked or (locked is None and _is_gone(os.path.basename(path))):
            shutil.rmtree(path, ignore_errors=True) if is_folder else os.unlink(path)
    finally:
        os.close(handle)


def _private(folder: str, make: Callable[[str], int]) -> tuple[str, int]:
    """Create a temporary file or folder in `folder` by `make(path)`, which returns an open descriptor. Return (path, descriptor). The
    descriptor holds a lock, which shows other processes that the file is in use.
    """
    while True:
        label = f"{_machine()}-{os.getpid()}-{_start(os.getpid())}-{uuid.uuid4().hex[:8]}"
        name = os.path.join(folder, f".sarlite-{label}.tmp")
        try:
            handle = make(name)
        except FileNotFoundError:
            if not os.path.isdir(folder):
                raise
            continue  # another process removed the file before it was locked
        _lock(handle, wait=True)
        if os.path.lexists(name):
            return name, handle
        os.close(handle)  # another process removed the file before it was locked


def _lock(handle: int, wait: bool = False) -> bool | None:
    """Lock the open file `handle`, and return True. If another process has the lock, wait if `wait` is True, else return False.
    Return None if the file system has no locks.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _is_gone(name):
    """Return True if the process that made the temporary file `name` ran on this machine and has ended. The name has the creator's machine,
    process number and start time.
    """
    machine, pid, start = _PRIVATE.fullmatch(name).groups()
    if machine != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's
    return 0 != _start(pid) != int(start)  # a later process has the same number


def _machine():
    """Return 8 hex digits of a hash of this machine, its boot and its container. On machines with equal digits, a process number means the
    same process.
    """
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=4).hexdigest()


def _start(pid: int | str) -> int:
    """Return the start time of the process with number `pid`, in clock ticks since the boot; 0 if it cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _regular(path):
    """Return `path` as an absolute path; raise an OSError if it exists and is not a regular file, such as a symbolic link."""
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


def _name_new(temporary: str, path: str) -> None:
    """Rename the file `temporary` to `path`; raise a FileExistsError if `path` exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)


def sync_folder(folder: AnyPath) -> None:
    """Flush a folder to the disk (fsync), so that renamed and new files in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
