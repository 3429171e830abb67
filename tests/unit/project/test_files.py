"""Files are written whole or not at all."""

import errno
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sarlite import files
from sarlite.files import atomic_file, atomic_write, check_writable, no_follow, private_folder, remove_left

ROOT = Path(__file__).parents[3]


def left(folder):
    return sorted(os.listdir(folder))


def test_pieces_make_the_file(tmp_path):
    atomic_write(tmp_path / "f", b"one", memoryview(b"two"), b"")
    atomic_write(tmp_path / "g", b"")
    assert (tmp_path / "f").read_bytes() == b"onetwo" and (tmp_path / "g").read_bytes() == b""
    atomic_write(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new" and left(tmp_path) == ["f", "g"]


def test_trying_leaves_nothing(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    for name in ("f", "g"):
        check_writable(tmp_path / name, b"x" * 10_000)
    assert left(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


def test_a_new_file_replaces_nothing(tmp_path, monkeypatch):
    atomic_write(tmp_path / "f", b"one", new=True)
    with pytest.raises(FileExistsError):
        atomic_write(tmp_path / "f", b"two", new=True)

    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(FileExistsError):
        atomic_write(tmp_path / "f", b"two", new=True)
    atomic_write(tmp_path / "g", b"two", new=True)
    assert (tmp_path / "f").read_bytes() == b"one" and (tmp_path / "g").read_bytes() == b"two" and left(tmp_path) == ["f", "g"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_what_fails_leaves_the_old_file(tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "f").write_bytes(b"old")
    if call == "write":
        pieces = [b"new", "no bytes"]
        with pytest.raises(TypeError):
            atomic_write(tmp_path / "f", *pieces)
    else:
        monkeypatch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            atomic_write(tmp_path / "f", b"new")
    assert left(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_old_file(tmp_path, monkeypatch, error):
    def interrupted(*_):
        raise error

    (tmp_path / "f").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(error):
        atomic_write(tmp_path / "f", b"new")
    assert left(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


def test_an_error_is_not_hidden_by_what_the_buffer_still_holds(tmp_path):
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "f") as (_, file):
        file.write(b"x")
        os.close(file.fileno())  # like a full disk: no more bytes can be written
        raise ZeroDivisionError
    assert left(tmp_path) == []


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for write in (atomic_write, check_writable):
        with pytest.raises(OSError, match="is not a regular file"):
            write(tmp_path / "pipe", b"x")
        with pytest.raises(IsADirectoryError):
            write(tmp_path / "folder", b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and left(tmp_path) == ["folder", "pipe"]


def test_a_device_stays_one():
    with pytest.raises(OSError, match="is not a regular file"):
        atomic_write("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("target", ["f", "nowhere"])
def test_nothing_is_written_through_a_link(tmp_path, target, monkeypatch):
    """The link exists before the write, or appears while the file is written."""
    (tmp_path / "f").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(target)
    for write in (atomic_write, check_writable):
        with pytest.raises(OSError, match="is a symbolic link"):
            write(tmp_path / "link", b"x")
    monkeypatch.setattr(os, "fsync", lambda _: os.path.lexists(tmp_path / "g") or (tmp_path / "g").symlink_to(target))
    atomic_write(tmp_path / "g", b"x")
    with pytest.raises(OSError, match="symbolic links|Too many levels"):
        open(tmp_path / "link", "a", opener=no_follow)
    assert (tmp_path / "f").read_bytes() == b"mine" and left(tmp_path) == ["f", "g", "link"]
    assert not (tmp_path / "g").is_symlink() and (tmp_path / "g").read_bytes() == b"x"


def test_a_link_to_the_folder_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    atomic_write(tmp_path / "link" / "f", b"one")
    assert (tmp_path / "there" / "f").read_bytes() == b"one"


def test_the_folder_is_synced_after_the_rename(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace

    def note_fsync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", lambda *a: (calls.append("rename"), replace(*a)))
    atomic_write(tmp_path / "f", b"x")
    assert calls == ["file", "rename", "folder"]


DIES = """
    import os, signal, sys
    from sarlite.files import atomic_write

    def pause(descriptor):
        sys.stdout.write("ready\\n"), sys.stdout.flush()
        sys.stdin.read(1)

    os.fsync = pause
    atomic_write(sys.argv[1], b"x" * 100)
"""


def started(path):
    """Return a process that writes `path`, and waits before it renames the written file."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(DIES), path], cwd=ROOT, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


def killed(process):
    process.kill()
    process.communicate()


USERS = [".f.mine.tmp", ".sarlite-0123abcd-1-2-notes.tmp", ".sarlite-new"]


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path):
    """The next write also removes a dead process's file of another name, and its folder.

    Files of a living process and files of the user stay.
    """
    for name in USERS:
        (tmp_path / name).touch()
    dies, lives = started(tmp_path / "another"), started(tmp_path / "f")
    with private_folder(tmp_path, 0o700) as mine:
        assert stat.S_IMODE(mine.stat().st_mode) == 0o700 and f"-{os.getpid()}-" in mine.name
        (tmp_path / ".sarlite-01234567-1-2-89abcdef.tmp" / "inside").mkdir(parents=True)  # no process holds the lock
        (tmp_path / ".sarlite-01234567-1-2-00000000.tmp").symlink_to(mine)
        assert len(left(tmp_path)) == len(USERS) + 5
        killed(dies)
        atomic_write(tmp_path / "f", b"new")
        assert len(left(tmp_path)) == len(USERS) + 4 and mine.is_dir() and (tmp_path / "f").read_bytes() == b"new"
        lives.communicate("go")
        assert lives.returncode == 0 and (tmp_path / "f").read_bytes() == b"x" * 100
    assert left(tmp_path) == sorted([*USERS, ".sarlite-01234567-1-2-00000000.tmp", "f"])


@pytest.mark.parametrize("locks", ["none", "there"])
def test_without_locks_the_name_tells_whose_a_file_is(tmp_path, monkeypatch, locks):
    """Processes of other machines and containers are not visible here: their files stay."""
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    dies, lives = started(tmp_path / "f"), started(tmp_path / "f")
    (of_dead,), (of_living,) = ([name for name in left(tmp_path) if f"-{process.pid}-" in name] for process in (dies, lives))
    killed(dies)
    head, machine, pid, start, rest = of_living.split("-")
    reused, elsewhere = "-".join([head, machine, pid, str(int(start) - 1), rest]), of_dead.replace(machine, "00000000")
    for name in (reused, elsewhere):
        (tmp_path / name).touch()
    if locks == "none":
        monkeypatch.setattr(files.fcntl, "flock", none)
    remove_left(tmp_path)
    assert left(tmp_path) == sorted([of_living, elsewhere] if locks == "none" else [of_living])
    killed(lives)
    remove_left(tmp_path)
    assert left(tmp_path) == ([elsewhere] if locks == "none" else [])
