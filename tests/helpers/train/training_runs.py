"""Short runs of the training command, as a process or in this one."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from sarlite.cli import config, run, train_command
from sarlite.comm import Solo, threads

MODEL = """
from dataclasses import dataclass
from sarlite import fn, nn

class Mine(nn.Module):
    def __init__(self, n_in, n_out, *, hidden=4, rng, dtype):
        assert hidden == 8
        self.one, self.two = nn.Linear(n_in, hidden, rng=rng, dtype=dtype), nn.Linear(hidden, n_out, rng=rng, dtype=dtype)

    def __call__(self, graph, h):
        return self.two(graph.aggregate(fn.copy_src(self.one(h)), "mean").relu())
"""
"""A model's file. Its class takes --hidden 8 alone."""
ROOT = Path(__file__).parents[3]
DATA = "sbm:nodes=300,classes=4,features=16,degree=8"
SMALL = ["--data", DATA, "--hidden", "8", "--layers", "2", "--threads", "1", "--lr", "0.02", "--seed", "5", "--json", "--progress", "none"]


def command(*flags, environ=None, module="sarlite.train", **run_options):
    """Run `python -m MODULE FLAGS` in a process, with `run_options` of `subprocess.run`; return the CompletedProcess."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environ or {})}
    words = [sys.executable, "-m", module, *map(str, flags)]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, **run_options)


def train(run_dir, *flags, **command_options):
    """Run the training command on small data in a process, writing to `run_dir`; return (object that --json prints, epochs' metrics)."""
    done = command(*SMALL, "--run-dir", run_dir, *flags, **command_options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), metrics(run_dir)


def train_here(run_dir, *flags):
    """Run the training command in this process, with threads as ranks, writing to `run_dir`; return the metrics of every epoch."""
    options = config.parse([*SMALL, "--run-dir", str(run_dir), *map(str, flags)])
    if options.machine.ranks > 1:
        threads.run(options.machine.ranks, run.train, options)
    else:
        run.train(Solo(), options)
    return metrics(run_dir)


def start_here(flags):
    """Run the training command with `flags` in this process; return the ended process that `training_process.start_training` returns."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        status = train_command.main(["--progress", "none", *flags])
    return EndedProcess(status, errors.getvalue())


class EndedProcess:
    """Stand-in for a `subprocess.Popen` whose process has ended with a status and its error output."""

    def __init__(self, status, errors):
        self.returncode, self.errors = status, errors

    def communicate(self):
        return "", self.errors


def metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def assert_same_curve(actual, expected, rtol=1e-6):
    assert [m["epoch"] for m in actual] == [m["epoch"] for m in expected]
    for name in ("loss", "train_accuracy", "val_accuracy", "test_accuracy"):
        np.testing.assert_allclose([m[name] for m in actual], [m[name] for m in expected], rtol=rtol, err_msg=name)
