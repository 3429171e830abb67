"""The experiments of the papers on small graphs, with threads as ranks: their rows, and the folder of results."""

import json
import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    monkeypatch.delenv("SARLITE_PEERS", raising=False)


def in_threads(n_ranks, file, *words):
    """Run a job's ranks as threads, in place of mpiexec."""
    module = __import__(Path(file).stem)
    args = module.arguments().parse_args([*map(str, words)])
    return json.dumps(threads.run(n_ranks, lambda comm: module.work(comm, args))[0])


@pytest.fixture
def mg_gcn(monkeypatch, tmp_path):
    """Return a function that measures figures on small graphs and returns their rows."""
    import harness
    import mg_gcn

    monkeypatch.setattr(harness, "mpiexec", in_threads)

    def rows_of(figure, *more):
        flags = ["--datasets", "products", "--part", "1000", "--hidden", "8", "--ranks", "1,2", "--repeats", "1"]
        mg_gcn.main(["--figures", figure, "--rows", str(tmp_path), "--graphs", str(tmp_path), *flags, *more])
        return json.loads((tmp_path / f"figure-{figure}.json").read_text())["rows"]

    return rows_of


def test_decomposition_is_of_the_whole_epoch(mg_gcn):
    rows = mg_gcn("5")
    assert [r["kernel"] for r in rows[:6]] == ["SpMM", "GeMM", "activation", "loss", "Adam",
                                               "other"] and len(rows) == 12
    for way in ("A X kept", "A X each step"):
        mine = {r["kernel"]: r for r in rows if r["way"] == way}
        assert sum(r["percent"] for r in mine.values()) == pytest.approx(100)
        assert all(mine[kernel]["kernel_ms"] > 0 for kernel in ("SpMM", "GeMM", "activation", "loss", "Adam"))


@pytest.mark.parametrize("figure, ways", [("6", ["original order", "permuted"]), ("8", ["no overlap", "overlap"])])
def test_a_timeline_shows_computation_and_communication(mg_gcn, figure, ways):
    rows = mg_gcn(figure)
    whole = [r for r in rows if "ms" in r]
    assert [r["way"] for r in whole] == ways and whole[0]["share"] == 1
    for way in whole:
        spans = [r for r in rows if "lane" in r and r["way"] == way["way"]]
        assert len({r["lane"] for r in spans}) == 4  # two ranks compute and communicate
        for rank in (0, 1):
            done = {kind: sorted(r["stage"] for r in spans if r["lane"].endswith(f"rank {rank}, {kind}"))
                    for kind in ("computation", "communication")}
            assert done == {"computation": [0, 1], "communication": [0, 1]}
        assert all(r["begin_ms"] >= 0 and r["length_ms"] >= 0 for r in spans)


def test_orders_and_ranks(mg_gcn):
    rows = mg_gcn("7", "--rounds", "2")
    rows, stages = rows[:4], rows[4:]
    assert [(r["ranks"], r["way"]) for r in stages] == [(n, order) for n in (2, 4, 8)
                                                        for order in ("original", "permuted")]
    assert all(r["imbalance"] >= 1 for r in stages) and stages[0]["imbalance"] != stages[1]["imbalance"]
    assert [(r["ranks"], r["way"]) for r in rows] == [(n, order) for n in (1, 2) for order in ("original", "permuted")]
    assert all(r["speed"] == 1 for r in rows[::2]) and all(r["speed_min"] <= r["speed"] <= r["speed_max"] for r in rows)


def test_degrees_give_speedups(mg_gcn):
    rows = mg_gcn("9", "--scales", "1,2", "--rounds", "1")
    assert [(r["scale"], r["way"]) for r in rows] == \
        [(scale, f"{case}, {mode}") for scale in (1, 2) for case in ("epoch", "sum") for mode in ("broadcast", "sar")]


