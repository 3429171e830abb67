"""Links of a relation: they leak nothing along reverses, negatives are of the relation's types, and N changes nothing."""

import numpy as np
import pytest

from sarlite import HeteroGraph, Trainer, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError
from sarlite.graph.link_graph import LinkGraph
from sarlite.models import RGAT, RGCN
from sarlite.nn.decoders import DECODERS
from sarlite.tape import Tensor
from sarlite.tape.recording import no_grad
from sarlite.tasks.edge_task import EdgeTask
from sarlite.tasks.link_data import labelled_links, split_links
from sarlite.tasks.link_loader import LinkLoader
from sarlite.tasks.link_task import LinkTask

DRAW = np.random.default_rng(0)
N = {"shop": 12, "user": 30, "item": 20}
BUYS, BACK, LIKES = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "likes", "item")
FOLLOWS, SELLS = ("user", "follows", "user"), ("shop", "sells", "item")
PAIRS = np.unique(np.stack([DRAW.integers(0, 30, 150), DRAW.integers(0, 20, 150)], 1), axis=0)
EXTRA = np.stack([np.arange(4), np.arange(4)], 1)
"""Of the reverse relation alone, from users to items; some are no purchase."""
EDGES = {SELLS: DRAW.integers(0, 12, (2, 40)), BUYS: PAIRS.T, BACK: np.concatenate([PAIRS, EXTRA]).T[::-1], LIKES: PAIRS[::3].T,
         FOLLOWS: DRAW.integers(0, 30, (2, 90))}  # fmt: skip
FEATURES = {"user": DRAW.standard_normal((30, 5)), "item": DRAW.standard_normal((20, 4))}
LINKS = {tuple(pair) for pair in PAIRS.tolist()}
LIKED = {tuple(pair) for pair in PAIRS[::3].tolist()}
SEVERAL = [BUYS, FOLLOWS, BACK, LIKES]


def graph_of(comm, mode="sar"):
    edges = {relation: (np.minimum(src, N[relation[0]] - 1), np.minimum(dst, N[relation[2]] - 1)) for relation, (src, dst) in EDGES.items()}
    return HeteroGraph.from_edges(edges, N, comm=comm, parts="random", mode=mode, seed=2)


def pairs_of(graph, relation):
    """Return the edges of a relation on this rank, as ids of both ends within their types."""
    edges, ids = graph.in_edges(relation), graph.node_ids[relation[0]]
    every = np.concatenate(graph.comm.allgather(ids))
    to = np.repeat(graph.node_ids[relation[2]], np.diff(edges.indptr))
    return {*zip(every[edges.indices].tolist(), to.tolist())}


def split_of(comm, relation=BUYS, **options):
    """Links by split as ids of their own types, and the edges by relation that bring messages in evaluation and in training."""
    links = split_links(graph_of(comm), 0.15, 0.2, relation=relation, seed=3, **options)
    nodes = links.graph.nodes
    ends = np.stack([links.heads - nodes.first[relation[0]], links.tails - nodes.first[relation[2]]], 1)
    part = [{tuple(pair) for pair in ends[getattr(links, name)].tolist()} for name in ("train", "val", "test")]
    training = links.graph.draw(0, links.train).nodes.graph
    messages = [pairs_of(graph, one) for graph in (nodes.graph, training) for one in EDGES]
    return [set.union(*every) for every in zip(*comm.allgather([*part, *messages]))], links.undirected


def test_a_split_leaks_nothing_along_the_reverse():
    result, undirected = split_of(Solo())
    train, val, test, *messages = result
    assert not undirected and train | val | test == LINKS and len(val) > 5 and len(test) > 10 and not (train & (val | test))
    scored, training = (dict(zip(EDGES, messages[at : at + 5])) for at in (0, 5))
    assert scored == training and scored[BUYS] == train
    assert scored[BACK] == {(item, user) for user, item in train | {tuple(pair) for pair in EXTRA.tolist()} - LINKS}
    assert len({tuple(pair) for pair in EXTRA.tolist()} - LINKS) > 0
    assert len(scored[LIKES] & (val | test)) > 3  # another relation stays
    for relation in (LIKES, FOLLOWS, SELLS):
        assert scored[relation] == pairs_of(graph_of(Solo()), relation)
    for n in (2, 3):
        assert threads.run(n, split_of) == [(result, undirected)] * n


