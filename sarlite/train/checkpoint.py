"""Checkpoints: safetensors, written whole or not at all, with a checksum.

Tensors: "model.NAME" (parameters and buffers), "optimizer.NAME" and "best.NAME" (as the model's). What is owned by rows is whole, by
ascending id; "ids.PARAMETER" are the ids, and the metadata's `rows` tell of each such tensor which parameter's rows it has.

The header's metadata: "format"; "sarlite", JSON; "sha256", of the whole file with 64 zeros in its own place.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from sarlite.comm import together
from sarlite.errors import CheckpointError, needs, raise_together, reading, regular
from sarlite.files import try_whole, write_whole
from sarlite.train.owners import Owners
from sarlite.types import Array
from sarlite.types import Path as AnyPath

FORMAT = "sarlite-checkpoint-2"
_NO_SUM = b"0" * 64
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own
_PIECE = 1 << 20


def save(path: AnyPath, tensors: Mapping[str, Any], metadata: Mapping[str, Any], *, trial: bool = False, new: bool = False) -> str:
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
    Memory: the file's size.
    """
    to_bytes = needs("safetensors.numpy", "a checkpoint").save
    data = memoryview(to_bytes({name: np.asarray(a, order="C") for name, a in tensors.items()},
                               {"format": FORMAT, "sarlite": json.dumps(metadata), "sha256": _NO_SUM.decode()}))
    at = _sum_place(data[8 : 8 + int.from_bytes(data[:8], "little")])
    digits = hashlib.sha256(data).hexdigest()
    pieces = data[:at], digits.encode(), data[at + 64 :]
    try:
        try_whole(path, *pieces) if trial else write_whole(path, *pieces, new=new)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} could not be written: {error.strerror}") from error
    return digits


def _sum_place(header):
    """Where in the file the 64 digits of the checksum begin."""
    found = list(_SUM.finditer(header))
    if len(found) != 1:
        raise ValueError("it has no checksum")
    return 8 + found[0].start(1)


def verify(path):
    """Compare a file with the checksum in it, and return it; memory: the header and a megabyte.

    Raises
    ------
    ValueError
        It has none, or another.
    OSError
    """
    with open(path, "rb") as file:
        start = file.read(8)
        size = int.from_bytes(start, "little")
        if len(start) < 8 or size > min(_MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size - 8):
            raise ValueError("it is no safetensors file, or cut off")
        header = file.read(size)
        at = _sum_place(header) - 8
        found = hashlib.sha256(start + header[:at] + _NO_SUM + header[at + 64 :])
        while piece := file.read(_PIECE):
            found.update(piece)
    if found.hexdigest().encode() != header[at : at + 64]:
        raise ValueError("its sha256 is not the one that is written in it: it was changed or damaged")
    return found.hexdigest()


def load(path: AnyPath) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return (arrays, metadata) of a checkpoint.

    Raises
    ------
    CheckpointError
        Missing, cut off, changed by as little as a bit, or not a checkpoint.
    """
    with _opened(path) as file:
        verify(path)
        return {name: file.get_tensor(name) for name in file.keys()}, _metadata(file)


def load_metadata(path: AnyPath) -> dict[str, Any]:
    """Return the metadata of a checkpoint alone, which are not compared with the checksum; raises as `load`."""
    with _opened(path) as file:
        return _metadata(file)


@contextmanager
def _opened(path):
    safetensors = needs("safetensors", "a checkpoint")
    with reading(f"checkpoint {path}", kind=CheckpointError):
        with safetensors.safe_open(str(regular(path)), "numpy") as file:
            found = (file.metadata() or {}).get("format")
            if found != FORMAT:
                raise CheckpointError(f"checkpoint {path}: format is {found!r}, not {FORMAT!r}")
            yield file


def _metadata(file):
    found = json.loads(file.metadata()["sarlite"])
    if not isinstance(found, dict) or not isinstance(found.get("rows", {}), dict):
        raise ValueError("its metadata are not a checkpoint's")
    return found


def write(path, trainer, metadata, best=None, **options):
    """Write a trainer's state, from rank 0. Collective.

    Parameters
    ----------
    trainer : Trainer
    metadata : dict
        JSON-able; `step`, the global step, and `rows` are added.
    best : dict, optional
        This rank's `state_dict` of the model at its best.
    **options
        `trial` and `new`, as of `save`.

    Raises
    ------
    CheckpointError
        On every rank: a parameter is not finite, or the file cannot be written. What stood there before is intact.
    """
    check_finite(trainer)
    tensors, rows = gather_state(trainer, best)
    metadata = {**metadata, "step": trainer.training_step.n_steps, "rows": rows}
    together(trainer.comm, lambda: save(path, tensors, metadata, **options) if trainer.comm.rank == 0 else None)


def read(comm, path, prefixes=("",)):
    """Return (arrays, metadata) of a checkpoint, for `restore_state`; what is owned by rows on rank 0 alone. Collective.

    Of `prefixes`, those of the first that any array's name begins with, and the ids of what is owned by rows; by default all.
    """
    tensors, metadata = together(comm, lambda: load(path) if comm.rank == 0 else (None, None))
    if tensors:
        first = next((prefix for prefix in prefixes if any(name.startswith(prefix) for name in tensors)), "")
        tensors = {name: array for name, array in tensors.items() if name.startswith((first, "ids."))}
    metadata = comm.bcast(metadata)
    replicated = comm.bcast(tensors and _replicated(tensors, metadata))
    return tensors or replicated, metadata


def _replicated(tensors, metadata):
    return {name: a for name, a in tensors.items() if name not in metadata.get("rows", ()) and not name.startswith("ids.")}


def check_finite(trainer):
    """Raise a CheckpointError on every rank where a parameter is not finite on any. Collective."""
    raise_together(trainer.comm, _not_finite(trainer.flat))


def _not_finite(flat):
    for group in flat.groups:
        for name, where in zip(group.names, group.slices):
            if not np.isfinite(group.data.reshape(-1)[where]).all():
                return CheckpointError(f"parameter {name!r} is not finite, so nothing was written: try a lower learning rate")
    return None


def _local_state(trainer, best):
    """This rank's arrays by their names in the file, and of those owned by rows the parameter."""
    model, optimizer, best = trainer.model, trainer.optimizer, best or {}
    state = {**_under("model.", model.state_dict()), **_under("optimizer.", optimizer.state_dict()), **_under("best.", best)}
    return state, _owned(trainer, bool(best))


