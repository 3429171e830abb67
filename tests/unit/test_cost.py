"""What a run costs is told before it: bytes as its counters have them, the range of its buffers, refusals and choices."""

import gc
import json
import math
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from exchanges import EDGES, X, on_hosts, shard
from exchanges import Recorder as Noted

import sarlite.sar.program
from sarlite import estimate, kernels, optim
from sarlite.comm import Solo, threads
from sarlite.data import format, load
from sarlite.errors import ConfigError
from sarlite.graph import block
from sarlite.kernels import Places, Recorder
from sarlite.profile import Profile
from sarlite.sar import other_counts, plan
from sarlite.sar.cost import PartCounts, SetCounts, counts_of, expected, schedule_of
from sarlite.sar.cover import cover
from sarlite.sar.graph import Graph
from sarlite.sar.listening import Aggregation
from sarlite.sar.modes import MODES
from sarlite.sar.other_counts import with_others
from sarlite.sar.program import Program, Segment
from sarlite.sar.stand_ins import Rows
from sarlite.train import costs, edge_values, planning, relational, relational_trial, run
from sarlite.train.config import resolve
from sarlite.train.costs import Setting
from sarlite.train.load import load_part
from sarlite.train.loop import fit
from sarlite.train.model import model_class
from sarlite.train.trial import Facts, program

MODELS = {
    "gcn": dict(model="gcn", input_dropout=0.0),
    "sage": dict(model="sage", layers=2, hidden=16),
    "max": dict(model="sage", layers=2, hidden=8, aggregator="max-pool", batch_norm=False),
    "gat": dict(model="gat", clip_norm=1.0, eval_every=2),
    "appnp": dict(model="appnp", hops=2, label_inputs=0.5),
    "sign": dict(model="sign", hops=2),
}
TYPED = "relational:nodes=300,edges=1500,classes=3,features=9,train=0.3"
RELATIONAL = {
    "rgcn": dict(model="rgcn", hidden=24, data=TYPED),
    "inside": dict(model="rgcn", hidden=2, embedding=40, layers=1, data=TYPED),
    "bases": dict(model="rgcn", hidden=8, n_bases=2, embedding=5, layers=3, eval_every=2, clip_norm=1.0, data=TYPED),
    "rgat": dict(model="rgat", hidden=8, heads=2, attention_dropout=0.3, optimizer="sgd", data=TYPED),
}
FEW = "sbm:nodes=60,degree=4,features=5,classes=2"
QUIET = dict(progress="none", threads=1, partition="random")


HOSTS = [(0, 1), (0, 0, 0), (0, 0, 1), (0, 1, 1, 0)]


def trained(comm, folder, **options):
    config = resolve({**QUIET, "ranks": comm.size, "run_dir": str(folder), **options})
    return run.train(comm, config)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("backward", [None, "push", "fetch"])
@pytest.mark.parametrize("mode", [name for name in MODES if name != "host"])  # of which below
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_the_run(name, n_ranks, mode, backward, prefetch, tmp_path, monkeypatch):
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, backward=backward, epochs=3, **MODELS[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RELATIONAL)
def test_bytes_of_a_relational_graph_are_those_of_the_run(name, n_ranks, mode, prefetch, tmp_path, monkeypatch):
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, epochs=3, **RELATIONAL[name])


@pytest.mark.parametrize("name, n_ranks, options, phase", [
    ("gcn", 3, dict(mode="cover"), "forward_push"),
    ("gat", 2, dict(mode="sar", backward="fetch"), "backward_fetch"),
    ("gcn", 4, dict(mode="sar", columns=2, hidden=17), "backward_turn"),
    ("gcn", 4, dict(mode="sar", columns=2, hidden=4, layers=3, clip_norm=0.5, data=FEW), "backward_turn"),  # some tiny gradients are all 0
])
def test_bytes_of_sums_for_peers_of_fetched_gradients_and_of_turns(name, n_ranks, options, phase, tmp_path, monkeypatch):
    assert check_bytes(tmp_path, monkeypatch, n_ranks, prefetch=1, epochs=1, **{"layers": 2, **options}, **MODELS[name])[phase] > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("name, options", [("gcn", {}), ("gcn", {"halo": "recompute", "layers": 3}), ("max", {}), ("gat", {}), ("rgat", {}),
                                           ("gat", {"backward": "fetch"}), ("sage", {"backward": "fetch"}), ("rgcn", {})])
