"""Edge weights and edge features of a run: which the model uses, and this rank's of them."""

import inspect
from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, together
from sarlite.data.dataset import Dataset
from sarlite.data.part import Part
from sarlite.errors import ConfigError, DataError
from sarlite.graph.edges import with_added_loops
from sarlite.types import Array

ARRAYS = {"edge_weight": "edge_weights", "edge_features": "edge_features"}
"""The data's arrays, and the option of each."""
_LOOPS = {"edge_weight": 1, "edge_features": 0}  # of a self loop that is added


class Wanted(NamedTuple):
    """What a run makes of each array: True uses it, and it must be there; "there" uses it where it is; False leaves it; None refuses it.

    `signed` says whether weights may be negative.
    """

    edge_weight: bool | str | None = None
    edge_features: bool | str | None = None
    signed: bool = True


NONE = Wanted()


def wanted(config: Namespace, cls: Any) -> Wanted:
    """Return what the options say, or where they are silent the model's class: by `edge_weights` and `edge_features`, if they are True.

    Raises
    ------
    ConfigError
        The model does not take what is asked for.
    """
    own = ".py:" in config.model
    if config.edge_features and not own and "edge_features" not in inspect.signature(cls).parameters:
        raise ConfigError(f"--edge-features: the model {config.model} takes no edge features")
    if config.edge_weights and config.model == "sage" and config.aggregator == "max-pool":
        raise ConfigError("--edge-weights: aggregator max-pool takes none, --aggregator mean does")

    def how(option: str) -> bool | str | None:
        flag = getattr(config, option)
        return flag if flag is not None else "there" if getattr(cls, option, None) is True else None

    return Wanted(how("edge_weights"), how("edge_features"), own)


def used(comm: Communicator, dataset: Dataset, wanted: Wanted, spec: str) -> list[str]:
    """Return the names of the arrays that the graph gets; on every rank a ConfigError where one is missing, or there and not asked for."""

    def choose():
        found = []
        for name, option in ARRAYS.items():
            how, flag, there = getattr(wanted, name), option.replace("_", "-"), getattr(dataset, name) is not None
            if how is True and not there:
                raise ConfigError(f"--{flag}: --data {spec} have no {option.replace('_', ' ')}")
            if there and how is None:
                raise ConfigError(f"--data {spec}: {name}: the model uses them only where asked: --{flag}; --no-{flag} trains without")
            found += [name] if there and how else []
        return found

    return together(comm, choose)


def read(comm: Communicator, dataset: Dataset, names: list[str], wanted: Wanted, config: Namespace) -> dict[str, Array | None]:
    """Return this rank's rows of each of `ARRAYS`, None of those that `names` lack, checked on all ranks together.

    Raises
    ------
    DataError
        A weight is not finite, or negative where degrees are taken, naming the data, the edge's original position, and the value.
    """
    part = Part(dataset, comm.rank, comm.size)

    def own():
        found = {name: part.edge_values(name, config.dtype) if name in names else None for name in ARRAYS}
        weight = found["edge_weight"]
        if weight is not None and len(weight):
            bad = ~np.isfinite(weight) if wanted.signed else ~(np.isfinite(weight) & (weight >= 0))
            if bad.any():
                at = int(np.argmax(bad))
                least = "finite" if wanted.signed else "0 or more, and finite, as their sums are degrees"
                raise DataError(f"--data {config.data}: edge_weight of edge {part.edge_ids()[at]} is {weight[at]}, but must be {least}")
        return found

    return together(comm, own)


def with_loops(values: dict[str, Array | None], indptr: Array, indices: Array, added: Array, first_row: int) -> dict[str, Array | None]:
    """Return the values with those of the self loops that `add_self_loops` gave: weights of 1, features of 0."""
    return {name: None if array is None else with_added_loops(array, indptr, indices, added, first_row, _LOOPS[name])
            for name, array in values.items()}
