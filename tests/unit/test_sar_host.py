"""Mode host: rows enter a host once and their gradients leave it once, added up (threads as ranks, on hosts of the test's making)."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError, PeerError
from sarlite.sar import plan
from sarlite.train import config
from tests.helpers.exchanges import EDGES, HOLDERS, Recorder, X, attend, fail, results, shard
from tests.helpers.exchanges import on_hosts as run
from tests.helpers.references import CASES, check_equality
from tests.helpers.references import EDGES as REFERENCE
from tests.helpers.strategies import KINDS, Edges, random_edges, values
from tests.helpers.training_runs import assert_same_curve, train_here

pytestmark = pytest.mark.timeout(60)

HOSTS = [(0, 0), (0, 1), (0, 0, 1), (0, 1, 1, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 0), (0, 1, 2, 0)]
SPARSE = random_edges(50, 90, seed=3)
ROW = X.shape[1] * X.itemsize


@pytest.mark.sampled(24)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("backward", ["push", "fetch"])
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("case", CASES)
def test_equality(case, hosts, backward, prefetch):
    owner = np.random.default_rng(prefetch).integers(0, len(hosts), REFERENCE.n_nodes)
    run(hosts, check_equality, case, np.float64, owner, mode="host", prefetch=prefetch, backward=backward)


@pytest.mark.parametrize("graph_edges", [*KINDS.values(), SPARSE, EDGES])
@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 0)])
def test_as_one_rank(hosts, graph_edges, monkeypatch):
    """On four ranks, of which the last is empty; of small graphs more are. Backward rows come in parts of a peer's."""
    monkeypatch.setattr(plan, "STEP_ROWS", 2)
    n, whole = graph_edges.n_nodes, Graph.from_edges(*graph_edges)
    x, weight = values(1, n, 4), values(2, 4, 5)

    def both(g):
        leaf = Tensor(x[g.node_ids], requires_grad=True)
        outs = [g.aggregate(fn.copy_src(leaf), reducer) for reducer in ("sum", "mean", "sym", "max", "min")]
        out = sum((k + 1) * out for k, out in enumerate(outs)) + attend(g, leaf).reshape(-1, 4)
        out = out @ weight + g.aggregate(fn.linear(leaf, weight), "mean")
        out.backward(np.cos(out.data))
        return out.data, leaf.grad

    expected, options = both(whole), {"mode": "host", "prefetch": n % 2}
    for own, found in run(hosts, lambda comm: (graph := whole.shard(comm, np.arange(n) % 3, **options), both(graph))):
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b[own.node_ids], rtol=1e-12, atol=1e-12)


def entering(graph_edges, owner, hosts):
    """By host, how many rows of other hosts' ranks its ranks need; each counted once."""
    hosts = np.asarray(hosts)
    away = hosts[owner[graph_edges.src]] != hosts[owner[graph_edges.dst]]
    return {h: len(np.unique(graph_edges.src[away & (hosts[owner[graph_edges.dst]] == h)])) for h in hosts.tolist()}


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("graph_edges", [SPARSE, EDGES])
@pytest.mark.parametrize("hosts", HOSTS)
def test_a_row_enters_a_host_once_and_its_gradient_leaves_it_once(hosts, graph_edges, prefetch):
    owner = np.random.default_rng(1).integers(0, len(hosts), 50)

    def work(comm):
        graph = shard(comm, graph_edges, owner, mode="host", prefetch=prefetch)
        leaf = Tensor(X[graph.node_ids], requires_grad=True)
        out = graph.aggregate(fn.mul_edge(leaf, Tensor(values(1, graph.n_edges), requires_grad=True)), "sum")  # case 2
        out.backward(np.ones_like(out.data))
        return graph.profile

    ranks, counts = run(hosts, work), entering(graph_edges, owner, hosts)
    for h, n in counts.items():
        here = [profile for profile, host in zip(ranks, hosts) if host == h]
        for phase in ("forward_fetch", "backward_fetch"):
            assert sum(profile.received_bytes[phase] for profile in here) == n * ROW
        assert sum(profile.sent_bytes["backward_push"] for profile in here) == n * ROW
    for a, b in (("forward_fetch", "backward_push"), ("backward_push", "forward_fetch")):
        assert sum(p.sent_bytes[a] for p in ranks) == sum(p.received_bytes[b] for p in ranks) == sum(counts.values()) * ROW