def test_bytes_of_hosts_are_those_of_the_run(name, options, hosts, prefetch, tmp_path, monkeypatch):
    options = {**MODELS, **RELATIONAL}[name] | options | {"epochs": 3}
    check_bytes(tmp_path, monkeypatch, len(hosts), "host", prefetch=prefetch, hosts=hosts, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sign"])
def test_auto_takes_all_columns_and_sends_what_was_told(name, n_ranks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("sar", (("columns", costs.ALL),))])
    options = {"data": "sbm:nodes=90,degree=5,features=9", "prefetch": 1, "epochs": 3, **MODELS[name]}
    real = threads.run(n_ranks, trained, tmp_path / "real", mode="auto", **options)[0]
    (told,) = threads.run(n_ranks, trained, tmp_path / "dry", dry_run=True, **options)[0]["settings"]
    sent, said = ({k: n for k, n in found.items() if k != "setup" and n} for found in (real["sent_bytes"], told["run_sent_bytes"]))
    assert sent == said and said["forward_turn"] > 0
    assert real["grid"]["columns"] == n_ranks and f"--mode auto takes sar --columns {n_ranks}\n" in capsys.readouterr().err


def test_what_cannot_be_divided_by_columns_is_left_out(tmp_path):
    def names(comm, **options):
        config = resolve({**QUIET, "data": "sbm:nodes=90,degree=5,features=9", "prefetch": 0, **options, "ranks": comm.size})
        return [str(setting) for setting in planning.settings(config, counted(comm, config, tmp_path)[0])]

    data, found = weighted(tmp_path / "a.npz"), []
    for n_ranks, options in ((2, {}), (1, {}), (2, {"halo": "recompute", **MODELS["gcn"]}), (2, {"data": data, "edge_weights": True})):
        found.append(threads.run(n_ranks, names, **options)[0])
    assert ["sar --columns 2" in each for each in found] == [True, False, False, False]
    assert all("sar" in each for each in found)


def test_bytes_of_hosts_on_a_grid_are_those_of_the_run(tmp_path, monkeypatch):
    """Each column of which is on one host."""
    said = check_bytes(tmp_path, monkeypatch, 4, "host", prefetch=1, hosts=(0, 1, 0, 1), **{**MODELS["gcn"], "columns": 2, "epochs": 1})
    assert said["forward_turn"] > 0 and not said.get("forward_fetch")


def test_halo_rows_that_are_computed_again_are_those_of_the_whole_host(tmp_path):
    def flops(comm):
        config = resolve({**QUIET, "data": "sbm:nodes=90,degree=5,features=9", "halo": "recompute", **MODELS["gcn"], "prefetch": 0,
                          "ranks": comm.size})
        model, sizes, _ = counted(comm, config, tmp_path)
        return [model.cost(Setting(mode), sizes, 0).flops for mode in ("sar", "host")]

    assert all(of_host > of_rank for of_rank, of_host in threads.run(3, flops))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if not mode.shares])
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_bytes_where_halo_rows_are_computed_again(name, n_ranks, mode, layers, prefetch, tmp_path, monkeypatch):
    options = {**MODELS[name], "layers": layers, "halo": "recompute", "epochs": 3}
    said = check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, **options)
    assert (said.get("backward_push", 0) + said.get("backward_fetch", 0) > 0) == (layers == 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "max", "gat", "labels"])
