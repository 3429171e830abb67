"""Edge weights and features on ranks of MPI: the rows equal the rows of one rank."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, nn
from sarlite.comm import mpi
from sarlite.models import GAT, GCN
from sarlite.tape import no_grad
from tests.helpers.graph.references import EDGES, FEATURES, N_IN
from tests.helpers.graph.strategies import values

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


def test_ranks_of_mpi_agree():
    whole = Graph.from_edges(*EDGES).with_edge_values(np.abs(values(1, EDGES.n_edges)), values(2, EDGES.n_edges, 3))
    comm = mpi.world()
    part = whole.shard(comm, "random", mode="sar")
    for model in (GCN(N_IN, 4, rng=nn.Random(0), dtype=np.float64),
                  GAT(N_IN, 4, hidden=3, heads=2, edge_features=3, rng=nn.Random(0), dtype=np.float64)):
        with no_grad():
            expected, actual = (model.eval()(graph, Tensor(FEATURES[graph.node_ids])).data for graph in (whole, part))
        np.testing.assert_allclose(actual, expected[part.node_ids], rtol=1e-12, atol=1e-13)
