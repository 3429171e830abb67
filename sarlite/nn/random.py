"""Random: the source of all random numbers of a model, which do not depend on the number of ranks."""

import operator

import numpy as np

from sarlite.errors import ConfigError
from sarlite.keys import GAMMA, MASK, key, splitmix64, word
from sarlite.types import Array, ArrayLike, DType

__all__ = ["Random", "splitmix64", "word"]

_CHUNK = 1 << 18


class Random:
    """Source of random numbers of a model: generators for initial values, and keys for dropout masks.

    Each rank makes a Random from the same seed, and calls it in the same order.

    Parameters
    ----------
    seed : int

    Attributes
    ----------
    step : int
        Number of optimizer steps so far. The training step sets it before each pass. Keys depend on it, so that dropout
        masks change from step to step.

    Examples
    --------
    >>> from sarlite import nn
    >>> rng = nn.Random(0)
    >>> model = nn.Linear(8, 4, rng=rng)
    >>> dropout = nn.Dropout(0.5, rng)
    >>> rng
    Random(seed=0, step=0, 1 layers)
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
        """Return a NumPy generator that depends only on the seed and on `index`. If `index` is None, the number of earlier calls
        without an index takes its place.

        Equal seeds and indices give equal generators (Philox) on every rank and platform.
        """
        if index is None:
            index, self._n_draws = self._n_draws, self._n_draws + 1
        key = np.array([splitmix64(self.seed & MASK), operator.index(index)], np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def layer(self) -> int:
        """Return the number of a new layer: 0, 1, 2, ... from call to call. The constructor of each layer with random numbers calls
        this method.
        """
        self._n_layers += 1
        return self._n_layers - 1

    def key(self, layer: int, node_type: str = "", purpose: str = "dropout") -> int:
        """Return the 64-bit key of the random numbers that layer number `layer` uses in the current training step for rows of
        `node_type`. Each `purpose`, such as "dropout", has a key of its own.

        Parameters
        ----------
        layer : int
            Number from the method `layer`.
        node_type : str
            Node type of the rows, because equal ids of two types are two rows.
        purpose : str
            Use of the numbers; different purposes give independent numbers.

        Notes
        -----
        The key is h(h(h(h(h(seed) ^ purpose) ^ node type) ^ step) ^ layer), where h is `splitmix64` and names are
        hashed by `word`.
        """
        return key(self.seed, purpose, node_type, self.step, layer)

    def uniform(self, ids: ArrayLike, n_feat: int, layer: int, node_type: str = "", purpose: str = "rows", *,
                bound: float = 1.0, dtype: DType = np.float64) -> Array:
        """Return (n, n_feat) random values uniform in [-bound, bound). Row r depends only on the seed, the global id ids[r], the
        layer's number, the node type and the `purpose`, a name of the numbers' use.

        Parameters
        ----------
        ids : (n,) array of integers
            Global ids of the rows.
        n_feat : int
            Width of the rows.
        layer, node_type, purpose
            See `key`.
        bound : float
        dtype : float32 or float64
            Dtype of the result; values are drawn in float64 and rounded.

        Notes
        -----
        Entry (r, c) is the upper 53 bits of output c of the generator splitmix64 with the state h(k ^ ids[r]), where h
        is `splitmix64` and k is the layer's key at step 0.
        """
        layer_key = key(self.seed, purpose, node_type, 0, layer)
        columns = np.arange(n_feat, dtype=np.uint64) * np.uint64(GAMMA)
        ids = np.asarray(ids).astype(np.int64).view(np.uint64)
        out = np.empty((len(ids), n_feat), dtype)
        some = max(_CHUNK // max(n_feat, 1), 1)
        for start in range(0, len(ids), some):
            states = splitmix64(ids[start:start + some] ^ np.uint64(layer_key))
            bits = splitmix64(states[:, None] + columns) >> np.uint64(11)
            out[start:start + some] = (bits * 2.0**-52 - 1) * bound
        return out