def test_bytes_of_message_flow_are_those_of_the_run(name, n_ranks, mode, layers, prefetch, tmp_path, monkeypatch):
    options = {**MODELS.get(name, {"model": "gat", "label_inputs": 0.5}), "layers": layers, "mfg": True, "epochs": 3}
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=prefetch, data=few_labelled(tmp_path / "few"), **options)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sampler", ["uniform", "labor", "replace", "full"])
@pytest.mark.parametrize("remote", ["exact", "local"])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "max", "gat", "labels"])
def test_bytes_of_minibatches_are_those_of_the_run(name, n_ranks, mode, remote, sampler, tmp_path, monkeypatch):
    options = {**MODELS.get(name, {"model": "gat", "label_inputs": 0.5}), "layers": 2, "batch_size": 6, "remote": remote, "data": EVEN,
               "fanouts": (-1, -1) if sampler == "full" else (3, 2), "sampler": sampler, "epochs": 1}
    check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch=0, **options)  # of the first epoch all batches are sampled


def check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch, hosts=None, **options):
    """A run sends, by phase, what a dry run of it has told; return that. All ranks are on one host, or on `hosts`."""
    hosts = hosts or [0] * n_ranks
    monkeypatch.setattr(planning, "SETTINGS", [Setting(mode)])
    options = {"data": "sbm:nodes=90,degree=5,features=9", "mode": mode, "prefetch": prefetch, **options}
    real = on_hosts(hosts, trained, tmp_path / "real", **options)[0]
    (told,) = on_hosts(hosts, trained, tmp_path / "dry", dry_run=True, **options)[0]["settings"]
    sent, said = ({k: n for k, n in found.items() if k != "setup" and n} for found in (real["sent_bytes"], told["run_sent_bytes"]))
    assert sent == said and (n_ranks == 1 or sum(sent.values()) > 0)
    assert prefetch or real["live_remote_buffers"] == math.ceil(told["remote_buffers"])
    assert not (tmp_path / "dry").exists()  # nothing was trained
    return said


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gcn", "gat", "rgcn", "edges"])
def test_a_setting_is_told_the_same_beside_others_as_alone(name, n_ranks, tmp_path):
    options = {**MODELS, **RELATIONAL}.get(name) or {"model": "gat", "edge_weights": True, "data": weighted(tmp_path / "a.npz")}

    def both(comm):
        config = resolve({**QUIET, "data": "sbm:nodes=90,degree=5,features=9", "prefetch": 0, **options, "ranks": comm.size})
        model, sizes, _ = counted(comm, config, tmp_path)
        chosen = planning.settings(config, model)
        others = [costs.Model(config, model.make, model.facts, comm, comm.size) for _ in chosen]
        return [(str(setting), model.cost(setting, sizes, 0).found, alone.cost(setting, sizes, 0).found)
                for setting, alone in zip(chosen, others)]

    for found in threads.run(n_ranks, both):
        assert len(found) >= 4 and [name for name, beside, alone in found if beside != alone] == []


def counted(comm, config, folder):
    """The `Model` and `Sizes` of a run, and its part."""
    cls = model_class(config.model)
    hetero = config.data.startswith("relational:")
    values = {} if hetero else {"self_loops": True, "edge_values": edge_values.wanted(config, cls)}
    part = (relational.load_part if hetero else load_part)(config, comm, folder, **values)
    return *costs.of_run(comm, config, cls, part, run._make_trainer), part


