"""Arrays as bytes, checks of the arguments of collective calls, and hashes of values to compare them between ranks.

A check returns a description of the call, a text that must be the same on every rank.
"""

import hashlib

import numpy as np

from sarlite.errors import ShapeError

REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def as_bytes(array, writable=False):
    """Return a view of a C-contiguous array's memory as uint8, (n_bytes,); with `writable`, raise a ShapeError for a read-only array.

    Parameters
    ----------
    array : ndarray
        Any shape and dtype without Python objects.
    writable : bool
        True if the bytes will be written to.

    Returns
    -------
    (n_bytes,) uint8

    Raises
    ------
    ShapeError
        The array is not C-contiguous or holds Python objects; or it is read-only, and `writable` is True.

    Examples
    --------
    >>> as_bytes(np.zeros((2, 3), np.float32)).shape
    (24,)
    """
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise ShapeError(f"an array of {getattr(array, 'dtype', type(array).__name__)} cannot be sent: only arrays of plain numbers can")
    if not array.flags.c_contiguous:
        raise ShapeError(f"array of shape {array.shape} and strides {array.strides} is not C-contiguous")
    if writable and not array.flags.writeable:
        raise ShapeError(f"array of shape {array.shape} is read-only")
    return array.reshape(-1).view(np.uint8)


def reduction_call(array, op):
    """Check the `array` and the operation `op` of an allreduce. Return a text that describes the call, which ranks compare to see that
    all make the same call.

    Raises
    ------
    ShapeError
        The arguments are not valid.
    """
    as_bytes(array, writable=True)
    if op not in REDUCTIONS:
        raise ShapeError(f"op is {op!r}, not one of {', '.join(REDUCTIONS)}")
    return f"allreduce of {op} over {array.dtype} {array.shape}"


def broadcast_call(array, root, rank, size):
    """Check the arguments of a broadcast of `array` from rank `root` to `size` ranks. Return a text that describes the call, which
    ranks compare to see that all make the same call.
    """
    if not 0 <= root < size:
        raise ShapeError(f"root {root} is not one of {size} ranks")
    as_bytes(array, writable=rank != root)
    return f"broadcast from {root} of {array.dtype} {array.shape}"


def alltoall_call(arrays, size):
    """Check the `arrays` of an alltoall, one for each of `size` ranks. Return a text that describes the call, which ranks compare to
    see that all make the same call.
    """
    if len(arrays) != size:
        raise ShapeError(f"alltoall of {len(arrays)} arrays, but one for each of {size} ranks is needed")
    for array in arrays:
        as_bytes(array)
    kinds = [f"{array.dtype} rows of shape {array.shape[1:]}" if array.ndim else "numbers without rows"
             for array in arrays]
    for rank, (array, kind) in enumerate(zip(arrays, kinds)):
        if not array.ndim or kind != kinds[0]:
            raise ShapeError(f"alltoall of {kinds[0]}, but {kind} for rank {rank}")
    return f"alltoall of {kinds[0]}"


def described(argument_check, *args):
    """Check the arguments of a collective call by argument_check(*args), which returns a text that describes the call or raises a
    ShapeError. Return (text, None), or after an error (another text, the error), so that all ranks can compare texts before any raises.
    """
    try:
        return argument_check(*args), None
    except ShapeError as error:
        return f"what cannot be done ({error})", error


def check_calls(call_texts, error=None):
    """Raise a ShapeError unless all texts in `call_texts` are equal; each describes the collective call that one rank makes. Raise `error`
    instead if it is not None.
    """
    if error is not None:
        raise error
    for rank, call in enumerate(call_texts):
        if call != call_texts[0]:
            raise ShapeError(f"ranks call different collectives: rank 0 {call_texts[0]}, rank {rank} {call}")


def check_received(n_bytes, expected, peer, tag):
    """Raise a ShapeError unless the message from rank `peer` with the tag `tag` had `n_bytes` equal to `expected`, the size of the buffer
    in bytes.
    """
    if n_bytes != expected:
        raise ShapeError(f"rank {peer} sent {n_bytes} bytes with tag {tag} where {expected} were expected: the dtype or the "
                         "width of the rows differs between the ranks")


def digest(value):
    """Return a 16-byte hash of a value, to compare values between ranks.

    Arrays and bytes, and tuples, lists and dicts of them, are hashed by value. For other objects the `repr` is hashed.
    """
    hasher = hashlib.blake2b(digest_size=16)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        hasher.update(f"array {value.dtype} {value.shape}".encode())
        hasher.update(as_bytes(np.ascontiguousarray(value)))
    elif isinstance(value, bytes | bytearray | memoryview):
        hasher.update(b"bytes")
        hasher.update(value)
    elif isinstance(value, list | tuple):
        hasher.update(f"sequence of {len(value)}".encode() + b"".join(map(digest, value)))
    elif isinstance(value, dict):
        hasher.update(b"dict" + b"".join(sorted(digest(item) for item in value.items())))
    else:
        hasher.update(f"{type(value).__name__} {value!r}".encode())
    return hasher.digest()
