"""Minibatches of the training command that go on from a checkpoint, caches and all."""

import json
import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from sarlite.cli import config, run
from sarlite.cli import run_report as report
from sarlite.comm import Solo, threads
from sarlite.comm.interrupt import Interrupts
from sarlite.errors import CheckpointError, ConfigError
from sarlite.minibatch.hec.row_table import Ordered, RowTable
from sarlite.train import caches, checkpoint
from tests.helpers.train.training_runs import DATA, SMALL

pytestmark = pytest.mark.timeout(60)
MANY = ["--data", f"{DATA},train=0.5"]
BATCHES = ["--batch-size", 40, "--fanouts", "3,5"]


def same(actual, expected):
    """Assert that the metrics of two runs have the same bits, except times."""
    without = [[{name: value for name, value in m.items() if name != "seconds"} for m in run] for run in (actual, expected)]
    assert without[0] == without[1]
    return True


def stopped(folder, epoch, *flags):
    """Train until a signal comes in an epoch, on ranks as threads; return the checkpoint, of that epoch."""
    options, interrupts = config.parse([*SMALL, "--run-dir", str(folder), *map(str, flags)]), Interrupts()
    write, saved = report.write_metrics, folder / "checkpoint.safetensors"

    def noting(file, record):
        write(file, record)
        interrupts.pending = 2 if record["epoch"] == epoch - 1 else interrupts.pending

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(report, "write_metrics", noting)
        threads.run(options.machine.ranks, lambda comm: run.train(comm, options, interrupts=interrupts))
    assert checkpoint.load_metadata(saved)["epoch"] == epoch
    return saved


FLAGS = {"exact evaluation": [], "sampled evaluation": ["--eval-fanouts", "2,3"], "labor": ["--sampler", "labor", "--sample-ahead", 0]}


@pytest.mark.parametrize("name", FLAGS)
def test_a_resumed_run_goes_on_to_the_same_numbers(here, name, tmp_path):
    flags = [*MANY, *BATCHES, *FLAGS[name], "--lr-schedule", "cosine", "--epochs", 6]
    six = here(tmp_path / "six", *flags)
    assert same(here(tmp_path / "rest", *flags, "--resume", stopped(tmp_path / "part", 3, *flags)), six[3:])


def test_the_batch_size_may_change_and_so_do_the_steps(here, tmp_path):
    flags = [*MANY, *BATCHES]
    here(tmp_path / "run", *flags, "--epochs", 2)
    saved = tmp_path / "run" / "checkpoint.safetensors"
    n = int(checkpoint.load_metadata(saved)["step"])
    assert n == 8 and "caches" not in checkpoint.load_metadata(saved)
    assert len(here(tmp_path / "larger", *flags, "--batch-size", 80, "--resume", saved, "--epochs", 3)) == 1
    assert checkpoint.load_metadata(tmp_path / "larger" / "checkpoint.safetensors")["step"] == 6
    before = {name: value for name, value in config.resume.base(saved).items() if name != "ranks"}
    whole = config.resolve({"batch_size": 0, "resume": str(saved), "epochs": 3}, before=before)
    assert whole.minibatch.fanouts is None and before["fanouts"] == [3, 5]


REMOTE = {
    "hec": ["--remote", "hec", "--hec-limit", 5, "--eval-fanouts", "3,3"], "local": ["--remote", "local"],
    "demand": ["--remote", "hec", "--push", "demand", "--hec-delay", 2, "--halo-features", "cache"],
    "global": ["--remote", "hec", "--batches", "global", "--hec-delay", 0, "--hec-lines", 30, "--hec-limit", 9, "--on-miss", "zero"],
}  # fmt: skip


@pytest.mark.parametrize("name, ranks", [("hec", 2), ("local", 2), ("demand", 2), ("global", 3)])
def test_caches_train_and_go_on_to_the_same_numbers(here, name, ranks, capsys, tmp_path):
    flags = [*MANY, *BATCHES, "--epochs", 4, *REMOTE[name], "--ranks", ranks, "--partition", "random"]
    whole = here(tmp_path / "four", *flags)
    output = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert whole[-1]["loss"] < whole[0]["loss"] and output["steps"] == 16 and output["imbalance"] >= 1
    assert list(output)[9:-2] == ["steps", "imbalance", *([] if name == "local" else ["hit_rate", "rows_pushed", "bytes_pushed"])]
    if name != "local":
        assert len(output["hit_rate"]) == 2 and 0 < output["hit_rate"][1] < 1 and output["rows_pushed"][1] > 0 < output["bytes_pushed"]
        assert (output["hit_rate"][0] == 1) == (name == "hec") == (output["rows_pushed"][0] == 0)  # where features are kept
    saved = stopped(tmp_path / "part", 2, *flags)
    assert len(caches.files(saved.parent)) == (0 if name == "local" else ranks)
    assert same(here(tmp_path / "rest", *flags, "--resume", saved), whole[2:])
    assert "start empty" not in capsys.readouterr().err


