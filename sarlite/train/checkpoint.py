"""Checkpoints: files in the safetensors format with a checksum, written atomically.

Tensors:

- "model.NAME": parameters and buffers of the model.
- "optimizer.NAME": state of the optimizer.
- "best.NAME": parameters and buffers of the best epoch's model.
- "ids.PARAMETER": global ids of the rows of a parameter that ranks own by rows, ascending. A tensor that is owned by
  rows contains the rows of all ranks in this order. The entry "rows" of the metadata maps such a tensor to the
  parameter.
- "keys.PARAMETER": keys of the rows' nodes, if the nodes have names (`row_keys`).

Metadata in the header: "format"; "sarlite", a JSON text; "sha256", the checksum of the file with 64 zeros in its place.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from sarlite.comm import Solo, agree, together
from sarlite.errors import CheckpointError, raise_together, reading
from sarlite.optim import plateau_of
from sarlite.train import tensorfile
from sarlite.train.owners import Attempts, Owners
from sarlite.train.row_keys import KeyedRows
from sarlite.train.tensorfile import TensorWriter, verify
from sarlite.types import Array, ArrayLike, JsonDict
from sarlite.types import Path as AnyPath

__all__ = ["check_finite", "errors_of", "load", "load_metadata", "path_of", "read", "restore_model", "restore_state", "save",
           "verify", "write"]
FORMAT = "sarlite-checkpoint-2"
_OF_ROWS = ("ids.", "keys.")
NAME = "checkpoint.safetensors"
"""Name of the checkpoint in a run's folder."""


def path_of(path: AnyPath) -> str:
    """Return the path of a checkpoint: `path` itself or, if `path` is the folder of a run, the path of the checkpoint in the folder.

    Parameters
    ----------
    path : str or os.PathLike
        A file or a folder.

    Returns
    -------
    str

    Examples
    --------
    >>> path_of("here.safetensors")
    'here.safetensors'
    """
    path = os.fspath(path)
    return os.path.join(path, NAME) if os.path.isdir(path) else path


def save(path: AnyPath, tensors: Mapping[str, ArrayLike], metadata: Mapping[str, object], *, trial: bool = False,
         new: bool = False) -> str:
    """Write arrays and metadata to a file atomically, and return the file's SHA-256. A `trial` deletes the file again and only tests if the
    disk has room; `new` refuses to replace a file.

    Parameters
    ----------
    path : str or os.PathLike
    tensors : dict of str to array
    metadata : dict
        JSON-serializable.
    trial : bool
        Write a file of the same size and remove it again, to find out whether the disk has room.
    new : bool
        Raise an error if the path exists. By default a file is replaced.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    CheckpointError
        The file cannot be written, for instance because the disk is full. The message names the file and the cause. An
        earlier file at `path` is unchanged.

    Notes
    -----
    Memory: a copy of the largest array that is not C-contiguous.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/some.safetensors"
    >>> digest = save(path, {"model.weight": np.ones((2, 3))}, {"epoch": 5})
    >>> arrays, metadata = load(path)
    >>> arrays["model.weight"].shape, metadata, len(digest)
    ((2, 3), {'epoch': 5}, 64)
    """
    return _write(Solo(), path, {name: np.asarray(array) for name, array in tensors.items()}, metadata, trial=trial,
                  new=new)


def _write(comm, path, tensors, metadata, *, trial=False, new=False):
    """Write `tensors` and `metadata` to a file from rank 0: arrays of rank 0, and `_Owned` tensors with rows of all ranks. A `trial`
    deletes the file again; `new` refuses to replace one. Return the file's SHA-256 on rank 0, None on others. Collective.
    """
    header = {"format": FORMAT, "sarlite": json.dumps(metadata)}
    with ExitStack() as held:
        open_ = lambda: held.enter_context(TensorWriter(path, tensors, header).open(trial=trial, new=new))  # noqa: E731
        writer = together(comm, lambda: open_() if comm.rank == 0 else None)
        for name in tensorfile.in_order(tensors):
            tensor, attempt = tensors[name], Attempts(comm)
            for piece in tensor.pieces(trial) if isinstance(tensor, _Owned) else [tensor]:
                attempt(lambda piece=piece: writer.add(piece))
            attempt.end()
        together(comm, held.close)
    return writer and writer.digest


