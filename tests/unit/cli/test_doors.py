"""Test that invalid input is refused in one line that names the file, the field and the value; see also `fuzz`."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from sarlite.cli import config
from sarlite.cli.data_command import main as convert
from sarlite.comm import Solo
from sarlite.data import format, load
from sarlite.data.names import Names
from sarlite.data.writer import meta_hash
from sarlite.errors import ConfigError, DataError
from sarlite.train import propagated


def with_fields(folder, change):
    """Change a meta.json file and recompute its checksum."""
    meta = json.loads((folder / "meta.json").read_text())
    del meta["sha256"]
    change(meta)
    (folder / "meta.json").write_text(json.dumps({**meta, "sha256": meta_hash(meta)}))


def one_line(refusal, *words):
    assert "\n" not in str(refusal.value) and all(word in str(refusal.value) for word in words), refusal.value


# ---- names


@pytest.fixture
def named(tmp_path):
    (tmp_path / "e.txt").write_text("".join(f"n{u} n{(u + 1) % 120}\n" for u in range(120)))
    (tmp_path / "n.txt").write_text("".join(f"n{u}\n" for u in range(120)))
    np.savetxt(tmp_path / "y.txt", np.arange(120) % 3, "%d")
    spec = f"edges:{tmp_path}/e.txt,names={tmp_path}/n.txt,labels={tmp_path}/y.txt,header=false"
    options = ["--memory", "4GiB", "--progress", "none"]
    assert convert(["convert", spec, str(tmp_path / "d"), *options]) == 0
    return tmp_path / "d"


@pytest.mark.parametrize("change, words", [
    (lambda names: names.pop("ends"), ("names: ", "ends: expected a record", "None")),
    (lambda names: names.update(ends=3), ("ends: expected a record", "3")),
    (lambda names: names["ends"].update(shape="x"), ("ends: expected a record", "'x'")),
    (lambda names: names["numbers"].update(dtype="<f8"), ("numbers: <f8 of shape [120] is not of the names of 120 nodes",)),
    (lambda names: names["hashes"].update(shape=[4]), ("hashes: <u8 of shape [4] is not of the names of 120 nodes",)),
])  # fmt: skip
def test_records_of_names(named, change, words):
    with_fields(named, lambda meta: change(meta["names"]))
    for read in (Names, format.open):
        with pytest.raises(DataError) as refusal:
            read(named)
        one_line(refusal, "meta.json", *words)


def test_values_of_names(named):
    path = named / "names"
    arrays = {file: np.load(path / f"{file}.npy") for file in ("ends", "numbers", "bytes")}
    for file, value, ask, words in (("ends", -7, lambda names: names.of([0]), "names: ends: node 0's name is bytes"),
                                    ("ends", 1 << 40, lambda names: names.of([0]), "names: ends: node 0's name is bytes"),
                                    ("numbers", 199, lambda names: names.ids(["n1", "n2"]), "names: numbers: 199 is not one of 120"),
                                    ("bytes", 255, lambda names: names.of([0]), "names: bytes: cannot be read: 'utf-8' codec")):
        changed = arrays[file].copy()
        changed[:] = value
        np.save(path / f"{file}.npy", changed)
        with pytest.raises(DataError) as refusal:
            ask(Names(named))
        one_line(refusal, str(named), words)
        np.save(path / f"{file}.npy", arrays[file])


# ---- powers of features


@pytest.mark.parametrize("change, words", [
    (lambda meta: meta.pop("data"), ("data: expected dict, found None",)),
    (lambda meta: meta.update(data="sbm"), ("data: expected dict, found 'sbm'",)),
    (lambda meta: meta.update(added_self_loops=0), ("added_self_loops: expected bool, found 0",)),
    (lambda meta: meta.pop("dtype"), ("dtype: expected str, found None",)),
    (lambda meta: meta.update(arrays=["hop1"]), ("arrays: expected dict, found ['hop1']",)),
    (lambda meta: meta["arrays"].update(hop1=None), ("arrays: hop1: expected a record", "None")),
    (lambda meta: meta["arrays"]["hop1"].pop("shape"), ("arrays: hop1: expected a record",)),
    (lambda meta: meta["arrays"]["hop1"].update(sha256=7), ("arrays: hop1: expected a record",)),
])  # fmt: skip
def test_fields_of_propagated_features(tmp_path, change, words):
    comm, facts = Solo(), {"format": propagated.FORMAT, "data": {"nodes": 1}, "added_self_loops": False, "dtype": "float32"}
    folder = tmp_path / "made"
    folder.mkdir()
    np.save(folder / "hop1.npy", np.zeros((1, 1), np.float32))
    propagated._finish(folder, tmp_path / "kept", facts, (1,))
    with_fields(tmp_path / "kept", change)
    with pytest.raises(DataError) as refusal:
        propagated._read_meta(tmp_path / "kept", facts, (1,))
    one_line(refusal, "kept/meta.json", *words)
    assert comm.size == 1


# ---- options


@pytest.mark.parametrize("name", ["data", "run_dir", "model", "propagated", "trace"])
def test_a_path_with_a_nul_is_refused(tmp_path, name):
    text = f'data = "sbm:nodes=20"\n{name} = "a\\u0000b"\n' if name != "data" else 'data = "a\\u0000b"\n'
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError) as refusal:
        config.parse(["--config", str(tmp_path / "c.toml")])
    one_line(refusal, "c.toml", name, "NUL")


ASCII = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_an_environment_of_ascii(tmp_path):
    """Class names and paths with non-ASCII characters are written and read back in the environment's encoding."""
    folder = tmp_path / "\xfc"
    dataset = load("sbm:nodes=40,degree=4,features=3,classes=3")
    dataset.class_names = ["\xe4", "\u4e2d", "c"]
    format.write(folder / "d", dataset)
    text = f'data = "{folder}/d"\nmodel = "gcn"\nepochs = 1\nrun_dir = "{folder}/run"\n'
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    flags = ["--config", str(tmp_path / "c.toml"), "--threads", "1"]
    again = ["--config", str(folder / "run" / "config.toml"), "--run-dir", str(tmp_path / "again")]
    for module, *words in (["train", *flags], ["train", *again],
                           ["data", "info", str(folder / "d")]):
        done = subprocess.run([sys.executable, "-m", f"sarlite.{module}", *words], env=ASCII, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert f'data = "{folder}/d"' in (folder / "run" / "config.toml").read_text(encoding="utf-8")
