"""Test that `--dry-run` measures the run and writes nothing, and that `--memory-limit` refuses a run that needs more."""

import json

import pytest

from sarlite.cli import limit, run
from sarlite.cli.config import resolve
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError

SBM = {"data": "sbm:nodes=90,degree=5,features=9", "partition": "random", "threads": 1, "progress": "none"}
RUNS = {
    "gcn": {"model": "gcn"},
    "gat": {"model": "gat", "mode": "oneshot"},
    "smoothed": {"model": "sgc", "correct_and_smooth": True},
    "message flow": {"model": "sage", "layers": 2, "mfg": True},
    "batches": {"model": "sage", "layers": 2, "batch_size": 3, "fanouts": [2, 2]},
    "cache": {"model": "sage", "layers": 2, "batch_size": 3, "fanouts": [2, 2], "remote": "hec"},
    "rows": {"model": "sign", "batch_size": 3},
    "relational": {"model": "rgcn", "data": "relational:nodes=60,edges=200,features=3"},
    "links": {"model": "gcn", "task": "link"},
    "exact": {"model": "gcn", "numerics": "exact"},
}


def trained(comm, folder, **options):
    return run.train(comm, resolve({**SBM, "ranks": comm.size, "run_dir": str(folder), **options}))


@pytest.mark.parametrize("name", RUNS)
def test_a_dry_run_works_with_every_kind_of_run_and_writes_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "new" / "runs" / "dry"
    measured = threads.run(2, trained, folder, dry_run=True, epochs=3, **RUNS[name])[0]
    assert list(tmp_path.iterdir()) == []
    assert measured["steps_per_epoch"] >= 1 and len(measured["peak_bytes"]) == 2
    assert measured["run_seconds"] > measured["epoch_seconds"] > 0 and {"step", "evaluation"} < measured["sent_bytes"].keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["gcn", "gat", "message flow", "relational", "exact"])
def test_bytes_of_a_dry_run_are_those_of_training(name, tmp_path):
    """The bytes of a step equal the bytes that one more full-batch epoch sends; evaluations are counted separately."""
    options = {**RUNS[name], "eval_every": 9}
    dry = threads.run(2, trained, tmp_path / "dry", dry_run=True, **options)[0]["sent_bytes"]
    sent = [threads.run(2, trained, tmp_path / str(n), epochs=n, **options)[0]["sent_bytes"] for n in (2, 3)]
    for phase in ("forward_fetch", "backward_fetch", "backward_push"):
        assert sent[1].get(phase, 0) - sent[0].get(phase, 0) == dry["step"].get(phase, 0), phase
    assert dry["step"]["forward_fetch"] > 0 and sent[1]["evaluation"] >= dry["evaluation"]["evaluation"] > 0


def test_json_ends_a_dry_run(tmp_path, capsys):
    measured = trained_alone(tmp_path, dry_run=True, json=True, model="gcn")
    *table, line = capsys.readouterr().out.splitlines()
    assert json.loads(line) == measured and table[0].endswith("nothing is written")
    assert [line.split("  ")[0] for line in table[2:]] == ["setup", "first step", "evaluation", "step", "epoch", "run",
                                                           "peak memory"]


def trained_alone(folder, **options):
    return threads.run(1, trained, folder / "run", **options)[0]


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("model, when", [("gcn", "training would take about"), ("sage", "the first step took")])
def test_what_does_not_fit_is_refused_on_every_rank(model, when, dry, tmp_path):
    options = {"model": "gcn"} if model == "gcn" else RUNS["batches"]  # batches have no formula

    def work(comm):
        with pytest.raises(ConfigError) as error:
            trained(comm, tmp_path / "run", memory_limit=1000, dry_run=dry, **options)
        return str(error.value)

    texts = threads.run(2, work)
    assert texts[0] == texts[1] and when in texts[0] and "more than --memory-limit 1000 B" in texts[0]
    assert list(tmp_path.iterdir()) == []


def test_the_measured_peak_is_checked_in_the_first_call_alone():
    peaks = iter([1001, 10**9])
    checked = limit.MemoryLimit(2000.0, "--memory-limit", 1000, lambda: next(peaks))
    with pytest.raises(ConfigError, match="1.954 KiB on rank 0, .*--memory-limit"):
        checked.check_once(Solo())
    checked.check_once(Solo())
    limit.MemoryLimit(2000.0, "--memory-limit", 1000, lambda: 1000).check_once(Solo())


def test_without_an_option_the_ranks_of_a_host_share_its_memory(monkeypatch):
    monkeypatch.setattr(limit, "memory_limit", lambda: 900)
    part = type("Part", (), {"memory": type("Fixed", (), {"base": 60, "peak": staticmethod(lambda: 30)})})
    limits = threads.run(3, limit.of_run, part, None, 3)[0]
    assert (limits.n_bytes, limits.base) == (300, 20)
    assert threads.run(3, limit.of_run, part, 77.0, 1)[0].n_bytes == 77.0
