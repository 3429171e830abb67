"""Test that a run has a folder of its own, and that no file of the user is overwritten or removed."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sarlite.cli import config, folder, run
from sarlite.cli.data_command import main as data_command
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, SarliteError
from sarlite.train import checkpoint
from tests.helpers.train.training_runs import DATA, ROOT, SMALL, command

pytestmark = pytest.mark.timeout(120)


def content(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", (*folder.FILES, folder.PREDICTIONS))
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_file_of_the_users_is_not_replaced(here, name, ranks, tmp_path):
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"--run-dir {tmp_path / 'proj'} already holds {name}"):
        here(tmp_path / "proj", "--epochs", 1, "--ranks", ranks)
    assert content(tmp_path) == {Path("proj") / name: b"mine"}


def test_a_link_that_leads_nowhere_is_a_file_too(here, tmp_path):
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "config.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="already holds config.toml"):
        here(tmp_path / "proj", "--epochs", 1)
    assert not (tmp_path / "elsewhere").exists()


def test_other_files_in_the_folder_stay(here, tmp_path, capsys):
    """Files of the user stay, also a data set in the run's folder that the run divides again."""
    assert data_command(["convert", DATA, str(tmp_path / "proj" / "data")]) == 0
    (tmp_path / "proj" / "notes.txt").write_text("mine")
    before = content(tmp_path / "proj")
    here(tmp_path / "proj", "--data", tmp_path / "proj" / "data", "--normalize-features", "--ranks", 2, "--epochs", 1)
    after = content(tmp_path / "proj")
    assert {name: after[name] for name in before} == before and after.keys() - before.keys() == set(map(Path, folder.FILES))


@pytest.mark.parametrize("name, text", [("config.toml", "a = 1\n"), ("metrics.jsonl", "my own notes\n"), ("summary.json", "[1]"),
                                        *((name, "a pipe") for name in (folder.CONFIG, folder.METRICS, folder.SUMMARY))])
