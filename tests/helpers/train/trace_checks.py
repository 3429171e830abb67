"""Checks of a training's timeline, for ranks as threads and for ranks of MPI."""

import json
from collections import defaultdict

import numpy as np

from sarlite import Graph, Trainer, nn, optim
from sarlite.train import trace
from sarlite.train.epochs import fit
from tests.helpers.graph.references import CASES, EDGES, FEATURES, LABELS, TRAIN

CASE1 = {"gcn", "sage"}


def train(comm, case, epochs=2, **options):
    """Train the small model CASES[case] while its profile records a trace; return (graph, trace). Collective."""
    graph = Graph.from_edges(*EDGES).shard(comm, "random", **options)
    rng, ids = nn.Random(3), graph.node_ids
    model = CASES[case](rng, np.float64)
    trainer = Trainer(graph, model, FEATURES[ids], LABELS[ids], np.flatnonzero(TRAIN[ids]), np.flatnonzero(~TRAIN[ids]),
                      optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)
    graph.profile.reset()
    with trace.recording(comm, graph.profile) as recorded:
        fit(trainer, epochs)
    return graph, recorded


def read(path):
    """Return ({(rank, thread): events by their beginning}, {rank or thread: name}) from the trace file `path`.

    Times are in nanoseconds again, so that comparisons are exact.
    """
    document = json.loads(path.read_text())
    events, names = defaultdict(list), {}
    for event in document["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "args"} <= event.keys() and event["ph"] in "XM"
        if event["ph"] == "X":
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            assert begin >= 0 and length >= 0
            assert event["pid"] and event["tid"]  # Perfetto treats process 0 as idle
            events[event["pid"] - 1, event["tid"]].append({**event, "begin": begin, "end": begin + length})
        elif event["name"] in ("process_name", "thread_name"):
            names[(event["pid"] - 1, event["tid"])[: 1 + event["name"].startswith("thread")]] = event["args"]["name"]
    for track in events.values():
        assert [event["begin"] for event in track] == sorted(event["begin"] for event in track)
    return {(rank, names[rank, tid]): track for (rank, tid), track in events.items()}, names


def assert_nested(track):
    """Check that the events of a track are nested: each ends before the event around it ends."""
    enclosing = []
    for event in track:
        while enclosing and enclosing[-1]["end"] <= event["begin"]:
            enclosing.pop()
        assert not enclosing or event["end"] <= enclosing[-1]["end"], (enclosing[-1], event)
        enclosing.append(event)


def assert_apart(track):
    for one, other in zip(track, track[1:]):
        assert one["end"] <= other["begin"], (one, other)


def of_track(events, rank, track):
    """Return all events of a rank's `track`, such as "fetch", and of its additional lanes, in the order of their beginnings."""
    events_of_track = [event for (whose, name), lane in events.items() if whose == rank and name.split()[0] == track for event in lane]
    return sorted(events_of_track, key=lambda event: event["begin"])


def check(comm, case, path, **options):
    """Check the timelines of a training of CASES[case] on all ranks, written to `path`, against schedules and counters. Collective."""
    epochs = 2
    graph, recorded = train(comm, case, epochs, **options)
    trace.write(comm, path, recorded)
    profile = graph.profile
    facts = comm.allgather((graph.n_edges, dict(profile.received_bytes), profile.sent_bytes["backward_push"]))
    events, names = read(path)
    assert {rank: names[rank,] for rank, _ in events} == {rank: f"rank {rank}" for rank in range(comm.size)}
    for (_, name), track in events.items():
        (assert_nested if name == "compute" else assert_apart)(track)
    for rank, counted in enumerate(facts):
        check_rank(events, rank, comm.size, case, graph.schedule, epochs, *counted)


def check_rank(events, rank, size, case, schedule, epochs, n_edges, received, pushed):
    compute, fetches, pushes = (of_track(events, rank, track) for track in ("compute", "fetch", "push"))
    assert [event["name"] for event in compute if event["name"].startswith("epoch")] == [f"epoch {k + 1}" for k in range(epochs)]
    count = lambda name: sum(event["name"] == name for event in compute)  # noqa: E731
    assert count("optimizer") == count("evaluation") == epochs and count("allreduce") >= 3 * epochs
    passes = {"forward": [], "backward": []}
    for event in compute:
        if event["name"].startswith("aggregate ("):
            passes["backward" if event["name"].endswith(") backward") else "forward"].append(event)
    assert len(passes["forward"]) > len(passes["backward"]) >= epochs  # evaluations run forward alone
    again = schedule.mode.name == "sar" and case not in CASE1
    ring = [(rank + s) % size for s in range(1, size)]  # the peers in the order of the plan's steps
    for phase, n in (("forward", len(passes["forward"])), ("backward", again * len(passes["backward"]))):
        assert [event["args"]["peer"] for event in fetches if event["args"]["phase"] == phase] == n * ring
    assert [event["args"]["peer"] for event in pushes] == len(passes["backward"]) * ring
    everything = sum(event["args"]["bytes"] for event in fetches)
    assert everything == sum(received.get(name, 0) for name in ("forward_fetch", "backward_fetch", "evaluation"))
    assert sum(e["args"]["bytes"] for e in fetches if e["args"]["phase"] == "backward") == received.get("backward_fetch", 0)
    assert sum(event["args"]["bytes"] for event in pushes) == pushed
    at_once = schedule.mode.name == "oneshot" and size > 1  # one block for all peers, named by the first of them
    sources = sorted([rank, ring[0]]) if at_once else list(range(size))
    halved = again and schedule.transport.prefetch and size > 1
    check_blocks(compute, passes, {"forward": sources, "backward": sorted([*sources, rank]) if halved else sources}, n_edges)


def check_blocks(compute_events, aggregations_by_phase, sources_by_phase, n_edges):
    """Check that each aggregation's events are one for each source rank of its phase, and have `n_edges` edges together."""
    n_blocks = 0
    for phase, aggregations in aggregations_by_phase.items():
        for outer in aggregations:
            blocks = [event["args"] for event in compute_events
                      if event["name"] == "block" and outer["begin"] <= event["begin"] and event["end"] <= outer["end"]]
            assert sorted(block["source"] for block in blocks) == sources_by_phase[phase]
            assert sum(block["edges"] for block in blocks) == n_edges and {block["phase"] for block in blocks} == {phase}
            n_blocks += len(blocks)
    assert n_blocks == sum(event["name"] == "block" for event in compute_events)