def test_disjoint_links_bring_no_messages_in_training_either_way():
    (train, val, test, *messages), _ = split_of(Solo(), disjoint=0.4)
    scored, training = (dict(zip(EDGES, messages[at : at + 5])) for at in (0, 5))
    assert 10 < len(train) < len(LINKS) - len(val) - len(test)
    assert scored[BUYS] - training[BUYS] == train and scored[BACK] - training[BACK] == {(item, user) for user, item in train}
    assert threads.run(2, split_of, disjoint=0.4)[0][0] == [train, val, test, *messages]


def test_links_among_one_type():
    (train, val, test, *messages), undirected = split_of(Solo(), FOLLOWS)
    edges = {tuple(pair) for pair in EDGES[FOLLOWS].T.tolist()}
    assert train | val | test == {pair for pair in edges if pair[0] != pair[1]} and not undirected
    assert dict(zip(EDGES, messages))[FOLLOWS] == train | {pair for pair in edges if pair[0] == pair[1]}
    assert {pair[::-1] for pair in val | test} & train == set()
    assert threads.run(2, split_of, FOLLOWS)[1][0] == [train, val, test, *messages]


@pytest.mark.parametrize("sampler", ["uniform", "per-source", "in-batch", "hard"])
def test_negatives_are_of_the_relations_types(sampler):
    hard = np.stack([np.repeat(np.arange(15), 6), DRAW.integers(0, 20, 90)], 1)

    def work(comm):
        arguments = hard[comm.rank :: comm.size] if sampler == "hard" else sampler
        links = split_links(graph_of(comm), 0.15, 0.2, relation=BUYS, seed=3, negatives=2, eval_negatives=5, sampler=arguments)
        nodes, result = links.graph.nodes, []
        ids = np.concatenate(comm.allgather(nodes.dst_ids))
        for graph in (links.graph, links.graph.draw(1, links.train)):
            pairs = np.stack(np.broadcast_arrays(ids[graph.heads] - nodes.first["user"], ids[graph.tails] - nodes.first["item"]), 2)
            result.append({tuple(map(tuple, row.tolist())) for rank in comm.allgather(pairs) for row in rank})
        return result

    scored, step = result = work(Solo())
    assert {row[0] for row in scored} == LINKS and len(step) > 60
    for row in scored | step:
        assert all(0 <= user < 30 and 0 <= item < 20 for user, item in row)
    assert not any(pair in LINKS for row in scored for pair in row[1:])
    assert threads.run(3, work) == [result] * 3


def trained(comm, model=RGCN, mode="sar", decoder="dot", labels=None, relation=BUYS, fanouts=None, **options):
    graph, rng = graph_of(comm, mode), nn.Random(1)
    task, n_out = LinkTask() if labels is None else EdgeTask(), None if labels is None else 3
    if labels is None:
        links = split_links(graph, 0.15, 0.2, relation=relation, seed=3, **options)
        n_out = len(relation) if isinstance(relation, list) and decoder != "dot" else None
    else:
        local = slice(comm.rank, None, comm.size)
        links = labelled_links(graph, PAIRS[local], labels[local], 0.2, 0.2, relation=relation, seed=3)
    nodes, widths = links.graph.nodes, {name: x.shape[1] for name, x in FEATURES.items()}
    more = {"hidden": 4, "heads": 2} if model is RGAT else {"hidden": 8, "n_bases": 2, "embedding": 6}
    encoder = model(widths, 6, nodes, dropout=0.2, rng=rng, dtype=np.float64, **more)
    predictor = nn.LinkPredictor(encoder, DECODERS[decoder](6, n_out, rng=rng, dtype=np.float64))
    x = {name: rows[graph.node_ids[name]] for name, rows in FEATURES.items()}
    batches = fanouts and LinkLoader(links.graph, x, links.labels, links.train, fanouts=fanouts, batch_size=25)
    trainer = Trainer(links.graph, predictor, x, links.labels, links.train, links.val, links.test, rng=rng, task=task,
                      optimizer=lambda flat: optim.SGD(flat, 0.05), batches=batches)
    losses = [trainer.epoch(epoch) for epoch in range(2)]
    return losses, trainer.evaluate(), trainer.flat.replicated.grad.copy(), trainer.counts


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [
    {}, {"model": RGAT, "mode": "oneshot", "sampler": "per-source"}, {"mode": "broadcast", "decoder": "distmult", "disjoint": 0.3},
    {"mode": "sa", "decoder": "mlp", "relation": FOLLOWS}, {"decoder": "complex", "labels": PAIRS.sum(1) % 3},
    {"decoder": "distmult", "relation": SEVERAL}, {"decoder": "rotate", "relation": SEVERAL, "sampler": "in-batch", "mode": "oneshot"},
    {"decoder": "complex", "relation": SEVERAL, "sampler": "per-source", "disjoint": 0.3, "eval_negatives": 7},
    {"fanouts": (2, 3)}, {"fanouts": (3, 2), "relation": SEVERAL, "decoder": "distmult", "sampler": "in-batch", "mode": "oneshot"},
    {"fanouts": (2, 2), "model": RGAT, "relation": FOLLOWS}, {"fanouts": (2, 2), "decoder": "mlp", "labels": PAIRS.sum(1) % 3},
    {"decoder": "mlp", "relation": SEVERAL[::-1]}, {"decoder": "transe", "relation": SEVERAL[:1]}, {"relation": SEVERAL, "mode": "sa"},
])  # fmt: skip
def test_training_is_the_same_on_any_number_of_ranks(options):
    losses, scores, gradients, counts = trained(Solo(), **options)
    assert len(set(losses)) == 2
    for n in (2, 3):
        for other in threads.run(n, trained, **options):
            np.testing.assert_allclose(other[0], losses, rtol=1e-12)
            np.testing.assert_allclose([*other[1].values()], [*scores.values()], rtol=1e-12)
            np.testing.assert_allclose(other[2], gradients, rtol=0, atol=1e-12 * np.abs(gradients).max())
            assert other[3] == counts


