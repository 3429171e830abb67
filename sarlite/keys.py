"""Keys of random numbers: 64 bits from a seed, a purpose, a step and a layer, the same on every rank and platform."""

import hashlib
import operator
from typing import Any, TypeVar

import numpy.typing as npt

Words = TypeVar("Words", int, npt.NDArray[Any])
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MOST_STEPS = 1 << 62
"""Largest number of training steps in a file; one more step still fits into an int64."""


def splitmix64(x: Words) -> Words:
    """Return a hash of a 64-bit integer, or of each entry of a uint64 array: the output function of SplitMix64.

    References
    ----------
    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".

    Examples
    --------
    >>> hex(splitmix64(0))
    '0xe220a8397b1dcdaf'
    """
    x = (x + GAMMA) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def word(text: str) -> int:
    """Return a 64-bit hash of a name: the first 8 bytes of its BLAKE2b hash, as a little-endian integer."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def key(seed: int, purpose: str, node_type: str, step: int, layer: int) -> int:
    """Return the 64-bit key, a hash of all arguments, of random numbers for `purpose`, such as dropout. The numbers are drawn for
    the rows of a node type in a training step and a layer.

    The key is h(h(h(h(h(seed) ^ purpose) ^ node type) ^ step) ^ layer), where h is `splitmix64` and names are hashed by
    `word`.
    """
    state = splitmix64(seed & MASK)
    for part in (word(purpose), word(node_type), step, layer):
        state = splitmix64(state ^ (operator.index(part) & MASK))
    return state
