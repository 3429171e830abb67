"""Keys of random numbers: 64 bits from a seed, a purpose, a step and a layer, the same on every rank and platform."""

import hashlib
import operator
from typing import Any

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MOST_STEPS = 1 << 62
"""Largest number of steps that a file may tell: one more is still an int64."""


def splitmix64(x: Any) -> Any:
    """Scramble a 64-bit integer, or an array of uint64.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    x = (x + GAMMA) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def word(text: str) -> int:
    """Return a 64-bit hash of a name, the same on every machine: the first 8 bytes of its BLAKE2b, little-endian."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def key(seed: int, purpose: str, node_type: str, step: int, layer: int) -> int:
    """Return h(h(h(h(h(seed) ^ purpose) ^ node type) ^ step) ^ layer), with h = splitmix64 and names as `word`."""
    found = splitmix64(seed & MASK)
    for part in (word(purpose), word(node_type), step, layer):
        found = splitmix64(found ^ (operator.index(part) & MASK))
    return found