@pytest.mark.parametrize("relation", [BUYS, FOLLOWS, SEVERAL], ids=["two types", "one type", "several"])
def test_no_message_passes_along_a_steps_links(relation):
    """All in-edges of a batch but those between the ends of a step's links: in their relation, and the other way round."""
    def work():
        links = split_links(graph_of(Solo()), 0.1, 0.1, relation=relation, seed=3)
        graph, several = links.graph.draw.nodes.graph, relation if isinstance(relation, list) else [relation]
        x = {name: rows[graph.node_ids[name]] for name, rows in FEATURES.items()}
        loader, result, left = LinkLoader(links.graph, x, links.labels, links.train, fanouts=(-1,), batch_size=25), set(), set()
        every, first = set(), links.graph.nodes.first
        for batch in loader:
            of, (layer,) = loader.links(batch.step), batch.graph.nodes.layers(1)
            numbers = np.zeros(len(of), int) if links.graph.relations is None else links.graph.relations[of]
            for number, source, to in zip(numbers, links.heads[of].tolist(), links.tails[of].tolist()):
                one = several[number]
                pair = source - first[one[0]], to - first[one[2]]
                left.add((batch.step, one, *pair))
                left |= {(batch.step, other, *pair[::-1]) for other in graph.relations if (other[2], other[0]) == (one[0], one[2])}
            for part in (part for graphs in layer.by_source(layer.relations) for part in graphs.values()):
                dst = np.repeat(part.dst_ids, part.in_degrees)
                result |= {(batch.step, part.relation, *pair) for pair in zip(part.edge_src_ids.tolist(), dst.tolist())}
            every |= {(batch.step, one, *pair) for one in graph.relations for pair in pairs_of(graph, one)
                      if pair[1] in layer.dst_ids[one[2]]}
        return result, left, every

    result, left, every = work()
    assert result == every - left and len(every & left) > 20


def several_of(comm, sampler, listed=False):
    """Return the candidates of several relations in evaluation and in a step, the links of the splits, and message edges by relation.

    A candidate is (relation, source, destination), with ids within the node types.
    """
    val, test = ({BUYS: PAIRS[:5]}, {FOLLOWS: [[1, 2], [3, 4]]}) if listed else (0.15, 0.2)
    links = split_links(graph_of(comm), val, test, relation=SEVERAL, seed=3, negatives=2, eval_negatives=5, sampler=sampler)
    nodes, collected = links.graph.nodes, []
    ids = np.concatenate(comm.allgather(nodes.dst_ids))
    step = links.graph.draw(1, links.train)
    for graph in (links.graph, step):
        first = np.array([[nodes.first[one[0]], nodes.first[one[2]]] for one in SEVERAL])[graph.relations]
        pairs = np.stack(np.broadcast_arrays(ids[graph.heads] - first[:, :1], ids[graph.tails] - first[:, 1:]), 2).tolist()
        collected.append([(SEVERAL[of], *map(tuple, row)) for of, row in zip(graph.relations.tolist(), pairs)])
    splits = [[collected[0][row][:2] for row in rows] for rows in (links.train, links.val, links.test)]
    each_part = [set(part) for part in (*collected, *splits)] + [pairs_of(nodes.graph, one) for one in EDGES]
    return [set.union(*every) for every in zip(*comm.allgather(each_part))]


