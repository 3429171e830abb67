"""Minibatches of links: a step has no message along its own seeds, and is the same on any number of ranks."""

import numpy as np
import pytest

from sarlite import Trainer, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.models import GAT, GCN, SAGE
from sarlite.tasks.link_data import split_links
from sarlite.tasks.link_loader import LinkLoader
from sarlite.tasks.link_task import LinkTask
from sarlite.train import checkpoint
from tests.helpers.train.linked import FEATURES, N, part
from tests.helpers.train.training_runs import train_here

RUNS = [
    {"model": SAGE}, {"model": GCN, "mode": "oneshot", "sampler": "per-source", "kind": "labor", "directed": True},
    {"model": GAT, "mode": "broadcast", "disjoint": 0.4}, {"model": SAGE, "mode": "sa", "weights": True, "sampler": "per-source"},
    {"model": SAGE, "mode": "sar", "sampler": "in-batch"},
]  # fmt: skip


def made(comm, model=SAGE, mode="sar", kind="uniform", directed=False, weights=False, fanouts=(3, 2), **options):
    """Return a trainer over batches of 16 links, and the links."""
    graph = part(comm, mode, directed=directed, weights=weights)
    links, rng, x = split_links(graph, 0.15, 0.2, seed=3, negatives=2, **options), nn.Random(1), FEATURES[graph.dst_ids]
    loader = LinkLoader(links.graph, x, links.labels, links.train, fanouts=fanouts, batch_size=16, sampler=kind)
    predictor = nn.LinkPredictor(model(6, 8, hidden=8, layers=len(fanouts), rng=rng, dtype=np.float64), nn.Dot())
    return Trainer(links.graph, predictor, x, links.labels, links.train, links.val, links.test, rng=rng, batches=loader,
                   task=LinkTask(), optimizer=lambda flat: optim.SGD(flat, 0.01)), links


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", RUNS, ids=lambda options: options["model"].__name__ + options.get("mode", ""))
def test_training_is_the_same_on_any_number_of_ranks(options):
    def work(comm):
        trainer, links = made(comm, **options)
        each_part = [np.stack([links.heads, links.tails], 1)[trainer.batches.links(step)] for step in range(len(trainer.batches))]
        seeds = [sorted(map(tuple, np.concatenate(comm.allgather(pairs)).tolist())) for pairs in each_part]
        return seeds, [trainer.epoch(epoch) for epoch in range(2)], trainer.evaluate(), trainer.flat.grad.copy()

    seeds, losses, scores, gradients = work(Solo())
    assert len(seeds) > 2 and {len(step) for step in seeds[:-1]} == {16}
    assert len({pair for step in seeds for pair in step}) == sum(map(len, seeds))
    for n in (2, 3):
        for their_seeds, their_losses, their_scores, theirs in threads.run(n, work):
            assert their_seeds == seeds
            np.testing.assert_allclose(their_losses, losses, rtol=1e-12)
            np.testing.assert_allclose([*their_scores.values()], [*scores.values()], rtol=1e-12)
            np.testing.assert_allclose(theirs, gradients, rtol=0, atol=1e-12 * np.abs(gradients).max())


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_step_in_plain_numpy(n, weights):
    """GraphSAGE of one layer with all in-edges, dot, binary cross entropy: means are over the edges that are no seeds."""
    def work(comm):
        trainer, links = made(comm, weights=weights, fanouts=(-1,))
        graph, encoder = links.graph.nodes, trainer.model.encoder
        edges = [np.stack([graph.edge_src_ids, np.repeat(graph.dst_ids, graph.in_degrees)[np.argsort(_places(graph))]], 1),
                 np.stack([links.heads, links.tails], 1)[trainer.batches.links(0)]]
        edges, seeds = (np.concatenate(comm.allgather(each_part)) for each_part in edges)
        step = trainer.batches._candidates.pairs(0, trainer.batches.links(0))
        ids = np.concatenate(comm.allgather(graph.dst_ids))
        pairs = np.concatenate(comm.allgather(np.stack([ids[step[0]], ids[step[1]]], 2)))
        a = np.zeros((N, N))
        np.add.at(a, (edges[:, 1], edges[:, 0]), 1.0 + weights * edges[:, 0])
        a[seeds[:, 0], seeds[:, 1]] = a[seeds[:, 1], seeds[:, 0]] = 0
        conv = encoder.convs[0]
        h = FEATURES @ conv.root.weight.data + conv.root.bias.data
        h = h + a / np.maximum(a.sum(1, keepdims=True), 1) @ FEATURES @ conv.neighbour.weight.data
        scores = (h[pairs[..., 0]] * h[pairs[..., 1]]).sum(-1)
        p = 1 / (1 + np.exp(-scores))
        p[:, 1:] = 1 - p[:, 1:]
        return trainer.step(0), -np.log(p).mean()

    for actual, expected in threads.run(n, work):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def _places(graph):
    numbers = graph.in_edges().numbers
    return np.arange(graph.n_edges) if numbers is None else numbers


