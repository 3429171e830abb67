"""A hash of a model's parameters that does not depend on the number of ranks."""

import hashlib

import numpy as np

from sarlite.comm import Communicator
from sarlite.nn import Module


def parameters_hash(model: Module, comm: Communicator) -> str:
    """Return the SHA-256 of all parameters, 64 hexadecimal digits, the same on every rank. Collective.

    A parameter that every rank holds counts by its name, dtype, shape and bytes. A parameter that is owned by rows counts
    by its name and by the sum of a hash of each row and its id, so the division among ranks does not matter.

    Notes
    -----
    Sends 16 bytes a rank for each parameter that is owned by rows. Time: linear in the rows.

    Examples
    --------
    >>> from sarlite import nn
    >>> from sarlite.comm import Solo
    >>> layer = nn.Linear(2, 3, rng=nn.Random(0))
    >>> before = parameters_hash(layer, Solo())
    >>> len(before), before == parameters_hash(layer, Solo())
    (64, True)
    >>> layer.bias.data[0] += 1
    >>> before == parameters_hash(layer, Solo())
    False
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        values = np.ascontiguousarray(parameter.data)
        digest.update(f"{name} {values.dtype.str} {values.shape[1:] if parameter.ids is not None else values.shape}".encode())
        if parameter.ids is None:
            digest.update(values.tobytes())
        else:
            own = sum(_row_hash(id_, row) for id_, row in zip(parameter.ids.tolist(), values))
            digest.update(f"{sum(comm.allgather(own)) % (1 << 128)}".encode())
    return digest.hexdigest()


def _row_hash(id_: int, row: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=16, key=str(id_).encode()).digest(), "little")
