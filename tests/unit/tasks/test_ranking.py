"""Rankings of all destinations: metrics, coverage and popularity as plain NumPy counts them, on any number of ranks."""

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Trainer, nn, no_grad, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.models import RGCN
from sarlite.nn.decoders import DECODERS
from sarlite.tape import Tensor
from sarlite.tasks import ranking, recommend
from sarlite.tasks.link_data import split_links
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_task import LinkTask
from sarlite.tasks.metric_table import find_metric
from sarlite.tasks.popularity import Popularity
from sarlite.train.link_outcome import link_outcome
from tests.helpers.train.linked import N, part

reference = pytest.importorskip("sklearn.metrics")
DRAW = np.random.default_rng(0)
BUYS, FOLLOWS = ("user", "buys", "item"), ("user", "follows", "user")
COUNTS = {"user": 30, "item": 25}
PAIRS = np.unique(np.stack([DRAW.integers(0, 30, 220), DRAW.integers(0, 25, 220) ** 2 // 25], 1), axis=0)
EDGES = {BUYS: PAIRS.T, ("item", "rev_buys", "user"): PAIRS.T[::-1], FOLLOWS: DRAW.integers(0, 30, (2, 150))}
METRICS = ("mrr", "hits@1", "hits@5", "recall@3", "recall@10", "ndcg@3", "ndcg@10")


def graph_of(comm):
    return HeteroGraph.from_edges(EDGES, COUNTS, comm=comm, parts="random", seed=2)


def links_of(comm, relation=BUYS, **options):
    graph = part(comm) if relation is None else graph_of(comm)
    return split_links(graph, 0.15, 0.2, relation=relation, negatives=2, eval_negatives="all", sampler="per-source", seed=3, **options)


def score_rows(ids, ties):
    """Return a row for each node by id, with few different values if there are ties."""
    rows = np.random.default_rng(5).standard_normal((100, 4))
    return (np.round(rows) if ties else rows)[ids]


def rankings_of(comm, relation=BUYS, ties=True, decoder="dot", **options):
    """Return the metrics and the coverage of both splits, and all links with their splits and scores."""
    links = links_of(comm, relation, **options)
    decoder_made = DECODERS[decoder](4, rng=nn.Random(0), dtype=np.float64)
    h = score_rows(links.graph.nodes.dst_ids, ties)
    with no_grad():
        judged, covered = links.graph.ranking(decoder_made, h), links.graph.ranking.coverage(decoder_made, h, 3)
    collected = {}
    for split in ("val", "test"):
        for name in METRICS:
            metric = find_metric("link", name).make()
            metric.add(judged[getattr(links, split)], links.labels[getattr(links, split)])
            collected[split, name] = metric.value(comm.allreduce(metric.counts()), comm)
    splits = np.zeros(len(links.heads), int)
    splits[links.val], splits[links.test] = 1, 2
    return collected, covered, np.concatenate(comm.allgather(np.stack([links.heads, links.tails, splits], 1)))


def plain(links, scores, excluded, destinations, split, filtered=True):
    """Return the metrics of one split (1 or 2) from all scores, by a loop over the destinations of each link and source."""
    by_rank, by_source = {name: [] for name in METRICS[:3]}, {name: [] for name in METRICS[3:]}
    listed = set()
    for source in np.unique(links[links[:, 2] == split, 0]).tolist():
        out = {tail for head, tail, level in excluded if head == source and level <= split} if filtered else set()
        destinations_of = links[(links[:, 0] == source) & (links[:, 2] == split), 1].tolist()
        rivals = [node for node in destinations if node not in out and node not in destinations_of and node != source]
        in_list = []
        for tail in destinations_of:
            def rank(others, row=scores[source], score=scores[source, tail]):
                return 1 + sum(row[other] > score for other in others) + 0.5 * sum(row[other] == score for other in others)

            free = rivals if filtered else [node for node in destinations if node not in (source, tail)]
            plain_rank = rank(free)
            in_list.append(rank([*rivals, *(other for other in destinations_of if other != tail)]) if filtered else plain_rank)
            by_rank["mrr"].append(1 / plain_rank)
            by_rank["hits@1"].append(plain_rank <= 1)
            by_rank["hits@5"].append(plain_rank <= 5)
        for k in (3, 10):
            by_source[f"recall@{k}"].append(np.mean([rank <= k for rank in in_list]))
            best = sum(1 / np.log2(1 + place) for place in range(1, min(len(destinations_of), k) + 1))
            by_source[f"ndcg@{k}"].append(sum(1 / np.log2(1 + rank) for rank in in_list if rank <= k) / best)
        before = {tail for head, tail, level in excluded if head == source and level < split} if filtered else set()
        free = [node for node in destinations if node not in before and node != source]
        listed |= {*sorted(free, key=lambda node: (-scores[source, node], node))[:3]}
    return {name: np.mean(values) for name, values in {**by_rank, **by_source}.items()}, len(listed) / len(destinations)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("relation", [BUYS, FOLLOWS, None])
def test_metrics_of_rankings_are_those_of_a_loop_and_the_same_on_any_number_of_ranks(relation, ties):
    result, covered, links = rankings_of(Solo(), relation, ties)
    n_nodes = N if relation is None else sum(COUNTS[name] for name in {relation[0], relation[2]})
    first = n_nodes - 25 if relation == BUYS and links[:, 1].min() >= 30 else 0
    destinations = range(first, first + 25) if relation == BUYS else range(n_nodes)
    h = score_rows(np.arange(n_nodes), ties)
    link_pairs = links.tolist() + ([[tail, head, split] for head, tail, split in links.tolist()] if relation is None else [])
    for number, split in ((1, "val"), (2, "test")):
        expected, coverage = plain(links, h @ h.T, link_pairs, destinations, number)
        assert {name: result[split, name] for name in METRICS} == pytest.approx(expected, rel=1e-12)
        assert covered[split] == pytest.approx(coverage)
    for n in (2, 3):
        for other in threads.run(n, rankings_of, relation, ties):
            assert other[:2] == (result, covered)


def test_without_a_filter_known_links_count():
    result, _, links = rankings_of(Solo(), filtered=False)
    h = score_rows(np.arange(55), True)
    first = 30 if links[:, 1].min() >= 30 else 0
    for number, split in ((1, "val"), (2, "test")):
        expected, _ = plain(links, h @ h.T, links.tolist(), range(first, first + 25), number, filtered=False)
        for name in ("mrr", "hits@1", "hits@5"):
            assert result[split, name] == pytest.approx(expected[name], rel=1e-12)


def test_ndcg_without_ties_is_scikit_learns():
    scores, relevant = DRAW.standard_normal((40, 30)), DRAW.random((40, 30)) < 0.2
    relevant[:, 0] = True
    rows, columns = np.nonzero(relevant)
    others = np.where(relevant, -np.inf, scores)
    local = scores[rows, columns]
    judged = np.stack([rows, local, 1 + (others[rows] > local[:, None]).sum(1)], 1)[DRAW.permutation(len(rows))]
    for k in (1, 5, 30):
        metric = find_metric("link", f"ndcg@{k}").make()
        metric.add(judged, None)
        assert metric.value(metric.counts(), Solo()) == pytest.approx(reference.ndcg_score(relevant, scores, k=k), rel=1e-12)


def test_blocks_of_any_size_give_the_same_ranks_and_lists(monkeypatch):
    expected = rankings_of(Solo())[:2]
    blocks = []
    for module, name in ((ranking, "rank_links"), (ranking, "top")):
        function = getattr(recommend, name)
        monkeypatch.setattr(module, name, lambda *args, function=function, **more: function(*args, **more, n_bytes=100))
    monkeypatch.setattr(recommend, "_scored", lambda *args, scored=recommend._scored: (
        (blocks.append(block[2].shape), block)[1] for block in scored(*args)))
    assert rankings_of(Solo())[:2] == expected
    assert max(np.prod(shape) for shape in blocks) * 8 <= 100  # never all sources with all destinations


@pytest.mark.parametrize("n_bytes", [1, 1000])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_link_with_the_score_minus_infinity_is_ranked_among_the_others_alone(n_ranks, n_bytes):
    """Node 0 is the head and node 1 a known tail, so nodes 2 to 5 are ranked; tail 2 has the same score as tail 3."""
    rows = np.array([[1.0], [0.0], [-np.inf], [-np.inf], [2.0], [3.0]])

    def work(comm):
        graph = Graph.from_edges([], [], 6).shard(comm, np.arange(6) * n_ranks // 6)
        heads = np.zeros(1 - comm.rank, np.int64)
        return recommend.rank_links(graph, lambda head, tail: (head * tail).sum(-1), rows[graph.node_ids], heads, heads + 2, Ends(0, 6),
                                    heads + 1, n_bytes=n_bytes)  # fmt: skip

    assert threads.run(n_ranks, work)[0].tolist() == [[-np.inf, 3.5]]


def test_a_product_of_all_pairs_is_the_score_of_each_pair():
    heads, tails = (Tensor(DRAW.standard_normal((n, 4))) for n in (3, 5))
    decoder_made = DECODERS["distmult"](4, rng=nn.Random(0), dtype=np.float64)
    decoder_made.relation.data[:] = [1, -2, 3, 0.5]
    for decoder in (nn.Dot(), decoder_made):
        np.testing.assert_allclose(decoder.cross(heads, tails).data, decoder(heads[:, None], tails[None]).data, rtol=1e-12)


def popularity_of(comm, relation=BUYS, several=False):
    links = links_of(comm, [BUYS, FOLLOWS] if several else relation)
    model = Popularity(links.graph, links.train)
    judged = LinkTask(metric="mrr").outputs(model, links.graph, None)[1]
    ends = np.stack([links.heads, links.tails, np.isin(np.arange(len(links.heads)), links.train), judged[:, 1]], 1)
    return sorted(map(tuple, np.concatenate(comm.allgather(ends)).tolist()))


@pytest.mark.parametrize("several", [False, True])
def test_popularity_counts_training_links_of_the_relation(several):
    result = popularity_of(Solo(), several=several)
    train = [tail for _, tail, trained, _ in result if trained]
    assert len({score for *_, score in result}) > 5
    for _, tail, trained, score in result:
        assert trained or score == train.count(tail)  # users are followed and items are bought, so tails tell relations
    for n in (2, 3):
        assert threads.run(n, popularity_of, BUYS, several) == [result] * n


def test_popularity_of_links_in_both_directions_counts_both_ends():
    result = popularity_of(Solo(), None)
    ends = [end for head, tail, trained, _ in result if trained for end in (head, tail)]
    assert all(trained or score == ends.count(tail) for _, tail, trained, score in result)


def trainer(comm, metric="mrr", loss=None, eval_negatives="all"):
    options = {"relation": BUYS, "negatives": 2, "eval_negatives": eval_negatives, "sampler": "per-source"}
    links, rng = split_links(graph_of(comm), 0.15, 0.2, **options), nn.Random(1)
    encoder = RGCN({}, 4, links.graph.nodes, hidden=8, embedding=8, dropout=0, rng=rng, dtype=np.float64)
    return Trainer(links.graph, nn.LinkPredictor(encoder, nn.Dot()), {}, links.labels, links.train, links.val, links.test, rng=rng,
                   task=LinkTask(loss, metric), optimizer=lambda flat: optim.Adam(flat, 0.03))


def training_of(comm):
    made_trainer = trainer(comm, "ndcg@5")
    best = made_trainer.fit(8)
    return best.scores, link_outcome(made_trainer, best), made_trainer.model.state_dict()["encoder.convs.1.biases.user"].tolist()


def test_training_and_its_comparison_with_popularity_are_the_same_on_any_number_of_ranks():
    scores, compared, after = training_of(Solo())
    assert scores["train_ndcg@5"] is None and 0 < scores["val_ndcg@5"] < 1
    assert [*compared] == ["ndcg@5", "mrr", "hits@5", "recall@5", "coverage@5"]
    assert compared["ndcg@5"]["model"] == {"val": scores["val_ndcg@5"], "test": scores["test_ndcg@5"]}
    for n in (2, 3):
        for other in threads.run(n, training_of):
            assert other[1] == compared and other[0]["val_ndcg@5"] == scores["val_ndcg@5"]
            assert other[0]["val_loss"] == pytest.approx(scores["val_loss"], rel=1e-9)
            np.testing.assert_allclose(other[2], after, rtol=1e-9)


def test_a_metric_of_ranks_has_a_loss_that_compares_unless_another_is_given():
    output, rows = Tensor(DRAW.standard_normal((6, 4))), np.arange(6)

    def value(*args):
        return LinkTask(*args).loss(output, np.zeros(6, int), rows, 6.0).item()

    for metric in ("mrr", "hits@3", "recall@3", "ndcg@3"):
        assert value(None, metric) == value("cross-entropy") != value("bce") and value("bpr", metric) == value("bpr")
    assert value(None, "ap") == value(None, None) == value("bce")


@pytest.mark.parametrize("metric, eval_negatives, message", [
    ("recall@3", 5, "metric recall@3: ranks all destinations, so eval_negatives must be \"all\""),
    ("hits@25", "all", "metric hits@25: .*25 destinations, so each link would be among the first 25"),
    ("mrr", "every", "eval_negatives is 'every', but must be a number or \"all\""),
])  # fmt: skip
def test_what_cannot_be_is_refused(metric, eval_negatives, message):
    with pytest.raises(ConfigError, match=message):
        trainer(Solo(), metric, eval_negatives=eval_negatives)


def test_a_rank_among_all_destinations_needs_rows_of_an_encoder():
    made_trainer = trainer(Solo())
    with pytest.raises(ConfigError, match="nn.LinkPredictor, .*Popularity"):
        made_trainer.task.check_arguments(made_trainer.graph, Popularity(made_trainer.graph, made_trainer.rows["train"]), {}, None, None)