class _Owned:
    """Tensor of a checkpoint whose rows are divided among the ranks. Rank 0 gathers and writes the rows in pieces."""

    def __init__(self, owners, rows):
        self.owners, self.rows, self.dtype, self.shape = owners, rows, rows.dtype, (owners.n, *rows.shape[1:])

    def pieces(self, trial: bool) -> Iterator[Array | None]:
        """Yield arrays of rows for the file: on rank 0 the rows of all ranks by ascending id, and on other ranks None as often. In a
        `trial`, which tests if the disk has room, this rank's own rows are yielded again and again, as many as all ranks have, to save the
        communication.
        """
        if not trial:
            return self.owners.gather(self.rows)
        n, rows = self.shape[0], self.rows
        rows = rows if len(rows) else np.zeros((min(n, 1000), *self.shape[1:]), self.dtype)
        return (rows[: n - begin] for begin in range(0, n, max(1, len(rows))))


def load(path: AnyPath) -> tuple[dict[str, Array], JsonDict]:
    """Read a checkpoint file after its checksum is verified; return (arrays by name, metadata).

    Parameters
    ----------
    path : str or os.PathLike
        A checkpoint, or a run's folder with a checkpoint.

    Returns
    -------
    arrays : dict of str to array
    metadata : dict

    Raises
    ------
    CheckpointError
        The file is missing, truncated, not a checkpoint, or does not match its checksum.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/some.safetensors"
    >>> _ = save(path, {"model.bias": np.zeros(4)}, {"step": 10})
    >>> load(path)
    ({'model.bias': array([0., 0., 0., 0.])}, {'step': 10})
    """
    tensors, metadata = _stored(path)
    return {name: tensor.read() for name, tensor in tensors.items()}, metadata


def load_metadata(path: AnyPath) -> JsonDict:
    """Return the metadata of a checkpoint without reading its arrays. The checksum is not verified.

    Parameters
    ----------
    path : str or os.PathLike
        A checkpoint, or a run's folder with a checkpoint.

    Returns
    -------
    dict

    Raises
    ------
    CheckpointError
        The file is missing, truncated or not a checkpoint.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/some.safetensors"
    >>> _ = save(path, {"model.bias": np.zeros(4)}, {"step": 10})
    >>> load_metadata(path)
    {'step': 10}
    """
    return _stored(path, check=False)[1]


def _stored(path, check=True):
    path = path_of(path)
    with reading(f"checkpoint {path}", kind=CheckpointError):
        tensors, header = tensorfile.stored(path, FORMAT, check=check)
        metadata = json.loads(header["sarlite"])
        if not isinstance(metadata, dict) or not isinstance(metadata.get("rows", {}), dict):
            raise ValueError("its metadata are not a checkpoint's")
        return tensors, metadata


