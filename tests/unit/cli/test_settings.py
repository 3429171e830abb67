"""Test the settings that follow from options, and a run with settings made without options."""

import numpy as np
import pytest

from sarlite import Solo, nn
from sarlite.cli import config
from sarlite.cli.options import MinibatchOptions, OutputOptions, TrainingOptions
from sarlite.cli.run import make_trainer, new_model
from sarlite.cli.settings import Settings, settings
from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.minibatch import HEC
from sarlite.models import GCN, SAGE
from sarlite.optim import schedule
from sarlite.schedule.schedule import Options
from sarlite.train.epochs import fit
from sarlite.train.load import FIRST_BYTES, Source, load
from sarlite.train.model_loading import ModelSpec
from tests.helpers.graph.relational_runs import SPEC
from tests.helpers.train.training_runs import DATA, train_here

pytestmark = pytest.mark.timeout(120)


def test_rows_fetched_ahead_are_as_the_options_say_or_as_the_machine_takes(monkeypatch):
    monkeypatch.setattr("sarlite.schedule.schedule.default_prefetch", lambda comm, n_threads: 10 + n_threads)
    for flags, expected in ([], 13), (["--prefetch", "2"], 2), (["--prefetch", "0"], 0):
        assert settings(config.parse(flags)).graph.resolved(Solo(), 3).prefetch == expected


def test_options_that_are_not_given_ask_for_what_the_values_have_by_default():
    run = settings(config.resolve({}))
    assert run.model == ModelSpec("sage", SAGE) and run.batches is None
    assert run.graph == Options() and run.output == OutputOptions() and run.output.every_seconds == 600
    assert run.training == TrainingOptions() and run.schedule(7) == 1 and run.smoother is None
    assert run.source == Source("sbm:", dtype="float32", progress="auto", edge_values=run.source.edge_values)


def test_options_as_values():
    words = "--model gcn --hidden 9 --batch-size 4 --fanouts 3,all --remote hec --hec-life 5 --correct-and-smooth --mode sa " \
            "--smooth-alpha 0.5 --prefetch 2 --checkpoint-every 3 --lr-schedule step:1:0.5 --no-self-loops --edge-features"
    run = settings(config.parse(words.split()), GCN)
    assert dict(run.model.options) == {"hidden": 9} and run.graph == Options("sa", 2)
    assert run.batches == MinibatchOptions(4, [3, -1], remote="hec", hec_life=5) and run.batches.at_remote() == HEC(life=5)
    assert run.output == OutputOptions(checkpoint_every=3) and (run.output.every_epochs, run.output.every_seconds) == (3, None)
    assert run.smoother == CorrectAndSmooth(smooth_alpha=0.5) and run.schedule(1) == 0.5
    assert run.source.self_loops is False and settings(config.resolve({"model": "gcn"})).source.self_loops is True
    assert run.source.edge_values[:3] == ("there", True, False)


@pytest.mark.parametrize("flags, words", [
    (["--remote", "hec", "--batch-size", "4", "--hec-lines", "7"], "HEC: lines 7 .*limit 2000"),
    (["--correct-and-smooth", "--correct-alpha", "2"], "correct_alpha is 2.0, but must be in"),
    (["--lr-schedule", "sometimes"], "schedule 'sometimes' is not one of"),
    (["--model", "gnn"], "model 'gnn' .*gcn, sage, gat"),
])
def test_a_value_that_cannot_be_is_refused_by_the_thing_that_it_is_of(flags, words):
    with pytest.raises(ConfigError, match=words):
        settings(config.parse(flags))


def trained(comm, epochs=3):
    """Return the losses of a run whose settings are made in Python."""
    source = Source(DATA, dtype="float64", partition="random", seed=5)
    run = Settings(source, Options("oneshot", prefetch=0), ModelSpec("sage", SAGE, {"hidden": 8, "layers": 2}, "float64"), None,
                   TrainingOptions(epochs=epochs, lr=0.02, seed=5), schedule=schedule("cosine", epochs))  # fmt: skip
    part, rng, losses = load(comm, run.source, run.graph), nn.Random(run.training.seed), []
    trainer = make_trainer(comm, run, part, new_model(comm, run, part, rng), rng)
    fit(trainer, run.training.epochs, on_epoch=lambda record: losses.append(record["loss"]))
    return losses


def test_the_way_without_the_command_is_the_commands(tmp_path):
    flags = ["--dtype", "float64", "--mode", "oneshot", "--epochs", 3, "--lr-schedule", "cosine", "--partition", "random"]
    expected = [record["loss"] for record in train_here(tmp_path / "run", *flags)]
    assert trained(Solo()) == expected
    for result in threads.run(3, trained):
        np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("spec", [DATA, SPEC])
def test_each_peer_is_sent_messages_before_memory_is_counted(spec):
    """Each peer receives a message before memory is measured, so MPI's buffers do not count as memory of the run."""
    def work(comm):
        sizes, alltoall = [], comm.alltoall

        def listening(arrays):
            sizes.append([array.nbytes for array in arrays])
            return alltoall(arrays)

        comm.alltoall = listening
        load(comm, Source(spec, partition="random"), Options(prefetch=0))
        return [size for size, *others in sizes if others == [size] * (comm.size - 1) and size in FIRST_BYTES][:6]

    assert threads.run(3, work) == [[n for n in FIRST_BYTES for _ in range(2)]] * 3


def test_one_loader_for_one_node_type_and_for_several():
    def work(comm, spec):
        part = load(comm, Source(spec, partition="random", features=False), Options("sa", prefetch=0))
        x = part.rows.features
        strides = {array.strides for array in (x.values() if isinstance(x, dict) else [x])}
        return str(part.graph.mode), part.summary["nodes"], strides, {"load", "partition"} <= part.seconds.keys()

    for spec, nodes in ((DATA, 300), (SPEC, 300)):
        for result in threads.run(2, work, spec):
            assert result[0] == "sa" and result[1] >= nodes and result[2] == {(0, 0)} and result[3]
