"""Memory that a run of minibatches takes is told from tiny steps and its own batches."""

import pytest
from costing import QUIET, counted

from sarlite.comm import threads
from sarlite.train.config import resolve
from sarlite.train.costs import Setting
from sarlite.train.loop import fit

SBM = "sbm:nodes=12000,degree=8,features=64,classes=4,train=0.5"
OPTIONS = {"data": SBM, "model": "sage", "layers": 2, "hidden": 64, "batch_size": 3000, "fanouts": (5, 5), "sample_ahead": 0, "prefetch": 0}


@pytest.mark.parametrize("n_ranks, epochs, eval_every", [(1, 1, 1), (1, 2, 2), (1, 2, 1), (2, 2, 1)])
def test_buffers_of_batches_take_what_was_said(n_ranks, epochs, eval_every, tmp_path):
    """Also where no step follows on an evaluation, whose aggregated features stay."""
    def both(comm):
        config = resolve({**QUIET, **OPTIONS, "epochs": epochs, "eval_every": eval_every, "ranks": comm.size})
        model, sizes, part = counted(comm, config, tmp_path)
        found = model.cost(Setting("sar"), sizes, 0).found
        trainer = model.make(comm, config, part)
        fit(trainer, epochs, eval_every=eval_every)
        return trainer.buffers.n_bytes, found.range_bytes

    for taken, said in threads.run(n_ranks, both):
        assert taken > 2e6 and said == pytest.approx(taken, rel=0.08)