@pytest.mark.parametrize("name, mode, halo", [
    ("sage", "sar", "fetch"), ("gat", "oneshot", "fetch"), ("sage", "sar", "recompute"), ("rgcn", "sar", "fetch"), ("rgat", "sa", "fetch"),
    ("edges", "sar", "fetch"), ("flow", "sar", "fetch"), ("flow", "sa", "fetch"),
])
def test_buffers_take_what_was_said(name, mode, halo, tmp_path, monkeypatch):
    heads = {"heads": 2} if name in ("gat", "rgat", "edges") else {}
    options = {**{**MODELS, **RELATIONAL}.get(name, {}), "hidden": 64, **heads, "mode": mode, "prefetch": 0, "epochs": 2, "halo": halo}
    typed = "relational:nodes=6000,edges=120000,features=64,train=0.5"
    options["data"] = typed if name in RELATIONAL else "sbm:nodes=8000,degree=5,features=64"
    if name == "edges":
        monkeypatch.setattr(block, "PIECE_EDGES", 4096)
        monkeypatch.setattr(sarlite.sar.program, "PIECE_EDGES", 4096)
        options |= {"model": "gat", "edge_weights": True, "data": weighted(tmp_path / "a.npz", 1500, 20_000)}

    if name == "flow":
        options |= {"model": "sage", "layers": 2, "mfg": True}

    def both(comm):
        config = resolve({**QUIET, **options, "ranks": comm.size})
        model, sizes, part = counted(comm, config, tmp_path)
        cost = model.cost(Setting(mode), sizes, 0)
        trainer = model.make(comm, config, part)
        fit(trainer, 2)
        flows = [trainer.flow, trainer.scored_flow] if name == "flow" else []
        return sum(each.buffers.n_bytes for each in (trainer, *flows)), cost.found.range_bytes

    for taken, said in threads.run(2, both):
        assert taken > 2e6 and said == pytest.approx(taken, rel=0.2 if name == "rgcn" else 0.1)  # of learned rows too many are told


def test_of_recorded_runs_one_is_there_at_a_time():
    """Where a run's arrays stand in a cycle, as a trainer's do, and collection is off as they are counted."""
    alive, most = weakref.WeakSet(), []

    class Cycle:
        def __init__(self):
            self.own = self
            alive.add(self)

    def run(n):
        tape = sarlite.sar.program.Tape(Profile())
        with tape.recorder, tape.segment("step"):
            Cycle().array = np.zeros(1000 * n)
        most.append(len(alive))
        return tape

    sarlite.sar.program.record(run, [{"n": n} for n in (5, 6, 7, 8, 9)])
    assert most == [1] * 6 and not alive


def test_a_recorder_goes_and_its_arrays_stay():
    recorder = Recorder()
    with recorder:
        kept, other = np.full(1000, 3.0), np.zeros(500)
        kept.resize(2000, refcheck=False)
        del other
    sizes = {event[1]: event[2] for event in recorder.events if event[0] == "new"}
    freed = [sizes[event[1]] for event in recorder.events if event[0] == "free"]
    assert {8000, 16000, 4000} <= {*sizes.values()} and {8000, 4000} <= {*freed} and 16000 not in freed
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    kept.resize(3000, refcheck=False)
    assert gone() is None and kept[:1000].tolist() == [3.0] * 1000 and not kept[1000:].any()


def test_an_exception_passes_by_arrays_that_are_freed():
    """Which happens while it is on its way, and must neither end it nor be lost."""
    recorder = Recorder()

    def fails():
        local = np.zeros(1000)
        raise KeyError(f"the cause, of {len(local)}")

    def between():
        for _ in [np.zeros(500)]:
            fails()

    with pytest.raises(KeyError, match="the cause, of 1000"), recorder:
        between()
    gc.collect()  # pytest's report has held the frames
    assert [event[2] for event in recorder.events if event[0] == "new" and event[2] in (4000, 8000)] == [4000, 8000]
    taken = recorder.events
    with recorder:
        np.zeros(700)
    assert recorder.events is taken and taken[-2:] == [("new", taken[-1][1], 5600), ("free", taken[-1][1])]


def test_places_are_those_of_buffers():
    rng, buffers, places, arrays = np.random.default_rng(3), kernels.Buffers(), Places(), {}
    with buffers:
        for k in range(300):
            if len(arrays) > 12 or (arrays and rng.random() < 0.4):
                key = list(arrays)[rng.integers(len(arrays))]
                del arrays[key]
                places.free(key)
            else:
                n = int(rng.integers(1 << 12, 1 << 20))
                arrays[k] = np.empty(n, np.uint8)
                places.new(k, n)
            assert buffers.n_bytes == places.top
    assert places.top > 1 << 20 and places.peak_small > 0


