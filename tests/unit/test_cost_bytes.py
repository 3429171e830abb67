"""Bytes and remote buffers that are told before a run are those of its counters, in each mode and setting."""

import pytest

from sarlite.comm import threads
from sarlite.sar.schedule.modes import MODES
from sarlite.train.costs import Setting, settings_compared
from tests.helpers.costing import MODELS, RELATIONAL, SBM, check_bytes, directed, dry_run, few_labelled, told, trained, weighted

LABELS = {"model": "gat", "label_inputs": 0.5}
EVEN = "sbm:nodes=90,degree=5,features=9,classes=2,train=6,val=5"  # batches of 6 are alike: the same order of products is cheaper in each
BATCHES = {"layers": 2, "batch_size": 6, "data": EVEN, "epochs": 1, "prefetch": 0}  # of the first epoch all batches are sampled
HECS = [{}, {"push": "demand"}, {"push": "demand", "hec_delay": 2, "halo_features": "cache"}, {"halo_features": "cache", "hec_limit": 3},
        {"hec_delay": 0, "hec_lines": 20, "hec_limit": 5, "hec_life": 10**6}]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("backward", [None, "push", "fetch"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_the_run(name, n_ranks, backward, prefetch, mode, tmp_path):
    check_bytes(tmp_path, n_ranks, [mode], prefetch=prefetch, backward=backward, epochs=3, **MODELS[name])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backward", [None, "push"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sign"])
def test_bytes_of_exact_numerics_are_those_of_the_run(name, n_ranks, backward, mode, tmp_path):
    check_bytes(tmp_path, n_ranks, [mode], prefetch=1, backward=backward, epochs=2, numerics="exact", **MODELS[name])


def test_bytes_of_backward_pieces_and_of_ranges(tmp_path):
    """Of parts large enough to be cut, whose rows come in parts backward, and dense enough to be broadcast in ranges."""
    options = {"data": "rmat:nodes=17000,edges=30000,features=4", "model": "gat", "hidden": 4, "heads": 2, "epochs": 1, "prefetch": 1}
    check_bytes(tmp_path / "a", 2, ["sar"], **options)
    check_bytes(tmp_path / "b", 2, ["broadcast"], **options | {"data": "sbm:nodes=4200,degree=130,features=4"})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sign"])
def test_bytes_of_settings_are_those_of_runs_with_their_options(name, weights, n_ranks, tmp_path):
    options = {"data": SBM, "prefetch": 1, "epochs": 3, **MODELS[name]}
    if weights and name not in ("max", "gat"):
        options |= {"data": weighted(tmp_path / "a.npz"), "edge_weights": True}
    check_bytes(tmp_path, n_ranks, [settings_compared()[-1]], **options)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_bytes_of_reversed_edges_that_are_others(name, tmp_path):
    options = {"data": directed(tmp_path / "a"), "prefetch": 0, "epochs": 2, **MODELS[name]}
    check_bytes(tmp_path, 3, ["broadcast", settings_compared()[-1]], **options)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "appnp", "gat"])
def test_bytes_of_a_weighted_graph_are_those_of_the_run(name, n_ranks, tmp_path):
    flags = {**MODELS[name], "data": weighted(tmp_path / "a.npz"), "edge_weights": True}
    check_bytes(tmp_path, n_ranks, ["sar", "broadcast"], prefetch=0, epochs=3, **flags)  # whose gradients of weighted sums are pushed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "max", "gat", "labels"])
def test_bytes_of_message_flow_are_those_of_the_run(name, n_ranks, layers, prefetch, mode, tmp_path):
    options = {**MODELS.get(name, LABELS), "layers": layers, "mfg": True, "epochs": 3, "data": few_labelled(tmp_path / "few")}
    check_bytes(tmp_path, n_ranks, [mode], prefetch=prefetch, **options)


def test_bytes_of_message_flow_whose_order_of_products_is_the_runs(tmp_path):
    """A trial's layers, which are smaller, would have another."""
    options = {**MODELS["gcn"], "layers": 2, "mfg": True, "epochs": 2, "data": few_labelled(tmp_path / "few")}
    check_bytes(tmp_path, 2, ["broadcast"], prefetch=1, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RELATIONAL)
