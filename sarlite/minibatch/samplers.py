"""Choice of the sampler class: on one rank or cooperative over ranks, with times or without."""

from collections.abc import Sequence
from typing import Any

from sarlite.comm import Communicator
from sarlite.minibatch.cooperative import Cooperative
from sarlite.minibatch.part_edges import PartEdges
from sarlite.minibatch.sampler import Sampler
from sarlite.minibatch.temporal import CooperativeTemporalSampler, Temporal, TemporalSampler, TimedEdges
from sarlite.types import DType


def make_sampler(part: PartEdges, fanouts: Sequence[int], kind: str, seed: int = 0, *, comm: Communicator | None = None,
                 one_variate: bool = False, temporal: Temporal | None = None,
                 timed: Sequence[TimedEdges] = (), dtype: DType | None = None) -> Sampler:
    """Return a sampler of the edges of `part`. `fanouts`, `kind`, `seed` and `one_variate` are passed to the class `Sampler`. With
    `comm` the ranks sample together: the owner of a halo row picks its in-edges. With `temporal` edges are sampled in time from the
    edge sets `timed`; `dtype` is the dtype of the edge feature recency.

    Parameters
    ----------
    part : PartEdges
    fanouts, kind, seed, one_variate
        See `Sampler`.
    comm : Communicator, optional
        Channel on which owners pick the in-edges of halo rows, with a `Cooperative`. By default halo rows get no
        in-edges.
    temporal, timed
        Checked settings of sampling in time, and the result of `timed_edges`.

    dtype : dtype
        See `TemporalSampler`.

    Raises
    ------
    ConfigError
        An error of `Sampler`.
    """
    options: dict[str, Any] = {"ids": part.ids, "n_local": part.n_local, "n_columns": len(part.ids),
                               "targets": part.targets, "one_variate": one_variate}
    sets: Sequence[Any] = part.sets
    if temporal is not None:
        sets, options = timed, {**options, "temporal": temporal, "dtype": dtype}
    if comm is None or comm.size == 1:
        return (Sampler if temporal is None else TemporalSampler)(sets, fanouts, kind, seed, **options)
    cooperative = Cooperative if temporal is None else CooperativeTemporalSampler
    return cooperative(comm, part, sets, fanouts, kind, seed, **options)
