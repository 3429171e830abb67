"""Training on several node types: learned rows, stepped where a gradient touched them, and in checkpoints for any number of ranks."""


import numpy as np
import pytest

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.models import RGCN
from sarlite.train import checkpoint
from tests.helpers.graph.relational_graphs import LABELS, MODELS, N_IN, TRAIN, X, make
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(120)
OPTIMIZERS = {
    "adam": lambda flat: optim.Adam(flat, 0.05, weight_decay=0.01),
    "adamw": lambda flat: optim.Adam(flat, 0.05, weight_decay=0.01, decoupled=True),
    "momentum": lambda flat: optim.SGD(flat, 0.05, momentum=0.9, weight_decay=0.01),
}


def trainer_of(comm, optimizer="adam", seed=2):
    nodes = make(comm, "uneven").of("paper") if comm.size > 1 else make().of("paper")
    rng, ids = nn.Random(seed), nodes.node_ids
    return Trainer(nodes, MODELS["rgcn"](nodes, rng), {"paper": X["paper"][ids]}, LABELS[ids], TRAIN[ids], ~TRAIN[ids], TRAIN[ids],
                   optimizer=OPTIMIZERS[optimizer], rng=rng)


def test_a_checkpoint_is_restored_on_another_number_of_ranks(tmp_path):
    one = trainer_of(Solo())
    losses = [one.step() for _ in range(4)]

    def begin(comm):
        trainer = trainer_of(comm)
        by_rank = [trainer.step() for _ in range(2)]
        checkpoint.write(tmp_path / "c", trainer, {}, trainer.model.state_dict())
        return by_rank

    def go_on(comm):
        trainer = trainer_of(comm, seed=9)
        checkpoint.restore_state(trainer, *checkpoint.read(comm, tmp_path / "c"))
        trainer.training_step.rng.seed = 2  # of dropout's keys
        return [trainer.step() for _ in range(2)], trainer.evaluate(), {
            name: (p.ids, p.data, [saved[k] for k in ("m", "v")]) for (name, p), saved in
            zip([(group.names[0], group._parameters[0]) for group in trainer.flat.owned], trainer.optimizer.states[1:])}

    np.testing.assert_allclose(threads.run(3, begin)[1], losses[:2], rtol=1e-12)
    by_rank = threads.run(2, go_on)
    np.testing.assert_allclose(by_rank[0][0], losses[2:], rtol=1e-12)
    assert by_rank[0][1] == pytest.approx(one.evaluate(), rel=1e-12)
    for group, saved in zip(one.flat.owned, one.optimizer.states[1:]):
        for _, _, rows in by_rank:
            ids, data, state = rows[group.names[0]]
            np.testing.assert_allclose(data, group.data[ids], rtol=1e-11, atol=1e-13)
            for name, array in zip(("m", "v"), state):
                np.testing.assert_allclose(array, saved[name][ids], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_only_rows_with_a_gradient_are_stepped(optimizer):
    """The others keep values and state, whatever the decay; those with one go as all would."""

    class Rows(nn.Module):
        def __init__(self, ids):
            self.table = nn.Parameter(values(1, 6, 3), ids)

    sparse, dense = Rows(np.arange(6)), Rows(None)
    steps = [OPTIMIZERS[optimizer](nn.flatten(module)) for module in (sparse, dense)]
    start, touched = sparse.table.data.copy(), [0, 2, 5]
    for seed in (2, 3):
        for module, step in zip((sparse, dense), steps):
            module.table.grad[touched] = values(seed, 3, 3)
            step.step()
            step.flat.zero_grad()
    np.testing.assert_array_equal(sparse.table.data[touched], dense.table.data[touched])
    np.testing.assert_array_equal(sparse.table.data[[1, 3, 4]], start[[1, 3, 4]])
    assert (dense.table.data[[1, 3, 4]] != start[[1, 3, 4]]).all()
    for array in steps[0].states[1].values():
        assert not array[[1, 3, 4]].any() and array[touched].all()


def test_bad_features_are_named():
    nodes, rng = make().of("paper"), nn.Random(1)
    model = MODELS["rgcn"](nodes, rng)
    bad = X["paper"].copy()
    bad[3, 1] = np.nan
    for x, error, text in (({"paper": X["author"]}, ShapeError, r"x\['paper'\] has shape \(17, 5\), but the graph has 23 rows"),
                           ({"venue": X["paper"]}, ConfigError, "node type 'venue' is not one of"),
                           ({"paper": bad}, DataError, r"x\['paper'\]\[3, 1\] is nan")):
        with pytest.raises(error, match=text):
            Trainer(nodes, model, x, LABELS, TRAIN, optimizer=OPTIMIZERS["adam"], rng=rng)
    trainer = Trainer(nodes, model, {"author": X["author"]}, LABELS, TRAIN, optimizer=OPTIMIZERS["adam"], rng=rng)
    with pytest.raises(ConfigError, match="x .*no features .*'paper'"):
        trainer.step()
    with pytest.raises(ConfigError, match="graph is not a node type"):
        Trainer(Graph.from_edges([0], [1], 23), model, {"paper": X["paper"]}, LABELS, TRAIN, optimizer=OPTIMIZERS["adam"], rng=rng)
    with pytest.raises(ConfigError, match="features .*'venue', .*not one of"):
        RGCN({"venue": N_IN}, 4, nodes, rng=rng)


def test_a_trainer_tells_its_features_and_refuses_others():
    nodes, rng = make().of("paper"), nn.Random(1)
    options = {"optimizer": OPTIMIZERS["adam"], "rng": rng}
    learned = Trainer(nodes, RGCN({}, 4, nodes, hidden=4, rng=rng, dtype=np.float64), {}, LABELS, TRAIN, **options)
    assert ", no features, rows of all ranks: " in repr(learned)
    model = RGCN({"author": N_IN, "paper": N_IN}, 4, nodes, hidden=4, rng=rng, dtype=np.float64)
    wide = {"author": X["author"], "paper": np.ones((23, N_IN + 1))}
    with pytest.raises(ShapeError, match=rf"x\['paper'\] has shape \(23, 6\), but the model RGCN takes {N_IN} features"):
        Trainer(nodes, model, wide, LABELS, TRAIN, **options)