def test_bytes_of_a_relational_graph_are_those_of_the_run(name, n_ranks, prefetch, mode, tmp_path):
    check_bytes(tmp_path, n_ranks, [mode], prefetch=prefetch, epochs=3, **RELATIONAL[name])


def test_bytes_where_a_rank_has_no_rows_of_a_type(tmp_path):
    check_bytes(tmp_path, 4, ["sar"], prefetch=0, epochs=2, **RELATIONAL["rgcn"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sampler", ["uniform", "labor", "replace", "full"])
@pytest.mark.parametrize("remote", ["exact", "local"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "max", "gat", "labels"])
def test_bytes_of_minibatches_are_those_of_the_run(name, n_ranks, remote, sampler, mode, tmp_path):
    options = {**MODELS.get(name, LABELS), **BATCHES, "remote": remote, "sampler": sampler}
    check_bytes(tmp_path, n_ranks, [mode], fanouts=(-1, -1) if sampler == "full" else (3, 2), **options)


def test_bytes_of_batches_that_exchange_are_those_of_the_run(tmp_path):
    """Whose layers fetch different rows."""
    options = {**MODELS["sage"], **BATCHES, "remote": "exact", "fanouts": (3, 2)}
    assert check_bytes(tmp_path, 2, ["sar"], **options)["forward_fetch"] > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", HECS, ids=str)
@pytest.mark.parametrize("mode, on_miss", [("sar", "drop"), ("oneshot", "zero"), ("broadcast", "local")])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_bytes_of_caches_are_those_of_the_run(name, mode, on_miss, flags, tmp_path):
    options = {**MODELS[name], **BATCHES, "remote": "hec", "fanouts": (3, 2), "on_miss": on_miss, **flags}
    assert check_bytes(tmp_path, 3, [mode], **options)["push_rows"] > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("remote", ["exact", "local", "hec"])
@pytest.mark.parametrize("eval_every", [1, 2])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "labels"])
def test_bytes_of_sampled_evaluation_are_those_of_the_run(name, n_ranks, eval_every, remote, tmp_path):
    if name == "labels" and remote == "hec":
        pytest.skip("refused: rows of a cache were made while other labels were shown")
    options = {**MODELS.get(name, LABELS), **BATCHES, "remote": remote, "fanouts": (3, 2), "eval_fanouts": (4, -1)}
    check_bytes(tmp_path, n_ranks, ["sar"], **options | {"eval_every": eval_every})


@pytest.mark.parametrize("options", [{}, {"backward": "fetch"}, {"layers": 2, "fanouts": (5, 5), "batch_size": 20, "eval_fanouts": (5, 5)}],
                         ids=str)
@pytest.mark.parametrize("n_ranks", [2])
def test_bytes_of_correct_and_smooth_are_those_of_the_run(n_ranks, options, tmp_path):
    flags = {"data": SBM, "model": "gcn", "epochs": 2, "prefetch": 0, "correct_and_smooth": True, "smooth_iterations": 7, **options}
    real = threads.run(n_ranks, trained, tmp_path / "run", **flags)[0]["sent_bytes"]
    said = told(tmp_path, n_ranks, [Setting("sar")], **flags)["sar"]["run_sent_bytes"]
    assert real["smoothing"] == said["smoothing"] > 0 and real["allreduce"] == said["allreduce"]
    if not options:  # of the last evaluation metrics are told, too
        assert real["forward_fetch"] == said["forward_fetch"] and 0 <= said["evaluation"] - real["evaluation"] < 1000


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_pairs_in_order_of_a_dry_run(n_ranks, tmp_path):
    """ROC-AUC, whose ranks sort scores together; of all settings, as the command tells them."""
    data = "sbm:nodes=90,degree=5,features=9,classes=2"
    rows, _ = dry_run(tmp_path, n_ranks, data=data, model="gcn", layers=2, metric="roc-auc", prefetch=0)
    assert {"sar", "oneshot", "broadcast"} <= rows.keys() and min(rows["sar"]["peak_bytes"]) > 0
