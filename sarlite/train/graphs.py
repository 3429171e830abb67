"""What a run makes of a set of graphs."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.nn import GraphPredictor, Random


class GraphOptions(NamedTuple):
    """The readout of a run of graphs.

    Attributes
    ----------
    readout : str
        Of `nn.readout.READOUTS`.
    width : int
        Numbers in a node's row, which the encoder makes.
    """

    readout: str = "sum"
    width: int = 64

    def read_out(self, encoder: Any, n_out: int, rng: Random, dtype: str) -> GraphPredictor:
        """Return an encoder with the readout behind it."""
        return GraphPredictor(encoder, self.width, n_out, self.readout, rng=rng, dtype=np.dtype(dtype))
