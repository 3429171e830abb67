"""User-defined modes: their plans must have each edge once each way, and a left-out or swapped entry is reported."""

from dataclasses import replace

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.schedule import modes, plan_check
from sarlite.schedule.pieces import Arrival, Piece
from sarlite.schedule.transport import Fetch
from tests.helpers.comm.exchanges import EDGES, in_parts, in_ranges, shard
from tests.helpers.graph import relational_graphs
from tests.helpers.graph.strategies import Edges, random_edges
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import train_here

OWN = {**{name: mode for name, mode in modes.MODES.items()}, "in parts": in_parts("sar"), "stages": in_ranges(),
       "two at once": replace(modes.MODES["sar"], peers_at_once=2), "sa, two at once": replace(modes.MODES["sa"], peers_at_once=2)}
GRAPHS = {"dense": EDGES, "empty": Edges(np.empty(0, int), np.empty(0, int), 7), "repeated": random_edges(9, 300, seed=1),
          "sparse": random_edges(60, 40, seed=3)}  # fmt: skip


@pytest.fixture
def every_mode(monkeypatch):
    """Check the library's own modes as well."""
    monkeypatch.setattr(plan_check, "LIBRARY_MODES", ())


@pytest.mark.sampled(14)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", OWN)
def test_plans_of_the_librarys_modes_are_right(mode, n_ranks, every_mode):
    def work(comm):
        for edges in GRAPHS.values():
            for prefetch in (0, 2):
                for backward in ("push", "fetch"):
                    shard(comm, edges, mode=OWN[mode], prefetch=prefetch, backward=backward)
        relational_graphs.make(comm, "random", mode=OWN[mode])

    threads.run(n_ranks, work)


class Wrong:
    """Mode `sar` with a changed plan on rank 1."""

    fetch, keeps_rows, reverses, in_step = Fetch, False, False, False

    def __init__(self, change):
        self.change = change

    def __str__(self):
        return "wrong"

    def plan(self, needs, prefetch):
        plan = modes.MODES["sar"].plan(needs, prefetch)
        return plan if needs.rank != 1 else self.change(plan)


class Keeps(Wrong):
    keeps_rows = True


class Orders(Wrong):
    def plan(self, needs, prefetch):
        plan = modes.MODES["broadcast"].plan(needs, prefetch)
        return plan if needs.rank != 1 else plan._replace(forward=plan.forward[::-1])


def other_rows(plan, direction):
    """Return the plan with the first and the last row of a peer's request exchanged."""
    pieces = list(getattr(plan, direction))
    at = next(k for k, piece in enumerate(pieces) if piece.arrivals and piece.arrivals[0].n_send > 1)
    (arrival,) = pieces[at].arrivals
    rows = np.arange(10**6)[arrival.send_rows] if isinstance(arrival.send_rows, slice) else arrival.send_rows
    pieces[at] = pieces[at]._replace(arrivals=(arrival._replace(send_rows=rows[::-1]),))
    return plan._replace(**{direction: tuple(pieces)})


def with_last(plan, *pieces):
    """Return the plan with `pieces` in place of the last forward piece."""
    return plan._replace(forward=(*plan.forward[:-1], *pieces))


def with_arrivals_exchanged(plan):
    pairs = zip(plan.forward[1:], plan.forward[:0:-1], strict=True)
    return plan._replace(forward=(plan.forward[0], *(one._replace(arrivals=other.arrivals) for one, other in pairs)))


