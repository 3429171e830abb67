"""The training command's options: flags over file over default, and what is refused."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from training_runs import SMALL, command

from sarlite.errors import ConfigError, SarliteError
from sarlite.train import config

pytestmark = pytest.mark.timeout(120)


def test_flag_over_file_over_default(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text('epochs = 7\nlr = 1\nlr-schedule = "cosine"\nbatch_norm = false\n')
    resolved = config.parse(["--config", str(path), "--epochs", "3"])
    assert (resolved.epochs, resolved.lr, resolved.lr_schedule, resolved.batch_norm) == (3, 1.0, "cosine", False)
    assert type(resolved.lr) is float and resolved.optimizer == "adam" and resolved.dropout is None


def test_the_written_configuration_is_read_back(tmp_path):
    one = config.parse(["--epochs", "3", "--dropout", "0.25", "--no-verify", "--model", 'a "b".py:C', "--run-dir", "r\\s"])
    path = Path(os.devnull)
    assert config.read_toml(path) == {}
    (tmp_path / "c.toml").write_text(config.to_toml(one))
    assert vars(config.resolve({}, config.read_toml(tmp_path / "c.toml"))) == vars(one)


FILES = {
    "unknown key": ("epoch = 3", "unknown option 'epoch'"),
    "config in a config": ('config = "a.toml"', "unknown option 'config'"),
    "text for a number": ('epochs = "3"', "epochs = '3' is not int"),
    "truth for a number": ("epochs = true", "epochs = True is not int"),
    "fraction for a count": ("hidden = 2.5", "hidden = 2.5 is not int"),
    "number for truth": ("json = 1", "json = 1 is not bool"),
    "unknown choice": ('mode = "all"', "mode = 'all' is not sar, sa, oneshot"),
    "list": ("lr = [1.0]", "lr = [1.0] is not float"),
    "not TOML": ("epochs 3", "options.toml"),
    "too small": ("epochs = 0", "--epochs 0 is less than 1"),
    "no share": ("dropout = 1.0", "--dropout 1.0 is not in [0, 1)"),
    "not a number": ("lr = nan", "--lr nan is not above 0"),
    "a time": ('checkpoint_every = "10 parsecs"', "checkpoint_every = '10 parsecs' is not every"),
    "negative": ("weight_decay = -0.1", "--weight-decay -0.1 is less than 0"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_configuration_file_is_refused(name, tmp_path):
    text, word = FILES[name]
    path = tmp_path / "options.toml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError) as found:
        config.parse(["--config", str(path)])
    assert word in str(found.value)


@pytest.mark.parametrize("flags, word", [
    (["--config", "FILE"], "unknown option 'epoch'"), (["--mode", "all"], "--mode: invalid choice: 'all'"),
    (["--lr-schedule", "sometimes"], "sometimes"),
])  # fmt: skip
def test_the_command_refuses_with_status_2(flags, word, tmp_path):
    (tmp_path / "options.toml").write_text("epoch = 3\n")
    flags = [flag.replace("FILE", str(tmp_path / "options.toml")) for flag in flags]
    done = command(*SMALL, "--run-dir", tmp_path / "run", "--epochs", 1, *flags)
    assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags, word", [
    (["--epochs", "many"], "--epochs: invalid int value: 'many'"),
    (["--nonsense", "1"], "--nonsense"), (["--mode", "all"], "invalid choice"),
])  # fmt: skip
def test_unreadable_flags_are_refused(flags, word, capsys):
    with pytest.raises(SystemExit) as found:
        config.parse(flags)
    assert found.value.code == 2 and word in capsys.readouterr().err


@pytest.mark.parametrize("flags, word", [
    (["--config", "/no/such/file"], "/no/such/file"), (["--dropout", "1.5"], "--dropout 1.5"),
    (["--model", "gnn"], "--model 'gnn' is not one of gcn, sage, gat"),
    (["--model", "/no/file.py:Model"], "/no/file.py"), (["--model", "FILE:Model"], "--model"), (["--heads", "2"], "sage takes no heads"),
    (["--partition", "halves"], "halves"), (["--data", "sbm:nodes=many"], "nodes"),
    (["--data", "/no/such/data"], "/no/such/data"), (["--data", "sbm:knots=3"], "knots"),
])  # fmt: skip
def test_what_cannot_work_is_refused(here, flags, word, tmp_path):
    (tmp_path / "model.txt").write_text("")
    for ranks in (1, 2):
        with pytest.raises(SarliteError) as found:
            here(tmp_path / "run", "--epochs", 1, "--ranks", ranks, *[flag.replace("FILE", str(tmp_path / "model.txt")) for flag in flags])
        assert word in str(found.value)
        assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_folder_that_holds_a_run_is_refused(here, tmp_path):
    run_dir = tmp_path / "run"
    here(run_dir, "--epochs", 1)
    before = {file.name: file.read_bytes() for file in run_dir.iterdir()}
    with pytest.raises(ConfigError, match=f"--run-dir {run_dir} already holds config.toml"):
        here(run_dir, "--epochs", 1)
    assert {file.name: file.read_bytes() for file in run_dir.iterdir()} == before


def test_a_run_directory_that_cannot_be_made(here, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"--run-dir {tmp_path / 'file' / 'run'}"):
        here(tmp_path / "file" / "run", "--epochs", 1)
