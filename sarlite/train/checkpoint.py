"""Checkpoints: safetensors, written whole or not at all, with a checksum.

Tensors: "model.NAME" (parameters and buffers), "optimizer.NAME" and "best.NAME" (as the model's). What is owned by rows
is whole, by ascending id; "ids.PARAMETER" are the ids, and the metadata's `rows` tell of each such tensor which
parameter's rows it has. "keys.PARAMETER" are the keys of the rows' nodes, if the nodes have names (`row_keys`).

The header's metadata: "format"; "sarlite", JSON; "sha256", of the whole file with 64 zeros in its own place.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from sarlite.comm import Solo, agree, together
from sarlite.errors import CheckpointError, raise_together, reading
from sarlite.train import tensorfile
from sarlite.train.owners import Attempts, Owners
from sarlite.train.row_keys import KeyedRows
from sarlite.train.tensorfile import Writer, verify
from sarlite.types import Array
from sarlite.types import Path as AnyPath

__all__ = ["check_finite", "errors_of", "load", "load_metadata", "path_of", "read", "restore_model", "restore_state", "save",
           "verify", "write"]
FORMAT = "sarlite-checkpoint-2"
_OF_ROWS = ("ids.", "keys.")
NAME = "checkpoint.safetensors"
"""Name of the checkpoint in a run's folder."""


def path_of(path: AnyPath) -> str:
    """Return the path of a checkpoint: of a run's folder the checkpoint in it.

    Examples
    --------
    >>> path_of("here.safetensors")
    'here.safetensors'
    """
    path = os.fspath(path)
    return os.path.join(path, NAME) if os.path.isdir(path) else path


def save(path: AnyPath, tensors: Mapping[str, Any], metadata: Mapping[str, Any], *, trial: bool = False,
         new: bool = False) -> str:
    """Write arrays and JSON-able metadata, and return the file's sha256; it appears whole or not at all.

    Parameters
    ----------
    path : path
    tensors : dict of arrays
    metadata : dict
    trial : bool
        Only find out whether it could be written.
    new : bool
        Refuse a path that exists.

    Raises
    ------
    CheckpointError
        Naming the file and the cause (a full disk, say); what stood there before is intact.

    Notes
    -----
    Memory: a copy of the largest array that is not C-contiguous.
    """
    return _write(Solo(), path, {name: np.asarray(array) for name, array in tensors.items()}, metadata, trial=trial,
                  new=new)


def _write(comm, path, tensors, metadata, *, trial=False, new=False):
    """Write, from rank 0, its arrays and `_Owned`; return the file's sha256 there, None elsewhere. Collective."""
    told = {"format": FORMAT, "sarlite": json.dumps(metadata)}
    with ExitStack() as held:
        open_ = lambda: held.enter_context(Writer(path, tensors, told).open(trial=trial, new=new))  # noqa: E731
        writer = together(comm, lambda: open_() if comm.rank == 0 else None)
        for name in tensorfile.in_order(tensors):
            tensor, attempt = tensors[name], Attempts(comm)
            for piece in tensor.pieces(trial) if isinstance(tensor, _Owned) else [tensor]:
                attempt(lambda piece=piece: writer.add(piece))
            attempt.end()
        together(comm, held.close)
    return writer and writer.digest


class _Owned:
    """A tensor of which each rank has rows."""

    def __init__(self, owners, rows):
        self.owners, self.rows, self.dtype, self.shape = owners, rows, rows.dtype, (owners.n, *rows.shape[1:])

    def pieces(self, trial):
        """The rows by ascending id, on rank 0; in a trial as many of its own, for which nothing is sent."""
        if not trial:
            return self.owners.gather(self.rows)
        n, rows = self.shape[0], self.rows
        rows = rows if len(rows) else np.zeros((min(n, 1000), *self.shape[1:]), self.dtype)
        return (rows[: n - begin] for begin in range(0, n, max(1, len(rows))))


