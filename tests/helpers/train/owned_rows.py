"""Training with learned rows of nodes, on any communicator, for threads as ranks and ranks of MPI."""

import numpy as np

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import Solo
from sarlite.data import load
from sarlite.models import SAGE
from sarlite.tape import ops
from sarlite.train import checkpoint

DATA = load("sbm:nodes=200,classes=3,features=6,degree=6")
FEATURES, LABELS = np.array(DATA.features, np.float64), np.array(DATA.labels)
TRAIN, VAL = np.array(DATA.train, bool), np.array(DATA.val, bool)
PARTS = {n: np.arange(200) % n for n in (1, 2, 3)} | {4: np.arange(200) % 2 * 3}  # with 4 ranks, ranks 1 and 2 have no rows


def whole():
    return Graph.from_csr(np.array(DATA.indptr), np.array(DATA.indices))


class Learned(nn.Module):
    """Model that reads learned rows of the nodes, in float32 and in float64, beside the features."""

    def __init__(self, ids, rng):
        self.table, self.low = nn.Embedding(ids, 4, rng=rng, dtype=np.float64), nn.Embedding(ids, 2, rng=rng, node_type="low")
        self.sage = SAGE(12, 3, layers=2, hidden=8, dropout=0.3, rng=rng, dtype=np.float64)

    def __call__(self, graph, x):
        return self.sage(graph, ops.concat([x, self.table(), self.low().astype(np.float64)], 1))


class OneTable(nn.Module):
    def __init__(self, ids, rng, dtype=np.float64, width=4):
        self.table = nn.Embedding(ids, width, rng=rng, dtype=dtype)
        self.last = nn.Linear(width, 3, rng=rng, dtype=np.float64)

    def __call__(self, graph, x):
        return self.last(self.table().astype(np.float64))


OPTIMIZERS = {
    "adam": lambda flat: optim.Adam(flat, 0.02, weight_decay=lambda name: 0.01 if "table" in name else 1e-3),
    "adamw": lambda flat: optim.Adam(flat, 0.02, weight_decay=0.01, decoupled=True),
    "sgd": lambda flat: optim.SGD(flat, 0.1, momentum=0.9),
    "plain": lambda flat: optim.SGD(flat, 0.1),
}


def make(comm, optimizer="adam", make_model=Learned, seed=2, **options):
    graph = whole() if comm.size == 1 else whole().shard(comm, PARTS[comm.size])
    rng, ids = nn.Random(seed), graph.node_ids
    return Trainer(graph, make_model(ids, rng), FEATURES[ids], LABELS[ids], TRAIN[ids], VAL[ids],
                   optimizer=OPTIMIZERS[optimizer], rng=rng, **options)


def assert_same_state(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype and actual[name].shape == array.shape, name
        rtol, atol = (2e-5, 1e-6) if array.dtype == np.float32 else (1e-8, 1e-10)
        np.testing.assert_allclose(actual[name], array, rtol=rtol, atol=atol, err_msg=name)


def check_checkpoint(comm, path):
    """Check that training, a checkpoint, and training on in a new trainer equal training without a stop on one rank. Collective."""
    trainer, one = make(comm), make(Solo())
    for _ in range(2):
        trainer.step(), one.step()
    checkpoint.write(path, trainer, {}, trainer.model.state_dict())
    other = make(comm, seed=9)
    best = checkpoint.restore_state(other, *checkpoint.read(comm, path))
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_array_equal(best[name], value)
        np.testing.assert_array_equal(other.model.state_dict()[name], value)
    other.training_step.rng.seed = 2  # seed of dropout's keys
    expected, actual = ([t.step(), t.step()] for t in (one, other))
    np.testing.assert_allclose(actual, expected, rtol=1e-7)
