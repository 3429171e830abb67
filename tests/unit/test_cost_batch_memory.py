"""Memory that a run of minibatches takes is told from tiny steps and its own batches."""

from types import SimpleNamespace

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.train.cached_trial import LINE_BYTES
from sarlite.train.config import resolve
from sarlite.train.costs import Setting
from sarlite.train.loop import fit
from tests.helpers.costing import QUIET, counted

SBM = "sbm:nodes=12000,degree=8,features=64,classes=4,train=0.5"
OPTIONS = {"data": SBM, "model": "sage", "layers": 2, "hidden": 64, "batch_size": 3000, "fanouts": (5, 5), "sample_ahead": 0, "prefetch": 0}


@pytest.mark.parametrize("n_ranks, epochs, eval_every, more", [
    (1, 1, 1, {}), (1, 2, 2, {}), (1, 2, 1, {}), (2, 2, 1, {}), (1, 2, 1, {"eval_fanouts": (8, -1)}), (2, 1, 1, {"eval_fanouts": (8, -1)}),
    (2, 1, 1, {"remote": "hec"}), (2, 1, 1, {"remote": "hec", "halo_features": "cache", "eval_fanouts": (3, 3)}),
])
def test_buffers_of_batches_take_what_was_said(n_ranks, epochs, eval_every, more, tmp_path):
    """Also where no step follows on an evaluation, whose aggregated features stay."""
    def both(comm):
        config = resolve({**QUIET, **OPTIONS, **more, "epochs": epochs, "eval_every": eval_every, "ranks": comm.size})
        model, sizes, part = counted(comm, config, tmp_path)
        found = model.cost(Setting("sar"), sizes, 0).found
        trainer = model.make(comm, config, part)
        fit(trainer, epochs, eval_every=eval_every)
        return trainer.buffers.n_bytes + trainer.loader._buffers[1].n_bytes, found.range_bytes

    for taken, said in threads.run(n_ranks, both):
        assert taken > 2e6 and said == pytest.approx(taken, rel=0.08)


@pytest.mark.parametrize("flags", [{}, {"push": "demand"}, {"halo_features": "cache", "hec_lines": 700, "hec_limit": 600}], ids=str)
def test_caches_hold_what_was_said(flags, tmp_path):
    """In a first epoch, and at most so much in further ones."""
    def both(comm, epochs):
        config = resolve({**QUIET, **OPTIONS, **flags, "remote": "hec", "epochs": epochs, "ranks": comm.size})
        model, sizes, part = counted(comm, config, tmp_path)
        held, trainer = sizes.sampled.held, model.make(comm, config, part)
        nothing_moves = SimpleNamespace(sent={"step": {}}, received={"step": {}})
        told = held.n_bytes(model.program(Setting("sar")), nothing_moves)
        pushed, historical = sizes.sampled.batches[0][0]["pushed", 1], trainer.loader.historical
        sent = np.array(comm.allgather(pushed.sent))
        assert (epochs > 1 or config.push == "demand" or sent.any()) and sent[:, comm.rank].tolist() == pushed.received
        fit(trainer, epochs)
        there = sum(len(cache) * (LINE_BYTES + (cache._rows[0].nbytes if len(cache) else 0)) for cache in historical.caches)
        there += sum(newest.made.nbytes + newest._rows.nbytes for newest in historical._newest if newest._rows is not None)
        kept = historical.kept
        assert held.keeps == (kept is not None) and held.n_kept == (0 if kept is None else len(kept) - part.graph.n_dst)
        return told, there

    for told, there in threads.run(2, both, 1):
        assert told == there > 0
    for told, there in threads.run(2, both, 3):
        assert there <= told <= 3 * there
