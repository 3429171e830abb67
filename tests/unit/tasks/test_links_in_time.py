"""Links in time: splits by the first time of a pair, batches that see no later edge, and evaluation by the same rule."""

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Trainer, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError
from sarlite.minibatch import Temporal
from sarlite.minibatch.temporal import TimedEdges
from sarlite.models import SAGE
from sarlite.tasks.edge_task import EdgeTask
from sarlite.tasks.link_data import labelled_links, split_links
from sarlite.tasks.link_loader import LinkLoader, ScoredLinks
from sarlite.tasks.link_task import LinkTask
from sarlite.tasks.time_split import FirstTimes, TimeSplit

pytestmark = pytest.mark.timeout(120)
N = 24
RNG = np.random.default_rng(4)
SRC, DST = RNG.integers(0, N, 140), RNG.integers(0, N, 140)
TIMES, NODE_TIMES = RNG.integers(0, 50, 140), RNG.integers(0, 5, N)
X = RNG.standard_normal((N, 4))
SPLIT = TimeSplit(25, 35, "integers")


def graph(comm=None, times=TIMES):
    whole = Graph.from_edges(SRC, DST, N)
    whole = whole.with_edge_values(time=times[whole.edge_ids])
    return whole if comm is None else whole.shard(comm, "random")


def first_time(one, other, times=TIMES):
    return times[((SRC == one) & (DST == other)) | ((SRC == other) & (DST == one))].min()


def loader(links, kind=LinkLoader, rows=None, pick="uniform", fanouts=(3, 2), **options):
    ids = links.graph.nodes.dst_ids
    temporal = Temporal(pick, NODE_TIMES[ids], links.times)
    return kind(links.graph, X[ids], links.labels, links.train if rows is None else rows, fanouts=fanouts, batch_size=10,
                temporal=temporal, **options)


def leaks(batch):
    collected = []
    for layer in batch.graphs:
        times = np.repeat(layer.picked.times, np.diff(layer.picked.indptr))
        edges = layer.edge_ids
        collected += edges[(TIMES[edges] > times) | (NODE_TIMES[SRC[edges]] > times)].tolist()
    return collected


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_pair_has_the_split_of_its_first_edge_in_either_direction(n_ranks):
    def work(comm):
        links = split_links(graph(comm), SPLIT)
        names = np.full(links.graph.n_dst, -1)
        for at, rows in enumerate((links.train, links.val, links.test)):
            names[rows] = at
        messages = links.graph.nodes.edge_ids.tolist()
        return [*zip(links.heads.tolist(), links.tails.tolist(), links.times.tolist(), names.tolist())], messages

    by_rank = threads.run(n_ranks, work)
    rows, messages = sum((part for part, _ in by_rank), []), sum((part for _, part in by_rank), [])
    assert {(head, tail) for head, tail, *_ in rows} == {pair for pair in zip(SRC.tolist(), DST.tolist()) if pair[0] != pair[1]}
    for head, tail, time, split in rows:
        assert time == first_time(head, tail) and split == SPLIT([time])[0]
    saved = [edge for edge in range(140) if SRC[edge] == DST[edge] or first_time(SRC[edge], DST[edge]) < 25]
    assert sorted(messages) == saved


def test_the_first_time_of_a_pair_that_is_no_edge_is_refused():
    first = FirstTimes(Solo(), 3, np.array([0, 1]), np.array([1, 0]), np.array([7, 5]))
    assert first(np.array([1]), np.array([0])).tolist() == [5]
    with pytest.raises(DataError, match="links: .*0, 2 .*not an edge"):
        first(np.array([0]), np.array([2]))


def test_edges_without_times_have_no_split_by_time():
    with pytest.raises(ConfigError, match="time_split 25,35: the edges have no times"):
        split_links(Graph.from_edges(SRC, DST, N), SPLIT)
    typed = HeteroGraph.from_edges({("a", "to", "b"): (SRC, DST)}, {"a": N, "b": N})
    with pytest.raises(ConfigError, match=r"the edges of a\.to\.b have no times"):
        split_links(typed, SPLIT)


@pytest.mark.parametrize("kind, rows", [(LinkLoader, "train"), (ScoredLinks, "val")])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_no_edge_and_no_row_of_a_batch_is_later_than_its_link(kind, rows, n_ranks):
    def work(comm):
        links = split_links(graph(comm), SPLIT, negatives=2)
        local = getattr(links, rows)
        return [leak for pick in ("uniform", "latest") for batch in loader(links, kind, local, pick) for leak in leaks(batch)]

    assert sum(threads.run(n_ranks, work), []) == []


