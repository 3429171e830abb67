"""Extras: without an extra everything else works, and a feature that needs it names the extra to install."""

import configparser
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sarlite.errors import EXTRAS, ConfigError, import_optional, install

ROOT = Path(__file__).parents[3]
OPTIONAL = sorted({package for packages in EXTRAS.values() for package in packages})


def names(requirements):
    """Return the packages of a setup.cfg list that this Python would install."""
    lines = [line.partition(";") for line in requirements.split("\n") if line]
    wanted = [name for name, _, marker in lines if "3.11" not in marker or sys.version_info < (3, 11)]
    return [re.match(r"[\w-]+", name)[0].replace("-", "_") for name in wanted]


@pytest.fixture(scope="module")
def metadata():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_extras_are_those_of_the_metadata(metadata):
    stated = {extra: names(text) for extra, text in metadata["options.extras_require"].items()}
    assert {extra: set(stated[extra]) for extra in EXTRAS} == {extra: set(packages) for extra, packages in EXTRAS.items()}
    assert set(stated) - set(EXTRAS) == {"docs", "test"}


def test_each_command_has_its_script_and_make_train_names_it(metadata):
    scripts = dict(line.split(" = ") for line in metadata["options.entry_points"]["console_scripts"].split("\n") if line)
    commands = ("train", "data", "predict", "smooth", "estimate", "report", "sweep", "verify", "explain", "oracle")
    assert set(scripts) >= {f"sarlite-{name}" for name in commands}
    readme = re.search(r"sarlite(-train, .*)", (ROOT / "README.md").read_text())[1]
    assert readme.split(", ") == [script.removeprefix("sarlite") for script in scripts]
    message = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "sarlite is installed in" in line)
    for script, place in scripts.items():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function)) and script in message


def test_the_library_alone_needs_four_packages(metadata):
    assert names(metadata["options"]["install_requires"]) == ["numpy", "scipy", "cffi", "threadpoolctl"]


@pytest.mark.parametrize("package", OPTIONAL)
def test_a_missing_package_names_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    extra = next(extra for extra in EXTRAS if package in EXTRAS[extra])
    with pytest.raises(ConfigError, match=rf"^this needs the package {package} \(.*\): pip install 'sarlite\[{extra}\]'$"):
        import_optional(f"{package}.inner", "this")


def test_a_package_that_is_there():
    assert import_optional("safetensors.numpy", "this").__name__ == "safetensors.numpy"
    assert install("train") == "pip install 'sarlite[train]'"


def command(tmp_path, blocked, *words, **environ):
    """Run Python without some packages, outside of any MPI job; return (status, standard error)."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({list(blocked)!r}))")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PMI_")}
    env |= {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))), **environ}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


TRAIN = ("-m", "sarlite.train", "--data", "sbm:nodes=60", "--epochs", "1")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("package, extra, words, environ", [
    ("safetensors", "train", TRAIN, {}),
    ("tqdm", "train", (*TRAIN, "--progress", "bar"), {}),
    ("tensorboardX", "tensorboard", (*TRAIN, "--tensorboard", "events"), {}),
    ("pymetis", "train", (*TRAIN, "--ranks", "2"), {}),
    ("pymetis", "train", ("-m", "sarlite.data", "info", "sbm:nodes=60", "--parts", "2"), {}),
    ("mpi4py", "mpi", TRAIN, {"PMI_SIZE": "2"}),
    ("mpi4py.MPI", "mpich", TRAIN, {"PMI_SIZE": "2"}),
    ("matplotlib", "plot", (str(ROOT / "benchmarks" / "plot.py"), "rows.json"), {}),
    pytest.param("tomli", "train", (*TRAIN, "--config", "options.toml"), {}, marks=pytest.mark.skipif("sys.version_info >= (3, 11)")),
])  # fmt: skip
def test_the_commands_say_what_is_missing(tmp_path, package, extra, words, environ):
    if package == "mpi4py.MPI":
        pytest.importorskip("mpi4py")
    (tmp_path / "rows.json").write_text('[{"case": "a", "ms": 1.0}]')
    status, shown = command(tmp_path, [package], *words, **environ)
    assert status != 0 and f"pip install 'sarlite[{extra}]'" in shown and package in shown


def test_without_any_extra(tmp_path):
    """The library, its models and threads as ranks need no extra."""
    done = command(tmp_path, OPTIONAL, "-c", "import sarlite, sarlite.models, sarlite.cli.run, sarlite.data\n"
                   "from sarlite.comm import launch, threads\n"
                   "assert threads.run(2, lambda comm: comm.size) == [2, 2] and launch.connect({}).size == 1")
    assert done == (0, "")