@pytest.mark.parametrize("hosts, expected", [
    ((0, 0, 0), [[0, 1, 2]] * 3),
    ((0, 0, 1), [[2, 0, 1], [2, 0, 1], [2, 0, 1]]),
    ((0, 1, 2), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]),
])
def test_without_prefetch_the_local_block_stands_in_the_round_of_its_own_rows(hosts, expected):
    """Where a host has one rank there is no such round, and it comes first."""
    def work(comm):
        graph, sources = shard(comm, mode="host", prefetch=0), []
        graph.schedule.run((X[graph.node_ids],), lambda block, rows: sources.append(block.source))
        return sources

    assert run(hosts, work) == expected


def test_other_hosts_rows_come_to_each_rank_of_a_host():
    """So that no link of one rank carries them all."""
    owner = np.arange(50) % 4

    def work(comm):
        graph = shard(comm, EDGES, owner, mode="host", prefetch=0)
        graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        return graph.profile.received_bytes["forward_fetch"]

    for hosts in ((0, 0, 1, 1), (0, 1, 0, 1)):
        found = run(hosts, work)
        assert min(found) > 0 and max(found) <= 13 * ROW


def test_sums_do_not_depend_on_time(monkeypatch):
    """Without prefetch the local block is not divided, which gives other bits."""
    monkeypatch.setattr(plan, "STEP_ROWS", 2)
    owner = np.random.default_rng(1).integers(0, 4, 50)
    found = [run((0, 0, 1, 1), lambda comm: results(shard(comm, EDGES, owner, mode="host", prefetch=prefetch)))  # noqa: B023
             for prefetch in (1, 1, 1, 2)]
    for others in found[1:]:
        for one, other in zip(found[0], others):
            for a, b in zip(one, other):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("name", HOLDERS)
def test_live_remote_buffers(name, prefetch):
    def work(comm):
        graph = shard(comm, mode="host", prefetch=prefetch)
        out = HOLDERS[name](graph, Tensor(X[graph.node_ids], requires_grad=True), lambda g, x: x)
        out.backward(np.ones_like(out.data))
        return graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers

    assert all(1 <= peak <= 1 + prefetch and live == 0 for peak, live in run((0, 0, 1, 1), work))


def test_windows_grow_and_are_shared_by_graphs():
    def work(comm):
        graphs = [shard(comm, edges, "contiguous", mode="host") for edges in (EDGES, SPARSE)]
        sizes = []
        for width in (2, 7, 3):
            for graph, edges in zip(graphs, (EDGES, SPARSE)):
                x = values(width, 50, width)
                expected = Graph.from_edges(*edges).aggregate(fn.copy_src(x), "sum").data[graph.node_ids]
                np.testing.assert_allclose(graph.aggregate(fn.copy_src(x[graph.node_ids]), "sum").data, expected, rtol=1e-12, atol=1e-12)
            sizes.append(len(graphs[0].plan.host.windows["rows"].array))
        assert graphs[0].plan.host is graphs[1].plan.host
        return sizes

    for one, two, three in run((0, 0, 1, 1), work):
        assert one < two == three


# ---- with other options


RELATIONS = {("a", "r", "b"): random_edges(20, 60, seed=1, n_dst=14), ("a", "s", "a"): random_edges(20, 70, seed=2),
             ("b", "t", "a"): random_edges(14, 60, seed=3, n_dst=20)}
N_NODES = {"a": 20, "b": 14}


