"""Checkpoints: safetensors, written whole or not at all."""

import json
import os
from pathlib import Path

import numpy as np

from sarlite.errors import CheckpointError, needs, raise_together

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
    try:
        with safetensors.safe_open(str(path), "numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(f"checkpoint {path}: format is {header.get('format')!r}, not {FORMAT!r}")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(header["sarlite"])
    except (OSError, safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error


def on_root(comm, action):
    """Run `action` on rank 0 and return its result on every rank; its error is raised on every rank. Collective."""
    result = error = None
    if comm.rank == 0:
        try:
            result = action()
        except CheckpointError as found:
            error = found
    raise_together(comm, error)
    return comm.bcast(result)


def gather_state(trainer):
    """Return the trainer's arrays by name: the model's, and the optimizer's under "optimizer."."""
    state = {"model." + name: value for name, value in trainer.model.state_dict().items()}
    return {**state, **{"optimizer." + name: np.asarray(value) for name, value in trainer.optimizer.state_dict().items()}}


def restore_state(trainer, tensors):
    """Put `gather_state`'s arrays back.

    Raises
    ------
    CheckpointError
        The arrays are of another model or optimizer.
    """
    for prefix, target in (("model.", trainer.model), ("optimizer.", trainer.optimizer)):
        target.load_state_dict({name[len(prefix):]: value for name, value in tensors.items() if name.startswith(prefix)})