def _owned(trainer, best):
    """The parameter whose rows a tensor has, for each tensor in the file that is owned by rows."""
    names = trainer.model.row_ids()
    owned = {prefix + name: name for prefix in ("model.", *(["best."] if best else [])) for name in names}
    return {**owned, **{"optimizer." + name: parameter for name, parameter in trainer.optimizer.rows_of().items()}}


def _under(prefix, state):
    return {prefix + name: np.asarray(value) for name, value in state.items()}


def gather_state(trainer, best=None):
    """Return a trainer's arrays by their names in the file, and of those owned by rows the parameter. Collective.

    On rank 0 they are whole. Elsewhere the arrays are no use. Rank 0 then holds all ranks' rows.
    """
    tensors, rows = _local_state(trainer, best)
    for parameter, ids in trainer.model.row_ids().items():
        owners = Owners(trainer.comm, ids, parameter)
        tensors["ids." + parameter] = owners.ids
        tensors |= {name: owners.gather(tensors[name]) for name, of in rows.items() if of == parameter}
    return tensors, rows


def restore_state(trainer, tensors, metadata):
    """Put back what `read` returned, on any number of ranks, and return this rank's best state. Collective.

    Raises
    ------
    CheckpointError
        On every rank: the arrays are of another model, optimizer or set of rows.
    """
    rows = metadata.get("rows", {})
    expected = _owned(trainer, any(name.startswith("best.") for name in rows))
    for name in sorted(expected.keys() ^ rows.keys()):
        raise CheckpointError(f"{name!r}, owned by rows, is missing from " + ("the trainer" if name in rows else "the checkpoint"))
    state = _replicated(tensors, metadata)
    for parameter, p in trainer.model.named_parameters():
        if p.ids is not None:
            owners = Owners(trainer.comm, p.ids, parameter)
            owners.check(tensors.get("ids." + parameter, np.empty(0, np.int64)))
            state |= {name: _scatter(owners, name, tensors.get(name), p) for name, of in rows.items() if of == parameter}
    below = lambda prefix: {name[len(prefix):]: value for name, value in state.items() if name.startswith(prefix)}  # noqa: E731
    trainer.model.load_state_dict(below("model."))
    trainer.optimizer.load_state_dict(below("optimizer."))
    trainer.training_step.n_steps = metadata.get("step", metadata.get("epoch", 0))
    return below("best.")


def restore_model(comm, model, tensors, metadata):
    """Put what `read` returned of the one prefix "model." or "best." into a model, on any number of ranks. Collective.

    Raises
    ------
    CheckpointError
        On every rank: the arrays are of another model or set of rows.
    """
    state = {name.partition(".")[2]: array for name, array in _replicated(tensors, metadata).items()}
    prefix = comm.bcast(next((name.partition(".")[0] for name in tensors if not name.startswith("ids.")), "model"))
    for parameter, p in model.named_parameters():
        if p.ids is not None:
            owners = Owners(comm, p.ids, parameter)
            owners.check(tensors.get("ids." + parameter, np.empty(0, np.int64)))
            name = f"{prefix}.{parameter}"
            state[parameter] = _scatter(owners, name, tensors.get(name), p)
    together(comm, lambda: model.load_state_dict(state))


def _scatter(owners, name, whole, parameter):
    error = None
    if owners.comm.rank == 0 and whole is None:
        error = CheckpointError(f"{name!r} is missing from the checkpoint")
    elif owners.comm.rank == 0 and (whole.dtype, whole.shape) != (parameter.dtype, (len(owners.ids), *parameter.shape[1:])):
        error = CheckpointError(f"{name!r} is {whole.dtype} {whole.shape}, but {parameter.dtype} with rows of {parameter.shape[1:]} here")
    raise_together(owners.comm, error)
    return owners.scatter(whole, parameter.data)
