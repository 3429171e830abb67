"""Test minibatch flags: flags without effect, flags that do not go together, and flags stored in a run's folder."""

import re

import pytest

from sarlite.cli import config
from sarlite.cli.options import MinibatchOptions
from sarlite.errors import ConfigError
from sarlite.train.loop import Trainer
from tests.helpers.train.training_runs import DATA

pytestmark = pytest.mark.timeout(60)
MANY = ["--data", f"{DATA},train=0.5"]
BATCHES = ["--batch-size", 40, "--fanouts", "3,5"]


REFUSED = {
    "--fanouts 5,5": "--fanouts has no effect without --batch-size",
    "--eval-fanouts 5,5": "--eval-fanouts has no effect without --batch-size",
    "--batch-size 0 --remote exact": "--remote has no effect without --batch-size",
    "--lr-scale sqrt": "--lr-scale has no effect without --batch-size",
    "--batch-size 10 --fanouts 5,5 --hec-life 3": "--hec-life has no effect without --remote hec",
    "--batch-size 10 --fanouts 5,5 --remote local --push-by degree": "--push-by has no effect without --remote hec",
    "--batch-size 10 --fanouts 5,5 --remote exact --halo-features keep": "--halo-features has no effect without --remote hec",
    "--batch-size 10 --fanouts 5,5 --eval-fanouts 5": "--eval-fanouts has 1 entries, but --fanouts 2",
    "--batch-size 10 --fanouts 5,few": "--fanouts: '5,few' is not a list of in-edges per node, one number per layer, such as 5,10,all",
    "--batch-size 10 --fanouts 5,0": "'5,0' is not a list of in-edges",
    "--batch-size 10 --fanouts 99999999999,3": "a number is at least 1 and has at most 9 digits",
    "--batch-size 10 --fanouts=-2": "'-2' is not a list of in-edges",
    "--batch-size 10 --fanouts=": "'' is not a list of in-edges",
    "--batch-size -1": "--batch-size -1 is less than 0",
    "--batch-size 10 --fanouts 5 --sample-ahead -1": "--sample-ahead -1 is less than 0",
    "--batch-size 10 --fanouts 5 --remote hec --hec-lines 0": "--hec-lines 0 is less than 1",
    "--batch-size 10 --fanouts 5 --remote hecc": "--remote: 'hecc' is not one of exact, hec, local; did you mean hec?",
}  # fmt: skip


@pytest.mark.parametrize("flags", REFUSED)
def test_flags_that_mean_nothing_are_refused_by_name(flags):
    with pytest.raises(ConfigError, match=re.escape(REFUSED[flags])):
        config.parse(flags.split())


FILES = {
    "fanouts = [5, 5]": "fanouts has no effect without --batch-size",
    "batch-size = 5\nfanouts = [5, 5.0]": "fanouts = [5, 5.0] is not a list of in-edges per node, such as [5, 10, 15]",
    "batch-size = 5\nfanouts = []": "fanouts = [] is not a list of in-edges",
    "batch-size = 5\nfanouts = 5": "fanouts = 5 is not a list of in-edges",
    "batch-size = 5\nfanouts = [true]": "fanouts = [True] is not a list of in-edges",
}


@pytest.mark.parametrize("text", FILES)
def test_so_are_those_of_a_file(text, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(FILES[text])):
        config.parse(["--config", str(tmp_path / "c.toml")])


def test_what_a_run_wrote_is_read_back_and_what_a_run_before_had_is_forgotten(tmp_path):
    one = config.parse("--batch-size 10 --fanouts 5,all --remote hec --hec-life 3 --push demand".split())
    assert one.minibatch.fanouts == [5, -1] and one.minibatch.hec_delay == 1 and one.values["hec_delay"] is None
    (tmp_path / "c.toml").write_text(config.to_toml(one))
    assert config.resolve({}, config.read_toml(tmp_path / "c.toml")).values == one.values
    (tmp_path / "text.toml").write_text('batch-size = 10\nfanouts = "5,all"')
    assert config.parse(["--config", str(tmp_path / "text.toml")]).minibatch.fanouts == [5, -1]
    other = config.resolve({"remote": "local"}, before=one.values)
    assert [other.values[name] for name in ("hec_life", "push", "fanouts")] == [None, None, [5, -1]]
    whole = config.resolve({"batch_size": 0}, before=one.values)
    assert whole.minibatch == MinibatchOptions() and whole.values["remote"] is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_fan_outs_that_are_not_the_layers_are_refused_before_training(here, monkeypatch, ranks, tmp_path):
    monkeypatch.setattr(Trainer, "__init__", lambda *args, **options: pytest.fail("too late"))
    with pytest.raises(ConfigError, match="fanouts .*3 entries, .*2 layers"):
        here(tmp_path / "run", "--batch-size", 10, "--fanouts", "3,5,5", "--ranks", ranks)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags, message", [
    (["--remote", "hec", "--push", "demand", "--hec-delay", 0], "HEC: delay is 0, but push 'demand'"),
    (["--sampler", "full"], "sampler 'full' takes all"),
    (["--remote", "hec", "--hec-lines", 7], "HEC: lines 7 .*limit 2000"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused_before_training(here, flags, message, tmp_path):
    for ranks in (1, 2):
        with pytest.raises(ConfigError, match=message):
            here(tmp_path / "run", *BATCHES, *flags, "--ranks", ranks)
        assert not (tmp_path / "run").exists()


def test_a_model_of_ones_own_is_tried_on_a_batch(here, tmp_path):
    (tmp_path / "m.py").write_text(
        "from sarlite import fn, nn\n\nclass Whole(nn.Module):\n    def __init__(self, n_in, n_out, *, hidden=8, layers=2, rng, dtype):\n"
        "        self.w = nn.Linear(n_in, n_out, rng=rng, dtype=dtype)\n\n    def __call__(self, graph, h):\n"
        "        return graph.aggregate(fn.copy_src(self.w(h)), 'mean')\n")
    with pytest.raises(ConfigError, match=r"2 layers: .*batch.layers\(2\)"):
        here(tmp_path / "run", *BATCHES, "--model", f"{tmp_path / 'm.py'}:Whole", "--epochs", 1)
    assert here(tmp_path / "run", "--batch-size", 10, "--fanouts", 3, "--model", f"{tmp_path / 'm.py'}:Whole", "--epochs", 1)
