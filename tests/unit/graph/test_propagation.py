"""APPNP, SGC and SIGN against dense NumPy and over ranks; features propagated once, and the folder that stores them."""

import argparse
import json

import numpy as np
import pytest

from sarlite import Graph, Solo, Tensor, gradcheck, nn
from sarlite.cli import config, run
from sarlite.comm import threads
from sarlite.data import node_rows
from sarlite.data.writer import meta_hash
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.graph.propagation import Propagation
from sarlite.minibatch import NeighborLoader
from sarlite.models import APPNP, SGC, SIGN
from sarlite.train import propagated
from sarlite.train.load import Shard
from tests.helpers.graph import references
from tests.helpers.graph.references import EDGES, FEATURES, LABELS, N_IN, N_OUT, check_equality
from tests.helpers.graph.strategies import values
from tests.helpers.train.training_runs import SMALL, train_here

pytestmark = pytest.mark.timeout(60)

F64 = dict(dtype=np.float64)
X = FEATURES


def dense():
    """Return D^-1/2 A D^-1/2 of the references' graph, with degrees of 0 taken as 1."""
    a = np.zeros((EDGES.n_nodes, EDGES.n_nodes))
    np.add.at(a, (EDGES.dst, EDGES.src), 1)
    half = np.maximum(a.sum(1), 1) ** -0.5
    return half[:, None] * a * half


def randomised(model):
    for k, p in enumerate(model.parameters()):
        p.data[...] = values(30 + k, *p.shape)
    return {name: p.data for name, p in model.named_parameters()}


def test_appnp_is_the_papers_iteration():
    model = APPNP(N_IN, N_OUT, hops=4, teleport=0.2, hidden=5, rng=nn.Random(0), **F64).eval()
    p, s = randomised(model), dense()
    h = np.maximum(X @ p["linears.0.weight"] + p["linears.0.bias"], 0) @ p["linears.1.weight"] + p["linears.1.bias"]
    z = h
    for _ in range(4):
        z = 0.8 * s @ z + 0.2 * h
    np.testing.assert_allclose(model(Graph.from_edges(*EDGES), Tensor(X)).data, z, rtol=1e-12, atol=1e-13)


def test_sgc_and_sign_are_the_papers_layers():
    graph, s = Graph.from_edges(*EDGES), dense()
    powers = [np.linalg.matrix_power(s, k) @ X for k in range(3)]
    sgc = SGC(N_IN, N_OUT, hops=2, rng=nn.Random(0), **F64).eval()
    p = randomised(sgc)
    np.testing.assert_allclose(sgc(graph, Tensor(powers[2])).data, powers[2] @ p["linear.weight"] + p["linear.bias"], rtol=1e-12)
    sign = SIGN(N_IN, N_OUT, hops=2, hidden=5, batch_norm=False, rng=nn.Random(0), **F64).eval()
    p = randomised(sign)
    inner = np.concatenate([power @ p[f"inception.linears.{k}.weight"] for k, power in enumerate(powers)], 1)
    expected = np.maximum(inner + p["activations.0.bias"], 0) @ p["linears.0.weight"] + p["linears.0.bias"]
    np.testing.assert_allclose(sign(graph, Tensor(np.concatenate(powers, 1))).data, expected, rtol=1e-12, atol=1e-12)
    assert (sgc.powers, sign.powers) == ((2,), (0, 1, 2))


