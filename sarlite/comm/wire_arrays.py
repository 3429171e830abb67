"""Arrays as the bytes that travel, the reductions, and the words of a call, which must be the same on every rank."""

import hashlib

import numpy as np

from sarlite.errors import ShapeError

REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def as_bytes(array, writable=False):
    """View a C-contiguous array of any shape, zero rows included, as flat bytes.

    Parameters
    ----------
    array : ndarray
        Borrowed.
    writable : bool
        Whether the bytes will be written.

    Returns
    -------
    ndarray of uint8

    Raises
    ------
    ShapeError
        The array is not contiguous, holds Python objects, or is read-only and must be written.
    """
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise ShapeError(f"only arrays of plain numbers travel, not {getattr(array, 'dtype', type(array).__name__)}")
    if not array.flags.c_contiguous:
        raise ShapeError(f"array of shape {array.shape} and strides {array.strides} is not C-contiguous")
    if writable and not array.flags.writeable:
        raise ShapeError(f"array of shape {array.shape} is read-only")
    return array.reshape(-1).view(np.uint8)


def reduction_call(array, op):
    """Check the arguments of an allreduce; return its description, which must be equal on all ranks.

    Raise a ShapeError if the arguments are not valid.
    """
    as_bytes(array, writable=True)
    if op not in REDUCTIONS:
        raise ShapeError(f"op is {op!r}, not one of {', '.join(REDUCTIONS)}")
    return f"allreduce of {op} over {array.dtype} {array.shape}"


def broadcast_call(array, root, rank, size):
    """Check the arguments of a broadcast; return its description, which must be equal on all ranks."""
    if not 0 <= root < size:
        raise ShapeError(f"root {root} is not one of {size} ranks")
    as_bytes(array, writable=rank != root)
    return f"broadcast from {root} of {array.dtype} {array.shape}"


def alltoall_call(arrays, size):
    """Check the arguments of an alltoall; return its description, which must be equal on all ranks."""
    if len(arrays) != size:
        raise ShapeError(f"{len(arrays)} arrays are not one for each of {size} ranks")
    for array in arrays:
        as_bytes(array)
    kinds = [f"{array.dtype} rows of shape {array.shape[1:]}" if array.ndim else "numbers without rows"
             for array in arrays]
    for rank, (array, kind) in enumerate(zip(arrays, kinds)):
        if not array.ndim or kind != kinds[0]:
            raise ShapeError(f"alltoall of {kinds[0]}, but {kind} for rank {rank}")
    return f"alltoall of {kinds[0]}"


def described(describe, *args):
    """Return `describe(*args)` and None, or words of the ShapeError that it raises, and the error."""
    try:
        return describe(*args), None
    except ShapeError as error:
        return f"what cannot be done ({error})", error


def check_calls(calls, error=None):
    """Raise on every rank, `error` where there is one, unless all ranks make the same call."""
    if error is not None:
        raise error
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise ShapeError(f"ranks call different collectives: rank 0 {calls[0]}, rank {rank} {call}")


def check_received(n_bytes, expected, peer, tag):
    """Raise ShapeError unless a message has the size of the buffer that was posted for it."""
    if n_bytes != expected:
        raise ShapeError(f"rank {peer} sent {n_bytes} bytes with tag {tag} where {expected} were expected")


def digest(value):
    """Return a 16-byte hash of a value, to compare values between ranks.

    Arrays, bytes, and tuples, lists and dicts of them are hashed by value; of other objects the `repr` is hashed.
    """
    found = hashlib.blake2b(digest_size=16)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        found.update(f"array {value.dtype} {value.shape}".encode())
        found.update(as_bytes(np.ascontiguousarray(value)))
    elif isinstance(value, bytes | bytearray | memoryview):
        found.update(b"bytes")
        found.update(value)
    elif isinstance(value, list | tuple):
        found.update(f"sequence of {len(value)}".encode() + b"".join(map(digest, value)))
    elif isinstance(value, dict):
        found.update(b"dict" + b"".join(sorted(digest(item) for item in value.items())))
    else:
        found.update(f"{type(value).__name__} {value!r}".encode())
    return found.digest()
