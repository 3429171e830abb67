"""Small valid files that runs, conversions and the oracle write, with functions that read them; `fuzz.py` damages the files."""

import contextlib
import io
import json

import numpy as np

from sarlite.cli import config, predict_command, report_command, run
from sarlite.cli.data_command import main as data_command
from sarlite.comm import Solo
from sarlite.data import load
from sarlite.data.names import Names
from sarlite.oracle import check, replay, sarcase
from sarlite.train import checkpoint

ALL = ("train", "val", "test")
DATA = "sbm:nodes=40,classes=3,features=4,degree=4"
WORDS = ["--data", DATA, "--threads", "1", "--progress", "none", "--epochs", "2"]


def _trained(folder, *flags):
    with contextlib.redirect_stdout(io.StringIO()):
        run.train(Solo(), config.parse([*WORDS, "--run-dir", str(folder), *flags]))


def run_folder(folder, rng):
    _trained(folder / "run", "--hidden", "4")
    (folder / "run/checkpoint.safetensors").unlink()
    return lambda folder, _: report_command.page([report_command.read(str(folder / "run"))])


def run_checkpoint(folder, rng):
    """Write the metadata of a training's checkpoint to `folder`; return a function that builds a checkpoint from them and loads it."""
    _trained(folder / "made", "--hidden", "4", "--layers", "2")
    tensors, about = checkpoint.load(folder / "made/checkpoint.safetensors")
    for path in (folder / "made").iterdir():
        path.unlink()
    (folder / "made").rmdir()
    (folder / "about.json").write_text(json.dumps(about))

    def read(folder, dice):
        if not (folder / "about.json").is_file():
            return
        try:
            about = json.loads((folder / "about.json").read_bytes())
            if not isinstance(about, dict):
                return
            checkpoint.save(folder / "checkpoint.safetensors", dict(tensors), about)
        except (ValueError, OSError, TypeError, RecursionError):
            return  # a checkpoint cannot hold such values
        path, out = str(folder / "checkpoint.safetensors"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            if dice.random() < 0.5:
                words = ["--resume", path, "--run-dir", str(folder / "again"), "--progress", "none", "--threads", "1", "--epochs", "3"]
                run.train(Solo(), config.parse(words))
            else:
                options = predict_command.parse(["--checkpoint", path, "--out", str(folder / "out.npy"), "--threads", "1",
                                                 "--progress", "none"])
                predict_command.predict(Solo(), *options)

    return read


def propagated(folder, rng):
    _trained(folder / "run", "--model", "sgc", "--propagated", str(folder / "d"))
    for path in (folder / "run").iterdir():
        path.unlink()
    (folder / "run").rmdir()

    def read(folder, dice):
        _trained(folder / "run", "--model", "sgc", "--propagated", str(folder / "d"), *([] if dice.random() < 0.5 else ["--no-verify"]))

    return read


def names(folder, rng):
    ends = [f"node {k}" for k in rng.integers(0, 9, 30)]
    (folder / "e.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in zip(ends[::2], ends[1::2])))
    allowed = (word for name in ALL for word in ("--allow-empty", name))
    with contextlib.redirect_stdout(io.StringIO()):
        data_command(["convert", f"edges:{folder / 'e.csv'},src=src,dst=dst", str(folder / "d"), *allowed, "--progress", "none"])
    (folder / "e.csv").unlink()

    def read(folder, dice):
        node_names = Names(folder / "d")
        node_names.of(range(dice.choice((2, 9))))
        node_names.ids(["node 1", "node 3"])

    return read


def case(folder, rng):
    """Write saved test cases of the oracle for two operations to `folder`; return a function that replays a random one."""
    for operation in ("spmm", "gcn"):
        finding = check(zeros, operation, level="probe", graphs="single-*").findings[0]
        sarcase.save(finding, folder / f"{operation}.sarcase")
    return lambda folder, dice: replay(folder / f"{dice.choice(('spmm', 'gcn'))}.sarcase", zeros)


def zeros(case):
    return np.zeros((case.n_dst, case.arrays["x"].shape[1] if case.op == "spmm" else case.state["weight"].shape[1]), np.float32)


def table(folder, rng):
    rows = "".join(f"u{a},u{b},{w:.2f}\n" for a, b, w in zip(rng.integers(0, 9, 20), rng.integers(0, 9, 20), rng.random(20)))
    (folder / "e.csv").write_text("src,dst,w\n" + rows)
    (folder / "n.csv").write_text("id,age,kind\n" + "".join(f"u{k},{k / 3:.2f},{'ab'[k % 2]}\n" for k in range(9)))

    def read(folder, dice):
        more = dice.choice(["", ",features=age", ",labels=kind,features=age", ",labels=kind,features=age,fill=mean"])
        load(f"edges:{folder}/e.csv,src=src,dst=dst,weight=w,nodes={folder}/n.csv,id=id{more}", allow_empty=ALL)

    return read


FORMATS = (run_folder, run_checkpoint, propagated, names, case, table)
