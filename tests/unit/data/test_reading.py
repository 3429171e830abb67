"""A reader raises only a SarliteError of one short line, whatever a library raised, and never waits for input."""

import os
import subprocess
import sys

import numpy as np
import pytest

from sarlite.cli import config
from sarlite.data import load
from sarlite.data.textfile import read_parts
from sarlite.errors import CheckpointError, ConfigError, DataError, reading, regular
from sarlite.train import checkpoint


@pytest.mark.parametrize(
    "error, text",
    [
        (ValueError("no number"), "f: x: cannot be read: no number"),
        (MemoryError(), "f: x: cannot be read: MemoryError"),
        (KeyError("method"), "f: x: cannot be read: KeyError: 'method'"),
        (RecursionError("too deep"), "f: x: cannot be read: RecursionError: too deep"),
        (FileNotFoundError(2, "No such file or directory", "f"), "f: x: no such file"),
        (FileNotFoundError(2, "No such file or directory", "other"), "f: x: no such file other"),
        (PermissionError(13, "Permission denied"), "f: x: cannot be read: Permission denied"),
        (DataError("said already"), "said already"),
    ],
)
def test_anything_becomes_a_named_error(error, text):
    with pytest.raises(DataError) as caught, reading("f", "x"):
        raise error
    assert str(caught.value) == text


def test_of_the_kind_asked_for():
    with pytest.raises(CheckpointError, match="^f: cannot be read: OverflowError$"), reading("f", kind=CheckpointError):
        raise OverflowError
    with pytest.raises(KeyboardInterrupt), reading("f"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [ValueError, DataError])
def test_messages_are_short_and_of_one_line(error):
    for text in ("a" * 100_000, "a\nb\r\0\x1b[2J\u2028" * 1000, "\U000e0001" * 1200):
        with pytest.raises(DataError) as caught, reading("f"):
            raise error(f"begin {text} end")
        message = str(caught.value)
        assert len(message) < 1200 and message.isprintable() and "begin" in message and message.endswith("end")


def test_pipes_and_folders_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "folder.npy").mkdir()
    for name, why in (("pipe.npy", "it is not a regular file"), ("folder.npy", "it is a folder")):
        path = tmp_path / name
        with pytest.raises(OSError, match=why):
            regular(path)
        for spec in (f"edges:{path}", f"npz:{path}"):
            with pytest.raises(DataError, match=f"{name}: .*cannot be read: {why}"):
                load(spec)
        with pytest.raises(DataError, match=why):
            read_parts(path, 3, 2)
        in_folder = "no such file" if name.startswith("folder") else why  # a folder stands for a run, which has a checkpoint
        with pytest.raises(CheckpointError, match=in_folder):
            checkpoint.load(path)
        with pytest.raises(ConfigError, match=why):
            config.read_toml(path)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = \xff", "lr = 1" + "0" * 400, "lr = " + "1" * 5000, "x" * 10_000 + " = 1",
                                  "a" * (1 << 20) + "=1"])  # fmt: skip
def test_a_configuration_that_cannot_be_read(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(ConfigError) as caught:
        config.parse(["--config", str(path)])
    assert len(str(caught.value)) < 1200 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "metadata, message", [("[" * 100_000, "RecursionError"), ("[1]", "metadata are not a checkpoint's"), (None, "KeyError: 'sarlite'")]
)
def test_checkpoints_whose_metadata_cannot_be_read(tmp_path, metadata, message):
    from safetensors.numpy import save

    path = tmp_path / "c.safetensors"
    path.write_bytes(save({"w": np.ones(2)}, {"format": checkpoint.FORMAT, **({"sarlite": metadata} if metadata else {})}))
    with pytest.raises(CheckpointError, match=f"^checkpoint {path}: .*{message}"):
        checkpoint.load_metadata(path)


def run(code, *arguments, **environment):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60, check=False)


def test_files_are_utf8_under_an_ascii_locale(tmp_path):
    (tmp_path / "c.toml").write_text('data = "edges:é.csv"\n', encoding="utf-8")
    (tmp_path / "y.txt").write_text("# é\n0\n1\n", encoding="utf-8")
    code = ("import sys, locale; from sarlite.cli import config; from sarlite.data.textfile import read_parts; "
            "assert 'UTF' not in locale.getpreferredencoding().upper(); "
            "print(ascii(config.parse(['--config', sys.argv[1]]).data.data), read_parts(sys.argv[2], 2, 2))")  # fmt: skip
    done = run(code, tmp_path / "c.toml", tmp_path / "y.txt", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.stdout.strip() == r"'edges:\udcc3\udca9.csv' [0 1]", done.stderr  # open() encodes the name with the same bytes


def test_a_reader_of_our_output_that_leaves_is_no_error():
    code = f"{sys.executable} -m sarlite.data info sbm:nodes=60,classes=3 2>&1 >&3 | cat"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; ({code}) 3>&1 | true"], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stdout + done.stderr and "BrokenPipe" not in done.stdout + done.stderr