WRONG = {
    "a peer is forgotten": (lambda p: with_last(p), r"rank 1 of 3 is wrong: forward: \d+ of \d+ edges are in no piece, and 0 are taken "
                                                    "once too often; the first is from node"),
    "backward": (lambda p: p._replace(backward=p.backward[1:]), r"backward: \d+ of \d+ edges are in no piece"),
    "its rows come": (lambda p: with_last(p, p.forward[-1]._replace(block=None)), "forward: .* in no piece"),
    "a peer twice": (lambda p: with_last(p, p.forward[-1], p.forward[-1]), r"forward: 0 of \d+ edges .*, and \d+ are taken once too"),
    "one for another": (lambda p: with_last(p, p.forward[-2]), r"and \d+ are taken once too often"),
    "no rows arrive": (lambda p: with_last(p, p.forward[-1]._replace(arrivals=())), r"columns, but 0 rows are there"),
    "own piece first": (lambda p: p._replace(backward=p.backward[::-1]), "backward: the piece of the rank's own rows is not the last"),
    "other rows": (lambda p: other_rows(p, "forward"), "forward: the rows that arrive from rank 1 are not the block's columns, or in"),
    "other rows backward": (lambda p: other_rows(p, "backward"), "backward: the rows that arrive from rank 1 are not the block's"),
    "arrivals exchanged": (with_arrivals_exchanged, "columns, but|arrive from"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_plan_is_refused_on_every_rank(case):
    change, words = WRONG[case]
    messages = []

    def work(comm):
        with pytest.raises(ConfigError, match=words) as caught:
            shard(comm, mode=Wrong(change))
        messages.append(str(caught.value))

    threads.run(3, work)
    assert len(messages) == 3 and all("mode wrong: the plan of rank" in text for text in messages)


def test_a_mode_that_keeps_rows_keeps_the_forward_blocks():
    def parts(plan):
        return plan._replace(backward=(*plan.backward[:-1][::-1], plan.backward[-1]))

    def work(comm):
        with pytest.raises(ConfigError, match="keeps rows, .*backward blocks"):
            shard(comm, mode=Keeps(parts))

    threads.run(3, work)


def test_ranks_that_broadcast_in_different_orders():
    def work(comm):
        with pytest.raises(ConfigError, match="ranks broadcast in different orders"):
            shard(comm, mode=Orders(None))

    threads.run(3, work)


MINE = """
from sarlite.schedule.pieces import Plan
from sarlite.schedule.transport import Fetch

class Backwards:
    fetch, keeps_rows, reverses, in_step = Fetch, False, False, False

    def __str__(self):
        return "backwards"

    def plan(self, needs, prefetch):
        own, peers = needs.tiles()
        forward = (own, *peers[::-1])
        return Plan(needs.n_src, forward, (*peers, own), needs.degree)

class Forgets(Backwards):
    def plan(self, needs, prefetch):
        plan = super().plan(needs, prefetch)
        return plan._replace(forward=plan.forward[:-1])

class Fails(Backwards):
    def plan(self, needs, prefetch):
        return needs.tils()

class Lacks:
    fetch, keeps_rows, reverses = Fetch, False, False

    def plan(self, needs, prefetch):
        return None
"""


def test_a_mode_from_a_file_trains_as_the_librarys_modes_do(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    spec, words = f"{tmp_path}/mine.py:Backwards", ("--epochs", 3, "--ranks", 3, "--model", "gat", "--heads", 2, "--dtype", "float64")
    metrics = train_here(tmp_path / "run", *words, "--mode", spec)
    assert "mode backwards" in (printed := capsys.readouterr().out) and '"mode": "backwards"' in printed
    expected = train_here(tmp_path / "sar", *words)
    np.testing.assert_allclose([each["loss"] for each in metrics], [each["loss"] for each in expected], rtol=1e-12)
    with pytest.raises(ConfigError, match="--mode .*checkpoint names no code .*--mode FILE.py:Class"):
        train_here(tmp_path / "run", "--resume", tmp_path / "run", "--epochs", 4)
    assert len(train_here(tmp_path / "run", "--resume", tmp_path / "run", "--epochs", 4, "--mode", spec)) == 4


def test_predictions_in_a_mode_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    train_here(tmp_path / "run", "--epochs", 1)
    expected, _ = predict_here(tmp_path / "run", tmp_path / "one.npy")
    predicted, _ = predict_here(tmp_path / "run", tmp_path / "two.npy", "--ranks", 3, "--mode", f"{tmp_path}/mine.py:Backwards")
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)
    for name in ("Forgets", "Fails"):
        with pytest.raises(ConfigError, match="(?s)--mode .*(is wrong: forward|return needs.tils)"):
            predict_here(tmp_path / "run", tmp_path / "x.npy", "--ranks", 3, "--mode", f"{tmp_path}/mine.py:{name}")


@pytest.mark.parametrize("name, words", [
    ("Forgets", r"--mode backwards: the plan of rank \d of 3 is wrong: forward: \d+ of \d+ edges are in no piece"),
    ("Fails", r"--mode .*:Fails:\n(.*\n)*.*return needs.tils\(\)"), ("Lacks", "the class has no in_step: docs/how-to/own-mode.md"),
    ("Nothing", "has no class Nothing; it has Plan, Fetch, Backwards, Forgets, Fails, Lacks"),
])  # fmt: skip
def test_what_is_wrong_in_a_modes_file(name, words, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(ConfigError, match=words) as caught:
        train_here(tmp_path / "run", "--epochs", 1, "--ranks", 3, "--mode", f"{tmp_path}/mine.py:{name}")
    assert "site-packages" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_piece_of_own_rows_and_rows_of_a_peer_is_named():
    arrival = Arrival(1, 1, 2, True, slice(0, 2))
    piece = Piece(None, own=True, arrivals=(arrival,))
    assert "own rows and rows of peers" in next(plan_check._column_problems([piece], None))