def test_gradients_agree_with_finite_differences():
    graph, x = Graph.from_edges([0, 1, 2, 2, 3], [1, 2, 0, 1, 1], 4), values(1, 4, 3)
    for model, width in ((APPNP(3, 2, hops=3, hidden=4, dropout=0.3, rng=nn.Random(0), **F64), 3),
                         (SIGN(3, 2, hops=1, hidden=4, layers=3, input_dropout=0.2, rng=nn.Random(0), **F64), 6)):
        h = Tensor(np.tile(x, width // 3))
        gradcheck(lambda *_: model(graph, h), list(model.parameters()))  # noqa: B023


@pytest.mark.parametrize("n, mode", [(2, "sar"), (3, "oneshot"), (4, "sa")])
def test_appnp_over_ranks(n, mode, monkeypatch):
    monkeypatch.setitem(references.CASES, "appnp", lambda rng, dtype: APPNP(N_IN, N_OUT, hops=3, hidden=8, rng=rng, dtype=dtype))
    parts = np.arange(EDGES.n_nodes) % n if n < 4 else np.where(np.arange(EDGES.n_nodes) < 30, 0, 3)
    threads.run(n, check_equality, "appnp", np.float64, parts, mode=mode)


def test_appnp_on_a_batch_of_all_in_edges_is_the_whole_graphs():
    graph, seeds = Graph.from_edges(*EDGES), np.arange(20, 30)
    model = APPNP(N_IN, N_OUT, hops=3, hidden=8, rng=nn.Random(0), **F64).eval()
    loader = NeighborLoader(graph, X, LABELS, seeds, fanouts=[-1, -1, -1], sampler="full", batch_size=10)
    batch = loader.batch(seeds)
    np.testing.assert_allclose(model(batch, batch.x).data[: len(seeds)], model(graph, Tensor(X)).data[batch.dst_ids[: len(seeds)]],
                               rtol=1e-12, atol=1e-13)


# ---- what is propagated before training

DATA = {"nodes": 61, "edges": 420, "features": N_IN, "classes": N_OUT, "digest": "0"}


class Powers:
    def __init__(self, *powers):
        self.powers = powers


def inputs(comm, powers, folder=None, data=DATA, parts="random", x=X, before=lambda comm: None, **options):
    graph = Graph.from_edges(*EDGES)
    graph = graph.shard(comm, parts, **options) if comm.size > 1 else graph
    before(comm)
    rows = argparse.Namespace(features=x[graph.node_ids])
    propagated_rows = propagated.inputs(comm, Powers(*powers), Shard(graph, rows, N_OUT, {}, None, {}), data, folder)
    return graph.node_ids, propagated_rows, graph.profile.sent_bytes.get("propagation", 0)


def expected(powers):
    return np.concatenate([np.linalg.matrix_power(dense(), k) @ X for k in powers], 1)


@pytest.mark.parametrize("n, mode", [(1, "sar"), (2, "oneshot"), (3, "sa"), (4, "broadcast")])
def test_powers_of_the_features_on_ranks(n, mode):
    for powers in ((3,), (0, 1, 2)):
        for ids, rows, sent in threads.run(n, inputs, powers, mode=mode):
            np.testing.assert_allclose(rows, expected(powers)[ids], rtol=1e-12, atol=1e-13)
            assert (sent > 0) is (n > 1)


def test_the_folder_serves_any_number_of_ranks_and_fewer_powers(tmp_path):
    folder = tmp_path / "kept"
    first = np.full((EDGES.n_nodes, 4 * N_IN), np.nan)
    for ids, rows, _ in threads.run(3, inputs, (0, 1, 2, 3), folder):
        first[ids] = rows
    np.testing.assert_allclose(first, expected((0, 1, 2, 3)), rtol=1e-12, atol=1e-13)
    assert sorted(p.name for p in folder.iterdir()) == ["hop1.npy", "hop2.npy", "hop3.npy", "meta.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    for n in (1, 2, 4):
        for ids, rows, sent in threads.run(n, inputs, (0, 2), folder):
            np.testing.assert_array_equal(rows, first[ids][:, [*range(N_IN), *range(2 * N_IN, 3 * N_IN)]])
            assert sent == 0  # nothing is propagated again


def test_a_folder_of_other_data_or_damaged_is_refused(tmp_path):
    folder = tmp_path / "kept"
    inputs(Solo(), (1, 2), folder)

    def refused(said, powers=(1, 2), n=2, **options):
        with pytest.raises(DataError, match=said):
            threads.run(n, inputs, powers, folder, **options)

    refused("belongs to other data: of the same size, but other values", data={**DATA, "digest": "1"})
    refused("belongs to other data: 420 edges there and 421 here", data={**DATA, "edges": 421})
    refused("dtype is float64 in the folder, but float32", x=X.astype(np.float32))
    refused("the folder has no hop 3", powers=(0, 3))
    path = folder / "hop2.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("hop2.npy: features: sha256", n=3)
    path.write_bytes(whole[:-8])
    refused("hop2.npy: features: .*was cut")
    path.write_bytes(whole)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "dtype": "float32"}))
    refused("meta.json: the contents do not match the sha256")
    meta = {name: value for name, value in {**meta, "dtype": "x" * 10_000}.items() if name != "sha256"}
    (folder / "meta.json").write_text(json.dumps({**meta, "sha256": meta_hash(meta)}))
    refused(r"dtype is x+\S* ")


