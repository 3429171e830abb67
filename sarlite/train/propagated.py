"""Features that are propagated once before training, for models that then need no neighbours, and a folder to store them.

The folder has a file hopK.npy for each power K, of shape (n_nodes, n_features), in the data's original order of nodes.
So any number of ranks can read it. The file meta.json has the identity of the data, the self loops, dtype and powers, and
the SHA-256 of each file and of meta.json itself.
"""

import contextlib
import json
import os
from pathlib import Path

import numpy as np

from sarlite import numerics
from sarlite.comm import together
from sarlite.data import node_rows, npyfile
from sarlite.data.writer import META, meta_hash, write_meta
from sarlite.errors import ConfigError, DataError, reading, regular, writing
from sarlite.files import private_folder, sync_folder
from sarlite.graph.propagation import Propagation
from sarlite.train.identity import difference
from sarlite.types import JsonDict

ARGUMENT = "propagated"
FORMAT = "sarlite propagated features 1"
_MAX_META_BYTES = 1 << 20
_FIELDS = {"data": dict, "added_self_loops": bool, "dtype": str, "numerics": str, "arrays": dict}


def inputs(comm, model, part, data=None, folder=None, verify=True):
    """Return the input rows of `model` for this rank's data `part`: the features or, if the model has an attribute `powers` (numbers of
    propagation steps), features propagated over the graph. Propagated features are stored in `folder` and read from there in later runs
    (None: not stored), after a check that they belong to `data`, a dict that identifies the data set. `verify` also compares the SHA-256 of
    the stored files. Collective.

    A model with an attribute `powers` gets S^k X for each k of `powers`, side by side. X are the features. S is the
    normalized adjacency matrix D^-1/2 A D^-1/2.

    Parameters
    ----------
    comm : Communicator
    model : Module
        Model with or without an attribute `powers`.
    part : load.Shard
    data : dict, optional
        Result of `identity` for the data; required with a folder.
    folder : str or os.PathLike, optional
        Folder to read the powers from. A folder that does not exist is written first.
    verify : bool
        Compare the SHA-256 of each file of the folder.

    Returns
    -------
    (n, n_features) or (n, n_features * len(powers)) array

    Raises
    ------
    ConfigError, DataError
        On every rank: the folder belongs to other data, is damaged, or cannot be written.

    Notes
    -----
    Bytes sent, in the phase "propagation": one aggregation of the features for each power up to the largest. Memory: the
    result and two powers.
    """
    powers = getattr(model, "powers", None)
    if powers is None:
        return part.rows.features
    graph, x = part.graph, part.rows.features
    if folder is None:
        return _joined(_hops(graph, x, powers), x, powers)
    loops = bool(sum(comm.allgather(0 if graph.added_loops is None else 1)))
    facts = {"format": FORMAT, "data": data, "added_self_loops": loops, "dtype": str(x.dtype),
             "numerics": numerics.name()}
    folder = Path(folder)
    if not comm.bcast(together(comm, lambda: comm.rank == 0 and os.path.lexists(folder / META))):
        _write(comm, folder, facts, graph, x, powers)
    return _read(comm, folder, facts, graph, x, powers, verify)


def _hops(graph, features, powers):
    """Yield (k, S^k X) for k = 1, 2, ..., max(powers), where X are the features of this rank's rows and S is the normalized adjacency
    matrix. Collective.
    """
    propagation, h = Propagation(graph, "sym"), features
    for k in range(1, max(powers) + 1):
        with graph.profile.span(f"hop {k}"), graph.profile.phase("propagation"):
            h = propagation(h)
        yield k, h


def _joined(hops, x, powers):
    out, width = np.empty((len(x), x.shape[1] * len(powers)), x.dtype), x.shape[1]
    places = {k: slice(at * width, (at + 1) * width) for at, k in enumerate(powers)}
    if 0 in places:
        out[:, places[0]] = x
    for k, h in hops:
        if k in places:
            out[:, places[k]] = h
    return out


