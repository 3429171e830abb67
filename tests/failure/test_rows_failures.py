"""Failures while ranks write or read learned rows together: every process is gone, and the last checkpoint is whole."""

import json
import os
import textwrap

import pytest

from sarlite.train import checkpoint
from tests.helpers.train.jobs import MPIEXEC, SECONDS, STALL_SECONDS, Failed, assert_ended

pytestmark = [
    pytest.mark.timeout(150 + 10 * SECONDS),
    pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec beside python or on PATH"),
    pytest.mark.skipif("PMI_SIZE" in os.environ, reason="starts MPI jobs of its own, which cannot run inside one"),
]

MODEL = """
    import os, signal
    from pathlib import Path
    from sarlite import models
    from sarlite.train import owners

    (Path({pids!r}) / str(os.getpid())).touch()
    step, calls = owners.Owners.{step}, []

    def raises(error):
        raise error

    def failing(self, *args):
        "Fail on one rank amid the pieces, once there is a checkpoint; of those that are written while there is a file for them, too."
        path = Path({checkpoint!r})
        if self.comm.rank == {rank} and path.exists() and ("{step}" == "_hand_out" or list(path.parent.glob(".sarlite-*"))):
            calls.append(0)
            if len(calls) == 3:
                Path({moment!r}).touch()
                {when}
        return step(self, *args)

    owners.Owners.{step} = failing

    class Model(models.RGCN):
        pass
"""
DATA = "relational:nodes=300,edges=1500,classes=3,features=4,train=0.3"
WAYS = {"killed": ("os.kill(os.getpid(), signal.SIGKILL)", []), "raises": ("raises(KeyError('the cause'))", ["KeyError: 'the cause'"]),
        "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", ["another rank's watchdog does not answer"])}  # fmt: skip


class Runs:
    """Runs in one folder, of a model with learned rows on all ranks."""

    def __init__(self, folder):
        self.pids, self.moment, self.path, self.run = folder / "pids", folder / "moment", folder / "model.py", folder / "run"
        self.pids.mkdir()

    def start(self, *flags, rank=None, step="_collect", when="pass"):
        settings = {"pids": str(self.pids), "moment": str(self.moment), "checkpoint": str(self.run / "checkpoint.safetensors")}
        self.path.write_text(textwrap.dedent(MODEL).format(rank=rank, step=step, when=when, **settings))
        flags = flags or ["--data", DATA, "--model", f"{self.path}:Model", "--embedding", 3, "--hidden", 4, "--run-dir", self.run,
                          "--epochs", 3, "--checkpoint-every", 1, "--optimizer", "adam"]  # fmt: skip
        flags = [*flags, *(["--stall-timeout", 2 * STALL_SECONDS] if "STOP" in when else [])]
        return Failed(self.pids, 2, flags, moment=self.moment, seconds=40 + 3 * SECONDS)

    def resume(self, **failure):
        return self.start("--resume", self.run / "checkpoint.safetensors", "--model", f"{self.path}:Model", **failure)

    def goes_on(self):
        """Check that the checkpoint is the first epoch's, that the next run resumes from it, and that no file of the failure is left."""
        tensors, about = checkpoint.load(self.run / "checkpoint.safetensors")
        assert about["epoch"] == 1 and any(name.startswith("ids.") for name in tensors)
        again = self.resume()
        assert again.status == 0, again.err
        assert sorted(os.listdir(self.run)) == ["checkpoint.safetensors", "config.toml", "metrics.jsonl", "summary.json"]
        assert [json.loads(line)["epoch"] for line in (self.run / "metrics.jsonl").open()] == [1, 2, 3]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_while_learned_rows_are_written(tmp_path, way, rank):
    runs, (when, words) = Runs(tmp_path), WAYS[way]
    assert_ended(runs.start(rank=rank, when=when), *words)
    runs.goes_on()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way, rank", [("killed", 0), ("raises", 1)])
def test_while_learned_rows_are_read(tmp_path, way, rank):
    runs, (when, words) = Runs(tmp_path), WAYS[way]
    assert_ended(runs.start(rank=0, when="os.kill(os.getpid(), signal.SIGKILL)"))
    runs.moment.unlink()
    assert_ended(runs.resume(rank=rank, step="_hand_out", when=when), *words)
    runs.goes_on()