def load(path: AnyPath) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return (arrays, metadata) of a checkpoint, or of the checkpoint in a run's folder.

    Raises
    ------
    CheckpointError
        Missing, cut off, changed by as little as a bit, or not a checkpoint.
    """
    tensors, metadata = _stored(path)
    return {name: tensor.whole() for name, tensor in tensors.items()}, metadata


def load_metadata(path: AnyPath) -> dict[str, Any]:
    """Return only the metadata of a checkpoint, without a check of the checksum. Raise as `load`."""
    return _stored(path, check=False)[1]


def _stored(path, check=True):
    path = path_of(path)
    with reading(f"checkpoint {path}", kind=CheckpointError):
        tensors, told = tensorfile.stored(path, FORMAT, check=check)
        metadata = json.loads(told["sarlite"])
        if not isinstance(metadata, dict) or not isinstance(metadata.get("rows", {}), dict):
            raise ValueError("its metadata are not a checkpoint's")
        return tensors, metadata


def write(path, trainer, metadata, best=None, keys=None, **options):
    """Write a trainer's state, from rank 0. Collective.

    Parameters
    ----------
    trainer : Trainer
    metadata : dict
        JSON-able; `step`, the global step, and `rows` are added.
    best : dict, optional
        This rank's `state_dict` of the model at its best.
    keys : dict of (n_local, 2) uint64, optional
        The result of `row_keys`, by which data with other nodes are matched.
    **options
        `trial` and `new`, as of `save`.

    Raises
    ------
    CheckpointError
        On every rank: a parameter is not finite, or the file cannot be written. What stood there before is intact.

    Notes
    -----
    What is owned by rows travels to rank 0 in pieces. Memory: 24 bytes a row of this rank, and on rank 0 three pieces
    of `owners.PIECE_BYTES`, elsewhere one. Bytes sent: a rank's rows and moments, and 8 bytes a row of each.
    """
    check_finite(trainer)
    tensors, rows = _local_state(trainer, best)
    for parameter, ids in trainer.model.row_ids().items():
        owners = Owners(trainer.comm, ids, parameter)
        tensors |= {"ids." + parameter: owners.ids}
        tensors |= {"keys." + parameter: keys[parameter]} if keys and parameter in keys else {}
        owned = {name for name, of in rows.items() if of == parameter} | {"ids." + parameter, "keys." + parameter}
        tensors |= {name: _Owned(owners, tensors[name]) for name in owned & tensors.keys()}
    agree(trainer.comm, [(name, str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()],
          "the state: names, dtypes, shapes")
    metadata = {**metadata, "step": trainer.training_step.n_steps, "rows": rows}
    _write(trainer.comm, path, tensors, metadata, **options)


def read(comm, path, prefixes=("",)):
    """Return (arrays, metadata) of a checkpoint, for `restore_state`. Collective.

    Of `prefixes`, those of the first that any array's name begins with, and the ids and keys of what is owned by rows;
    by default all. What is owned by rows is on rank 0 alone, and not read yet: a `tensorfile.Stored`, which keeps the file
    open.
    """
    tensors, metadata = together(comm, lambda: _stored(path) if comm.rank == 0 else ({}, None))
    metadata = comm.bcast(metadata)
    first = next((prefix for prefix in prefixes if any(name.startswith(prefix) for name in tensors)), "")
    tensors = {name: tensor for name, tensor in tensors.items() if name.startswith((first, *_OF_ROWS))}
    read_all = lambda: {name: tensor.whole() for name, tensor in _replicated(tensors, metadata).items()}  # noqa: E731
    return tensors | comm.bcast(together(comm, read_all)), metadata


def _replicated(tensors, metadata):
    return {name: array for name, array in tensors.items()
            if name not in metadata.get("rows", ()) and not name.startswith(_OF_ROWS)}


def check_finite(trainer):
    """Raise a CheckpointError on every rank if a parameter is not finite on any rank. Collective."""
    raise_together(trainer.comm, _not_finite(trainer.flat))


def _not_finite(flat):
    for group in flat.groups:
        for name, where in zip(group.names, group.slices):
            if not np.isfinite(group.data.reshape(-1)[where]).all():
                return CheckpointError(f"parameter {name!r} is not finite, so nothing was written: try a lower "
                                       "learning rate")
    return None


def _local_state(trainer, best):
    """This rank's arrays by their names in the file, and of those owned by rows the parameter."""
    model, optimizer, best = trainer.model, trainer.optimizer, best or {}
    state = {**_under("model.", model.state_arrays()), **_under("optimizer.", optimizer.state_arrays()),
             **_under("best.", best)}
    return state, _owned(trainer, bool(best))


def _owned(trainer, best):
    """The parameter whose rows a tensor has, for each tensor in the file that is owned by rows."""
    names = trainer.model.row_ids()
    owned = {prefix + name: name for prefix in ("model.", *(["best."] if best else [])) for name in names}
    return {**owned, **{"optimizer." + name: parameter for name, parameter in trainer.optimizer.rows_of().items()}}


def _under(prefix, state):
    return {prefix + name: np.asarray(value) for name, value in state.items()}


def restore_state(trainer, tensors, metadata, keys=None):
    """Restore the state that `read` returned, on any number of ranks; return this rank's best state. Collective.

    Rows are matched by `keys`, as of `write`, where the checkpoint has keys too; otherwise by id.

    Raises
    ------
    CheckpointError
        On every rank: the arrays are of another model, optimizer or set of rows.

    Notes
    -----
    Rows travel from rank 0 in pieces, into the arrays that they are of. Memory as of `write`, and the best state.
    """
    comm, model, optimizer, rows = trainer.comm, trainer.model, trainer.optimizer, metadata.get("rows", {})
    owned = together(comm, lambda: _to_fill(trainer, rows))
    owners = _owners(comm, model, tensors, keys)
    raise_together(comm, _other_rows(owners))
    found = _fitting(comm, owners, tensors, {name: (of, owned[name]) for name, of in rows.items()})
    state = _replicated(tensors, metadata) | owned

    def below(prefix):
        return {name[len(prefix):]: value for name, value in state.items() if name.startswith(prefix)}

    together(comm, lambda: (model.load_state_dict(below("model.")), optimizer.load_state_dict(below("optimizer."))))
    _fill(found)  # where it fails on one rank, no rank waits for the others' word: they are amid the pieces
    trainer.flat.changed()
    trainer.training_step.n_steps = metadata.get("step", metadata.get("epoch", 0))
    return below("best.")


