"""Files written whole or not at all."""

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sarlite.files import try_whole, write_whole

ROOT = Path(__file__).parents[3]


def left(folder):
    return sorted(os.listdir(folder))


def test_pieces_make_the_file(tmp_path):
    write_whole(tmp_path / "f", b"one", memoryview(b"two"), b"")
    write_whole(tmp_path / "g", b"")
    assert (tmp_path / "f").read_bytes() == b"onetwo" and (tmp_path / "g").read_bytes() == b""
    write_whole(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new" and left(tmp_path) == ["f", "g"]


def test_trying_leaves_nothing(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    for name in ("f", "g"):
        try_whole(tmp_path / name, b"x" * 10_000)
    assert left(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


def test_a_new_file_replaces_nothing(tmp_path, monkeypatch):
    write_whole(tmp_path / "f", b"one", new=True)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "f", b"two", new=True)

    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "f", b"two", new=True)
    write_whole(tmp_path / "g", b"two", new=True)
    assert (tmp_path / "f").read_bytes() == b"one" and (tmp_path / "g").read_bytes() == b"two" and left(tmp_path) == ["f", "g"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_what_fails_leaves_the_old_file(tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "f").write_bytes(b"old")
    if call == "write":
        pieces = [b"new", "no bytes"]
        with pytest.raises(TypeError):
            write_whole(tmp_path / "f", *pieces)
    else:
        monkeypatch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            write_whole(tmp_path / "f", b"new")
    assert left(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_old_file(tmp_path, monkeypatch, error):
    def interrupted(*_):
        raise error

    (tmp_path / "f").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(error):
        write_whole(tmp_path / "f", b"new")
    assert left(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    for write in (write_whole, try_whole):
        for name in ("pipe", "link"):
            with pytest.raises(OSError, match="is not a regular file"):
                write(tmp_path / name, b"x")
        with pytest.raises(IsADirectoryError):
            write(tmp_path / "folder", b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and left(tmp_path) == ["folder", "link", "pipe"]


def test_a_device_stays_one():
    with pytest.raises(OSError, match="is not a regular file"):
        write_whole("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/f")
    write_whole(tmp_path / "link", b"one")
    write_whole(tmp_path / "link", b"two")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "f").read_bytes() == b"two"


def test_the_folder_is_synced_after_the_rename(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace

    def note_fsync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", lambda *a: (calls.append("rename"), replace(*a)))
    write_whole(tmp_path / "f", b"x")
    assert calls == ["file", "rename", "folder"]


DIES = """
    import os, signal, sys
    from sarlite.files import write_whole

    def pause(descriptor):
        sys.stdout.write("ready\\n"), sys.stdout.flush()
        sys.stdin.read(1)

    os.fsync = pause
    write_whole(sys.argv[1], b"x" * 100)
"""


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path):
    """That of one that lives stays, until it has written."""
    def start():
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(DIES), tmp_path / "f"], cwd=ROOT, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        return process

    (tmp_path / ".f.mine.tmp").touch(), (tmp_path / ".ff.0123456789ab.tmp").touch()
    killed, lives = start(), start()
    assert len(left(tmp_path)) == 4
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    write_whole(tmp_path / "f", b"new")
    assert len(left(tmp_path)) == 4 and (tmp_path / "f").read_bytes() == b"new"
    lives.communicate("go")
    assert lives.returncode == 0 and (tmp_path / "f").read_bytes() == b"x" * 100
    assert left(tmp_path) == [".f.mine.tmp", ".ff.0123456789ab.tmp", "f"]
