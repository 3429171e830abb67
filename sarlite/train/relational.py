"""Training on relational graphs: this rank's data and graph, which options go with them, and what a run tells of relations."""

import sys
import time

import numpy as np

from sarlite.comm import together
from sarlite.comm.working import working
from sarlite.data.divide import stored_order
from sarlite.data.part import Part as DataPart
from sarlite.data.ranks import divided
from sarlite.data.spec import is_relational
from sarlite.errors import ConfigError, raise_together
from sarlite.graph import balance as balancing
from sarlite.graph.partition import measures
from sarlite.keys import word
from sarlite.progress import Progress
from sarlite.sar import fn
from sarlite.sar.hetero import HeteroGraph
from sarlite.tape import Tensor, no_grad
from sarlite.train.identity import _codes, _mixed, _multiples, _words
from sarlite.train.load import Part, memory_from_here

REFUSED = ("batch_size", "mfg", "label_inputs", "correct_and_smooth", "propagated", "self_loops", "normalize_features", "backward",
           "edge_weights", "edge_features")
"""Options of graphs of one kind alone."""


def chosen(comm, config, cls):
    """Tell whether data and model are relational. Collective.

    Raises
    ------
    SarliteError
        On every rank: one of them is relational and the other is not, or an option is given that does not go with relational graphs.
    """
    relational = comm.bcast(together(comm, lambda: comm.rank == 0 and is_relational(config.data)))
    if relational and not getattr(cls, "relational", False):
        raise ConfigError(f"--model {config.model}: takes graphs of one kind, but --data {config.data} is relational: "
                          f"--model rgcn or rgat takes it")
    if not relational and getattr(cls, "relational", False):
        raise ConfigError(f"--model {config.model}: takes relational graphs, but --data {config.data} is of one kind")
    if relational:
        for name in REFUSED:
            if getattr(config, name):
                raise ConfigError(f"--{name.replace('_', '-')}: does not go with relational graphs, as --data {config.data} is")
        if config.columns > 1:
            raise ConfigError(f"--columns {config.columns}: does not go with relational graphs")
        if config.halo != "fetch":
            raise ConfigError(f"--halo {config.halo}: does not go with relational graphs")
        if config.weight_decay_on != "all":
            raise ConfigError(f"--weight-decay-on {config.weight_decay_on}: does not go with relational graphs: all decays all")
    return relational


def load_part(config, comm, run_dir, tick=lambda: None, allow_empty=(), choose=None):
    """Read this rank's rows and build its graph, as `load.load_part`; what is to be exchanged is found at its first use. Collective.

    Returns
    -------
    load.Part
        Its graph is the `NodeType` that has labels, its rows' features are by type.
    """
    with working(tick):
        return _load_part(config, comm, run_dir, allow_empty, choose)


def _load_part(config, comm, run_dir, allow_empty, choose):
    begin, seconds = time.perf_counter(), {"partition": 0.0}
    options = {"partition": config.partition, "order": config.order, "balance": config.balance, "seed": config.seed, "task": config.task,
               "verify": config.verify, "progress": Progress(config.progress), "allow_empty": allow_empty}
    with divided(comm, config.data, relational=True, scratch=run_dir, seconds=seconds, **options) as dataset:
        _refuse_edge_values(comm, dataset)
        memory, part = memory_from_here(comm), DataPart(dataset, comm.rank, comm.size)
        rows = part.typed_rows(config.dtype, features=not getattr(config, "dry_run", False))
        edges = {relation: own.csr() for relation, own in part.relations.items()}
        ids = {name: own.ids() for name, own in part.nodes.items()}
        summary = _summary(comm, config, dataset, part, edges, rows)
    uneven = balancing.warning(summary["partition"])
    if uneven and comm.rank == 0:
        print(f"warning: {uneven}", file=sys.stderr, flush=True)
    n_classes, task, target = dataset.n_classes, dataset.task, dataset.target
    del dataset, part  # which one rank has in memory
    graph = HeteroGraph.from_part(comm, edges, ids, mode=config.mode if choose is None else "sar", prefetch=config.prefetch)
    seconds["load"] = time.perf_counter() - begin
    made = Part(graph.of(target), rows, n_classes, summary, memory, seconds, task)
    if choose is not None:
        graph.use(**choose(made))
    return made