@pytest.mark.parametrize("sampler", ["uniform", "per-source", "in-batch"])
def test_several_relations_have_negatives_of_their_own_and_leak_nothing(sampler):
    scored, step, train, val, test, *messages = result = several_of(Solo(), sampler)
    messages = dict(zip(EDGES, messages))
    edges = {relation: {pair for pair in pairs_of(graph_of(Solo()), relation) if relation != FOLLOWS or pair[0] != pair[1]}
             for relation in SEVERAL}
    assert {(row[0], row[1]) for row in scored} == {(one, pair) for one in SEVERAL for pair in edges[one]} == train | val | test
    assert {relation for relation, *_ in step} == set(SEVERAL)
    for relation, _, *negatives in scored | step:
        assert all(0 <= head < N[relation[0]] and 0 <= tail < N[relation[2]] for head, tail in negatives)
    wrong = [pair for relation, _, *negatives in scored for pair in negatives if pair in edges[relation]]
    assert not wrong and any(pair in edges[BUYS] for relation, _, *negatives in scored for pair in negatives if relation == LIKES)
    assert len(val) > 15 and len(test) > 20
    for relation, pair in val | test:
        assert pair not in messages[relation]
        if relation in (BUYS, LIKES):
            assert pair not in messages[BUYS] and pair not in messages[LIKES] and pair[::-1] not in messages[BACK]
        elif relation == BACK:
            assert pair[::-1] not in messages[BUYS] and pair[::-1] not in messages[LIKES]
    assert messages[SELLS] == pairs_of(graph_of(Solo()), SELLS)
    for n in (2, 3):
        assert threads.run(n, several_of, sampler) == [result] * n


def test_splits_of_several_relations_are_told_by_relation():
    *_, train, val, test, _, buys, back, _, follows = result = several_of(Solo(), "uniform", listed=True)
    reported = {tuple(pair) for pair in PAIRS[:5].tolist()}
    assert val == {(BUYS, pair) for pair in reported} and test == {(FOLLOWS, (1, 2)), (FOLLOWS, (3, 4))} and len(result) == 10
    assert not reported & buys and not reported & {pair[::-1] for pair in back} and (1, 2) not in follows and len(buys) == len(LINKS) - 5
    assert not train & {(BACK, pair[::-1]) for pair in reported}
    assert {(LIKES, pair) for pair in reported & LIKED} <= train and reported & LIKED
    graph = graph_of(Solo())
    for words, options in (
        ("several relations: pairs and splits must be dicts", {"val": PAIRS[:3]}), ("is not one of", {"val": {SELLS: PAIRS[:3]}}),
        ("list each relation once", {"relation": [BUYS, BUYS]}), ("relation none: list each", {"relation": []}),
        ("relation user.eats.item is not one of", {"relation": [BUYS, ("user", "eats", "item")]}),
        ("outside 0 <= node < 30", {"val": {BACK: [[1, 30]]}, "test": 0}),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            split_links(graph, **{"relation": SEVERAL, **options})
    with pytest.raises(ConfigError, match="labelled pairs must be of one relation"):
        labelled_links(graph, PAIRS, PAIRS.sum(1) % 3, relation=SEVERAL)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_step_of_several_relations_in_plain_numpy(n):
    """DistMult over rows that are learned numbers by themselves: binary cross entropy, and the gradient of each relation's row."""
    table, rows = DRAW.standard_normal((80, 4)), DRAW.standard_normal((4, 4))

    def work(comm):
        links = split_links(graph_of(comm), 0.15, 0.2, relation=SEVERAL, seed=3, negatives=2)
        step, nodes = links.graph.draw(0, links.train), links.graph.nodes
        decoder = DECODERS["distmult"](4, 4, dtype=np.float64)
        decoder.relation.data[...] = rows
        scores = step.score(decoder, Tensor(table[nodes.dst_ids]))
        with no_grad():
            pieces = LinkGraph(nodes, step.heads, step.tails, at_once=7, relations=step.relations)
            np.testing.assert_array_equal(pieces.score(decoder, Tensor(table[nodes.dst_ids])).data, scores.data)
        count = int(comm.allreduce(np.array([step.n_dst]))[0])
        loss = LinkTask().loss(scores, np.zeros(step.n_dst, np.int64), np.arange(step.n_dst), count)
        loss.backward()
        ids = np.concatenate(comm.allgather(nodes.dst_ids))
        each_part = comm.allgather((ids[step.heads], ids[step.tails], step.relations))
        return comm.allreduce(np.array([loss.item()]))[0], comm.allreduce(decoder.relation.grad), each_part

    for loss, gradient, each_part in threads.run(n, work):
        heads, tails, relations = (np.concatenate(part) for part in zip(*each_part))
        products = table[heads] * table[tails]
        scores = (rows[relations][:, None] * products).sum(2)
        wanted = np.zeros(scores.shape)
        wanted[:, 0] = 1
        np.testing.assert_allclose(loss, np.mean(np.logaddexp(0, scores) - wanted * scores), rtol=1e-12)
        slope = (1 / (1 + np.exp(-scores)) - wanted)[:, :, None] * products / scores.size
        expected = [slope[relations == at].sum((0, 1)) for at in range(4)]
        np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-14)


