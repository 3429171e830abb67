"""A hash of a model's parameters that does not depend on the number of ranks."""

import hashlib

import numpy as np

from sarlite.comm import Communicator
from sarlite.nn import Module


def parameters_hash(model: Module, comm: Communicator) -> str:
    """Return a SHA-256 of all parameters of a model, equal on every rank and for any number of ranks. Collective.

    The hash covers the name, dtype, shape and bytes of a replicated parameter. For a parameter that is owned by rows it
    covers the name, the dtype, and the sum over rows of a hash of the row and its id. So the division of the rows among
    ranks does not matter.

    Returns
    -------
    str
        64 hexadecimal digits.

    Notes
    -----
    Bytes sent: 16 for each parameter that is owned by rows. Time: linear in the number of values.

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
            local_sum = sum(_row_hash(id_, row) for id_, row in zip(parameter.ids.tolist(), values))
            digest.update(f"{sum(comm.allgather(local_sum)) % (1 << 128)}".encode())
    return digest.hexdigest()


def _row_hash(id_: int, row: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=16, key=str(id_).encode()).digest(), "little")