def _refuse_edge_values(comm, dataset):
    """Raise on every rank where edges carry values, which no relational model of the command uses."""
    for edges in dataset.edges.values():
        for name in ("edge_weight", "edge_features"):
            if getattr(edges, name) is not None:
                raise_together(comm, ConfigError(f"{edges.where(name)}: relational models do not use edge values; "
                                                 f"--data {dataset.source},drop_edge_values trains without"))


def _summary(comm, config, dataset, part, edges, rows):
    return {"data": config.data, "nodes": dataset.n_nodes, "edges": dataset.n_edges,
            "features": told_widths(rows.features) or "no", "classes": dataset.n_classes, "task": dataset.task,
            "ordered": stored_order(dataset) != "none", "method": (dataset.division or {"partition": "none"})["partition"],
            "partition": _measures(comm, part, edges, rows.train)}


def _measures(comm, part, edges, train):
    """What the division costs, from every rank's own edges. Collective."""
    own = [sum(own.n_rows for own in part.nodes.values()), sum(indices.size for _, indices in edges.values()), int(np.count_nonzero(train)),
           sum(part.n_cut(relation, indices) for relation, (_, indices) in edges.items())]
    ranks = np.array(comm.allgather(own))
    names = ("nodes", "edges", "train_nodes")
    return measures(cut_edges=ranks[:, 3].sum(), **{name: ranks[:, at] for at, name in enumerate(names)})


def widths(rows):
    """The numbers of features by type, which a relational model takes as `n_in`."""
    return {name: x.shape[1] for name, x in rows.features.items()}


def told_widths(features):
    """Say the numbers of features by type, as one text."""
    return ", ".join(f"{name} {x.shape[1]}" for name, x in features.items())


def identity(nodes, rows, n_classes):
    """Return the sizes of a relational data set and a digest of its values, as `identity.identity`. Collective.

    Types and relations are told in their order, which is that of the models' parameters. Each type's nodes have the sums, over their
    in-edges of each relation, of codes of the sources that are the relation's own. It costs one aggregation 4 wide for each relation;
    memory: 64 bytes a node and relation out of its type. What it needs to know of exchanges is forgotten again.
    """
    graph = nodes.graph
    hashes = {name: _mixed(ids.astype(np.uint64) + np.uint64(word(name))) for name, ids in graph.node_ids.items()}
    sums = {name: np.zeros(len(ids), np.uint64) for name, ids in graph.node_ids.items()}
    for source in graph.node_types:
        own = {".".join(relation): relation for relation in graph.relations if relation[0] == source}
        with graph.profile.phase("setup"), no_grad():
            messages = {relation: fn.copy_src(Tensor(_codes(hashes[source] ^ np.uint64(word(name))))) for name, relation in own.items()}
            for name, found in graph.aggregate(messages, "sum").items():
                sums[name] += _multiples(found.data)
    graph.forget()
    values = {name: _mixed(hashes[name] + sums[name]) for name in graph.node_types}
    for name, x in rows.features.items():
        values[name] = _mixed(values[name] + _multiples(x))
    values[nodes.node_type] = _mixed(values[nodes.node_type] + _multiples(_targets(rows)))
    every = np.concatenate([*values.values()])
    own = [int(_mixed(every + np.uint64(half)).sum(dtype=np.uint64)) for half in (0, 1)]
    return {"nodes": ", ".join(f"{name} {n}" for name, n in graph.n_nodes.items()),
            "edges": ", ".join(f"{'.'.join(relation)} {n}" for relation, n in graph.n_edges.items()),
            "features": told_widths(rows.features), "classes": int(n_classes),
            "digest": "".join(f"{sum(halves) % 2**64:016x}" for halves in zip(*graph.comm.allgather(own)))}


def _targets(rows):
    """Labels and splits as (n, k) of whole 32-bit words."""
    labels, splits = np.asarray(rows.labels), np.column_stack([rows.train, rows.val, rows.test]).astype(np.int32)
    return np.concatenate([_words(labels).view(np.int32), splits], 1)


def counted(graph):
    """Return what a run tells of the relations' weights: which way each was evaluated, and what either costs."""
    return {"relations": [found._asdict() for found in graph.evaluations]}