def _write(comm, folder, facts, graph, features, powers):
    """Compute the propagated features S^k X for each k in `powers` and write them to a new folder, all files or none. `facts` describe the
    data, for comparison when the folder is read. Collective.
    """
    with contextlib.ExitStack() as held:
        written = comm.bcast(together(comm, lambda: _begin(held, folder) if comm.rank == 0 else None))
        for k, h in _hops(graph, features, powers):
            if k in powers:
                node_rows.write(comm, Path(written) / f"hop{k}.npy", graph.dst_ids, h, graph.n_nodes)
        together(comm, lambda: _finish(Path(written), folder, facts, powers) if comm.rank == 0 else None)


def _begin(held, folder):
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"propagated {folder}: exists, but is not a folder of propagated features; it is not replaced",
                          ARGUMENT)
    with writing(folder, ARGUMENT):
        return str(held.enter_context(private_folder(folder.absolute().parent)))


def _finish(written, folder, facts, powers):
    with writing(folder, ARGUMENT):
        arrays = {f"hop{k}": _record(written / f"hop{k}.npy") for k in powers if k}
        write_meta(written, {**facts, "arrays": arrays})
        os.rename(written, folder)
        sync_folder(folder.absolute().parent)


def _record(path):
    array = npyfile.load(path, "features")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": npyfile.sha256(path)}


def _read(comm, folder, facts, graph, x, powers, verify):
    """Return this rank's propagated features for `powers`, side by side, from a folder whose description must equal `facts`. `x` gives the
    width and dtype. If `verify`, the SHA-256 of each file is checked. Collective.
    """
    meta = comm.bcast(together(comm, lambda: _read_meta(folder, facts, powers) if comm.rank == 0 else None))

    def rows():
        for k in filter(None, powers):
            path = folder / f"hop{k}.npy"
            record = meta["arrays"][f"hop{k}"]
            npyfile.open_map(path, record, "features")
            if verify and k % comm.size == comm.rank:
                npyfile.verify(path, record, "features")
            yield k, node_rows.read(path, "features", graph.dst_ids, graph.n_nodes, x.shape[1], x.dtype)

    return together(comm, lambda: _joined(rows(), x, powers))


def _read_meta(folder, facts, powers):
    path = folder / META
    with reading(path):
        if regular(path).stat().st_size > _MAX_META_BYTES:
            raise DataError(f"{path}: more than {_MAX_META_BYTES} bytes, so it does not describe propagated features")
        meta = json.loads(path.read_bytes())
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise DataError(f"{path}: the folder has no propagated features in the format of this version")
        if meta.pop("sha256", None) != meta_hash(meta):
            raise DataError(f"{path}: the contents do not match the sha256 in the file: the file was changed")
        meta.setdefault("numerics", "fast")  # older folders have no such entry
        _check(path, meta)
    for name in ("added_self_loops", "dtype", "numerics"):
        if meta[name] != facts[name]:
            words = name.replace("_", " ")
            raise _other(folder, f"{words} is {meta[name]} in the folder, but {facts[name]} in this run; name another folder")
    other = difference(meta["data"], facts["data"])
    if other:
        raise _other(folder, f"the folder belongs to other data: {other}; name another folder, or remove this one")
    missing = [k for k in powers if k and f"hop{k}" not in meta["arrays"]]
    if missing:
        raise _other(folder, f"the folder has no hop {missing[0]}; name another folder, or remove this one")
    return meta


def _check(path: Path, meta: JsonDict) -> None:
    """Raise a DataError that names the file `path` if a field of `meta`, the file's parsed JSON, is missing or has the wrong type."""
    for name, kind in _FIELDS.items():
        if not isinstance(meta.get(name), kind):
            raise DataError(f"{path}: {name}: expected {kind.__name__}, found {meta.get(name)!r}")
    for name, record in meta["arrays"].items():
        npyfile.check_record(path, f"arrays: {name}", record)


def _other(folder, reason):
    return DataError(f"propagated {folder}: {reason}", ARGUMENT)
