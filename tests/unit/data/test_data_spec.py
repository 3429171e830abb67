"""Specs and the command line."""

import json
import subprocess
import sys

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.data import format, load
from sarlite.data.assignment import make_parts
from sarlite.data.summary import part_bytes, report_lines
from sarlite.errors import ConfigError, DataError
from sarlite.structure import order as orders
from sarlite.structure.partition import report

SBM = "sbm:nodes=60,degree=4,features=5,classes=3"


@pytest.fixture
def stored(tmp_path, capsys):
    assert main(["convert", SBM, str(tmp_path / "d")]) == 0
    assert "60 nodes, 240 edges, 5 features" in capsys.readouterr().out
    return str(tmp_path / "d")


def test_convert_then_open_is_equal(stored):
    assert load(SBM).equals(load(stored, verify=True))
    provenance = load(stored).provenance
    assert provenance["spec"] == SBM and provenance["options"]["nodes"] == 60 and "sarlite" in provenance


def test_the_options_of_a_spec_reach_the_reader():
    assert load("sbm").n_nodes == 10000
    assert load(SBM + ",seed=1").provenance["options"]["seed"] == 1
    assert not load(SBM).equals(load(SBM + ",seed=1"))
    assert load("rmat:scale=6,edges=100").n_edges == 100
    assert load(SBM + ",train=3,val=0.5").train.sum() == 9


def test_changes_of_a_spec_are_applied(stored):
    plain = load(SBM)
    loops = load(stored + ",self_loops")
    assert loops.n_edges == plain.n_edges + 60
    assert load(stored, self_loops=True).n_edges == loops.n_edges
    assert load(stored + ",self_loops", self_loops=False).n_edges == plain.n_edges
    sums = load(stored + ",normalize").features.sum(axis=1)
    assert np.allclose(sums, 1, atol=1e-3)
    assert isinstance(load(stored).features, np.memmap)


def test_a_path_may_hold_commas(tmp_path):
    format.write(tmp_path / "a,b", load(SBM))
    assert load(f"{tmp_path}/a,b").n_nodes == 60


@pytest.mark.parametrize(
    "spec, error, message",
    [
        ("sbm:nodes=60,size=3", ConfigError, "option 'size': unknown .*sbm; .*nodes, degree, homophily"),
        ("sbm:nodes=many", ConfigError, "option 'nodes': cannot read 'many'"),
        ("sbm:nodes", ConfigError, "option 'nodes': cannot read ''"),
        ("sbm:nodes=60,nodes=61", ConfigError, "option 'nodes': given twice"),
        ("sbm:nodes=60,self_loops=maybe", ConfigError, "option 'self_loops': cannot read 'maybe': expected true or false"),
        ("sbm:nodes=-1", ConfigError, "nodes: -1, expected"),
        ("npz:", ConfigError, "no path after npz:"),
        ("npz:/gone.npz", DataError, "/gone.npz: no such file"),
        ("npz:/gone.npz,nodes=3", ConfigError, "option 'nodes': unknown .*npz; .*classes, task, train, val, seed"),
        ("planetoid:/gone/cora", DataError, "/gone: no such file"),
        ("ogb:/gone", DataError, "/gone: no such file"),
        ("", ConfigError, "^data set '': no path"),
        ("/gone", DataError, "^/gone: no such directory; --data takes a directory that convert wrote"),
        ("mnist:x", ConfigError, "'mnist:x' is not one of the known forms: .*, sbm:nodes"),
    ],
)
def test_bad_specs_say_what_is_known(spec, error, message):
    with pytest.raises(error, match=message):
        load(spec)


def test_edges_with_values_are_not_changed(tmp_path):
    data = load(SBM)
    data.edge_weight = np.ones(data.n_edges, np.float32)
    format.write(tmp_path / "d", data)
    with pytest.raises(ConfigError, match="edge.node/weight.npy: edge_weight: edges"):
        load(f"{tmp_path}/d,self_loops")


