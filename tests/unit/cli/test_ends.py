"""Test how commands end: closed pipes, signals, names with escape sequences, files that hide packages, little memory."""

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from safetensors.numpy import load_file

from sarlite import command, errors
from sarlite.cli import data_command, info_command, report_command
from sarlite.data import format, load
from sarlite.data.dataset import Dataset
from sarlite.errors import CheckpointError, ConfigError, DataError, SarliteError, import_optional, lacks_memory, printable
from sarlite.structure.relational_generator import Relational
from sarlite.train import checkpoint
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import DATA, ROOT, SMALL, train_here

pytestmark = pytest.mark.timeout(120)
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
COMMANDS = {
    "train": ["sarlite.train", *SMALL, "--epochs", "2", "--run-dir", "{tmp}/run", "--progress", "lines"],
    "dry run": ["sarlite.train", *SMALL, "--dry-run"], "help": ["sarlite.train", "--help-all"], "data": ["sarlite.data", "info", DATA],
    "info": ["sarlite.info"], "estimate": ["sarlite.estimate", "--data", DATA, "--ranks", "2", "--model", "gcn"],
    "report": ["sarlite.report", "{run}", "--out", "{tmp}/page.html"], "oracle": ["sarlite.oracle", "list"],
    "predict": ["sarlite.predict", "--checkpoint", "{run}/checkpoint.safetensors", "--out", "{tmp}/out.csv"],
}  # fmt: skip
"""Words of every command that prints; {run} is a run's folder, {tmp} the test's."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends") / "run"
    train_here(folder, "--epochs", 2)
    return folder


def words_of(name, run, tmp):
    return [sys.executable, "-m", *(word.format(run=run, tmp=tmp) for word in COMMANDS[name])]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_reader_that_has_left_is_no_error(name, trained, tmp_path):
    """A command finishes its work after its output has lost its reader; training also after both streams have."""
    for both in (False, True)[: 1 + (name == "train")]:
        read_end, here = os.pipe()
        os.close(read_end)
        (tmp_path / str(both)).mkdir()
        done = subprocess.run(words_of(name, trained, tmp_path / str(both)), stdout=here, stderr=here if both else subprocess.PIPE,
                              env=ENVIRON, timeout=100, check=False)  # fmt: skip
        os.close(here)
        assert done.returncode == 0 and not (done.stderr and b"Traceback" in done.stderr + b"BrokenPipe"), done.stderr
        if name == "train":
            assert sorted(os.listdir(tmp_path / str(both) / "run"))[-1] == "summary.json"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["train", "predict", "info"])
@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_a_closed_stream_is_no_error(name, closed, trained, tmp_path):
    """A command that starts without a standard stream, as after `2>&-`, works as with the null device."""
    closing = " ".join({0: "<&-", 1: ">&-", 2: "2>&-"}[number] for number in closed)
    done = subprocess.run(["sh", "-c", f'"$@" {closing}', "sh", *words_of(name, trained, tmp_path)], capture_output=True, env=ENVIRON,
                          timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    if name == "train":
        assert sorted(os.listdir(tmp_path / "run"))[-1] == "summary.json"


@pytest.mark.parametrize("name", ["info", "data", "train"])
def test_output_to_a_full_disk_is_told(name, trained, tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(words_of(name, trained, tmp_path), stdout=full, stderr=subprocess.PIPE, env=ENVIRON, timeout=100, text=True,
                              check=False)  # fmt: skip
    assert done.returncode and "error: standard output: cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


WAITS = """
import sys, time
from sarlite.cli import data_command
from sarlite.data import format

def wait(*args, **options):
    with format.GraphWriter(sys.argv[2]):
        print("ready", flush=True)
        time.sleep(60)