def test_comparison_with_a_library(mg_gcn, monkeypatch):
    import peers

    def run(command, words):
        ms = 80.0 if command == ["dgl"] else 100.0 * words[words.index("--ranks") + 1]
        return {"ms": ms, "ms_min": 70.0, "ms_max": 90.0, "peak_mib": 1}

    monkeypatch.setattr(peers, "find", lambda wanted, able: {name: [name] for name in able})
    monkeypatch.setattr(peers, "run", run)
    dgl, *cagnet, a, b, c, d = mg_gcn("10")
    rows = [a, b, c, d]
    assert (dgl["way"], dgl["ms"], dgl["speed"]) == ("DGL", 80, 1)
    assert [(r["ranks"], r["ms"], r["speed"]) for r in cagnet] == [(1, 100, 0.8), (2, 200, 0.4)]
    assert [(r["ranks"], r["way"]) for r in rows] == [(n, way) for n in (1, 2) for way in ("A X kept", "A X each step")]
    assert all(r["speed"] == pytest.approx(80 / r["ms"])
               and r["to_cagnet"] == pytest.approx(100 * r["ranks"] / r["ms"]) for r in rows)
    monkeypatch.setattr(peers, "find", lambda *_: {})
    assert [(r["speed"], r["to_cagnet"]) for r in mg_gcn("10")] == 4 * [(None, None)]


def test_a_graph_like_papers_has_the_papers_fourth_model(mg_gcn, monkeypatch):
    import broadcast_speed

    made_sizes, make = [], broadcast_speed.make_trainer
    monkeypatch.setattr(broadcast_speed, "make_trainer", lambda graph, *sizes: made_sizes.append(sizes) or make(graph, *sizes))
    rows = mg_gcn("12", "--rounds", "1")
    assert set(made_sizes) == {(3, 128, 172, 208)}
    assert [(r["ranks"], r["way"]) for r in rows] == [(n, way) for n in (1, 2) for way in ("A X kept", "A X each step")]
    assert [r["speed"] for r in rows[:2]] == [1, 1] and all(r["speed"] > 0 for r in rows)


PEERS = os.environ.get("SARLITE_PEERS")


@pytest.mark.skipif(not PEERS, reason="needs a Python with torch in SARLITE_PEERS")
def test_cagnets_ranks_train_as_one(tmp_path, monkeypatch):
    import harness
    import peers
    import seeded_graphs

    monkeypatch.setenv("SARLITE_PEERS", PEERS)
    (python, *_), = peers.find(["torch"], ("torch",)).values()
    words = [seeded_graphs.path(tmp_path, "S/200"), "--widths", "9,8,5", "--dropout", "0", "--repeats", "4"]
    losses = [peers.run([python, str(Path(harness.__file__).with_name("cagnet.py"))], [*words, "--ranks", n])["loss"]
              for n in (1, 2)]
    # the loss of 5 classes is at least log 5 at first
    assert losses == pytest.approx(2 * [losses[0]], rel=1e-5) and losses[0] < 1.7


def test_arrays_beside_the_papers(mg_gcn, monkeypatch):
    import live_arrays

    def row_of(model, widths, n_ranks, place, args):
        return {"layers": len(widths) - 1, "ranks": n_ranks, "taken": 9.0, "promised": 8.0, "place": place}

    monkeypatch.setattr(live_arrays, "row_of", row_of)
    rows = mg_gcn("1")
    assert [(r["layers"], r["arrays"]) for r in rows[2::3]] == [(2, 5), (4, 7), (6, 9), (8, 11)] and len(rows) == 12


def line(peak, seconds):
    return {"peak_bytes": [2**20, peak * 2**20], "seconds": [9.0, seconds],
            "sent_bytes": {"forward_fetch": 2**21, "evaluation": 5}}


