"""The one explicit source of randomness, independent of the number of ranks."""

import operator

import numpy as np

_MASK = (1 << 64) - 1


def splitmix64(x):
    """Scramble a 64-bit integer (Steele, Lea and Flood 2014: "Fast splittable pseudorandom number generators")."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Random:
    """Seeds for initialisation, keys for dropout. Every rank builds its own, from the same seed.

    Parameters
    ----------
    seed : int

    Attributes
    ----------
    epoch : int
        Set by the trainer before each pass; part of every key, so that masks change with it.
    """

    def __init__(self, seed):
        self.seed = operator.index(seed)
        self.epoch = 0
        self._n_draws = 0
        self._n_layers = 0

    def generator(self, index=None):
        """Return the Philox generator number `index`, or the next one.

        The same calls in the same order give the same generators on every rank and platform.
        """
        if index is None:
            index, self._n_draws = self._n_draws, self._n_draws + 1
        key = np.array([splitmix64(self.seed & _MASK), operator.index(index)], np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def layer(self):
        """Return the next layer number; a layer asks once, when it is built."""
        self._n_layers += 1
        return self._n_layers - 1

    def key(self, layer):
        """Return the 64-bit key h(h(h(seed) ^ epoch) ^ layer) of a layer's masks in this epoch, with h = splitmix64."""
        key = splitmix64(self.seed & _MASK)
        for part in (self.epoch, layer):
            key = splitmix64(key ^ (operator.index(part) & _MASK))
        return key