def write(path, trainer, metadata, best=None, keys=None, **options):
    """Write a trainer's state and `metadata` to a checkpoint from rank 0. `best` has this rank's arrays of the best epoch's model, and
    `keys` the hashes of node names for rows of learned parameters; None omits them. Collective.

    Parameters
    ----------
    path : str or os.PathLike
    trainer : Trainer
    metadata : dict
        JSON-serializable. The entries "step", the global step, and "rows" are added, and "plateau" if the trainer's
        schedule has a `Plateau`.
    best : dict of str to array, optional
        This rank's `state_dict` of the best epoch's model.
    keys : dict of str to (n_local, 2) uint64, optional
        Result of `row_keys`, by which the rows of other data are matched later.
    **options
        `trial` and `new`, see `save`.

    Raises
    ------
    CheckpointError
        On every rank: a parameter is not finite, or the file cannot be written. An earlier file is unchanged.

    Notes
    -----
    Tensors that are owned by rows travel to rank 0 in pieces. Memory: 24 bytes for each row of this rank, and three
    pieces of `owners.PIECE_BYTES` on rank 0, one on other ranks. Bytes sent: this rank's rows and their optimizer state,
    and 8 bytes for each row of each tensor.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import Graph, Trainer, nn, optim
    >>> from sarlite.models import SAGE
    >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
    >>> trainer = Trainer(graph, SAGE(3, 2, layers=1, rng=rng), np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1],
    ...                   optimizer=lambda flat: optim.Adam(flat, 0.1), rng=rng)
    >>> folder = tempfile.TemporaryDirectory()
    >>> loss, path = trainer.step(), folder.name + "/some.safetensors"
    >>> write(path, trainer, {"note": "after one step"})
    >>> load_metadata(path)
    {'note': 'after one step', 'step': 1, 'rows': {}}
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
    plateau = plateau_of(trainer.schedule)
    metadata = {**metadata, "step": trainer.training_step.n_steps, "rows": rows} | ({"plateau": plateau.state()} if plateau else {})
    _write(trainer.comm, path, tensors, metadata, **options)


def read(comm, path, prefixes=("",)):
    """Read a checkpoint on rank 0; return (tensors by name, metadata) on all ranks. Tensors whose rows are divided among the ranks are
    returned on rank 0 only. Only tensors whose names begin with one prefix are read: the first of `prefixes` that occurs in the file.
    Collective.

    Parameters
    ----------
    comm : Communicator
    path : str or os.PathLike
    prefixes : sequence of str
        Read only the tensors whose names begin with one prefix: the first prefix that any name begins with. Ids and keys
        are read in any case. By default all tensors are read.

    Returns
    -------
    tensors : dict of str to (array or tensorfile.Stored)
        Replicated tensors, as arrays on every rank. Tensors that are owned by rows are only on rank 0, as
        `tensorfile.Stored`, which reads rows later and keeps the file open.
    metadata : dict

    Raises
    ------
    CheckpointError
        On every rank, as `load`.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/some.safetensors"
    >>> _ = save(path, {"model.bias": np.zeros(2), "optimizer.bias.m": np.ones(2)}, {"step": 10})
    >>> read(Solo(), path, prefixes=("best.", "model."))
    ({'model.bias': array([0., 0.])}, {'step': 10})
    """
    tensors, metadata = together(comm, lambda: _stored(path) if comm.rank == 0 else ({}, None))
    metadata = comm.bcast(metadata)
    first = next((prefix for prefix in prefixes if any(name.startswith(prefix) for name in tensors)), "")
    tensors = {name: tensor for name, tensor in tensors.items() if name.startswith((first, *_OF_ROWS))}
    read_all = lambda: {name: tensor.read() for name, tensor in _replicated(tensors, metadata).items()}  # noqa: E731
    return tensors | comm.bcast(together(comm, read_all)), metadata


def _replicated(tensors, metadata):
    return {name: array for name, array in tensors.items()
            if name not in metadata.get("rows", ()) and not name.startswith(_OF_ROWS)}


def check_finite(trainer):
    """Raise an error on every rank if a parameter of the trainer's model is not finite on any rank. Collective.

    Raises
    ------
    CheckpointError
        On every rank, naming the parameter.
    """
    raise_together(trainer.comm, _not_finite(trainer.flat))


def _not_finite(flat):
    for group in flat.groups:
        for name, where in zip(group.names, group.slices):
            if not np.isfinite(group.data.reshape(-1)[where]).all():
                return CheckpointError(f"parameter {name!r} is not finite, so nothing was written: try a lower "
                                       "learning rate")
    return None


def _local_state(trainer: Any, best: Mapping[str, Array] | None) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the state to write, (arrays, divided): first this rank's arrays by name in the file; then, for each tensor whose rows are
    divided among the ranks, the name of the parameter that defines the division. `best` is the state of the best epoch's model, or None.
    """
    model, optimizer, best = trainer.model, trainer.optimizer, best or {}
    state = {**_under("model.", model.state_arrays()), **_under("optimizer.", optimizer.state_arrays()),
             **_under("best.", best)}
    return state, _owned(trainer, bool(best))


def _owned(trainer: Any, has_best: bool) -> dict[str, str]:
    """Return the tensors of a checkpoint whose rows are divided among ranks as {name in the file: parameter that defines the division}.
    They are the parameters with a row for each node, their optimizer state and, if `has_best`, their values in the best epoch.
    """
    names = trainer.model.row_ids()
    owned = {prefix + name: name for prefix in ("model.", *(["best."] if has_best else [])) for name in names}
    return {**owned, **{"optimizer." + name: parameter for name, parameter in trainer.optimizer.rows_of().items()}}


def _under(prefix, state):
    return {prefix + name: np.asarray(value) for name, value in state.items()}