def test_ways_take_turns_and_are_compared(monkeypatch, tmp_path):
    import harness
    import paper

    runs, lines = [], {"sar": line(3, 2.0), "oneshot": line(12, 1.0)}
    monkeypatch.setattr(paper, "write_data", lambda *_: tmp_path)
    monkeypatch.setattr(harness, "train", lambda n_ranks, **options: runs.append((n_ranks, options["mode"]))
                        or lines[options["mode"]])
    flags = ["--figures", "3", "--ranks", "2,4", "--rounds", "2", "--epochs", "1"]
    paper.main([*flags, "--rows", str(tmp_path), "--json", str(tmp_path / "rows.json")])
    assert runs == [(n, mode) for n in (2, 4) for _ in range(2) for mode in ("sar", "oneshot")]
    sar, oneshot = json.loads((tmp_path / "rows.json").read_text())[:2]
    assert (sar["peak_mib"], sar["middle_mib"], sar["ms"], sar["sent_mib"]) == (3, 2, 2000, 1)
    assert (sar["memory"], sar["time"], oneshot["memory"], oneshot["time"]) == (0.25, 2, 1, 1)


# ---- a folder of results

ROWS = [{"figure": "a", "way": way, "ranks": n, "ms": 2.0 * n, "ms_min": 1.0, "ms_max": 9.0, "share": 50.0,
         "begin_ms": 0.5, "stage": 0}
        for way in ("one", "other") for n in (2, 4)]  # fmt: skip


@pytest.fixture
def results(monkeypatch, tmp_path):
    """Return a function that writes figures a and b, with all kinds of panels, into a folder of results."""
    import figures

    columns = {"way": lambda r: r["way"], "ms": lambda r: r["ms"]}
    panels = [figures.Panel(kind, "ranks", "way", "ms", "time, ms") for kind in figures.KINDS]
    of = {"a": [panel for panel in panels if panel.kind != "lanes"], "b": panels}
    all_figures = {name: figures.Figure(f"about {name}", f"said {name}", lambda args: [ROWS[:3], ROWS[3:]], columns,
                                        tuple(of[name]),
                                        lambda row: row["ranks"] == 2) for name in "ab"}
    monkeypatch.setattr(sys, "argv", ["paper.py"])

    def run(*flags):
        parser = figures.parser("", all_figures, "paper")
        figures.run(all_figures, parser, parser.parse_args(["--rows", str(tmp_path / "rows"), *map(str, flags)]))
        return {file.name: file.read_text() for file in (tmp_path / "out").iterdir()}

    return run


def test_a_folder_of_results(results, tmp_path):
    pytest.importorskip("matplotlib")
    out, rows = tmp_path / "out", tmp_path / "rows"
    page = out / "README.md"
    out.mkdir()
    page.write_text("# By hand\n\nText.\n")
    first = results("--figures", "a", "--part", 4, "--out", out)
    assert first.keys() == {"README.md", "figure-a.svg"}  # no rows
    assert json.loads((rows / "figure-a.json").read_text())["rows"] == ROWS
    assert first["README.md"].startswith("# By hand\n\nText.\n\n<!--") and "said a" in first["README.md"]
    # three panels; not shown: 4 ranks
    assert "| one | other |\n| --- | --- | --- |\n| 2 | 4; 4; 4 | 4; 4; 4 |\n\n" in first["README.md"]
    assert "`python benchmarks/paper.py --figures a --part 4`" in first["README.md"]
    assert "time, ms" in first["figure-a.svg"]
    page.write_text(page.read_text().replace("Text.", "Other text."))
    second = results("--figures", "b", "--out", out)
    assert second["figure-a.svg"] == first["figure-a.svg"] and "| way | ms |" in second["README.md"]
    assert "Other text." in second["README.md"]
    assert second["README.md"].index("about a") < second["README.md"].index("about b")
    (out / "figure-b.svg").unlink()
    assert results("--draw", "--out", out) == second  # the same bytes
    (rows / "figure-a.json").unlink()
    page.write_text(second["README.md"].replace("said a", "kept").replace("said b", "not kept"))
    assert results("--draw", "--out", out)["README.md"] == second["README.md"].replace("said a", "kept")  # without rows