def test_a_run_that_fails_on_the_way_leaves_no_folder(tmp_path, monkeypatch):
    real, calls = node_rows.write, []

    def write(comm, path, *rows):
        calls.append(path)
        if path.name == "hop2.npy" and comm.rank == 1:
            raise OSError(28, "No space left on device")
        real(comm, path, *rows)

    monkeypatch.setattr(node_rows, "write", write)
    with pytest.raises(OSError, match="No space"):
        threads.run(2, inputs, (1, 2), tmp_path / "kept")
    assert calls and list(tmp_path.iterdir()) == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("text")
    with pytest.raises(ConfigError, match="not a folder of propagated features"):
        threads.run(2, inputs, (1,), tmp_path / "other")
    with pytest.raises(DataError, match="propagated .*mine.txt/kept: cannot be written: File exists"):
        threads.run(2, inputs, (1,), tmp_path / "other" / "mine.txt" / "kept")


def test_runs_train_without_communication_but_the_gradients(tmp_path, capsys):
    flags = ["--model", "sign", "--dtype", "float64", "--epochs", 3, "--propagated", tmp_path / "kept", "--no-batch-norm"]
    one = train_here(tmp_path / "one", *flags)
    capsys.readouterr()
    three = train_here(tmp_path / "three", *flags, "--ranks", 3)
    sent = json.loads(capsys.readouterr().out.splitlines()[-1])["sent_bytes"]
    assert [m["loss"] for m in three] == pytest.approx([m["loss"] for m in one], rel=1e-12)
    assert not {"forward_fetch", "backward_push", "propagation"} & {phase for phase, n in sent.items() if n}
    small = [word for word in SMALL if word not in ("--hidden", "8", "--layers", "2")]
    for flags, said in ((["--model", "sgc", "--batch-size", "9", "--fanouts", "2"], "--fanouts: the model sgc uses no neighbours"),
                        (["--model", "sgc", "--label-inputs", "0.5"], "--label-inputs 0.5: the model sgc"),
                        (["--model", "gcn", "--propagated", "p"], "--propagated p: the model gcn propagates nothing"),
                        (["--model", "gcn", "--hops", "3"], "--hops: the model gcn takes no hops")):
        with pytest.raises(ConfigError, match=said):
            run.train(Solo(), config.parse([*small, "--run-dir", str(tmp_path / "no"), "--epochs", "1", *flags]))


def test_a_vector_is_one_column_and_what_is_no_row_is_refused():
    for n_ranks in (1, 2):
        def work(comm, normalization):
            graph = Graph.from_edges(*EDGES).shard(comm, "random") if comm.size > 1 else Graph.from_edges(*EDGES)
            propagation, x = Propagation(graph, normalization), X[graph.node_ids]
            whole = propagation(x)
            assert propagation(x[:, 0]).shape == (graph.n_dst,)
            np.testing.assert_allclose(propagation(x[:, 0]), whole[:, 0], rtol=1e-13)
            np.testing.assert_allclose(propagation(np.asarray(x).reshape(len(x), 1, -1)), whole[:, None], rtol=1e-13)
            np.testing.assert_allclose(propagation(np.matrix(x)), whole, rtol=1e-13)
            for wrong in (x[1:], x.astype(int), x[0]):
                with pytest.raises(ShapeError, match="rows of floats .*are needed"):
                    propagation(wrong)

        for normalization in ("sym", "row", "column"):
            threads.run(n_ranks, work, normalization)


@pytest.mark.parametrize("width", [3, 6, 8, 10, 12])
def test_sign_refuses_features_that_were_not_propagated(width):
    """Without the check more columns would be ignored: three features propagated 0, 1 and 2 times are nine columns."""
    model = SIGN(3, 2, hops=2, rng=nn.Random(0), **F64)
    with pytest.raises(ShapeError, match=r"SIGN: x has shape .*9 columns .*3 features"):
        model(Graph.from_edges([0, 1], [1, 0]), Tensor(np.ones((2, width))))
