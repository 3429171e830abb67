"""Small valid tables (sets of graphs, relations, Parquet, links), with functions that read them; `fuzz.py` damages the tables."""

import contextlib
import gzip
import io

import numpy as np

from sarlite.cli import config, predict_command, run
from sarlite.cli.data_command import main as data_command
from sarlite.comm import Solo
from sarlite.data import load
from tests.helpers.graph import graph_sets
from tests.helpers.train.data_files import RELATIONS as TOML

ALL = ("train", "val", "test")
QUIET = ["--threads", "1", "--progress", "none"]
ALLOWED = [word for name in ALL for word in ("--allow-empty", name)]


def _relational(spec, **options):
    dataset = load(spec, relational=True, allow_empty=ALL, **options)
    dataset.check(allow_empty=ALL)
    return dataset


def tu(folder, rng):
    graph_sets.write_tu(folder / "d", edge_labels=True)
    return lambda folder, dice: _relational(f"tu:{folder}/d" + dice.choice(["", ",task=regress", ",train=2,val=1"]))


def ogbg(folder, rng):
    tables = {"edge": rng.integers(0, 2, (6, 2)), "num-edge-list": [2, 0, 4], "num-node-list": [2, 3, 2], "graph-label": [1, 0, 1],
              "node-feat": rng.random((7, 2), np.float32), "edge-feat": rng.random((6, 1), np.float32)}  # fmt: skip
    files = {f"raw/{name}": rows for name, rows in tables.items()}
    for name, rows in (files | {f"split/scaffold/{name}": [i] for i, name in enumerate(("train", "valid", "test"))}).items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(",".join(map(str, np.atleast_1d(row).tolist())) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return lambda folder, _: _relational(f"ogbg:{folder}")


def relations(folder, rng):
    """Write tables of relations, and a data set converted from them, to `folder`; return a function that loads one of the two."""
    (folder / "n.csv").write_text("user,age,segment,part\nann,3,gold,train\nbob,4.5,iron,val\nfay,1,gold,test\n")
    (folder / "e.csv").write_text("source,target,amount\nann,bob,1.5\nbob,fay,2\nfay,ann,.5\n")
    (folder / "b.csv").write_text("who,where\nann,kiosk\nfay,mall\nbob,kiosk\n")
    (folder / "g.toml").write_text(TOML)
    _convert(f"tables:{folder}/g.toml", folder / "d")

    def read(folder, dice):
        if dice.random() < 0.5:
            return _relational(f"{folder}/d", verify=dice.random() < 0.5)
        # The description names files beside it; a file outside its folder is not read.
        return _relational(f"tables:{folder}/g.toml")

    return read


def _convert(spec, out, *flags):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        if data_command(["convert", str(spec), str(out), *ALLOWED, *flags, "--progress", "none"]):
            raise AssertionError(said.getvalue())


def parquet(folder, rng):
    import pyarrow
    import pyarrow.parquet

    nodes = {"id": [f"u{k}" for k in range(9)], "age": [k / 3 for k in range(8)] + [None], "kind": [*"abababab", None]}
    edges = {"src": [f"u{k}" for k in rng.integers(0, 9, 20)], "dst": [f"u{k}" for k in rng.integers(0, 9, 20)], "w": rng.random(20)}
    for name, columns in (("n", nodes), ("e", edges)):
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet", compression="none")

    def read(folder, dice):
        more = dice.choice(["", ",weight=w", ",weight=w,features=age,fill=mean", ",labels=kind,features=age,fill=0"])
        nodes = f",nodes={folder}/n.parquet,id=id" if "age" in more else ""
        load(f"edges:{folder}/e.parquet,src=src,dst=dst{nodes}{more}", allow_empty=ALL)

    return read


def links(folder, rng):
    """Write files of link splits, and pairs to score, to `folder`; return a function that trains with them or predicts the scores."""
    data = "sbm:nodes=40,classes=3,features=4,degree=4"
    words = ["--task", "link", "--data", data, "--hidden", "4", "--link-width", "4", "--epochs", "1", *QUIET]
    val, test = np.split(np.random.default_rng(0).permutation(1600)[:12], 2)
    for name, split in (("val", val), ("test", test)):
        (folder / f"{name}.csv").write_text("".join(f"{a},{b}\n" for a, b in zip(*divmod(split, 40))))
    (folder / "split.csv").write_text("src,dst,part,at\n" + "".join(f"{a},{a * 7 % 40},{ALL[a % 3]},{a}\n" for a in range(20)))
    with contextlib.redirect_stdout(io.StringIO()):
        run.train(Solo(), config.parse([*words, "--run-dir", str(folder / "run")]))
    for path in (folder / "run").iterdir():
        if path.name != "checkpoint.safetensors":
            path.unlink()
    checkpoint = (folder / "run/checkpoint.safetensors").read_bytes()
    (folder / "run/checkpoint.safetensors").unlink()
    (folder / "run").rmdir()

    def read(folder, dice):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if dice.random() < 0.6:
                files = dice.choice([["--link-val", f"{folder}/val.csv", "--link-test", f"{folder}/test.csv"],
                                     ["--link-split", f"{folder}/split.csv,split=part"], ["--link-split", f"{folder}/split.csv,time=at"]])
                run.train(Solo(), config.parse([*words, *files, "--run-dir", str(folder / "again")]))
            else:
                (folder / "c.safetensors").write_bytes(checkpoint)
                said = ["--checkpoint", str(folder / "c.safetensors"), "--links", str(folder / "val.csv"), "--out", str(folder / "out.csv")]
                predict_command.predict(Solo(), *predict_command.parse([*said, *QUIET]))

    return read


def streamed(folder, rng):
    """Write tables of nodes and edges to `folder`; return a function that converts them within 512 MiB of memory."""
    (folder / "n.csv").write_text("id,age,kind\n" + "".join(f"u{k},{k / 3:.2f},{'ab'[k % 2]}\n" for k in range(9)))
    ends = [f"u{k}" for k in rng.integers(0, 9, 40)]
    (folder / "e.csv").write_text("src,dst,w\n" + "".join(f"{a},{b},{k}\n" for k, (a, b) in enumerate(zip(ends[::2], ends[1::2]))))

    def read(folder, dice):
        more = dice.choice(["", ",weight=w", ",undirected", f",nodes={folder}/n.csv,id=id,labels=kind,features=age"])
        spec = f"edges:{folder}/e.csv,src=src,dst=dst{more}"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            words = ["convert", spec, str(folder / "out"), *ALLOWED, "--memory", "512MiB", "--progress", "none", "--overwrite"]
            status = data_command(words)
        if status not in (0, 1, 2) or status and not said.getvalue().strip() or "Traceback" in said.getvalue():
            raise AssertionError(f"status {status}: {said.getvalue()[-300:]}")

    return read


FORMATS = (tu, ogbg, relations, parquet, links, streamed)
