"""A model of one's own through the training command: its contract, and how what is wrong in its file is told."""


import numpy as np
import pytest

from sarlite import nn
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.train import config, run
from sarlite.train.model import make_model, model_class
from sarlite.train.settings import model_of
from tests.helpers.training_runs import MODEL, SMALL, command

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
                   "the model made shape (3, 3), but the data have 4 classes: a Tensor of shape (3, 4)"),
    "no Tensor": (".relu())", ".relu()).numpy()", None, "the model made a ndarray, but the data have 4 classes"),
    "no dtype": ("rng, dtype):", "rng, typed=None):", None, "the class must take dtype: Class(n_in, n_out, *, rng, dtype)"),
    "no call": ("def __call__", "def forward", None, "Mine has no __call__(self, graph, h), which returns the logits"),
    "no module": ("class Mine(nn.Module)", "class Mine", None, "Mine is no class that derives from nn.Module"),
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
        with pytest.raises(ConfigError) as found:
            threads.run(2, run.train, options) if ranks == "2" else run.train(Solo(), options)
        text = str(found.value)
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
    tried = make_model(model_of(options), 5, 3, rng)
    fresh = model_class(options.model)(5, 3, hidden=8, rng=other, dtype=np.float32)
    for name, array in fresh.state_dict().items():
        np.testing.assert_array_equal(tried.state_dict()[name], array)
    assert repr(rng) == repr(other)