data_command.load = wait
sys.exit(data_command.main(["convert", sys.argv[1], sys.argv[2], "--memory", "1GiB", "--progress", "none"]))
"""


@pytest.mark.parametrize("number", errors.SIGNALS)
def test_a_signal_leaves_no_scratch(number, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WAITS, DATA, tmp_path / "d"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=ENVIRON, text=True)  # fmt: skip
    assert process.stdout.readline() == "ready\n" and len(os.listdir(tmp_path)) == 2
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 128 + number and os.listdir(tmp_path) == []
    assert message == f"interrupted by {number.name}; unfinished output was removed\n"


def test_a_hangup_ends_a_run_in_good_order(tmp_path):
    words = words_of("train", "", tmp_path)
    words[words.index("--epochs") + 1] = "100000"
    with subprocess.Popen(words, env=ENVIRON, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr.readline().startswith("epoch 1/")
        process.send_signal(signal.SIGHUP)
        message = process.stderr.read()
    assert process.returncode == 128 + signal.SIGHUP and "interrupted by SIGHUP after epoch" in message, message
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint.safetensors", "config.toml", "metrics.jsonl"]


# ---- texts from files that are not the user's own


def test_texts_are_printable():
    assert printable("a\x1b[2Jb\u202ec\x07\x9b\udcff\r, caf\xe9, \u4f60\n\tx") == r"a\x1b[2Jb\u202ec\x07\x9b\udcff\r, café, 你" + "\n\tx"
    assert str(SarliteError("x\x1b]0;title\x07")) == r"x\x1b]0;title\x07" and str(DataError("a\nb\x1b")) == r"a b\x1b"


def test_names_in_data_and_checkpoints_do_not_reach_the_terminal_raw(tmp_path, capsys, trained):
    odd, ends = "pa\x1b[2Jper", np.array([0, 1, 2])
    dataset = Relational({odd: 3}, {(odd, "ci\x1b]0;owned\x07tes", odd): (ends, ends)}, {odd: np.ones((3, 2), np.float32)}, odd,
                      np.array([0, 1, 0]), *(ends == k for k in range(3)), 2)  # fmt: skip
    format.write(tmp_path / "d", Dataset.of_edge_lists(dataset))
    assert data_command.main(["info", str(tmp_path / "d")]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and r"pa\x1b[2Jper" in shown and "type" in shown
    tensors, meta = checkpoint.load(trained / "checkpoint.safetensors")
    (tmp_path / "c").mkdir()
    checkpoint.save(tmp_path / "c" / "checkpoint.safetensors", tensors, {**meta, "options": {**meta["options"], "data": "edges:\x1b[2J"}})
    with pytest.raises(SarliteError) as caught:
        predict_here(tmp_path / "c", tmp_path / "out.csv")
    assert "\x1b" not in str(caught.value) and r"\x1b[2J" in str(caught.value)


@pytest.mark.parametrize("names, message", [
    (["a"], "expected 4 different names"), (["a", "b", "b", "c"], "expected 4 different names"), ("abcd", "expected 4 different names"),
    (["a", "b", "c", "d", "e"], "expected 4 different names"), (["a", "b", "c", "\ud800"], "cannot be read"),
    (["a", "b", "c", 4], "expected 4 different names"),
])  # fmt: skip
def test_class_names_of_a_checkpoint(names, message, trained, tmp_path):
    tensors, meta = checkpoint.load(trained / "checkpoint.safetensors")
    (tmp_path / "c").mkdir()
    checkpoint.save(tmp_path / "c" / "checkpoint.safetensors", tensors, {**meta, "class_names": names})
    with pytest.raises(CheckpointError, match=f"checkpoint {tmp_path}/c/checkpoint.safetensors: class_names: .*{message}"):
        predict_here(tmp_path / "c", tmp_path / "out.csv")
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("n_steps", [-1, -(1 << 40), (1 << 63) - 1])
def test_steps_of_an_optimizer_that_no_run_has(n_steps, trained, tmp_path):
    tensors, meta = checkpoint.load(trained / "checkpoint.safetensors")
    (tmp_path / "run").mkdir()
    checkpoint.save(tmp_path / "run" / "checkpoint.safetensors", {**tensors, "optimizer.n_steps": np.array(n_steps)}, meta)
    with pytest.raises(CheckpointError, match=f"n_steps of the optimizer is {n_steps}, outside 0 <= n_steps"):
        train_here(tmp_path / "run", "--epochs", 3, "--resume", tmp_path / "run" / "checkpoint.safetensors")
    checkpoint.save(tmp_path / "run" / "checkpoint.safetensors", tensors, {**meta, "step": 10**30})
    with pytest.raises(CheckpointError, match="step: '1000.*is not a whole number"):
        train_here(tmp_path / "run", "--epochs", 3, "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert os.listdir(tmp_path / "run") == ["checkpoint.safetensors"] and load_file(trained / "checkpoint.safetensors")


@pytest.mark.parametrize("name, text, status", [
    ("config.toml", "data = 2026-11-27\n", 0), ("config.toml", "[data]\nat = 07:30:00\n", 0),
    ("summary.json", '{"sarlite_summary": 1, "outcome": {"kind": "confusion", "classes": ["\\ud800"], "splits": {"val": [[1]]}}}', 0),
    ("trace.json", '{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 0, "ts": 1e999, "dur": 1}]}', 2),
    ("trace.json", '{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 0, "ts": 1, "dur": NaN}]}', 2),
    ("trace.json", '{"traceEvents": [{"ph": "X", "name": "\\udfff", "pid": 1, "tid": 0, "ts": 1, "dur": 1}]}', 0),
])  # fmt: skip
def test_odd_values_in_what_a_report_reads(name, text, status, trained, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    for path in trained.iterdir():
        (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
    if name == "summary.json":
        text = json.dumps({**json.loads((trained / name).read_text()), "outcome": json.loads(text)["outcome"]})
    (tmp_path / "run" / name).write_text(text)
    trace = ["--trace", str(tmp_path / "run" / name)] if name == "trace.json" else []
    assert report_command.main([str(tmp_path / "run"), "--out", str(tmp_path / "page.html"), *trace]) == status
    shown = capsys.readouterr().err
    assert (shown.count("\n") == 1 and "trace.json" in shown) if status else not shown


# ---- packages


@pytest.mark.parametrize("place", ["the model's file", "the working folder"])
def test_a_file_of_a_packages_name(place, tmp_path):
    """A model's file named as a package does not hide the package; such a file in the first import folder is refused."""
    (tmp_path / "there").mkdir()
    path = tmp_path / "there" / "pymetis.py"
    path.write_text(textwrap.dedent("""
        from dataclasses import dataclass
        from sarlite.models import GCN

        @dataclass
        class Width:
            n: int = 3

        class Mine(GCN):
            pass
    """))
    words = [sys.executable, "-m", "sarlite.train", "--data", DATA, "--epochs", "1", "--run-dir", str(tmp_path / "run"), "--ranks", "2",
             "--partition", "metis", "--threads", "1"]  # fmt: skip
    here = tmp_path if place == "the model's file" else path.parent
    model = ["--model", f"{path}:Mine"] if here == tmp_path else []
    done = subprocess.run([*words, *model], cwd=here, env=ENVIRON, capture_output=True, text=True, timeout=100, check=False)
    if model:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2 and f"the file {path} hides it: rename the file" in done.stderr
        assert "Traceback" not in done.stderr