EVEN = "sbm:nodes=90,degree=5,features=9,classes=2,train=6,val=5"  # batches of 6 are alike: the same order of products is cheaper in each


def few_labelled(path, nodes=120):
    """A data set of which message-flow graphs are a part, in scoring too."""
    dataset = load(f"sbm:nodes={nodes},degree=3,features=9")
    dataset.train, dataset.val, dataset.test = (np.arange(nodes) % 40 == k for k in (1, 3, 5))
    format.write(path, dataset)
    return str(path)


def weighted(path, n=90, n_pairs=400):
    """The spec of a symmetric archive whose edges have weights."""
    keys = np.unique(np.random.default_rng(0).integers(0, n * n, n_pairs))
    ends = np.concatenate([keys // n, keys % n]), np.concatenate([keys % n, keys // n])
    dst, src = np.divmod(np.unique(ends[0] * n + ends[1]), n)
    np.savez(path, adj_indptr=np.searchsorted(dst, np.arange(n + 1)), adj_indices=src, adj_shape=np.array([n, n]),
             adj_data=1.0 + (dst + src) % 3, labels=np.arange(n) % 3, attr_matrix=np.ones((n, 9)))
    return f"npz:{path},train=6,val=6"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "appnp"])
def test_bytes_of_a_weighted_graph_are_those_of_the_run(name, n_ranks, tmp_path, monkeypatch):
    flags = {**MODELS[name], "data": weighted(tmp_path / "a.npz"), "edge_weights": True}
    check_bytes(tmp_path, monkeypatch, n_ranks, "broadcast", prefetch=0, epochs=3, **flags)  # whose gradients of weighted sums are pushed


def test_a_relations_weight_is_evaluated_in_tiny_runs_as_in_the_run(tmp_path):
    def both(comm):
        config = resolve({**QUIET, "prefetch": 0, **RELATIONAL["rgcn"], "ranks": comm.size})
        model, _, part = counted(comm, config, tmp_path)
        tiny, trainer = [], model.make(comm, config, part)

        def make(comm, config, part):
            tiny.append(part.graph.graph)
            return model.make(comm, config, part)

        if comm.rank == 0:
            relational_trial.bundles(config, make, model.facts)
        trainer.evaluate()
        return part.graph.graph.evaluations, [graph.evaluations for graph in tiny]

    real, (told,) = threads.run(3, both)[0]
    assert real == told and {found.name for found in real} == {"inside", "first"}


def test_a_visit_is_replayed_with_its_own_columns_and_edges():
    counts = PartCounts(0, np.array([0, 10, 110]), [SetCounts(10, [20, 300], [10, 10])], [(0, True), (100, True)], [(0, True), (5, False)])
    mark = Aggregation("run", (((1,), np.float32),), None, "forward_fetch", None, 0, None, "edges", "rows", ("edges",))
    for line, size, free in (([0, 1e6, 0], 100e6, [("free", 1)]), ([0, 1e6, 0], 110e6, []), ([0, 0, 1e6], 300e6, [("free", 1)]),
                             ([0, 0, 1e6], 320e6, [])):
        body = [("new", 1, np.array(line)), *free]
        step = Segment("step", [("aggregate", mark, body)], np.zeros((2, 3)), {}, 0)
        found = Program(["rows", "edges"], [step]).replay(counts, "sar", 0, {"rows": 10, "edges": 320})
        assert size <= found.in_use_bytes < size + 1000


def test_rows_that_are_expected_follow_each_other_only_where_all_are_needed():
    for halo, whole in ((None, False), (0.5, False), (1.0, True)):
        steps = schedule_of(expected(400, 1200, 4, halo=halo), "sar", 0).plan.steps
        assert [(step.contiguous, isinstance(step.send_rows, slice)) for step in steps] == [(whole, whole)] * 3