def test_a_planted_leak_is_found(monkeypatch):
    monkeypatch.setattr(TimedEdges, "_first_later", lambda self, low, high, times: high)
    links = split_links(graph(), SPLIT)
    assert [leak for batch in loader(links) for leak in leaks(batch)]


def test_both_ends_of_a_link_and_of_its_negatives_are_rows_at_its_time():
    links = split_links(graph(), SPLIT, negatives=3)
    batches = loader(links)
    for batch in batches:
        of, times = batches.links(batch.step), batch.graphs[-1].picked.times
        ids = batch.graphs[-1].dst_ids
        for column in (batch.graph.heads, batch.graph.tails):
            assert (times[column] == links.times[of][:, None]).all()
        assert (ids[batch.graph.heads[:, 0]] == links.heads[of]).all() and (ids[batch.graph.tails[:, 0]] == links.tails[of]).all()
        part = {frozenset(pair) for pair in zip(links.heads[of].tolist(), links.tails[of].tolist())}
        for layer in batch.graphs:  # no message along a link of the step
            assert not part & {frozenset((int(SRC[e]), int(DST[e]))) for e in layer.edge_ids if SRC[e] != DST[e]}


def trained(comm, times, split, fanouts, timed=True, **options):
    links, rng = split_links(graph(comm, times), split, 0.2, eval_negatives=4), nn.Random(3)
    ids = links.graph.nodes.dst_ids
    model = nn.LinkPredictor(SAGE(4, 6, layers=2, hidden=5, dropout=0, rng=rng, dtype=np.float64), nn.Dot())
    every = np.concatenate([links.train, links.val, links.test])
    sources = {"batches": loader(links, fanouts=fanouts)} if timed else {}
    sources |= {"scoring": loader(links, ScoredLinks, every, fanouts=fanouts)} if timed else {}
    return Trainer(links.graph, model, X[ids], links.labels, links.train, links.val, links.test, rng=rng, task=LinkTask(metric="mrr"),
                   optimizer=lambda flat: optim.Adam(flat, 0.01), **sources)


def test_without_a_later_edge_minibatches_score_as_the_full_batch_does():
    times = np.full(140, 9)
    in_time, full = (trained(None, times, 0.2, (-1, -1), timed).evaluate() for timed in (True, False))
    assert in_time.keys() == full.keys()
    np.testing.assert_allclose([*in_time.values()], [*full.values()], rtol=1e-10)


def test_training_and_scores_are_one_ranks_on_two_and_three():
    def work(comm):
        trainer = trained(comm, TIMES, SPLIT, (2, 2))
        return [trainer.epoch(0), *trainer.evaluate().values()]

    one = threads.run(1, work)[0]
    for n_ranks in (2, 3):
        np.testing.assert_allclose(threads.run(n_ranks, work)[0], one, rtol=1e-10)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_labels_of_pairs_are_predicted_at_the_times_of_their_rows(n_ranks):
    pairs, labels, times = np.array([[0, 1], [0, 1], [5, 7], [9, 2]]), np.array([0, 1, 1, 0]), np.array([40, 3, 20, 11])

    def work(comm):
        local_slice = slice(comm.rank, None, comm.size)
        links = labelled_links(graph(comm), pairs[local_slice], labels[local_slice],
                               split=np.zeros(len(pairs[local_slice]), int), times=times[local_slice])
        collected = [leak for batch in loader(links) for leak in leaks(batch)]
        return [*zip(links.heads.tolist(), links.tails.tolist(), links.labels.tolist(), links.times.tolist())], collected

    results = threads.run(n_ranks, work)
    assert sorted(sum((rows for rows, _ in results), [])) == [(0, 1, 0, 40), (0, 1, 1, 3), (5, 7, 1, 20), (9, 2, 0, 11)]
    assert sum((collected for _, collected in results), []) == []
    assert EdgeTask("classify").graph_types == LinkTask().graph_types


def test_a_ranking_of_all_destinations_is_refused_with_batches_in_time():
    links = split_links(graph(), SPLIT, eval_negatives="all", sampler="per-source")
    rng, every = nn.Random(3), np.concatenate([links.train, links.val, links.test])
    model = nn.LinkPredictor(SAGE(4, 6, layers=2, hidden=5, rng=rng, dtype=np.float64), nn.Dot())
    with pytest.raises(ConfigError, match='eval_negatives "all": .*full graph'):
        Trainer(links.graph, model, X, links.labels, links.train, links.val, links.test, rng=rng, task=LinkTask(metric="mrr"),
                optimizer=lambda flat: optim.Adam(flat, 0.01), batches=loader(links), scoring=loader(links, ScoredLinks, every))


def test_links_without_times_are_refused():
    links = split_links(Graph.from_edges(SRC, DST, N), 0.1)
    with pytest.raises(ConfigError, match="temporal: the links have no times"):
        loader(links)
