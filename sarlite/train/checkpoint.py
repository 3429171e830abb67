"""Checkpoints: safetensors, written whole or not at all.

Tensors: "model.NAME" (parameters and buffers), "optimizer.NAME" and "best.NAME" (as the model's). What is owned by rows is whole, by
ascending id; "ids.PARAMETER" are the ids, and the metadata's `rows` tell of each such tensor which parameter's rows it has.
"""

import json
import os
from pathlib import Path

import numpy as np

from sarlite.errors import CheckpointError, needs, raise_together, reading, regular
from sarlite.train.owners import Owners

FORMAT = "sarlite-checkpoint-1"


def save(path, tensors, metadata):
    """Write arrays and JSON-able metadata; the file appears whole or not at all.

    Raises
    ------
    CheckpointError
        Naming the file and the cause (a full disk, say); what stood there before is intact.
    """
    to_bytes = needs("safetensors.numpy", "a checkpoint").save
    data = to_bytes({name: np.asarray(a, order="C") for name, a in tensors.items()},
                    {"format": FORMAT, "sarlite": json.dumps(metadata)})
    try:
        write_whole(path, data)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} could not be written: {error.strerror}") from error


def write_whole(path, data):
    """Write bytes under a temporary name, fsync, rename: the file appears whole or not at all."""
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load(path):
    """Return (arrays, metadata) of a checkpoint.

    Raises
    ------
    CheckpointError
        Missing, cut off, corrupt, or not a checkpoint.
    """
    safetensors = needs("safetensors", "a checkpoint")
    with reading(f"checkpoint {path}", kind=CheckpointError):
        with safetensors.safe_open(str(regular(path)), "numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(f"checkpoint {path}: format is {header.get('format')!r}, not {FORMAT!r}")
            metadata = json.loads(header["sarlite"])
            if not isinstance(metadata, dict):
                raise CheckpointError(f"checkpoint {path}: its metadata are {type(metadata).__name__}, not a dict")
            return {name: file.get_tensor(name) for name in file.keys()}, metadata


def on_root(comm, action, share=True):
    """Run `action` on rank 0 and return its result, on every rank or (not `share`) there alone; its error is raised on all. Collective."""
    result = error = None
    if comm.rank == 0:
        try:
            result = action()
        except CheckpointError as found:
            error = found
    raise_together(comm, error)
    return comm.bcast(result) if share else result


def write(path, trainer, metadata, best=None):
    """Write a trainer's state, from rank 0. Collective.

    Parameters
    ----------
    trainer : Trainer
    metadata : dict
        JSON-able; `step`, the global step, and `rows` are added.
    best : dict, optional
        This rank's `state_dict` of the model at its best.

    Raises
    ------
    CheckpointError
        On every rank: a parameter is not finite, or the file cannot be written. What stood there before is intact.
    """
    comm = trainer.comm
    raise_together(comm, _not_finite(trainer.flat))
    tensors, rows = gather_state(trainer, best)
    metadata = {**metadata, "step": trainer.training_step.n_steps, "rows": rows}
    on_root(comm, lambda: save(path, tensors, metadata))


def read(comm, path):
    """Return (arrays, metadata) of a checkpoint, for `restore_state`; what is owned by rows on rank 0 alone. Collective."""
    tensors, metadata = on_root(comm, lambda: load(path), share=False) or (None, None)
    metadata = comm.bcast(metadata)
    replicated = comm.bcast(tensors and _replicated(tensors, metadata))
    return tensors or replicated, metadata


def _replicated(tensors, metadata):
    return {name: a for name, a in tensors.items() if name not in metadata.get("rows", ()) and not name.startswith("ids.")}


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


def _scatter(owners, name, whole, parameter):
    error = None
    if owners.comm.rank == 0 and whole is None:
        error = CheckpointError(f"{name!r} is missing from the checkpoint")
    elif owners.comm.rank == 0 and (whole.dtype, whole.shape) != (parameter.dtype, (len(owners.ids), *parameter.shape[1:])):
        error = CheckpointError(f"{name!r} is {whole.dtype} {whole.shape}, but {parameter.dtype} with rows of {parameter.shape[1:]} here")
    raise_together(owners.comm, error)
    return owners.scatter(whole, parameter.data)
