"""A plan of counts is laid out as the graph's own: of all edges, reversed, covered, and in rounds."""

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.sar import plan
from sarlite.sar.cost import counts_of, expected, schedule_of
from sarlite.sar.graph import Graph
from sarlite.sar.other_counts import with_others
from sarlite.sar.stand_ins import Rows
from sarlite.train.config import resolve
from sarlite.train.load import load as load_part
from sarlite.train.settings import graph_of, source_of
from tests.helpers.costing import HOSTS, QUIET, plan_facts
from tests.helpers.exchanges import EDGES, X, on_hosts, shard
from tests.helpers.exchanges import Recorder as Noted


def test_rows_that_are_expected_follow_each_other_only_where_all_are_needed():
    for halo, whole in ((None, False), (0.5, False), (1.0, True)):
        steps = schedule_of(expected(400, 1200, 4, halo=halo), "sar", 0).plan.steps
        assert [(step.contiguous, isinstance(step.send_rows, slice)) for step in steps] == [(whole, whole)] * 3


def test_a_plan_of_counts_is_laid_out_as_the_graphs(tmp_path):
    def both(comm):
        found = []
        sparse, dense = "rmat:nodes=17000,edges=30000,features=1", "sbm:nodes=40,degree=30,features=1"
        for mode, partition, spec in (("sar", "random", sparse), ("oneshot", "contiguous", dense), ("broadcast", "random", sparse)):
            config = resolve({**QUIET, "data": spec, "mode": mode, "prefetch": 1,
                              "partition": partition, "ranks": comm.size})
            graph = load_part(comm, source_of(config, None), graph_of(config), tmp_path).graph
            found.append((plan_facts(graph.plan), plan_facts(schedule_of(counts_of(graph), mode, 1).plan)))
        return found

    for found in threads.run(2, both):
        for real, counted in found:
            assert real == counted
        assert any(len(real[3]) > len(real[2]) for real, _ in found)  # backward steps in parts
        assert any(step[4] and step[5] for real, _ in found for step in real[2])  # all of a rank's rows


def test_counts_of_reversed_and_of_covered_edges_are_those_of_their_plans():
    rng, n_ranks, n = np.random.default_rng(5), 3, 12
    src, dst = rng.integers(0, 36, 70), rng.integers(0, 36, 70)
    src[:16], dst[16:32] = 20, 3  # a row that many need, and one that needs many
    dst = dst[order := np.argsort(dst, kind="stable")]
    ends = np.searchsorted(dst, np.arange(n_ranks * n + 1))

    def plans(schedule):
        covered = [schedule.cover, schedule.cover.summed] if schedule.cover else []
        return [each.plan for each in (schedule, schedule.reverse, *covered)]

    def both(comm):
        own, found = ends[comm.rank * n : (comm.rank + 1) * n + 1], []
        for mode, other in (("cover", "host"), ("oneshot", "oneshot"), ("broadcast", "broadcast"), ("host", "cover"), ("host", "host")):
            counted, graph = (Graph.from_part(comm, own - own[0], src[order][own[0] : own[-1]], mode=each, backward="fetch")
                              for each in (other, mode))
            counts = with_others(counted, counts_of(counted))
            found += zip(plans(graph.schedule), plans(schedule_of(counts, mode, 1)), strict=True)
        edges = [[[block.n_edges for block in plan.blocks] for plan in both] for both in found[:4]]
        return [(plan_facts(real), plan_facts(told)) for real, told in found], edges

    ranks = on_hosts((0, 0, 1), both)
    for found, edges in ranks:
        assert all(real == told for real, told in found) and all(real == told for real, told in edges)
    assert found[0] != found[1] and all(any(sum(edges[k][0][1:]) for _, edges in ranks) for k in range(4))


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("hosts", HOSTS)
def test_what_rounds_send_and_hold_is_counted_by_rank(hosts, prefetch, monkeypatch):
    """Bytes both ways, messages, tokens among them, and the sizes of the windows; backward rows come in parts of a peer's."""
    monkeypatch.setattr(plan, "STEP_ROWS", 2)
    owner = np.random.default_rng(3).integers(0, len(hosts), 50)

    def travel(schedule, rows, gradients):
        schedule.mode.run(schedule, (rows,), lambda *_: None)
        schedule.mode.run_backward(schedule, (rows,), None, lambda *_: None, [gradients])
        profile, windows = schedule.transport.profile, schedule.plan.host.windows.items()
        both = [{k: n for k, n in found.items() if k.startswith(("forward", "backward"))} for found in (profile.sent_bytes,
                                                                                                       profile.received_bytes)]
        return both, {name: window.array.nbytes for name, window in windows}

    def work(comm):
        graph, log = shard(comm, EDGES, owner, mode="host", prefetch=prefetch), []
        counts, transport = with_others(graph, counts_of(graph)), graph.schedule.transport
        transport.fetch_comm, transport.push_comm = Noted(transport.fetch_comm, log), Noted(transport.push_comm, log)
        monkeypatch.setattr(graph.plan.host, "tokens", Noted(graph.plan.host.tokens, log))
        real = travel(graph.schedule, X[graph.node_ids], np.zeros_like(X[graph.node_ids]))
        counted = schedule_of(counts, "host", prefetch)
        n = len(graph.node_ids)
        said = travel(counted, Rows((n, 4), X.dtype), Rows((n, 4), X.dtype))
        return *real, len(log), transport.profile.peak_remote_buffers, *said, counted.transport

    for sent, windows, n_messages, held, said, said_windows, transport in on_hosts(hosts, work):
        assert sent == said and windows == said_windows and n_messages == transport.n_messages
        assert prefetch or held == transport.profile.peak_remote_buffers
