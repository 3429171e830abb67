"""From the options to this rank's data, graph and model."""

import gc
import importlib.util
import inspect
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sarlite.data import format as native
from sarlite.data import load
from sarlite.data.shard import local_edges, local_rows
from sarlite.errors import ConfigError, SarliteError, raise_together
from sarlite.graph import order as orders
from sarlite.graph import partition
from sarlite.graph.edges import add_self_loops
from sarlite.profile import Memory
from sarlite.sar.graph import Graph
from sarlite.train.config import MODEL_OPTIONS


class Part(NamedTuple):
    """One rank's share of the data."""

    graph: Graph
    rows: object
    n_classes: int
    summary: dict
    memory: Memory


def load_part(config, comm, run_dir, self_loops):
    """Read this rank's rows and build its graph. Collective.

    Only rank 0 holds a whole edge list, while it reads, generates or partitions; ranks map the files and read their rows.

    Raises
    ------
    SarliteError
        On every rank together, naming the file, the field and the value.
    """
    dataset, folder = _open(config, comm, run_dir)
    try:
        parts, order, report = _parts(config, comm, dataset)
        gc.collect()
        memory = Memory()
        node_ids = np.flatnonzero(parts == comm.rank) if order is None else order[parts[order] == comm.rank]
        rows = local_rows(dataset, node_ids, config.dtype)
        indptr, indices = local_edges(dataset, node_ids)
    finally:
        comm.barrier()
        if folder is not None and comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    if self_loops:
        indptr, indices = add_self_loops(indptr, indices, node_ids)
    graph = Graph.from_part(comm, node_ids, indptr, indices, parts, mode=config.mode, prefetch=config.prefetch)
    summary = {"data": config.data, "nodes": dataset.n_nodes, "edges": dataset.n_edges, "features": dataset.n_features,
               "classes": dataset.n_classes, "partition": report, "ordered": order is not None}
    return Part(graph, rows, dataset.n_classes, summary, memory)


def _open(config, comm, run_dir):
    """Map the data on every rank; return them and the folder to remove, where rank 0 had to convert them first."""
    options = {"normalize": True} if config.normalize_features else {}
    if comm.size == 1 or (Path(config.data).is_dir() and not options):
        first = comm.rank == 0  # which verifies for all
        dataset = _together(comm, lambda: load(config.data, verify=config.verify and first, check=first, **options))
        return dataset, None
    folder = run_dir / "data"

    def convert():
        if comm.rank == 0:
            native.write(folder, load(config.data, verify=config.verify, **options), overwrite=True)

    _together(comm, convert)
    return _together(comm, lambda: native.open(folder)), folder


def _parts(config, comm, dataset):
    """From rank 0: the part of every node, their order or None where ids ascend, and what the partition costs."""

    def compute():
        if comm.rank:
            return None
        parts, train = _stored_parts(config, comm.size), np.asarray(dataset.train)
        if parts is None and config.partition in partition.METHODS:
            parts = partition.partition(dataset.indptr, dataset.indices, comm.size, config.partition, train_mask=train, seed=config.seed)
        elif parts is None:
            parts = partition.read_parts(config.partition, dataset.n_nodes, comm.size)
        return np.asarray(parts), _order(config, dataset), partition.report(dataset.indptr, dataset.indices, parts, comm.size, train)

    return comm.bcast(_together(comm, compute))


def _stored_parts(config, size):
    """The partition that `python -m sarlite.data partition` left in a native directory, where the method is the same."""
    if not Path(config.data).is_dir():
        return None
    record = native.read_meta(config.data)["parts"].get(str(size))
    return native.open_parts(config.data, size) if record and record["method"] == config.partition else None


def _order(config, dataset):
    """The order asked for, from the native directory where it holds that one; None: ids ascend."""
    record = native.read_meta(config.data).get("order") if Path(config.data).is_dir() else None
    if record and config.order in ("stored", record["method"]):
        return np.asarray(native.open_order(config.data))
    return orders.order(dataset.indptr, dataset.indices, config.order, seed=config.seed) if config.order in orders.METHODS else None


def _together(comm, action):
    """Run `action` on every rank; raise on every rank where it failed on one."""
    result = error = None
    try:
        result = action()
    except SarliteError as found:
        error = found
    raise_together(comm, error)
    return result


def model_class(spec):
    """Return a model's class: by name, or by path/to/file.py:Class.

    Raises
    ------
    ConfigError
        No such model, file or class.
    """
    from sarlite.models import MODELS

    if spec in MODELS:
        return MODELS[spec]
    path, colon, name = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ConfigError(f"--model {spec!r} is not one of {', '.join(MODELS)}, nor path/to/file.py:Class")
    if not Path(path).is_file():
        raise ConfigError(f"--model {spec}: no file {path}")
    found = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(found.name, module)
    found.loader.exec_module(module)
    if not hasattr(module, name):
        raise ConfigError(f"--model {spec}: {path} has no class {name}")
    return getattr(module, name)


def make_model(cls, config, n_in, n_out, rng):
    """Return cls(n_in, n_out, rng=..., dtype=..., and the given options that it takes).

    Raises
    ------
    ConfigError
        An option was given that the model does not take.
    """
    taken = inspect.signature(cls).parameters
    options = {name: getattr(config, name) for name in MODEL_OPTIONS if getattr(config, name) is not None}
    any_name = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for name in options:
        if name not in taken and not any_name:
            raise ConfigError(f"--{name.replace('_', '-')}: the model {config.model} takes no {name}")
    return cls(n_in, n_out, rng=rng, dtype=np.dtype(config.dtype).type, **options)