def test_caches_that_cannot_go_on_start_empty_and_the_run_says_so(here, capsys, tmp_path):
    flags = [*MANY, *BATCHES, "--epochs", 2, "--remote", "hec", "--ranks", 2, "--partition", "random"]
    here(tmp_path / "two", *flags)
    saved, go_on = tmp_path / "two" / "checkpoint.safetensors", ["--epochs", 3, "--resume", tmp_path / "two" / "checkpoint.safetensors"]

    def told(name, *local):
        capsys.readouterr()
        assert len(here(tmp_path / name, *flags, *go_on, *local)) == 1
        return re.findall("warning: the caches of embeddings start empty: (.*)", capsys.readouterr().err)

    assert told("same") == []
    assert told("three", "--ranks", 3) == ["the checkpoint has caches of 2 ranks"]
    assert told("one", "--ranks", 1) == []  # which needs none
    assert told("other parts", "--partition", "contiguous") == ["rows are divided differently"]
    assert told("other steps", "--batch-size", 30) == ["they are of another step"]
    assert told("other flags", "--hec-lines", 7, "--hec-limit", 7) == ["their options have changed"]
    assert told("exact", "--remote", "exact") == []
    assert told("hec again", "--resume", tmp_path / "exact" / "checkpoint.safetensors", "--epochs", 4) == ["the checkpoint has none"]
    for path in caches.files(saved.parent):
        path.unlink()
    assert told("missing") == ["files caches-8-0of2.safetensors and following are missing"]


def test_a_set_of_caches_without_its_checkpoint_is_not_read(here, monkeypatch, capsys, tmp_path):
    flags = [*MANY, *BATCHES, "--remote", "hec", "--ranks", 2, "--partition", "random"]
    three = here(tmp_path / "three", *flags, "--epochs", 3)
    here(tmp_path / "run", *flags, "--epochs", 2)
    go_on = [*flags, "--epochs", 3, "--resume", tmp_path / "run" / "checkpoint.safetensors"]
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="full"):
        open_ = checkpoint.TensorWriter.open
        patch.setattr(checkpoint.TensorWriter, "open", lambda writer, **options: full() if writer.path.name == "checkpoint.safetensors" and
                      not options["trial"] else open_(writer, **options))
        here(tmp_path / "run", *go_on)
    assert sorted({path.name.split("-")[1] for path in caches.files(tmp_path / "run")}) == ["12", "8"]
    assert same(here(tmp_path / "run", *go_on), three) and "start empty" not in capsys.readouterr().err
    assert {path.name.split("-")[1] for path in caches.files(tmp_path / "run")} == {"12"}


def full():
    raise CheckpointError("the disk is full")


def test_a_checkpoint_takes_the_caches_of_the_one_before_away(here, tmp_path):
    flags = [*MANY, *BATCHES, "--remote", "hec", "--ranks", 2, "--partition", "random", "--checkpoint-every", 1]
    here(tmp_path / "run", *flags, "--epochs", 2)
    names = [path.name for path in caches.files(tmp_path / "run")]
    assert sorted(names) == ["caches-8-0of2.safetensors", "caches-8-1of2.safetensors"]
    here(tmp_path / "run", *flags, "--epochs", 3, "--remote", "exact", "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert caches.files(tmp_path / "run") == [] and "caches" not in checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")


def _ordered(state):
    return {name: Ordered(array, np.arange(len(array))) for name, array in state.items()}


class Cached:
    """Stand-in for a trainer, with the attributes that `caches` reads: rows, and batches with a state."""

    def __init__(self, rows, step=12, state=None):
        self.graph, self.training_step = SimpleNamespace(dst_ids=np.asarray(rows)), SimpleNamespace(n_steps=step)
        self.batches, self.got = SimpleNamespace(contents=lambda: _ordered(state or {}), load_state=self._load), None

    def _load(self, state):
        self.got = state


