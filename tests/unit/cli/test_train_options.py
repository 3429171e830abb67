"""Test the options of the training command: the order flag, file, default; and refused values."""

import re
import subprocess
import sys

import pytest

import sarlite
from sarlite.cli import config, estimate_command, info_command, predict_command, report_command, smooth_command, train_command
from sarlite.cli import data_command as data
from sarlite.cli.help import groups
from sarlite.cli.options import OPTIONS
from sarlite.command import byte_size, readable, run_command
from sarlite.errors import ConfigError, SarliteError
from sarlite.oracle import oracle_command
from tests.helpers.train.training_runs import SMALL, command

pytestmark = pytest.mark.timeout(120)


def test_flag_over_file_over_default(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text('epochs = 7\nlr = 1\nlr-schedule = "cosine"\nbatch_norm = false\n')
    resolved = config.parse(["--config", str(path), "--epochs", "3"])
    training, model = resolved.training, resolved.model
    assert (training.epochs, training.lr, training.lr_schedule, model.batch_norm) == (3, 1.0, "cosine", False)
    assert type(training.lr) is float and training.optimizer == "adam" and model.dropout is None


def test_the_written_configuration_is_read_back(tmp_path):
    one = config.parse(["--epochs", "3", "--dropout", "0.25", "--no-verify", "--model", 'a "b".py:C', "--run-dir", "r\\s"])
    path = tmp_path / "c.toml"
    path.write_text("")
    assert config.read_toml(path) == {}
    path.write_text(config.to_toml(one))
    assert config.resolve({}, config.read_toml(path)).values == {**one.values, "run_dir": None}  # of that run alone


FILES = {
    "another word": ("learning_rate = 3", "options.toml: unknown option 'learning_rate'; did you mean lr?"),
    "a long text": ('epochs = "' + "x" * 5000 + '"', "x ... x"),
    "unknown key": ("epoch = 3", "options.toml: unknown option 'epoch'; did you mean epochs?"),
    "config in a config": ('config = "a.toml"', "unknown option 'config'"),
    "text for a number": ('epochs = "3"', "options.toml: epochs = '3' is not a whole number"),
    "truth for a number": ("epochs = true", "epochs = True is not a whole number"),
    "fraction for a count": ("hidden = 2.5", "hidden = 2.5 is not a whole number"),
    "number for truth": ("json = 1", "json = 1 is not true or false"),
    "unknown choice": ('mode = "all"', "mode = 'all' is not one of sar, sa, oneshot"),
    "list": ("lr = [1.0]", "lr = [1.0] is not a number"),
    "not TOML": ("epochs 3", "options.toml"),
    "too small": ("epochs = 0", "options.toml: epochs = 0 is less than 1"),
    "no share": ("dropout = 1.0", "dropout = 1.0 is not in [0, 1)"),
    "not a number": ("lr = nan", "options.toml: lr = nan is not a finite number"),
    "nearly a choice": ('mode = "sra"',
                        "options.toml: mode = 'sra' is not one of sar, sa, oneshot, broadcast; did you mean sa?"),
    "section": ("[training]\nepochs = 3", "options.toml: [training] is a section, but options are written at the top level of the file"),
    "endless": ("stall_timeout = inf", "stall_timeout = inf is not a finite number"),
    "a time": ('checkpoint_every = "10 parsecs"', "checkpoint_every = '10 parsecs' is not a number of epochs or a time"),
    "a size": ('memory_limit = "much"', "options.toml: memory_limit = 'much' is not a size such as 2GiB"),
    "no memory": ("memory_limit = 0", "options.toml: memory_limit = 0 is less than 1"),
    "negative": ("weight_decay = -0.1", "options.toml: weight_decay = -0.1 is less than 0"),
}


def test_sizes_in_bytes():
    for text, n in (("1000000", 10**6), ("12B", 12), ("1.5G", 3 << 29), ("1.5GiB", 3 << 29), ("1.5GB", 1_500_000_000), ("512 mib", 1 << 29),
                    ("2kB", 2000), ("3K", 3072), ("1TB", 10**12), ("1TiB", 1 << 40), ("0.29MB", 290_000)):
        assert byte_size(text) == n, text
        assert config.parse(["--memory-limit", text]).machine.memory_limit == n
    for text in ("", "much", "-1", "1.5.0", "2XB", "2iB", "GiB", "1e9", "2 GiB\n", "9" * 300):
        with pytest.raises(ConfigError, match=f"--memory-limit: {re.escape(repr(text))} is not a size"):
            config.parse([f"--memory-limit={text}"])
    assert [readable(n) for n in (0, 1023, 1536, 5 << 30, 1 << 52)] == ["0 B", "1023 B", "1.5 KiB", "5 GiB", "4096 TiB"]


@pytest.mark.parametrize("name", FILES)
def test_a_bad_configuration_file_is_refused(name, tmp_path):
    text, word = FILES[name]
    path = tmp_path / "options.toml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError) as refusal:
        config.parse(["--config", str(path)])
    assert word in str(refusal.value)


@pytest.mark.parametrize("flags, word", [
    (["--config", "FILE"], "unknown option 'epoch'"), (["--mode", "all"], "--mode: 'all' is not one of sar, sa, oneshot"),
    (["--lr-schedule", "sometimes"], "sometimes"),
])  # fmt: skip
def test_the_command_refuses_with_status_2(flags, word, tmp_path):
    (tmp_path / "options.toml").write_text("epoch = 3\n")
    flags = [flag.replace("FILE", str(tmp_path / "options.toml")) for flag in flags]
    done = command(*SMALL, "--run-dir", tmp_path / "run", "--epochs", 1, *flags)
    assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


MISTYPED = {
    "--modle gcn": "error: unknown option --modle; did you mean --mode or --model? (python -m sarlite.train --help-all lists all)",
    "--epoch=3": "error: unknown option --epoch; did you mean --epochs? (python -m sarlite.train --help-all lists all)",
    "--nonsense 1": "error: unknown option --nonsense (python -m sarlite.train --help-all lists all)",
    "gcn": "error: unexpected argument 'gcn' (python -m sarlite.train --help-all lists all)",
    "--mode sra": "error: --mode: 'sra' is not one of sar, sa, oneshot, broadcast; did you mean sa? "
                  "(docs/which-mode.md tells which to choose; python -m sarlite.train --help-all lists all)",
    "--dtype float": "error: --dtype: 'float' is not one of float32, float64; did you mean float64 or float32? "
                     "(python -m sarlite.train --help-all lists all)",
    "--epochs many": "error: --epochs: invalid int value: 'many' (python -m sarlite.train --help-all lists all)",
    "--epochs": "error: --epochs: expected one argument (python -m sarlite.train --help-all lists all)",
}  # fmt: skip


@pytest.mark.parametrize("flags", MISTYPED)
def test_a_mistyped_flag_gets_one_line_and_a_suggestion(flags, capsys):
    with pytest.raises(ConfigError) as refusal:
        config.parse(flags.split())
    assert f"error: {refusal.value}" == MISTYPED[flags] and capsys.readouterr().err == ""


@pytest.mark.parametrize("flags, message", [
    ("conver a b", "'conver' is not one of convert, info, partition, export, report; did you mean convert? "
                   "(python -m sarlite.data --help lists all)"),
    ("convert sbm: x --overwite", "unknown option --overwite; did you mean --overwrite? (python -m sarlite.data --help lists all)"),
    ("partition --parts many d", "--parts: invalid int value: 'many' (python -m sarlite.data partition --help lists all)"),
])  # fmt: skip
def test_so_do_those_of_the_data_command(flags, message, capsys):
    status, shown = data.main(flags.split()), capsys.readouterr().err
    assert status == 2 and shown.endswith(message + "\n") and shown.count("\n") == 1 and shown.startswith("error: ")


@pytest.mark.parametrize("main", [data.main, info_command.main, train_command.main, predict_command.main, smooth_command.main,
                                  report_command.main, estimate_command.main, oracle_command.main])
def test_a_command_that_a_notebook_calls_returns_its_status(main, capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"sarlite {sarlite.__version__}\n"
    assert main(["--help"]) == 0 and "usage: " in capsys.readouterr().out
    assert main(["--nothing"]) == 2 and capsys.readouterr().err.startswith("error: ")


def test_a_command_that_is_refused_does_not_end_the_notebook_later():
    """The timer that ends a hanging process is stopped when a refused command returns."""
    program = ("import time; from sarlite.comm import guard; guard.END_SECONDS = 0.1\n"
               "from sarlite.cli.train_command import main; print(main(['--lr', 'x'])); time.sleep(1); print('goes on')")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2\ngoes on\n") and done.stderr.startswith("error: ")


def test_a_status_is_that_of_a_process_that_exits(capsys):
    for code, status in ((None, 0), (0, 0), (3, 3), ("no room", 1), (True, 1)):
        assert run_command(lambda code=code: sys.exit(code)) == status
    assert capsys.readouterr().err == "no room\n" and run_command(lambda: None) == 0


def shown_by(flag, capsys):
    """Return the help text that a flag prints."""
    with pytest.raises(SystemExit):
        config.parse([flag])
    return capsys.readouterr().out


def test_all_help_is_grouped_and_tells_defaults_and_units(capsys):
    shown = shown_by("--help-all", capsys)
    text = " ".join(shown.split())
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")] == ["options", *groups()]
    for words in ("[gcn 16, sage 256, gat 8, gatv2 8, gin 64, gcnii 64, pna 64, appnp 64, sign 64, rgcn 256, rgat 32]",
                  "[gcn no, sage yes, gat no, gatv2 no, gin yes, pna yes, sign yes]",
                  "become a score or label [dot; for labels mlp]", "--stall-timeout SECONDS", "[300.0]", "--eval-every EPOCHS",
                  "[sage mean]", "[gcn as dropout, gat as dropout, gatv2 as dropout, appnp as dropout, sign 0.0]"):  # fmt: skip
        assert words in text, words
    entries = {re.match("[a-z-]+", entry)[0]: entry for entry in shown.split("\n  --")[1:]}
    for name, option in OPTIONS.items():
        entry = entries[name.replace("_", "-")]
        assert (option.default is None or "[" in entry) and "(0" not in entry and "<" not in entry, entry


def test_help_shows_the_25_options_that_most_runs_need(capsys):
    common = [name for name, option in OPTIONS.items() if option.common]
    shown = re.findall(r"\n  --([a-z-]+)", shown_by("--help", capsys))
    assert len(common) == 25 and sorted(shown) == sorted([*(name.replace("_", "-") for name in common), "help-all", "version"])


def test_numbers_out_of_range(capsys):
    for flags, message in {"--lr -1": "--lr -1.0 is not above 0", "--lr inf": "--lr inf is not a finite number", "--ranks 0":
                           "--ranks 0 is less than 1", "--epochs 0": "--epochs 0 is less than 1",
                           "--threads -1": "--threads -1 is less than 0", "--threads 1025": "--threads 1025 is more than 1024",
                           "--layers 1000000000": "--layers 1000000000 is more than 10000",
                           "--dropout 1": "--dropout 1.0 is not in [0, 1)"}.items():
        with pytest.raises(ConfigError) as refusal:
            config.parse(flags.split())
        assert str(refusal.value) == message


@pytest.mark.parametrize("flags", ["--mfg", "--batch-size 8 --fanouts 3,3"])
def test_parts_of_the_graph_have_no_reversed_edges(flags):
    with pytest.raises(ConfigError, match=f"--backward fetch does not go with {flags.split()[0]}:"):
        config.parse(["--backward", "fetch", *flags.split()])
    config.parse(["--backward", "push", *flags.split()])


@pytest.mark.parametrize("flags, word", [
    (["--config", "/no/such/file"], "/no/such/file"), (["--dropout", "1.5"], "--dropout 1.5"),
    (["--hidden", 10**19], "no memory for its parameters: Maximum allowed dimension"),
    (["--hidden", 4 * 10**18], "no memory for its parameters: array is too big"),
    (["--hidden", 10**12], "--model sage: no memory for its parameters: Unable to allocate"),
    (["--model", "gnn"], "--model 'gnn' is not one of gcn, sage, gat"),
    (["--model", "/no/file.py:Model"], "/no/file.py"), (["--model", "FILE:Model"], "--model"), (["--heads", "2"], "sage takes no heads"),
    (["--gat-form", "paper"], "--gat-form: the model sage takes no form"),
    (["--partition", "halves"], "halves"), (["--data", "sbm:nodes=many"], "nodes"),
    (["--data", "/no/such/data"], "/no/such/data"), (["--data", "sbm:knots=3"], "knots"),
    (["--data", "sbm:node=3"], "did you mean nodes?"), (["--data", "smb:nodes=3"], "no form smb:; did you mean sbm?"),
    (["--metric", "auc"], "did you mean roc-auc?"), (["--metric", "ACC"], "did you mean accuracy?"), (["--mode", "SA"], "did you mean sa?"),
    (["--model", "RGCN"], "did you mean rgcn?"), (["--data", "edges:e.csv,source=from"], "did you mean src?"),
    (["--task", "link", "--link-split", "e.csv,split=s,Source=a"], "did you mean src?"),
    (["--model", "sgae"], "did you mean sage?"), (["--model", "mine.py"], "mine.py:Class"),
])  # fmt: skip
def test_what_cannot_work_is_refused(here, flags, word, tmp_path):
    (tmp_path / "model.txt").write_text("")
    for ranks in (1, 2):
        words = [str(flag).replace("FILE", str(tmp_path / "model.txt")) for flag in flags]
        with pytest.raises(SarliteError) as refusal:
            here(tmp_path / "run", "--epochs", 1, "--ranks", ranks, *words)
        assert word in str(refusal.value)
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


LONG = "x" * 3000


@pytest.mark.parametrize("flags", [
    ["--data", f"sbm:{LONG}=3"], ["--data", f"sbm:nodes={LONG}"], ["--data", LONG], ["--data", f"{LONG}:y"],
    ["--data", 2 * LONG], ["--model", LONG], ["--model", f"{LONG}.py:C"], [f"--{LONG}"], [LONG], ["--mode", LONG],
    ["--lr", LONG], ["--lr-schedule", LONG], ["--partition", LONG], ["--fanouts", LONG],
])  # fmt: skip
def test_no_error_is_longer_than_a_few_lines(here, flags, tmp_path):
    with pytest.raises(SarliteError) as refusal:
        here(tmp_path / "run", "--epochs", 1, *flags)
    assert len(str(refusal.value)) < 600 and "\n" not in str(refusal.value)