def test_a_table_has_the_numbers_of_the_picture():
    import figures

    panels = figures.Panel("bars", "ranks", "way", "ms", "ms"), figures.Panel("lines", "ranks", "way", "share", "%")
    figure = figures.Figure("", "", None, {}, panels)
    rows = [{"ranks": 2, "way": "one", "ms": 1234.4, "share": 50.04}, {"ranks": 4, "way": "one", "ms": 0.12345},
            {"ranks": 4, "way": None, "ms": 9, "share": 9}, {"ranks": 4, "way": "other", "ms": None, "share": 7}]
    assert figures.table(figure, rows) == [["ranks: ms; %", "one", "other"], ["2", "1,234; 50", "-"],
                                           ["4", "0.123", "7"]]


def test_what_was_measured_before_a_failure_is_kept(results, tmp_path):
    import figures

    def measure(args):
        yield ROWS[:3]
        raise SystemExit("a job failed")

    figure = figures.Figure("about c", "said c", measure, {"way": lambda r: r["way"]},
                            (figures.Panel("bars", "ranks", "way", "ms", "ms"),))
    parser = figures.parser("", ["c"], "paper")
    with pytest.raises(SystemExit, match="a job failed"):
        figures.run({"c": figure}, parser, parser.parse_args(["--rows", str(tmp_path)]))
    stored = json.loads((tmp_path / "figure-c.json").read_text())
    assert stored["rows"] == ROWS[:3] and figures.section("c", figure, stored).endswith("not finished.")


def test_what_cannot_be_run_is_refused_before_anything_is(results, tmp_path):
    with pytest.raises(SystemExit, match="12 not of a, b"):
        results("--figures", "a,12", "--out", tmp_path)
    with pytest.raises(SystemExit, match="--draw needs --out"):
        results("--draw")
    assert not list(tmp_path.iterdir())


def test_a_picture_is_small(tmp_path):
    pytest.importorskip("matplotlib")
    import figures

    figure = figures.Figure("", "", None, {}, (figures.Panel("bars", "ranks", "way", "ms", "0.125 < ms"),))
    figures.draw(figure, ROWS, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert len(drawn.splitlines()) < 60 and not re.search(r"[MLxy][ =\"]+\d+\.\d\d", drawn) and "metadata" not in drawn
    root = ElementTree.fromstring(drawn)
    assert "0.125 < ms" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]  # the text of the picture stays
    ids = set(re.findall(r' id="(\w+)"', drawn))
    assert set(re.findall(r"[(\"]#(\w+)", drawn)) <= ids  # elements that are drawn by their id exist


def test_pictures_leave_out_what_was_not_measured(results, tmp_path):
    pytest.importorskip("matplotlib")
    import figures

    panels = figures.Panel("bars", "ranks", "way", "ms",
                           "ms"), figures.Panel("lines", "ranks", "way", "speed", "times as fast")
    figure = figures.Figure("", "", None, {}, panels)
    figures.draw(figure, [{**row, "speed": None} for row in ROWS], tmp_path / "a.svg")
    assert "times as fast" not in (tmp_path / "a.svg").read_text()
    assert figures.command(figures.parser("", "a", "paper"), Namespace(out=tmp_path, ranks=[1, 2]),
                           "a").endswith("--figures a --ranks 1,2")


@pytest.mark.parametrize("mode", ["sar", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_attention_in_two_steps_is_attention(n_ranks, mode):
    """Memory is not zero at first: the operator shares code with one that overwrites its memory."""
    from unfused import attend

    draw = np.random.default_rng(0)
    whole = Graph.from_edges(draw.integers(0, 40, 300), draw.integers(0, 40, 300), 40)
    arrays = draw.standard_normal((40, 3, 5)), draw.standard_normal((40, 3)), draw.standard_normal((40, 3))

    def work(comm):
        graph, runs = whole.shard(comm, "contiguous", mode=mode, prefetch=0), []
        for way in (attend, lambda graph, *leaves: graph.aggregate(fn.attend(*leaves), "sum")):
            leaves = [Tensor(a[graph.node_ids], requires_grad=True) for a in arrays]
            out = way(graph, *leaves)
            out.backward(np.cos(out.data))
            runs.append([out.data, *(leaf.grad for leaf in leaves)])
        return runs

    for two_steps, fused in threads.run(n_ranks, work):
        for a, b in zip(two_steps, fused):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