def cached(comm, step=12, value=1.0):
    return Cached(np.arange(4) + comm.rank, step, {"0.rows": np.full((3, 2), value + comm.rank), "0.halo": np.arange(3, dtype=np.int32)})


def test_caches_are_written_by_each_rank_and_come_back(tmp_path):
    def work(comm):
        with pytest.raises(CheckpointError, match="cannot be written: No such file"):
            caches.write(comm, tmp_path / "run", cached(comm))  # a folder that is missing later was removed
        comm.barrier()
        caches.write(comm, tmp_path / "run", cached(comm), trial=True)
        result = caches.write(comm, tmp_path / "run", cached(comm))
        json.dumps(result)
        other = cached(comm, value=-1.0)
        assert caches.restore(comm, tmp_path / "run", other, result, 12) is None
        assert (other.got["0.rows"] == 1.0 + comm.rank).all() and other.got["0.halo"].dtype == np.int32
        again = caches.write(comm, tmp_path / "run", cached(comm, step=15))
        assert len(caches.files(tmp_path / "run")) == 4
        comm.barrier()
        caches.remove_others(tmp_path / "run", again, comm.size)
        comm.barrier()
        assert sorted(path.name for path in caches.files(tmp_path / "run")) == [f"caches-15-{k}of2.safetensors" for k in range(2)]
        return caches.restore(comm, tmp_path / "run", other, result, 12)

    assert threads.run(2, work) == ["files caches-12-0of2.safetensors and following are missing"] * 2
    assert caches.write(Solo(), tmp_path, Cached([0])) is None


def test_caches_that_do_not_fit_are_left_and_told_of(tmp_path):
    by_rank = threads.run(2, lambda comm: caches.write(comm, tmp_path, cached(comm)))[0]

    def words(about=by_rank, step=12, n=2, rows=None):
        def work(comm):
            trainer = cached(comm)
            trainer.graph.dst_ids = trainer.graph.dst_ids if rows is None else rows
            reason = caches.restore(comm, tmp_path, trainer, about, step)
            assert (trainer.got is None) == (reason is not None)
            return reason

        return set(threads.run(n, work))

    assert words() == {None} and words(None) == {"the checkpoint has none"}
    assert words(n=3) == {"the checkpoint has caches of 2 ranks"} and words(step=6) == {"they are of another step"}
    assert words(rows=np.arange(5)) == {"rows are divided differently"}
    other = threads.run(2, lambda comm: caches.write(comm, tmp_path, cached(comm, value=3.0)))[0]  # as another run may
    with pytest.raises(CheckpointError, match="not the file .*checkpoint"):
        words()
    path = tmp_path / "caches-12-1of2.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=path.name):
        words(other)


def test_a_folder_with_caches_is_not_taken_for_a_new_run(here, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "caches-12-0of1.safetensors").write_text("")
    with pytest.raises(ConfigError, match="already holds caches-12-0of1.safetensors"):
        here(tmp_path / "run", "--epochs", 1)


def test_caches_are_written_in_pieces(tmp_path):
    """Beside the caches it takes a number a row and a few pieces: not a copy of their rows."""
    table = RowTable(60_000, 60_000)
    for begin in range(0, 60_000, 20_000):
        numbers = np.random.default_rng(begin).permutation(20_000).astype(np.int32) + begin
        table.put(numbers, begin, np.random.default_rng(1).standard_normal((20_000, 64)).astype(np.float32))
    contents = lambda: {f"cache.0.{name}": array for name, array in table.contents().items()}  # noqa: E731
    trainer = SimpleNamespace(batches=SimpleNamespace(contents=contents), training_step=SimpleNamespace(n_steps=7),
                              graph=SimpleNamespace(dst_ids=np.arange(5)))
    tracemalloc.start()
    try:
        reported = caches.write(Solo(), tmp_path, trainer)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20 < table.nbytes
    finally:
        tracemalloc.stop()
    (path,) = caches.files(tmp_path)
    result, _ = checkpoint.load(path)
    for name, array in table.state().items():
        assert result[f"cache.0.{name}"].dtype == array.dtype and result[f"cache.0.{name}"].tobytes() == array.tobytes()
    assert reported["files"] == [checkpoint.verify(path)]