@contextmanager
def errors_of(path):
    """Return a context that adds the file's name to a CheckpointError raised inside, the same on every rank."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {path}: " + re.sub(r"^(rank \d+: )+", "", str(error))) from None


def _to_fill(trainer, rows):
    """Return this rank's arrays, by name, that receive the checkpoint's values owned by rows."""
    expected = _owned(trainer, any(name.startswith("best.") for name in rows))
    for name in sorted(expected.keys() ^ rows.keys()):
        raise CheckpointError(f"{name!r}, owned by rows, is missing from "
                              + ("the trainer" if name in rows else "the checkpoint"))
    state, _ = _local_state(trainer, {})
    return {name: np.empty_like(state["model." + of]) if name.startswith("best.") else state[name]
            for name, of in rows.items()}


def restore_model(comm, model, tensors, metadata, keys=None):
    """Put what `read` returned of the one prefix "model." or "best." into a model, on any number of ranks. Collective.

    Rows are matched by `keys`, as of `write`, where the checkpoint has keys too; a row that the checkpoint lacks gets
    the mean of the checkpoint's rows. Otherwise rows are matched by id.

    Returns
    -------
    dict of str to (KeyedRows or None)
        For each parameter that is owned by rows, the matched rows; None if rows were matched by id.

    Raises
    ------
    CheckpointError
        On every rank: the arrays are of another model, or, matched by id, of another set of rows.

    Notes
    -----
    Memory as of `write`.
    """
    state = {name.partition(".")[2]: array for name, array in _replicated(tensors, metadata).items()}
    prefix = comm.bcast(next((name.partition(".")[0] for name in tensors if not name.startswith(_OF_ROWS)), "model"))
    own = model.state_arrays()
    owned = {parameter: own[parameter] for parameter in model.row_ids()}
    owners = _owners(comm, model, tensors, keys)
    found = _fitting(comm, owners, tensors,
                     {f"{prefix}.{parameter}": (parameter, rows) for parameter, rows in owned.items()})
    together(comm, lambda: model.load_state_dict(state | owned))
    _fill(found)
    for parameter in model.parameters():
        parameter.changed()
    return {parameter: own if isinstance(own, KeyedRows) else None for parameter, own in owners.items()}


def _owners(comm, model, tensors, keys):
    """Return what hands out the rows of each parameter that is owned by rows, by name. Collective."""
    found = {}
    for parameter, ids in model.row_ids().items():
        stored = comm.bcast([prefix + parameter in tensors for prefix in _OF_ROWS])
        if stored[1] and parameter in (keys or {}):
            found[parameter] = KeyedRows(comm, keys[parameter], tensors.get("keys." + parameter), parameter)
            continue
        found[parameter] = Owners(comm, ids, parameter)
        raise_together(comm, _other_number(found[parameter], tensors.get("ids." + parameter), stored[1]))
        found[parameter].check(tensors.get("ids." + parameter))
    return found


def _other_number(owners, stored, keyed):
    """Return an error on rank 0 if the checkpoint has another number of rows, which only ids can match."""
    if stored is None or stored.shape[:1] == (owners.n,):
        return None
    unnamed = "the data have" if keyed else "the checkpoint has"
    return CheckpointError(f"{owners.name!r}: {owners.n} nodes here, but {stored.shape[0]} rows in the checkpoint, and "
                           f"{unnamed} no names of nodes to match them by")


def _other_rows(owners):
    """Return an error if a row that is matched by key is missing from the checkpoint."""
    for name, own in owners.items():
        if isinstance(own, KeyedRows) and own.n_missing:
            return CheckpointError(f"{name!r}: {own.n_missing} nodes have no row in the checkpoint")
    return None


def _fitting(comm, owners, tensors, arrays):
    """Return [(owners, rank 0's tensor, this rank's rows to fill)] of `arrays`, name -> (parameter, rows), once all
    fit. Collective.
    """
    found = []
    for name, (parameter, rows) in arrays.items():
        found.append((owners[parameter], tensors.get(name), rows))
        together(comm, lambda name=name, found=found[-1]: comm.rank or _check(name, *found))
    return found


def _check(name, owners, whole, rows):
    if whole is None:
        raise CheckpointError(f"{name!r} is missing from the checkpoint")
    if (whole.dtype, whole.shape) != (rows.dtype, (owners.n, *rows.shape[1:])):
        raise CheckpointError(f"{name!r} is {whole.dtype} {whole.shape}, but {rows.dtype} with rows of "
                              f"{rows.shape[1:]} here")


def _fill(found):
    for owners, whole, rows in found:
        owners.scatter(whole, rows)