@pytest.mark.parametrize("reducer", ["mean", "max"])
def test_relations(reducer):
    x = {name: values(5, n, 3) for name, n in N_NODES.items()}

    def both(comm=None):
        edges = {relation: (e.src, e.dst) for relation, e in RELATIONS.items()}
        graph = HeteroGraph.from_edges(edges, N_NODES, comm=comm, parts="random", mode="host")
        leaves = {name: Tensor(x[name][ids], requires_grad=True) for name, ids in graph.node_ids.items()}
        outs = graph.aggregate({r: fn.copy_src(leaves[r[0]]) for r in RELATIONS}, reducer)
        sum((out * out).sum() for out in outs.values()).backward()
        return graph.node_ids, {name: (outs[name].data, leaves[name].grad) for name in N_NODES}

    _, expected = both()
    for ids, found in run((0, 0, 1, 1), both):
        for name, arrays in found.items():
            for a, b in zip(arrays, expected[name]):
                np.testing.assert_allclose(a, b[ids[name]], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 0)])
def test_columns(hosts):
    for prefetch, case in enumerate(("gcn", "gat")):
        run(hosts, check_equality, case, np.float64, "random", mode="host", prefetch=prefetch, columns=2)


def test_bipartite_graphs():
    pairs, x = random_edges(30, 120, seed=5, n_dst=8), values(1, 30, 4)
    whole = Graph.from_edges(*pairs[:2], n_src=30, n_dst=8)

    def both(g):
        leaf = Tensor(x[g.src_ids], requires_grad=True)
        out = g.aggregate(fn.copy_src(leaf), "sym") + g.aggregate(fn.copy_src(leaf), "max")
        out.backward(np.cos(out.data))
        return out.data, leaf.grad

    expected, options = both(whole), {"src_parts": np.arange(30) // 8, "mode": "host"}
    for own, (out, grad) in run((0, 0, 1, 1), lambda comm: (g := whole.shard(comm, np.arange(8) % 4, **options), both(g))):
        np.testing.assert_allclose(out, expected[0][own.dst_ids], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(grad, expected[1][own.src_ids], rtol=1e-12, atol=1e-12)


def test_a_communicator_without_shared_memory_is_refused_by_name():
    class Own:
        """A communicator of somebody else's."""

        def __init__(self, comm):
            self._comm, self.rank, self.size, self.threaded, self.max_tag = comm, comm.rank, comm.size, True, comm.max_tag

        def __getattr__(self, name):
            if name in ("hosts", "share"):
                raise AttributeError(name)
            return getattr(self._comm, name)

    def work(comm):
        with pytest.raises(ConfigError, match="mode 'host' needs memory that ranks share: Own has no"):
            shard(Own(comm), mode="host")

    threads.run(2, work)


@pytest.mark.parametrize("flags, told", [
    (["--mfg"], "--mode host does not go with --mfg"),
    (["--batch-size", "8", "--fanouts", "3,3"], "--mode host does not go with --batch-size"),
])
def test_what_does_not_go_together(flags, told):
    with pytest.raises(ConfigError, match=told):
        config.parse(["--mode", "host", *flags])


def test_a_run_above_the_limit_is_refused(tmp_path):
    data = ["--data", "sbm:nodes=60,classes=2,features=4,degree=4", "--ranks", "2"]
    with pytest.raises(ConfigError, match="mode host would take .* more than --memory-limit"):
        train_here(tmp_path / "run", *data, "--mode", "host", "--memory-limit", "1MiB")


def test_the_command(tmp_path, capsys):
    data = ["--data", "sbm:nodes=60,classes=2,features=4,degree=4", "--epochs", "2", "--model", "gat", "--hidden", "4", "--heads", "2",
            "--dtype", "float64"]
    curves = [train_here(tmp_path / mode, *data, "--ranks", ranks, "--mode", mode) for ranks, mode in (("1", "sar"), ("3", "host"))]
    assert_same_curve(curves[1], curves[0], rtol=1e-9)
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["mode"] == "host" and line["sent_bytes"].get("forward_fetch", 0) == 0 and line["live_remote_buffers"] <= 2


# ---- failures


@pytest.mark.parametrize("hosts", [(0, 0, 1), (0, 0, 0), (0, 1, 1, 0)])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_after_a_failure_on_every_rank_the_graph_recovers(hosts, prefetch):
    """The ranks have come to different rounds, and threads of theirs write to the window or wait for tokens."""
    expected = results(Graph.from_edges(*EDGES))

    def work(comm):
        graph = shard(comm, EDGES, np.arange(50) % comm.size, mode="host", prefetch=prefetch)
        for when, call in itertools.product(("forward", "backward"), (1, 2, comm.size)):
            fail(graph, when, 1 + (call + comm.rank) % comm.size)
            with pytest.raises(PeerError, match="KeyError: 'the cause'.*recover"):
                results(graph)
            graph.recover()
            assert not graph.schedule.transport.line.late
            for found, whole in zip(results(graph), expected):
                np.testing.assert_allclose(found, whole[graph.node_ids], rtol=1e-12, atol=1e-12)

    run(hosts, work)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_gradients_of_a_rank_that_failed_are_no_numbers(prefetch):
    """Other ranks' backward ends, as nobody leaves the rounds; what misses a part is not taken for whole."""
    def work(comm):
        graph = shard(comm, EDGES, np.arange(50) % 4, mode="host", prefetch=prefetch)
        x = Tensor(X[graph.node_ids], requires_grad=True)
        if comm.rank == 1:
            fail(graph, "backward", 2)
        else:
            graph.aggregate(lambda src, dst, edge: src["x"].tanh(), "sum", src={"x": x}).backward(np.ones((graph.n_dst, 4)))
        graph.recover()
        return None if x.grad is None else np.isnan(x.grad).any(axis=1).sum()

    found = run((0, 0, 1, 1), work)
    assert found[1] is None and sum(found[p] > 0 for p in (0, 2, 3)) >= 1


@pytest.mark.parametrize("fail_at", [1, 2, 3])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("which", ["fetch_comm", "push_comm", "tokens"])
def test_one_rank_that_fails_ends_all(which, prefetch, fail_at):
    seen = []

    def work(comm):
        graph = shard(comm, mode="host", prefetch=prefetch)
        if comm.rank == 2:
            at = graph.plan.host if which == "tokens" else graph.schedule.transport
            setattr(at, which, Recorder(getattr(at, which), [], fail_at))
        try:
            x = Tensor(X[graph.node_ids], requires_grad=True)
            for _ in range(3):
                out = attend(graph, x)
                out.backward(np.ones_like(out.data))
        except BaseException as error:
            seen.append(error)
            raise

    with pytest.raises(KeyError, match="the network is gone"):
        run((0, 0, 1, 1), work)
    assert len(seen) == 4


def test_a_window_that_cannot_be_made_is_told_on_every_rank():
    def work(comm):
        graph = shard(comm, mode="host", prefetch=0)
        graph.plan.host.group.share = SimpleNamespace(__call__=None)  # not callable
        with pytest.raises(TypeError):
            graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        with pytest.raises(PeerError, match="recover"):
            graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        del graph.plan.host.group.share
        graph.recover()
        out = graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum").data
        np.testing.assert_allclose(out, Graph.from_edges(*EDGES).aggregate(fn.copy_src(X), "sum").data[graph.node_ids], rtol=1e-12)

    run((0, 0, 1, 1), work)


def test_an_empty_graph():
    nothing = Edges(np.empty(0, np.int64), np.empty(0, np.int64), 3)

    def work(comm):
        graph = shard(comm, nothing, "random", mode="host")
        out = graph.aggregate(fn.copy_src(Tensor(values(1, 3, 2)[graph.node_ids], requires_grad=True)), "sum")
        out.backward(np.ones_like(out.data))
        assert not out.data.any()

    run((0, 0, 1, 1), work)