def test_little_memory_is_not_a_package_that_is_missing(monkeypatch):
    for text in ("libmpi.so: failed to map segment from shared object", "libmpi.so: cannot allocate memory", "Out of memory"):
        def fails(name, text=text):
            raise ImportError(text)

        monkeypatch.setattr(errors.importlib, "import_module", fails)
        with pytest.raises(ConfigError, match=r"--plot: .* memory .*matplotlib \(") as caught:
            import_optional("matplotlib", "--plot")
        assert "pip install" not in str(caught.value)
    assert lacks_memory(MemoryError()) and not lacks_memory(ImportError("no module /memory/of"))
    assert not lacks_memory(ImportError("cannot allocate memory in static TLS block"))


def test_info_ends_with_a_status(capsys):
    assert info_command.main(["--jsn"]) == 2 and "did you mean --json" in capsys.readouterr().err
    assert load(DATA).n_nodes == 300


DOORS = ("train.__main__", "data.__main__", "predict", "smooth", "estimate", "report", "sweep", "verify", "explain", "info")


@pytest.mark.parametrize("door", DOORS)
def test_each_command_starts_through_start(door):
    main = importlib.import_module(f"sarlite.{door}").main
    assert main.func is command.start
    (module,) = main.args
    assert callable(importlib.import_module(module).main)


def test_ctrl_c_during_an_import_ends_with_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "slow_command.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert command.start("slow_command") == 130
    assert capsys.readouterr().err == "interrupted by SIGINT before the start\n"