def restore_state(trainer, tensors, metadata, keys=None):
    """Load a checkpoint, (`tensors`, `metadata`) from `checkpoint.read`, into a trainer: parameters, optimizer and steps. Rows are matched
    by `keys`, hashes of node names, or by id if `keys` is None. Return the best epoch's arrays by name. Collective.

    The state of a `Plateau`, if the trainer's schedule and the checkpoint have one, is loaded too.

    Parameters
    ----------
    trainer : Trainer
    tensors, metadata : dict
        Results of `read` without prefixes.
    keys : dict of str to (n_local, 2) uint64, optional
        Result of `row_keys`. Rows are matched by key if the checkpoint has keys too, otherwise by id.

    Returns
    -------
    dict of str to array
        This rank's `state_dict` of the best epoch's model; empty if the checkpoint has none.

    Raises
    ------
    CheckpointError
        On every rank: the tensors belong to another model, optimizer or set of rows.

    Notes
    -----
    Rank 0 sends rows in pieces to the ranks that own them. Memory: as `write`, and the best state.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import Graph, Trainer, nn, optim
    >>> from sarlite.models import SAGE
    >>> def make():
    ...     graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
    ...     return Trainer(graph, SAGE(3, 2, layers=1, rng=rng), np.eye(3, dtype=np.float32), [0, 1, 1], train=[0, 1],
    ...                    optimizer=lambda flat: optim.Adam(flat, 0.1), rng=rng)
    >>> trainer, other = make(), make()
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/some.safetensors"
    >>> loss = trainer.step()
    >>> write(path, trainer, {})
    >>> restore_state(other, *read(Solo(), path))
    {}
    >>> other.training_step.n_steps, trainer.step() == other.step()
    (1, True)
    """
    comm, model, optimizer, rows = trainer.comm, trainer.model, trainer.optimizer, metadata.get("rows", {})
    owned = together(comm, lambda: _arrays_to_fill(trainer, rows))
    owners = _owners(comm, model, tensors, keys)
    raise_together(comm, _missing_rows_error(owners))
    to_fill = _checked_to_fill(comm, owners, tensors, {name: (of, owned[name]) for name, of in rows.items()})
    state = _replicated(tensors, metadata) | owned

    def below(prefix):
        return {name[len(prefix):]: value for name, value in state.items() if name.startswith(prefix)}

    together(comm, lambda: (model.load_state_dict(below("model.")), optimizer.load_state_dict(below("optimizer."))))
    _fill(to_fill)  # reports its own failures on every rank, in the middle of the pieces
    trainer.flat.changed()
    trainer.training_step.n_steps = metadata.get("step", metadata.get("epoch", 0))
    if (plateau := plateau_of(trainer.schedule)) and "plateau" in metadata:
        plateau.load_state(metadata["plateau"])
    return below("best.")