def test_a_pick_counts_what_it_stands_for_where_seeds_are_left_out():
    """In a sum d / k of the d edges that are no seeds and the k picks of them: so the sum over these edges is unbiased."""
    trainer, links = made(Solo(), fanouts=(2,))
    loader = trainer.batches
    (without,), part = loader._edges_to_omit(links.train[:12]), loader._part.edges
    batch = loader._batch(loader.sampler(np.arange(N), 0, [without]), 0, 0, pushes=False)
    (graph,) = batch.graphs
    dst, loops = np.repeat(np.arange(N), graph.in_degrees), part.edges.added_loops
    loops = np.zeros(N, bool) if loops is None else loops
    assert len(without) == 24 and not np.isin(graph.picked.positions, without).any()
    rest = part.degrees - np.bincount(np.searchsorted(part.edges.indptr, without, side="right") - 1, minlength=N)
    np.testing.assert_array_equal(graph.in_degrees, loops + np.minimum(rest - loops, 2))
    is_loop = loops[dst] & (graph.picked.columns == dst)
    expected = np.where(is_loop, 1, ((rest - loops) / np.maximum(np.minimum(rest - loops, 2), 1))[dst])
    np.testing.assert_allclose(graph.estimate.factors("sum"), expected)
    np.testing.assert_allclose(graph.estimate.factors("mean"), expected / rest[dst])


def test_what_cannot_be_is_refused():
    links, x = split_links(part(Solo()), 0.15, 0.2), FEATURES
    arguments = (x, links.labels, links.train)
    for words, call in (
        ("minibatches of links must be exact", lambda: LinkLoader(links.graph, *arguments, fanouts=(2,), batch_size=4, remote="local")),
        ("minibatches of links must be exact", lambda: LinkLoader(links.graph, *arguments, fanouts=(2,), batch_size=4, remote=HEC())),
        ("need a LinkGraph of split_links or labelled_links",
         lambda: LinkLoader(links.graph.nodes, *arguments, fanouts=(2,), batch_size=4)),
        ("batches: a NeighborLoader cannot be used with a LinkGraph", lambda: Trainer(
            links.graph, nn.LinkPredictor(SAGE(6, 8, rng=nn.Random(1), dtype=np.float64), nn.Dot()), *arguments, rng=nn.Random(1),
            optimizer=lambda flat: optim.SGD(flat, 1), task=LinkTask(),
            batches=NeighborLoader(links.graph.nodes, x, None, slice(9), fanouts=(2,), batch_size=4))),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            call()


def test_runs_are_the_same_on_any_number_of_ranks_and_go_on(tmp_path):
    flags = ["--task", "link", "--model", "sage", "--dtype", "float64", "--link-width", 8, "--batch-size", 400, "--fanouts", "3,3"]
    whole = train_here(tmp_path / "four", *flags, "--epochs", 4)
    other = train_here(tmp_path / "two", *flags, "--epochs", 2, "--ranks", 2, "--partition", "random")
    for name in ("loss", "val_loss", "test_roc_auc"):
        np.testing.assert_allclose([m[name] for m in other], [m[name] for m in whole[:2]], rtol=1e-11)
    more = ["--resume", tmp_path / "two" / "checkpoint.safetensors", "--epochs", 4]
    result = train_here(tmp_path / "two", *flags, *more)
    np.testing.assert_allclose(result[-1]["loss"], whole[-1]["loss"], rtol=1e-10)
    assert checkpoint.read(Solo(), tmp_path / "two" / "checkpoint.safetensors", ("model.",))[1]["task"] == "link"
    for words, more in (("--task link does not go with --remote hec", ["--remote", "hec"]),
                        ("--task link does not go with --remote local", ["--remote", "local"]),
                        ("--eval-fanouts", ["--eval-fanouts", "2,2"]), ("fanouts has 1 entr", ["--fanouts", "2"])):
        with pytest.raises(ConfigError, match=words):
            train_here(tmp_path / "no", *flags, *more)