def test_flags_of_convert_change_the_data(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("0,1\n0,1\n1,2\n")
    (tmp_path / "y.txt").write_text("0\n1\n0\n")
    np.savetxt(tmp_path / "x.txt", [[1, 3], [2, 2], [0, 0]])
    spec = f"edges:{tmp_path}/e.csv,labels={tmp_path}/y.txt,features={tmp_path}/x.txt,train=1,val=0"
    flags = ["--undirected", "--self-loops", "--normalize-features", "--allow-empty", "val"]
    assert main(["convert", spec, str(tmp_path / "d"), *flags]) == 0, capsys.readouterr().err
    opened = format.open(tmp_path / "d")
    assert opened.indices.tolist() == [0, 1, 0, 1, 2, 1, 2]
    assert opened.features.tolist() == [[0.25, 0.75], [0.5, 0.5], [0, 0]]
    assert main(["convert", spec, str(tmp_path / "d"), "--deduplicate", "--allow-empty", "val"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", spec, str(tmp_path / "d"), "--deduplicate", "--allow-empty", "val", "--overwrite"]) == 0
    assert format.open(tmp_path / "d").indices.tolist() == [0, 1]


def test_info_counts_and_measures(stored, capsys):
    assert main(["info", stored, "--parts", "3", "--json", "--verify"]) == 0
    printed = json.loads(capsys.readouterr().out)
    dataset = load(SBM)
    degrees = np.diff(dataset.indptr)
    assert printed["nodes"] == 60 and printed["edges"] == 240 and printed["symmetric"] and printed["self_loops"] == 0
    assert printed["degree"] == {"min": degrees.min(), "median": np.median(degrees), "max": degrees.max()}
    assert printed["isolated_nodes"] == (degrees == 0).sum() and printed["class_nodes"] == [20, 20, 20]
    assert printed["split"] == {"train": 6, "val": 12, "test": 42} and printed["unlabelled"] == 0
    assert printed["total_bytes"] == sum(printed["bytes"].values()) == 61 * 8 + 240 * 4 + 60 * 20 + 60 * 11
    assert sum(printed["partition"]["nodes"]) == 60 and sum(printed["partition"]["edges"]) == 240
    assert main(["info", stored, "--parts", "2", "--method", "random"]) == 0
    table = capsys.readouterr().out
    assert "240 (symmetric, 0 self loops)" in table and "cut edges" in table


def test_info_of_a_directed_graph(tmp_path, capsys):
    """Node 0 has no incoming edge, node 3 no edge at all."""
    (tmp_path / "e.csv").write_text("0,1\n1,2\n2,2\n")
    assert main(["info", f"edges:{tmp_path}/e.csv,nodes=4", "--json"]) == 2
    assert "0 of 4 nodes; --allow-empty all (allow_empty=['train', 'val', 'test']) accepts" in capsys.readouterr().err
    assert main(["info", f"edges:{tmp_path}/e.csv,nodes=4", "--json", "--allow-empty", "all"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["isolated_nodes"], printed["self_loops"], printed["symmetric"], printed["unlabelled"]) == (1, 1, False, 4)


@pytest.mark.parametrize("method", ["metis", "random", "contiguous", "FILE"])
def test_partition_reports_what_it_writes(stored, tmp_path, capsys, method):
    if method == "FILE":
        method = str(tmp_path / "mine.txt")
        np.savetxt(method, np.arange(60) % 4, fmt="%d")
    whole = load(SBM)
    assert main(["partition", stored, "--parts", "4", "--method", method, "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    opened = format.open(stored, verify=True)
    parts = make_parts(whole, 4, method, seed=3)
    assert opened.offsets.tolist() == [0, *np.cumsum(np.bincount(parts, minlength=4)).tolist()]
    assert opened.ids is None if method == "contiguous" else opened.ids.tolist() == np.argsort(parts, kind="stable").tolist()
    if method.endswith("txt"):
        assert np.array_equal(parts, np.arange(60) % 4)
    assert opened.division == {"parts": 4, "partition": method, "order": "none", "seed": 3}
    quality = report(whole.indptr, whole.indices, parts, 4, whole.train)
    assert printed == "\n".join(report_lines(quality, *part_bytes(whole, quality))) + "\n"
    assert main(["info", stored]) == 0
    assert f"4 by {method}, order none (largest" in capsys.readouterr().out


def test_partition_with_an_order(stored, capsys):
    dataset = load(SBM)
    for n_parts, seed in ((3, 7), (1, 8)):
        assert main(["partition", stored, "--parts", str(n_parts), "--order", "metis", "--seed", str(seed)]) == 0
        opened = format.open(stored, verify=True)
        order, parts = orders.order(dataset.indptr, dataset.indices, "metis", seed=seed), make_parts(dataset, n_parts, "metis", seed=seed)
        assert opened.ids.tolist() == [node for part in range(n_parts) for node in order if parts[node] == part]
        assert opened.division == {"parts": n_parts, "partition": "metis", "order": "metis", "seed": seed}
        share = 100 * orders.near_share(dataset.indptr, dataset.indices, order)
        assert f"less than 7 places apart: {share:.1f} %, by node id" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["info", "/gone"], "error: /gone: no such directory"),
        (["partition", "DIR", "--parts", "0"], "error: --parts: 0 is outside 1 <= parts <= 1048576"),
        (
            ["partition", "DIR", "--parts", "2", "--method", "best"],
            "error: --method: 'best' is not one of metis, fennel, random, contiguous, and no such",
        ),
        (
            ["partition", "/gone", "--parts", "2"],
            "error: /gone/meta.json: no such file, so '/gone' is not a data set in the native format: convert it first, "
            "python -m sarlite.data convert SPEC DIR",
        ),
        (["partition", "sbm:", "--parts", "2"], "error: sbm:/meta.json: no such file, so 'sbm:' is not a data set in the native format: "
                                                "convert it first, python -m sarlite.data convert sbm: DIR"),
    ],
)
def test_faults_exit_with_2_and_one_line(stored, capsys, arguments, message):
    assert main([word.replace("DIR", stored) for word in arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_importing_loads_no_scipy_and_no_mpi():
    code = "import sys, sarlite.data.spec, sarlite.structure.partition; "
    code += "print([m for m in ('scipy', 'mpi4py', 'pymetis') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_module_runs_without_mpi(stored):
    done = subprocess.run([sys.executable, "-m", "sarlite.data", "info", stored], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("name            sbm")
