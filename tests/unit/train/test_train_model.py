"""A model of one's own through the training command: its contract, and error messages about faults in its file."""


import numpy as np
import pytest

from sarlite import nn
from sarlite.cli import config, run
from sarlite.cli.options import TrainingOptions
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.graph.hetero import HeteroGraph
from sarlite.models import APPNP, GAT, GCN, RGAT, RGCN, SAGE, SGC, SIGN
from sarlite.train.model_loading import first_layer, make_model, model_class
from tests.helpers.train.training_runs import MODEL, SMALL, command

pytestmark = pytest.mark.timeout(120)
BROKEN = {  # what replaces what in MODEL: what the error quotes
    "at import": ("from dataclasses", "import nowhere; from dataclasses", "line 2, in <module>", "No module named 'nowhere'"),
    "syntax": ("def __call__(self,", "def __call__(self,,", "line 10", "SyntaxError"),
    "in the constructor": ("assert hidden == 8", "assert hidden == 9", "line 7, in __init__", "AssertionError"),
    "in the call": ("self.one(h)", "self.six(h)", "line 11, in __call__", "'Mine' object has no attribute 'six'"),
    "in training alone": ("        return",
                          "        assert graph.n_dst == 3, 'many'\n        return", "line 11, in __call__", "AssertionError: many"),
    "inside of sarlite": ("self.one(h)", "self.one(h)[:2]",
                          "line 11, in __call__", "fn.copy_src: x has shape (2, 8), but needs 3 rows"),
    "too narrow": ("(hidden, n_out", "(hidden, 3", None,
                   "returned shape (3, 3), but the data have 4 classes: it must return a Tensor of shape (3, 4)"),
    "no Tensor": (".relu())", ".relu()).numpy()", None, "returned a ndarray, but the data have 4 classes"),
    "no dtype": ("rng, dtype):", "rng, typed=None):", None, "the class must take dtype: Class(n_in, n_out, *, rng, dtype)"),
    "no call": ("def __call__", "def forward", None, "Mine has no __call__(self, graph, h), which returns the logits"),
    "no module": ("class Mine(nn.Module)", "class Mine", None, "Mine is not a class that derives from nn.Module"),
    "another class": ("class Mine", "class Yours", None, "has no class Mine; it has Yours"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_in_a_models_file_is_told_once_and_of_the_file_alone(here, case, tmp_path):
    old, new, line, words = BROKEN[case]
    path = tmp_path / "mine.py"
    path.write_text(MODEL.replace(old, new))
    flags = [flag for flag in SMALL if flag not in ("--layers", "2")]
    for ranks in ("1", "2"):
        options = config.parse([*flags, "--model", f"{path}:Mine", "--run-dir", str(tmp_path / ranks), "--epochs", "1", "--ranks", ranks])
        with pytest.raises(ConfigError) as caught:
            threads.run(2, run.train, options) if ranks == "2" else run.train(Solo(), options)
        text = str(caught.value)
        assert text.startswith(f"--model {path}:Mine") and words in text and (line is None or line in text), text
        assert "sarlite/" not in text.replace(str(path), "") and text.count('File "') == (line is not None), text


def test_on_ranks_of_a_command_it_is_told_once(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODEL.replace("self.one(h)", "self.six(h)"))
    flags = [flag for flag in SMALL if flag not in ("--layers", "2")]
    done = command(*flags, "--model", f"{path}:Mine", "--run-dir", tmp_path / "run", "--ranks", 2)
    assert done.returncode == 2 and done.stderr.count("error:") == done.stderr.count("AttributeError") == 1
    assert "Traceback" not in done.stderr and "sarlite/" not in done.stderr, done.stderr


NORMAL = MODEL.replace("self.one, self.two =", "self.norm, self.one, self.two = nn.BatchNorm(n_in, dtype=dtype),")
NORMAL = NORMAL.replace("self.one(h)", "self.one(self.norm(h, graph.comm))")


def test_the_trial_of_a_model_changes_nothing(tmp_path):
    """A model that normalises has running statistics, which the trial moves."""
    path = tmp_path / "mine.py"
    path.write_text(NORMAL)
    options = config.parse(["--model", f"{path}:Mine", "--hidden", "8"])
    rng, other = nn.Random(0), nn.Random(0)
    tried = make_model(options.model.spec(), 5, 3, rng)
    fresh = model_class(options.model.model)(5, 3, hidden=8, rng=other, dtype=np.float32)
    for name, array in fresh.state_dict().items():
        np.testing.assert_array_equal(tried.state_dict()[name], array)
    assert repr(rng) == repr(other)


# ---- which layer is the first

FIRST = {
    GCN: ("convs.0.", "activations.0."), SAGE: ("convs.0.", "activations.0."), GAT: ("convs.0.", "activations.0."),
    APPNP: ("linears.0.",), SGC: ("linear.",), SIGN: ("inception.", "activations.0."),
    RGCN: ("inputs.", "convs.0.", "activations.0."), RGAT: ("inputs.", "convs.0.", "activations.0."),
}  # fmt: skip


@pytest.mark.parametrize("cls", FIRST)
def test_a_models_class_says_which_layer_is_its_first(cls):
    """Biases too."""
    if cls in (RGCN, RGAT):
        edges = {("a", "to", "b"): ([0, 1], [1, 0]), ("b", "to", "a"): ([0], [1])}
        nodes = HeteroGraph.from_edges(edges, {"a": 2, "b": 2}).of("b")
        model = cls({"a": 3}, 2, nodes, hidden=4, embedding=3, rng=nn.Random(0))
    else:
        model = cls(3, 2, rng=nn.Random(0))
    names = dict(model.named_parameters())
    assert first_layer(model) == {name for name in names if name.startswith(FIRST[cls])}
    assert all(any(name.startswith(prefix) for name in names) for prefix in FIRST[cls])


class Mine(nn.Module):
    def __init__(self, returned):
        self.one = [nn.Linear(2, 2, rng=nn.Random(0)) for _ in range(2)]
        self.two, self.told = nn.LayerNorm(2), returned

    def first_layer(self):
        return self.told(self)


def test_what_it_says_is_modules_and_parameters_of_the_model():
    model = Mine(lambda model_self: [model_self.one[1], model_self.two.beta])
    assert first_layer(model) == {"one.1.weight", "one.1.bias", "two.beta"}
    optimizer = TrainingOptions(weight_decay=0.25, weight_decay_on="first").make_optimizer(model, 0.1)(flat := nn.flatten(model))
    decays = dict(zip(flat.replicated.names, (optimizer.decays[0][where].max() for where in flat.replicated.slices)))
    assert decays == {name: 0.25 if name in first_layer(model) else 0.0 for name in decays} and len(decays) == 6
    for returned, words in ((lambda model_self: model_self.two, "returned LayerNorm"),
                            (lambda model_self: [model_self.two, 3], "must return a list of modules"),
                        (lambda model_self: [], "returned no parameter of the model"),
                        (lambda model_self: [model_self.two, nn.LayerNorm(2)], "returned a parameter that is not the model's")):
        with pytest.raises(ConfigError, match=words):
            first_layer(Mine(returned))


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_decay_of_a_first_layer_that_no_class_tells_is_refused(ranks, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    flags = [flag for flag in SMALL if flag not in ("--layers", "2")]
    flags += ["--model", f"{tmp_path}/mine.py:Mine", "--weight-decay", "0.1", "--weight-decay-on", "first", "--ranks", ranks]
    options = config.parse([*flags, "--epochs", "1", "--run-dir", str(tmp_path / "run")])
    words = "--weight-decay-on first: the model .*mine.py:Mine has no method first_layer"
    with pytest.raises(ConfigError, match=words):
        threads.run(options.machine.ranks, run.train, options)
    method = "    def first_layer(self):\n        return [self.six]\n\n"
    (tmp_path / "mine.py").write_text(MODEL.replace("    def __call__", method + "    def __call__"))
    with pytest.raises(ConfigError, match="--model .*mine.py:Mine:\n.*line 11, in first_layer(?s:.*)has no attribute 'six'"):
        threads.run(options.machine.ranks, run.train, options)


def test_a_suggestion_only_where_it_is_close():
    for word, close in (("mlp", None), ("gat3", "gat"), ("sgae", "sage"), ("gta", "gat"), ("transformer", None)):
        with pytest.raises(ConfigError, match=f"model '{word}' is not one of") as caught:
            model_class(word)
        assert str(caught.value).endswith(f"; did you mean {close}?") if close else "did you mean" not in str(caught.value)
