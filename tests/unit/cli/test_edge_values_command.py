"""Test edge weights and edge features in the training command: read by each rank, used by models, stored, and refused."""


import numpy as np
import pytest

from sarlite.cli import config, run
from sarlite.cli.data_command import main as data_command
from sarlite.comm import Solo
from sarlite.data import load
from sarlite.errors import CheckpointError, ConfigError, DataError
from sarlite.train import checkpoint
from tests.helpers.train.data_files import write_proteins
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import train_here

pytestmark = pytest.mark.timeout(60)
N, M = 60, 300
MODEL = """
from sarlite import nn

class Mine(nn.Module):
    edge_features = True

    def __init__(self, n_in, n_out, *, hidden=4, layers=2, rng, dtype):
        self.z, self.out = nn.Linear(n_in, hidden, rng=rng, dtype=dtype), nn.Linear(hidden, n_out, rng=rng, dtype=dtype)
        self.edge = nn.Linear(2, hidden, rng=rng, dtype=dtype)

    def __call__(self, graph, h):
        (g,) = graph.layers(1)
        g, h = g.enter(h)
        z = self.z(h)
        return self.out(g.aggregate(lambda src, dst, edge: (src["z"] + self.edge(edge["e"])).tanh(), "mean", src={"z": z},
                                    edge={"e": g.edge_features}))
"""


def archive(path, weights=True):
    rows = np.random.default_rng(0)
    keys = np.unique(rows.integers(0, N * N, M))
    indptr = np.searchsorted(keys // N, np.arange(N + 1))
    weight = {"adj_data": rows.random(len(keys)) + 0.2} if weights is True else {} if weights is None else {"adj_data": weights(len(keys))}
    np.savez(path, adj_indptr=indptr, adj_indices=keys % N, adj_shape=np.array([N, N]), labels=rows.integers(0, 3, N),
             attr_matrix=rows.standard_normal((N, 6)), **weight)
    return f"npz:{path},train=6,val=6"


def native(folder, n_parts=4):
    """Return a divided native directory with weights and two features per edge, and the undivided data set."""
    from sarlite.data import format
    from sarlite.data.assignment import make_parts
    from sarlite.data.divide import divide, record

    data = load(archive(folder / "a.npz"))
    data.edge_features = np.random.default_rng(1).standard_normal((data.n_edges, 2))
    with format.GraphWriter(folder / "native") as out:
        divide(data, make_parts(data, n_parts, "random", seed=3), n_parts, out, division=record(n_parts, "random", "none", 3))
    return str(folder / "native"), data


def losses(run_dir, *flags):
    options = ["--threads", 1, "--epochs", 2, "--dtype", "float64", "--hidden", 4, "--layers", 2, *flags]
    return [m["loss"] for m in train_here(run_dir, *options)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", [
    ["--model", "gat", "--edge-weights", "--edge-features", "--heads", 2],
    ["--model", "sage", "--edge-weights", "--no-edge-features", "--batch-size", 7, "--fanouts", "3,3"],
    ["--model", "gcn", "--no-edge-features", "--mfg"],
    ["--model", "appnp", "--no-edge-features", "--hops", 2, "--correct-and-smooth"],
    ["--model", "mine", "--no-edge-weights", "--batch-size", 9, "--fanouts", "all"],
], ids=["gat", "sage", "gcn", "appnp", "mine"])  # fmt: skip
def test_ranks_read_their_edges_values_and_agree(flags, tmp_path):
    spec, _ = native(tmp_path)
    if "mine" in flags:
        (tmp_path / "mine.py").write_text(MODEL)
        flags = [f"{tmp_path}/mine.py:Mine" if word == "mine" else word for word in flags]
    one = losses(tmp_path / "one", "--data", spec, *flags)
    two = losses(tmp_path / "two", "--data", spec, *flags, "--ranks", 2, "--mode", "oneshot")
    assert two == pytest.approx(one, rel=1e-11)
    again = losses(tmp_path / "two", "--resume", tmp_path / "two" / "checkpoint.safetensors", "--epochs", 3, "--ranks", 1, "--data", spec)
    assert again[:2] == two and len(again) == 3
    predicted, expected = (predict_here(tmp_path / "two", tmp_path / f"{n}.npy", "--data", spec, "--ranks", n)[0] for n in (1, 2))
    np.testing.assert_allclose(predicted, expected, rtol=1e-10, atol=1e-12)