@contextmanager
def errors_of(path):
    """Return a context that puts the path of the checkpoint before the message of a CheckpointError raised inside it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {path}: " + re.sub(r"^(rank \d+: )+", "", str(error))) from None


def _arrays_to_fill(trainer: Any, rows: Mapping[str, str]) -> dict[str, Array]:
    """Return {name in the file: this rank's array} of the tensors whose rows are divided among ranks, to be filled from a checkpoint.
    `rows` has these tensors of the checkpoint as {name: parameter}; a CheckpointError is raised unless the trainer has the same tensors.
    """
    expected = _owned(trainer, any(name.startswith("best.") for name in rows))
    for name in sorted(expected.keys() ^ rows.keys()):
        raise CheckpointError(f"{name!r}, owned by rows, is missing from "
                              + ("the trainer" if name in rows else "the checkpoint"))
    state, _ = _local_state(trainer, {})
    return {name: np.empty_like(state["model." + of]) if name.startswith("best.") else state[name]
            for name, of in rows.items()}


def restore_model(comm, model, tensors, metadata, keys=None):
    """Load the parameters of a checkpoint, (`tensors`, `metadata`) from `checkpoint.read`, into a model. Rows of nodes are matched by
    `keys`, hashes of node names, or by id if `keys` is None. Return {parameter with rows of nodes: `KeyedRows`, the map that matched its
    rows by keys; None if they were matched by id}. Collective.

    Parameters
    ----------
    comm : Communicator
    model : Module
    tensors, metadata : dict
        Results of `read` with the prefix "model." or "best.".
    keys : dict of str to (n_local, 2) uint64, optional
        Result of `row_keys`. Rows are matched by key if the checkpoint has keys too, and a row that the checkpoint lacks
        gets the mean of the checkpoint's rows. Otherwise rows are matched by id.

    Returns
    -------
    dict of str to (KeyedRows or None)
        For each parameter that is owned by rows, the map to the checkpoint's rows; None if rows were matched by id.

    Raises
    ------
    CheckpointError
        On every rank: the tensors belong to another model, or rows matched by id belong to another set of nodes.

    Notes
    -----
    Memory: as `write`.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import nn
    >>> layer, other = nn.Linear(2, 3, rng=nn.Random(0)), nn.Linear(2, 3, rng=nn.Random(1))
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/some.safetensors"
    >>> _ = save(path, {"model." + name: array for name, array in layer.state_dict().items()}, {})
    >>> restore_model(Solo(), other, *read(Solo(), path, ("model.",)))
    {}
    >>> np.array_equal(layer.weight.data, other.weight.data)
    True
    """
    state = {name.partition(".")[2]: array for name, array in _replicated(tensors, metadata).items()}
    prefix = comm.bcast(next((name.partition(".")[0] for name in tensors if not name.startswith(_OF_ROWS)), "model"))
    arrays = model.state_arrays()
    owned = {parameter: arrays[parameter] for parameter in model.row_ids()}
    owners = _owners(comm, model, tensors, keys)
    to_fill = _checked_to_fill(comm, owners, tensors,
                               {f"{prefix}.{parameter}": (parameter, rows) for parameter, rows in owned.items()})
    together(comm, lambda: model.load_state_dict(state | owned))
    _fill(to_fill)
    for parameter in model.parameters():
        parameter.changed()
    return {parameter: row_map if isinstance(row_map, KeyedRows) else None for parameter, row_map in owners.items()}


def _owners(comm, model, tensors, keys):
    """Return for each parameter of the model with rows of nodes a map from this rank's rows to the rows of the checkpoint's `tensors`. It
    is a `KeyedRows`, by `keys` (hashes of node names), if the checkpoint has keys, too, otherwise an `Owners`, by id. Collective.
    """
    row_maps = {}
    for parameter, ids in model.row_ids().items():
        stored = comm.bcast([prefix + parameter in tensors for prefix in _OF_ROWS])
        if stored[1] and parameter in (keys or {}):
            row_maps[parameter] = KeyedRows(comm, keys[parameter], tensors.get("keys." + parameter), parameter)
            continue
        row_maps[parameter] = Owners(comm, ids, parameter)
        raise_together(comm, _row_count_error(row_maps[parameter], tensors.get("ids." + parameter), stored[1]))
        row_maps[parameter].check(tensors.get("ids." + parameter))
    return row_maps


def _row_count_error(owners: Owners, stored: Any, keyed: bool) -> CheckpointError | None:
    """Return a CheckpointError if the number of a checkpoint's ids `stored` differs from the number of rows of `owners`; None if it is
    equal or `stored` is None. `keyed` is True if the checkpoint has node names.
    """
    if stored is None or stored.shape[:1] == (owners.n,):
        return None
    unnamed = "the data have" if keyed else "the checkpoint has"
    return CheckpointError(f"{owners.name!r}: {owners.n} nodes here, but {stored.shape[0]} rows in the checkpoint, and "
                           f"{unnamed} no node names to match them by")


def _missing_rows_error(row_maps: Mapping[str, Owners | KeyedRows]) -> CheckpointError | None:
    """Return a CheckpointError if a node has a name that the checkpoint lacks, otherwise None. `row_maps` has for each parameter the map
    from this rank's rows to the checkpoint's rows.
    """
    for name, row_map in row_maps.items():
        if isinstance(row_map, KeyedRows) and row_map.n_missing:
            return CheckpointError(f"{name!r}: {row_map.n_missing} nodes have no row in the checkpoint")
    return None


def _checked_to_fill(comm, owners, tensors, arrays):
    """Check that the dtypes and shapes of a checkpoint's `tensors` fit the local rows that they are to fill; `arrays` is {name: (parameter,
    local rows)}. Return a list with (map, tensor, local rows) for each name: the map is the parameter's entry in `owners`; the tensor is
    None on ranks other than 0. Collective.
    """
    to_fill = []
    for name, (parameter, rows) in arrays.items():
        to_fill.append((owners[parameter], tensors.get(name), rows))
        together(comm, lambda name=name, to_fill=to_fill[-1]: comm.rank or _check(name, *to_fill))
    return to_fill


def _check(name, owners, whole, rows):
    if whole is None:
        raise CheckpointError(f"{name!r} is missing from the checkpoint")
    if (whole.dtype, whole.shape) != (rows.dtype, (owners.n, *rows.shape[1:])):
        raise CheckpointError(f"{name!r} is {whole.dtype} {whole.shape}, but {rows.dtype} with rows of "
                              f"{rows.shape[1:]} here")


def _fill(to_fill):
    for owners, whole, rows in to_fill:
        owners.scatter(whole, rows)
