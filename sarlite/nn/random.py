"""Seeds and keys for all random numbers, independent of the number of ranks."""

import operator

import numpy as np

from sarlite.errors import ConfigError
from sarlite.keys import GAMMA, MASK, key, splitmix64, word
from sarlite.types import Array, ArrayLike, DType

__all__ = ["Random", "splitmix64", "word"]

_CHUNK = 1 << 18


class Random:
    """Seeds for initialisation and keys for dropout. Each rank makes its own object from the same seed.

    Parameters
    ----------
    seed : int

    Attributes
    ----------
    step : int
        The global step: how many optimizer steps came before. The training step sets it before each pass. It is part of
        every key, so that masks change from step to step.
    """

    def __init__(self, seed: int) -> None:
        try:
            self.seed = operator.index(seed)
        except TypeError:
            raise ConfigError(f"seed is {seed!r}, but must be a whole number") from None
        self.step = 0
        self._n_draws = 0
        self._n_layers = 0

    def __repr__(self) -> str:
        return f"Random(seed={self.seed}, step={self.step}, {self._n_layers} layers)"

    def generator(self, index: int | None = None) -> np.random.Generator:
        """Return the Philox generator number `index`, or the next one.

        The same calls in the same order give the same generators on every rank and platform.
        """
        if index is None:
            index, self._n_draws = self._n_draws, self._n_draws + 1
        key = np.array([splitmix64(self.seed & MASK), operator.index(index)], np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def layer(self) -> int:
        """Return the next layer number; each layer calls this once, in its constructor."""
        self._n_layers += 1
        return self._n_layers - 1

    def key(self, layer: int, node_type: str = "", purpose: str = "dropout") -> int:
        """Return a layer's 64-bit key in this step.

        Parameters
        ----------
        layer : int
            From `layer`.
        node_type : str
            The type of the rows whose ids go with the key: the same id of two types is two rows.
        purpose : str
            What is drawn. Another purpose gives other numbers.

        Notes
        -----
        h(h(h(h(h(seed) ^ purpose) ^ node type) ^ step) ^ layer), with h = splitmix64 and names as `word`.
        """
        return key(self.seed, purpose, node_type, self.step, layer)

    def uniform(self, ids: ArrayLike, n_feat: int, layer: int, node_type: str = "", purpose: str = "rows", *,
                bound: float = 1.0, dtype: DType = np.float64) -> Array:
        """Return (n, n_feat) values in [-bound, bound).

        Row r depends on the seed, `ids[r]`, the layer, the node type and the purpose alone.

        Parameters
        ----------
        ids : (n,) array of integers
        n_feat, layer : int
        dtype : float32 or float64
            Values are drawn in float64 and rounded.

        Notes
        -----
        Entry (r, c) is the upper 53 bits of output c of the generator splitmix64 from the state h(key ^ ids[r]). The
        key is the key of step 0. """
        own = key(self.seed, purpose, node_type, 0, layer)
        columns = np.arange(n_feat, dtype=np.uint64) * np.uint64(GAMMA)
        ids = np.asarray(ids).astype(np.int64).view(np.uint64)
        out = np.empty((len(ids), n_feat), dtype)
        some = max(_CHUNK // max(n_feat, 1), 1)
        for start in range(0, len(ids), some):
            states = splitmix64(ids[start:start + some] ^ np.uint64(own))
            bits = splitmix64(states[:, None] + columns) >> np.uint64(11)
            out[start:start + some] = (bits * 2.0**-52 - 1) * bound
        return out
