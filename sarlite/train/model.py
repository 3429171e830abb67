"""The model of a run: its class by name or file, made with the options that it takes."""

import importlib.util
import inspect
import sys
from pathlib import Path

import numpy as np

from sarlite.errors import ConfigError
from sarlite.train.config import MODEL_OPTIONS


def model_class(spec):
    """Return a model's class: by name, or by path/to/file.py:Class.

    Raises
    ------
    ConfigError
        No such model, file or class.
    """
    from sarlite.models import MODELS

    if spec in MODELS:
        return MODELS[spec]
    path, colon, name = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ConfigError(f"--model {spec!r} is not one of {', '.join(MODELS)}, nor path/to/file.py:Class")
    if not Path(path).is_file():
        raise ConfigError(f"--model {spec}: no file {path}")
    found = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(found.name, module)
    found.loader.exec_module(module)
    if not hasattr(module, name):
        raise ConfigError(f"--model {spec}: {path} has no class {name}")
    return getattr(module, name)


def make_model(cls, config, n_in, n_out, rng):
    """Return cls(n_in, n_out, rng=..., dtype=..., and the given options that it takes).

    Raises
    ------
    ConfigError
        An option was given that the model does not take.
    """
    taken = inspect.signature(cls).parameters
    options = {name: getattr(config, name) for name in MODEL_OPTIONS if getattr(config, name) is not None}
    any_name = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for name in options:
        if name not in taken and not any_name:
            raise ConfigError(f"--{name.replace('_', '-')}: the model {config.model} takes no {name}")
    return cls(n_in, n_out, rng=rng, dtype=np.dtype(config.dtype).type, **options)
