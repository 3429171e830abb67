"""Tiny relational graphs for `trial.program`, and the relations whose rows one fetch brings."""

import argparse
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from sarlite.comm import Solo
from sarlite.data.part import Rows
from sarlite.graph.part import InEdges
from sarlite.profile import Counted, Profile
from sarlite.sar.cost import Mirror
from sarlite.sar.hetero import HeteroGraph, Relation
from sarlite.sar.listening import Listening
from sarlite.sar.modes import MODES
from sarlite.sar.program import Tape
from sarlite.sar.schedule import Options
from sarlite.train.facts import Facts, Relations
from sarlite.train.load import Part

_SPLITS = {"train": 8, "val": 6, "test": 5}
_ROWS, _EDGES = 40, 90


def rows_of(node_type: str) -> str:
    """Return the name of the size that a type's rows are."""
    return f"rows {node_type}"


def edges_of(relation: Relation) -> str:
    """Return the name of the size that a relation's edges are."""
    return f"edges {' '.join(relation)}"


def sizes_of(graph: HeteroGraph) -> dict[str, int]:
    """Return this rank's rows by type and edges by relation, by their names."""
    rows = {rows_of(name): len(ids) for name, ids in graph.node_ids.items()}
    return {**rows, **{edges_of(relation): len(ids) for relation, ids in graph.edge_ids.items()}}


def sizes(relations: Relations) -> list[dict[str, int]]:
    """Return the sizes of tiny graphs: one, then each size grown alone, and a check."""
    first = {**{rows_of(name): _ROWS for name in relations.n_nodes}, **{edges_of(r): _EDGES for r in relations.n_edges}, **_SPLITS}
    return [first, *({**first, name: n + 3 + n // 8} for name, n in first.items()), {name: n + 2 + n // 5 for name, n in first.items()}]


def bundles(config: argparse.Namespace, make: Callable[..., Any], facts: Facts) -> list[tuple[Relation, ...]]:
    """Return the relations that each fetch of the model serves, in the order of its first aggregations over them."""
    assert facts.relations is not None
    tape = Tape(Profile())
    found = part(tape, tape.profile, facts, config, MODES["sar"], Mirror(0, 1), **sizes(facts.relations)[0])
    make(found.graph.comm, config, found).evaluate()
    graph: Any = found.graph
    return list(graph.graph.exchanges)


def part(tape: Tape, profile: Profile, facts: Facts, config: argparse.Namespace, mode: Any, comm: Any, train: int, val: int, test: int,
         **at: int) -> Part:
    """Return a tiny part, of which every peer has the like, with the counts of the real graph where an evaluation is chosen."""
    relations = facts.relations
    assert relations is not None
    graph = _Tiny(comm, tape, profile, relations, mode, at)
    x = {name: np.ones((at[rows_of(name)], n), config.dtype) for name, n in facts.n_features.items()}
    rows = Rows(x, *facts.targets(at[rows_of(relations.target)], train, val, test))
    nodes: Any = graph.of(relations.target)
    return Part(nodes, rows, facts.n_classes, {}, None, {}, facts.task)  # type: ignore[arg-type]


class _Tiny(HeteroGraph):
    def __init__(self, comm, tape, profile, relations, mode, at):
        self._told, self._listening = relations, (mode, tape.recorder, comm.size)
        edges = {relation: _edges(at[rows_of(relation[2])], at[edges_of(relation)]) for relation in relations.n_edges}
        ids = {name: np.arange(at[rows_of(name)]) for name in relations.n_nodes}
        super().__init__(Solo(), edges, ids, {relation: np.arange(len(found.indices)) for relation, found in edges.items()}, Options())
        self.profile, self.comm = profile, Counted(comm, profile)
        self.n_nodes, self.n_edges = relations.n_nodes, relations.n_edges

    def _schedule(self, chosen):
        key = tuple(chosen)
        if key not in self._schedules:
            made, _ = super()._schedule(chosen)
            listening = Listening(*self._listening, key, rows_of(key[0][0]), tuple(map(edges_of, key)))
            made = made._replace(transport=SimpleNamespace(profile=self.profile), mode=listening)
            self._schedules[key] = made, self._told.n_halo.get(key, 0)
        return self._schedules[key]


def _edges(n_rows, n_edges):
    ends = np.arange(n_rows + 1) * n_edges // n_rows
    return InEdges(ends, 5 * (np.arange(n_edges) - np.repeat(ends[:-1], np.diff(ends))))