def test_a_list_of_one_relation_is_that_relation():
    for decoder in ("dot", "distmult"):  # whose rows begin alike, whatever their number
        losses, scores, gradients, counts = trained(Solo(), decoder=decoder, relation=[BUYS])
        one_rank = trained(Solo(), decoder=decoder)
        assert counts == one_rank[3]
        np.testing.assert_allclose(losses, one_rank[0], rtol=1e-13)
        np.testing.assert_allclose([*scores.values()], [*one_rank[1].values()], rtol=1e-13)
        np.testing.assert_allclose(gradients, one_rank[2], rtol=1e-10, atol=1e-15)


def test_decoders_of_one_relation_refuse_several():
    heads, tails = Tensor(np.ones((2, 1, 4))), Tensor(np.ones((2, 3, 4)))
    for name, make in DECODERS.items():
        if name != "dot":
            with pytest.raises(ConfigError, match="made for one relation"):
                make(4, rng=nn.Random(0), dtype=np.float64)(heads, tails, np.zeros(2, np.int64))


def test_decoders_of_several_outputs_refuse_candidates_of_one_relation():
    """With as many candidates as outputs each candidate would be scored as another relation."""
    heads, tails = Tensor(np.ones((2, 1, 4))), Tensor(np.ones((2, 3, 4)))
    for name, make in DECODERS.items():
        if name != "dot":
            decoder = make(4, 3, rng=nn.Random(0), dtype=np.float64)
            assert decoder(heads, tails[:, :1]).shape == (2, 3) and decoder(heads, tails, np.zeros(2, np.int64)).shape == (2, 3)
            with pytest.raises(ConfigError, match="3 candidates of one relation"):
                decoder(heads, tails)


@pytest.mark.parametrize("n", [1, 2])
def test_listed_links_of_a_relation_without_edges_are_not_turned_round(n):
    def work(comm):
        graph = HeteroGraph.from_edges({BUYS: ([], []), FOLLOWS: EDGES[FOLLOWS]}, {"user": 30, "item": 20}, comm=comm, parts="random")
        links = split_links(graph, PAIRS[:9][comm.rank :: n], PAIRS[9:15][comm.rank :: n], relation=BUYS)
        part = graph.of("user", "item").first
        return links.undirected, np.stack([links.heads - part["user"], links.tails - part["item"]], 1).tolist()

    undirected, pairs = zip(*threads.run(n, work))
    assert undirected == (False,) * n and sorted(pair for part in pairs for pair in part) == sorted(PAIRS[:15].tolist())


def test_told_splits_are_ids_of_either_type():
    graph = graph_of(Solo())
    links = split_links(graph, PAIRS[:9], [*PAIRS[9:15].tolist(), [29, 19]], relation=[*BUYS])
    nodes = links.graph.nodes
    ends = np.stack([links.heads - nodes.first["user"], links.tails - nodes.first["item"]], 1)
    assert {*map(tuple, ends[links.val].tolist())} == {*map(tuple, PAIRS[:9].tolist())}
    assert {*map(tuple, ends[links.test].tolist())} == {*map(tuple, PAIRS[9:15].tolist())} | {(29, 19)}
    assert len(links.train) == len(PAIRS) - 15 - ((29, 19) in LINKS)
    by_edge = split_links(graph, split=np.arange(len(PAIRS)) % 3, relation=BUYS)
    assert [len(rows) for rows in (by_edge.train, by_edge.val, by_edge.test)] == [-(-(len(PAIRS) - at) // 3) for at in range(3)]
    for words, options in (
        ("the graph has several, shop.sells.item, user.buys.item, ", {}),
        ("relation user.eats.item is not one of", {"relation": ("user", "eats", "item")}),
        ("pair 0 has node 20, outside 0 <= node < 20", {"relation": BUYS, "val": [[3, 20]]}),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            split_links(graph, **options)