def test_a_run_keeps_what_it_used_and_other_weights_are_other_data(tmp_path):
    spec = archive(tmp_path / "a.npz")
    used = losses(tmp_path / "run", "--data", spec, "--model", "gcn")
    checkpoint_path = tmp_path / "run" / "checkpoint.safetensors"
    options = checkpoint.load_metadata(checkpoint_path)["options"]
    assert options["edge_weights"] is True and "edge_features" not in options
    assert losses(tmp_path / "plain", "--data", spec, "--model", "gcn", "--no-edge-weights") != pytest.approx(used, rel=1e-3)
    with pytest.raises(ConfigError, match="--no-edge-weights: cannot change"):
        losses(tmp_path / "run", "--resume", checkpoint_path, "--epochs", 3, "--data", spec, "--no-edge-weights")
    archive(tmp_path / "a.npz", weights=lambda n: np.full(n, 2.0))
    with pytest.raises(CheckpointError, match="of the same size, but other values"):
        losses(tmp_path / "run", "--resume", checkpoint_path, "--epochs", 3, "--data", spec)
    archive(tmp_path / "a.npz", weights=None)
    with pytest.raises(ConfigError, match="^--edge-weights: .* no edge weights; --no-edge-weights"):
        predict_here(tmp_path / "run", tmp_path / "p.npy", "--data", spec)


@pytest.mark.parametrize("trained", [[], ["--no-edge-weights"]], ids=["of data without", "told not to"])
def test_a_prediction_asks_about_weights_that_training_did_not_use(trained, tmp_path):
    """Predictions refuse edge values that training did not use, also with an older checkpoint, which has no record of them."""
    weighted = archive(tmp_path / "a.npz")
    plain = f"{weighted},drop_edge_values"
    losses(tmp_path / "run", "--data", weighted if trained else plain, "--model", "gcn", *trained)
    expected, _ = predict_here(tmp_path / "run", tmp_path / "p.npy", "--data", plain)
    checkpoint_path = tmp_path / "run" / "checkpoint.safetensors"
    tensors, about = checkpoint.load(checkpoint_path)
    assert about["used"] == {"edge_weights": False, "edge_features": False, "label_inputs": False}
    for reason in ("training used none", "the checkpoint does not name any that training used"):
        if trained:
            predicted, _ = predict_here(tmp_path / "run", tmp_path / "q.npy", "--data", weighted)
        else:
            with pytest.raises(ConfigError, match=f"--data .*: edge_weight: .*{reason}: --edge-weights .*--no-edge-weights"):
                predict_here(tmp_path / "run", tmp_path / "q.npy", "--data", weighted)
            predicted, _ = predict_here(tmp_path / "run", tmp_path / "q.npy", "--data", weighted, "--no-edge-weights")
        assert predicted.tobytes() == expected.tobytes()
        used, _ = predict_here(tmp_path / "run", tmp_path / "q.npy", "--data", weighted, "--edge-weights")
        assert abs(used - expected).max() > 1e-3
        about.pop("used", None)
        checkpoint.save(checkpoint_path, tensors, about)