def plan_facts(plan):
    def facts(step):
        return (step.source, step.target, step.n_rows, step.n_send, step.contiguous, isinstance(step.send_rows, slice), step.share,
                step.block and step.block.n_src)

    if plan.host is None:
        stages = [(stage.root, stage.block is None, stage.n_rows, len(range(*stage.needed.indices(stage.n_rows)))
                   if isinstance(stage.needed, slice) else len(stage.needed)) for stage in plan.stages]
    else:
        stages = [(*facts(step), step.filler) for step in (*plan.stages, *plan.backward_stages)]
    return plan.n_src, plan.local.n_src, [facts(step) for step in plan.steps], [facts(step) for step in plan.backward_steps], stages


def test_a_plan_of_counts_is_laid_out_as_the_graphs(tmp_path):
    def both(comm):
        found = []
        sparse, dense = "rmat:nodes=17000,edges=30000,features=1", "sbm:nodes=40,degree=30,features=1"
        for mode, partition, spec in (("sar", "random", sparse), ("oneshot", "contiguous", dense), ("broadcast", "random", sparse)):
            config = resolve({**QUIET, "data": spec, "mode": mode, "prefetch": 1,
                              "partition": partition, "ranks": comm.size})
            graph = load_part(config, comm, tmp_path, False).graph
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