def test_a_resumed_run_replaces_only_what_a_run_wrote(here, name, text, tmp_path):
    here(tmp_path / "run", "--epochs", 1)
    if text == "a pipe":
        (tmp_path / "run" / name).unlink()
        os.mkfifo(tmp_path / "run" / name)
        text = None
    else:
        (tmp_path / "run" / name).write_text(text)
    before = text and content(tmp_path / "run")
    with pytest.raises(ConfigError, match=f"--run-dir {tmp_path / 'run'} holds a {name}"):
        here(tmp_path / "run", "--epochs", 2, "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert not text or content(tmp_path / "run") == before


@pytest.mark.parametrize("name", (*folder.FILES, folder.PREDICTIONS, "caches-4-0of1.safetensors"))
def test_nothing_in_a_folder_from_elsewhere_is_written_through_a_link(here, name, tmp_path):
    here(tmp_path / "run", "--epochs", 1)
    target, mine = tmp_path / "run" / name, tmp_path / "mine"
    mine.write_bytes(target.read_bytes() if target.exists() else b"mine")
    target.unlink(missing_ok=True)
    target.symlink_to(mine)
    before = mine.read_bytes(), sorted(os.listdir(tmp_path / "run"))
    with pytest.raises(ConfigError, match=f"--run-dir {tmp_path / 'run'}: {name} is a symbolic link"):
        here(tmp_path / "run", "--epochs", 2, "--correct-and-smooth", "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert (mine.read_bytes(), sorted(os.listdir(tmp_path / "run"))) == before


@pytest.mark.parametrize("name", folder.FILES)
def test_a_link_that_comes_during_a_run_is_not_followed(here, name, tmp_path, monkeypatch):
    (tmp_path / "mine").write_bytes(b"mine")
    fit = run.fit

    def planted(*args, on_epoch, **options):
        def after(record):
            stops = on_epoch(record)
            if record["epoch"] == 1 and name != folder.METRICS:
                (tmp_path / "run" / name).unlink(missing_ok=True)
                (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
            return stops

        if name == folder.METRICS:
            (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
        return fit(*args, on_epoch=after, **options)

    monkeypatch.setattr(run, "fit", planted)
    with contextlib.suppress(SarliteError):
        here(tmp_path / "run", "--epochs", 2)
    assert (tmp_path / "mine").read_bytes() == b"mine"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", (*folder.FILES, folder.PREDICTIONS, "caches-4-0of1.safetensors"))
def test_a_trace_is_none_of_the_runs_own_files(here, name, tmp_path):
    here(tmp_path / "run", "--epochs", 1)
    before = content(tmp_path / "run")
    with pytest.raises(ConfigError, match=f"--trace .*{name}: the run writes"):
        here(tmp_path / "run", "--epochs", 2, "--trace", tmp_path / "run" / ".." / "run" / name,
             "--resume", tmp_path / "run" / "checkpoint.safetensors")
    assert content(tmp_path / "run") == before
    here(tmp_path / "run", "--epochs", 2, "--trace", tmp_path / "run" / "trace.json",
         "--resume", tmp_path / "run" / "checkpoint.safetensors")


def test_propagated_features_do_not_take_the_runs_folder(here, tmp_path):
    with pytest.raises(ConfigError, match="--propagated .*run: the run writes"):
        here(tmp_path / "run", "--model", "sgc", "--propagated", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("options", [[], ["--batch-size", 20, "--fanouts", "2,2", "--remote", "hec"]], ids=["full batch", "caches"])
def test_a_folder_that_is_removed_during_a_run_is_told(here, how, options, tmp_path, monkeypatch):
    fit = run.fit

    def removed(*args, on_epoch, **more):
        def after(record):
            stops = on_epoch(record)
            if record["epoch"] == 2 and (tmp_path / "run").exists():
                shutil.rmtree(tmp_path / "run", ignore_errors=True)
                if how == "replaced":
                    (tmp_path / "run").mkdir(exist_ok=True)
            return stops

        return fit(*args, on_epoch=after, **more)

    monkeypatch.setattr(run, "fit", removed)
    with pytest.raises(SarliteError, match="the folder was removed during the run"):
        here(tmp_path / "run", "--epochs", 3, "--ranks", 2, *options)
    assert not (tmp_path / "run").exists() or not os.listdir(tmp_path / "run")


def test_a_runs_folder_is_its_checkpoint(here, tmp_path):
    here(tmp_path / "run", "--epochs", 1)
    assert [record["epoch"] for record in here(tmp_path / "run", "--epochs", 2, "--resume", tmp_path / "run")] == [1, 2]


def test_what_a_killed_run_left_goes_as_the_run_goes_on(here, tmp_path):
    """Temporary files of a killed run are removed when the run resumes."""
    here(tmp_path / "run", "--epochs", 1)
    left = tmp_path / "run" / ".sarlite-01234567-1-2-89abcdef.tmp"
    left.touch()
    again = folder.Folder(Solo(), None, tmp_path / "run" / "checkpoint.safetensors", "gcn")
    assert not left.exists()
    again.close()


def test_a_checkpoint_does_not_stand_beside_a_steps_memory(here, tmp_path, monkeypatch):
    written, write = [], checkpoint.write

    def noted(path, trainer, *args, **options):
        written.append((trainer.training_step.n_steps, trainer.buffers.n_bytes))
        write(path, trainer, *args, **options)

    monkeypatch.setattr(checkpoint, "write", noted)
    here(tmp_path / "run", "--epochs", 2, "--checkpoint-every", 1, "--hidden", 512)
    assert written == [(0, 0), (1, 0), (2, 0)]


def test_a_folder_is_gone_again_where_nothing_came_of_it(here, tmp_path):
    with pytest.raises(ConfigError):
        here(tmp_path / "run", "--partition", "halves")
    assert not (tmp_path / "run").exists()


def test_runs_of_one_second_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda format: "20260101-000000")
    folders = [folder.Folder(Solo(), None, None, "gcn") for _ in range(3)]
    assert [str(one.path) for one in folders] == [f"runs/20260101-000000-gcn{end}" for end in ("", "-2", "-3")]
    for one in folders:
        one.close()


def test_two_runs_in_one_folder(tmp_path):
    first = folder.Folder(Solo(), tmp_path / "run", None, "gcn")
    for n in (1, 2):
        with pytest.raises(ConfigError, match=f"run_dir {tmp_path / 'run'}: another run uses this folder"):
            threads.run(n, lambda comm: folder.Folder(comm, tmp_path / "run", None, "gcn"))
    first.begin("epochs = 3\n", 0)
    first.close()
    assert sorted(os.listdir(tmp_path / "run")) == ["config.toml", "metrics.jsonl"]


def test_a_file_that_appeared_meanwhile_is_not_replaced(tmp_path):
    one = folder.Folder(Solo(), tmp_path / "run", None, "gcn")
    (tmp_path / "run" / "config.toml").write_text("mine")
    with pytest.raises(ConfigError, match=f"run_dir {tmp_path / 'run'}: File exists"):
        one.begin("epochs = 3\n", 0)
    one.close()
    assert content(tmp_path / "run") == {Path("config.toml"): b"mine"}


def test_two_commands_at_once(tmp_path):
    """Two runs that start in the same second without --run-dir have different folders."""
    words = [sys.executable, "-m", "sarlite.train", *SMALL, "--epochs", "1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    runs = [subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert all(sorted(os.listdir(path)) == sorted(folder.FILES) for path in (tmp_path / "runs").iterdir())
    assert len(os.listdir(tmp_path / "runs")) == 2


def test_every_option_of_time_or_epochs(here, tmp_path):
    for every, expected in (("0s", 4), ("3", 3), ("1h", 0)):
        model = tmp_path / f"dies{every}.py"
        model.write_text("import os\nfrom sarlite.models import GCN\nclass GCN(GCN):\n    def __call__(self, graph, h):\n"
                         "        if self.activations[0].dropout.rng.step == 4:\n            os._exit(7)\n"
                         "        return super().__call__(graph, h)\n")  # fmt: skip
        run_dir = tmp_path / every
        done = command(*SMALL, "--model", f"{model}:GCN", "--epochs", 6, "--run-dir", run_dir, "--checkpoint-every", every)
        assert done.returncode == 7, done.stderr
        assert (run_dir / "checkpoint.safetensors").exists() == bool(expected)
        assert not expected or checkpoint.load(run_dir / "checkpoint.safetensors")[1]["epoch"] == expected


def test_a_configuration_reads_back_whatever_its_paths_are(tmp_path):
    """config.toml keeps characters beyond 16 bits, and a line of an earlier version is ignored."""
    options = config.resolve({"data": "rmat:x😀\x7f\t\"é", "epochs": 3})
    (tmp_path / "config.toml").write_text(config.to_toml(options) + "trace_epochs = 3\n", encoding="utf-8")
    assert config.resolve({}, config.read_toml(tmp_path / "config.toml")) == options


def test_trace_epochs_without_a_trace(tmp_path):
    with pytest.raises(ConfigError, match="--trace-epochs has no effect without --trace"):
        config.parse(["--trace-epochs", "2"])


@pytest.mark.parametrize("epochs, expected", [((1, 2, 2, 3), (1, 2)), ((1, 2, 1, 3), (1, 2)), ((1, 2, 3), (1, 2, 3)), ((0, 1), ())])
def test_metrics_are_kept_as_far_as_epochs_ascend(epochs, expected, tmp_path):
    (tmp_path / "m").write_text("".join(f'{{"epoch": {epoch}}}\n' for epoch in epochs))
    assert folder._lines_until(tmp_path / "m", 9) == [f'{{"epoch": {epoch}}}' for epoch in expected]


def test_a_summary_is_of_a_run_that_has_ended(tmp_path):
    first = folder.Folder(Solo(), tmp_path / "run", None, "gcn")
    first.begin("epochs = 3\n", 0)
    first.end({"ranks": 1})
    first.close()
    (tmp_path / "run" / "checkpoint.safetensors").touch()
    again = folder.Folder(Solo(), None, tmp_path / "run" / "checkpoint.safetensors", "gcn")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"sarlite_summary": 1, "ranks": 1}
    again.begin("epochs = 9\n", 3)
    assert not (tmp_path / "run" / "summary.json").exists()
    again.close()