def test_weights_make_powers_of_their_own_in_a_kept_folder(tmp_path):
    spec, flags = archive(tmp_path / "a.npz"), ["--model", "sgc", "--hops", 2, "--propagated", tmp_path / "kept"]
    options = [str(word) for word in ["--data", spec, "--threads", 1, "--epochs", 2, "--progress", "none", *flags]]
    run.train(Solo(), config.parse([*options, "--run-dir", str(tmp_path / "one")]))
    data = load(spec)
    a = np.zeros((N, N))
    a[np.repeat(np.arange(N), np.diff(data.indptr)), data.indices] = data.edge_weight
    a += np.diag(np.diag(a) == 0)  # an added self loop weighs 1
    s = a / np.sqrt(np.outer(a.sum(1), a.sum(1)))
    np.testing.assert_allclose(np.load(tmp_path / "kept" / "hop2.npy"), s @ s @ data.features, rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match="of the same size, but other values"):
        run.train(Solo(), config.parse([*options, "--no-edge-weights", "--run-dir", str(tmp_path / "three")]))


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    spec, (divided, _) = archive(tmp_path / "a.npz"), native(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    plain = archive(tmp_path / "plain.npz", weights=None)
    negative = archive(tmp_path / "negative.npz", weights=lambda n: np.where(np.arange(n) == 17, -1.5, 1.0))
    for data, flags, error, said in [
        (spec, ["--model", "sage"], ConfigError, "a.npz.*: edge_weight: .*--edge-weights uses them, --no-edge-weights leaves"),
        (divided, ["--model", "gcn"], ConfigError, "native: edge_features: .*--edge-features uses them, --no-edge-features"),
        (plain, ["--model", "sage", "--edge-weights"], ConfigError, "--edge-weights: the data .*plain.npz.* have no edge weights"),
        (plain, ["--model", "gat", "--edge-features"], ConfigError, "--edge-features: the data .* have no edge features"),
        (divided, ["--model", "sage", "--edge-features"], ConfigError, "--edge-features: the model sage takes no edge features"),
        (spec, ["--model", "sage", "--edge-weights", "--aggregator", "max-pool"], ConfigError, "aggregator max-pool takes no edge weights"),
        (negative, ["--model", "gcn"], DataError, "negative.npz.*: edge_weight of edge [0-9]+ is -1.5, but must be finite and 0 or more"),
        (negative, ["--model", "gat", "--edge-weights", "--ranks", 2], DataError, "negative.npz.*: edge_weight of edge [0-9]+ is -1.5"),
    ]:  # fmt: skip
        with pytest.raises(error, match=said):
            losses(tmp_path / "run", "--data", data, *flags)
    assert len(losses(tmp_path / "run", "--data", negative, "--model", "gcn", "--no-edge-weights")) == 2


def test_ogbn_proteins_edge_features_reach_gat_and_a_model_of_ones_own(tmp_path, capsys):
    spec = write_proteins(tmp_path / "proteins")
    (tmp_path / "mine.py").write_text(MODEL)
    losses(tmp_path / "gat", "--data", f"{spec},features=both", "--model", "gat", "--edge-features", "--heads", 2)
    shapes = {name: array.shape for name, array in checkpoint.read(Solo(), tmp_path / "gat" / "checkpoint.safetensors")[0].items()}
    assert shapes["model.convs.0.attn_edge"] == (2, 2) and shapes["model.convs.0.linear.weight"] == (4, 8)
    assert "4 features, 3 labels, with edge features\n" in capsys.readouterr().out
    mine = losses(tmp_path / "mine", "--data", spec, "--model", f"{tmp_path}/mine.py:Mine")
    assert mine[-1] != mine[0]


def test_the_data_command_keeps_values_with_their_edges(tmp_path):
    """Training on converted and partitioned data equals training on the archive."""
    spec = archive(tmp_path / "a.npz")
    for words in (["convert", spec, str(tmp_path / "whole")], ["partition", str(tmp_path / "whole"), "--parts", "2",
                                                               "--output", str(tmp_path / "parts")]):
        assert not data_command(words)
    expected = losses(tmp_path / "one", "--data", spec, "--model", "gcn", "--epochs", 1, "--dropout", 0)
    losses_on_two = losses(tmp_path / "two", "--data", tmp_path / "parts", "--model", "gcn", "--epochs", 1, "--dropout", 0, "--ranks", 2)
    assert losses_on_two == pytest.approx(expected, rel=1e-11)