def test_an_estimate_of_a_data_set_is_a_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("sar")])
    monkeypatch.setattr(estimate, "MODES", {"sar": MODES["sar"]})
    flags = ["--data", "sbm:nodes=90,degree=5,features=9", "--model", "gcn", "--partition", "random", "--prefetch", "0"]
    real = threads.run(3, trained, tmp_path / "real", data=flags[1], model="gcn", prefetch=0, epochs=1)[0]["sent_bytes"]
    assert estimate.main([*flags, "--ranks", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["exact"] and {k: n for k, n in row["sent_bytes"].items() if k in ("forward_fetch", "backward_push")} == \
        {k: n for k, n in real.items() if k in ("forward_fetch", "backward_push")}


def test_an_estimate_of_relational_data_is_a_runs(tmp_path, capsys):
    options = {**RELATIONAL["rgcn"], "prefetch": 0}
    said = {row["setting"]: row for row in threads.run(3, trained, tmp_path, dry_run=True, epochs=2, **options)[0]["settings"]}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert estimate.main([*flags, "--partition", "random", "--ranks", "3", "--json"]) == 0
    rows = {row["mode"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])}
    assert rows.keys() == {"sar", "sa", "oneshot", "broadcast"} == said.keys() - {"host"}
    for mode, row in rows.items():
        sent = {phase: n for phase, n in said[mode]["sent_bytes"].items() if phase != "evaluation"}
        assert row["exact"] and {phase: n for phase, n in row["sent_bytes"].items() if n} == {phase: n for phase, n in sent.items() if n}
    assert estimate.main([*flags, "--ranks", "17"]) == 2 and "on at most 16 ranks" in capsys.readouterr().err


def test_an_estimate_counts_values_on_edges(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(estimate, "MODES", {"sar": MODES["sar"]})
    monkeypatch.setattr(costs.Model, "fixed_bytes", property(lambda self: 0, lambda self, n: None), raising=False)  # which is measured
    peaks, data = [], weighted(tmp_path / "a.npz")
    for flag in ("--edge-weights", "--no-edge-weights"):
        assert estimate.main(["--data", data, "--model", "sgc", flag, "--ranks", "20", "--json"]) == 0  # expected of the data's degrees
        peaks.append(json.loads(capsys.readouterr().out.splitlines()[-1])[0]["peak_bytes"])
    assert peaks[0] - peaks[1] >= 4 * 700 // 20  # a weight, of some 790 edges
    assert estimate.main("--nodes 90 --edges 400 --features 9 --classes 3 --model gcn --edge-weights".split()) == 2
    assert "--edge-weights and --edge-features go with --data" in capsys.readouterr().err


@pytest.fixture
def limited(monkeypatch):
    """Memory as it is predicted, without what the test's process has; returns what each mode needs."""
    from sarlite.profile import Memory

    for name in ("now", "peak"):
        monkeypatch.setattr(Memory, name, lambda self: 0)
    monkeypatch.setattr(planning, "limit_of", lambda comm, config, part: planning.Limit(
        LIMIT[0], True, ["here"] * comm.size, [0] * comm.size))
    monkeypatch.setattr(costs.Model, "fixed_bytes", property(lambda self: 0, lambda self, n: None), raising=False)
    programs = {}
    monkeypatch.setattr(costs, "program", lambda *args: programs.setdefault(args[3], None) or programs.update(
        {args[3]: program(*args)}) or programs[args[3]])  # a mode's is recorded once


LIMIT = [float("inf")]
DENSE = dict(data="sbm:nodes=1200,degree=30,features=16", model="gat", layers=2, hidden=64, heads=4, epochs=1, prefetch=0)


@pytest.mark.parametrize("mfg", [False, True])
def test_what_does_not_fit_is_refused_on_every_rank_and_auto_takes_what_fits(mfg, tmp_path, limited, monkeypatch, capsys):
    dense = {**DENSE, "mfg": mfg}
    monkeypatch.setattr(planning, "SETTINGS", [Setting("oneshot"), Setting("sar")])
    LIMIT[0] = float("inf")
    rows = threads.run(2, trained, tmp_path / "dry", dry_run=True, **dense)[0]["settings"]
    large, small = (max(row["peak_bytes"]) for row in rows)
    assert small < 0.85 * large and all(row["fits"] for row in rows)
    monkeypatch.setattr(planning, "rates_of", lambda comm: (1.0, 1.0, 1.0, 0.0))  # oneshot, which fetches once, is the cheaper
    LIMIT[0] = (small + large) / 2

    def refused(comm, name, mode):
        with pytest.raises(ConfigError) as told:
            trained(comm, tmp_path / name, mode=mode, **dense)
        return str(told.value)

    texts = threads.run(2, refused, "large", "oneshot")
    assert texts[0] == texts[1]
    assert "mode oneshot would take" in texts[0] and "--memory-limit" in texts[0] and "--mode sar takes" in texts[0]
    capsys.readouterr()
    threads.run(2, trained, tmp_path / "auto", mode="auto", **dense)
    out = capsys.readouterr()
    assert "--mode auto takes sar\n" in out.err and "oneshot  no" in out.err and "2, mode sar," in out.out
    LIMIT[0] = small / 2
    texts = threads.run(2, refused, "none", "auto")
    assert texts[0] == texts[1] and "no mode fits" in texts[0], texts
    LIMIT[0] = float("inf")
    threads.run(2, trained, tmp_path / "free", mode="auto", **dense)
    assert "--mode auto takes oneshot\n" in capsys.readouterr().err


def test_minibatches_are_refused_or_take_the_mode_that_fits(tmp_path, limited, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("oneshot"), Setting("sar")])
    monkeypatch.setattr(planning, "rates_of", lambda comm: (1.0, 1.0, 1.0, 0.0))
    batches = {**DENSE, "batch_size": 60, "fanouts": (10, 10)}
    LIMIT[0] = float("inf")
    rows = threads.run(2, trained, tmp_path / "dry", dry_run=True, **batches)[0]["settings"]
    large, small = (max(row["peak_bytes"]) for row in rows)
    LIMIT[0] = (small + large) / 2
    with pytest.raises(ConfigError, match="mode oneshot would take .* --mode sar takes .* and fits"):
        threads.run(2, trained, tmp_path / "large", mode="oneshot", **batches)
    threads.run(2, trained, tmp_path / "auto", mode="auto", **batches)
    assert "--mode auto takes sar\n" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--dry-run: the costs of --remote hec are not counted"):
        threads.run(2, trained, tmp_path / "hec", dry_run=True, remote="hec", **batches)


def test_a_check_counts_other_edges_only_where_they_are_exchanged(tmp_path, limited, monkeypatch):
    found = []
    monkeypatch.setattr(other_counts, "cover", lambda *args: found.append(args) or cover(*args))
    LIMIT[0] = 1e12
    for mode, backward in (("sar", None), ("oneshot", None), ("sar", "fetch"), ("cover", None)):
        threads.run(2, trained, tmp_path / f"{mode} {backward}", mode=mode, backward=backward, memory_limit=1e12, **DENSE)
        assert bool(found) == (backward == "fetch" or mode == "cover")
        found.clear()


@pytest.mark.parametrize("hosts, taken", [((0, 0, 1), "host"), ((0, 0, 0), "sar"), ((0, 1, 2), "sar")])
def test_auto_takes_mode_host_for_several_hosts_of_several_ranks(hosts, taken, tmp_path, limited, monkeypatch, capsys):
    monkeypatch.setattr(planning, "SETTINGS", [Setting("host"), Setting("sar")])
    monkeypatch.setattr(planning, "rates_of", lambda comm: (0.0, 1.0, 0.0, 0.0))
    LIMIT[0] = float("inf")
    on_hosts(hosts, trained, tmp_path / "auto", mode="auto", **DENSE)
    assert f"--mode auto takes {taken}\n" in capsys.readouterr().err


def test_a_relational_run_is_refused_or_takes_the_mode_that_fits(tmp_path, limited, monkeypatch, capsys):
    monkeypatch.setattr(planning, "rates_of", lambda comm: (1.0, 1.0, 1.0, 0.0))
    dense = {**RELATIONAL["rgat"], "data": "relational:nodes=900,edges=9000,features=16,train=0.3", "hidden": 32, "epochs": 1,
             "prefetch": 0}
    LIMIT[0] = float("inf")
    rows = {row["setting"]: max(row["peak_bytes"])
            for row in threads.run(2, trained, tmp_path / "dry", dry_run=True, **dense)[0]["settings"]}
    assert list(rows) == ["sar", "sa", "oneshot", "broadcast", "host"] and rows["sar"] + 100_000 < rows["oneshot"]
    threads.run(2, trained, tmp_path / "free", mode="auto", **dense)
    found = capsys.readouterr()
    chosen = found.err.rsplit("--mode auto takes ", 1)[1].strip()
    assert chosen != "sar" and f"2, mode {chosen}," in found.out
    LIMIT[0] = (rows["sar"] + rows["oneshot"]) / 2
    with pytest.raises(ConfigError, match="mode oneshot would take .* --mode .* takes .* and fits"):
        threads.run(2, trained, tmp_path / "large", mode="oneshot", **dense)


def test_papers100m():
    """Figures of full-batch GCN 128-256-256-172 on ogbn-papers100M, in GB received a rank and step."""
    nodes, edges, sizes = 111_059_956, 2 * 1_615_685_872, {"sar": (16, 64, 256, 1024), "broadcast": (16, 1024)}
    config = resolve({"model": "gcn", "layers": 3, "hidden": 256, "dropout": 0.0, "threads": 1})
    cls = model_class("gcn")

    def make(comm, config, part):
        return run._make_trainer(comm, config, cls, optim.schedule("constant", 1), part, None)

    received = {}
    for mode in ("sar", "broadcast"):
        model = costs.Model(config, make, Facts(128, 172), Solo(), 16)
        model.cost(Setting(mode), costs.Sizes(expected(1600, 3200, 16), dict.fromkeys(("rows", "edges", "train", "val", "test"), 10), 0), 0)
        (program,) = model._programs.values()
        steps = Program(program.names, [segment for segment in program.segments if segment.name == "step"])
        rows = {"rows": 1, "edges": 1, "train": 1, "val": 1, "test": 1}
        found = [steps.replay(expected(nodes, edges, size), mode, 0, rows) for size in sizes[mode]]
        received[mode] = [sum(each.received["step"].values()) / 1e9 for each in found]
    assert np.round(received["broadcast"]).tolist() == [357, 380]
    assert np.round(received["sar"]).tolist() == [302, 138, 41, 11]
