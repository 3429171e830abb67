"""The generator BTER by the options of a spec: its distributions are read from files or made of parameters."""

import numpy as np

from sarlite.data import textfile
from sarlite.data.raw import check_nodes
from sarlite.errors import ConfigError, DataError
from sarlite.structure import bter
from sarlite.structure.validation import first_true


def make(degrees=None, clustering=None, nodes=None, degree=None, max_degree=None, beta=None, cmax=None, xi=None,
         **options):
    """Draw a BTER graph.

    Parameters
    ----------
    degrees : path, optional
        Two columns, a degree and how many nodes have it; instead of `nodes`, `degree`, `max_degree` and `beta`, which
        are arguments of `graph.bter.log_normal`, by default 10,000 nodes of mean degree 10.
    clustering : path, optional
        Two columns, a degree and its mean clustering coefficient, between which is interpolated; instead of `cmax` and
        `xi`, the arguments of `graph.bter.decaying`.
    **options
        As of `graph.bter.bter`.

    Returns
    -------
    generate.Generated

    Raises
    ------
    ConfigError
        An option out of its range, or both a file and the parameters instead of it.
    DataError
        A file cannot be read, or its numbers are no distribution.
    """
    return bter.bter(*asked(degrees, clustering, nodes, degree, max_degree, beta, cmax, xi), **options)


def asked(degrees=None, clustering=None, nodes=None, degree=None, max_degree=None, beta=None, cmax=None, xi=None, **_):
    """Return how many nodes have each degree, and the clustering coefficient by degree, of the options of `make`."""
    shape = _given(degrees, "degrees", nodes=nodes, degree=degree, max_degree=max_degree, beta=beta)
    curve = _given(clustering, "clustering", cmax=cmax, xi=xi)
    counts = bter.log_normal(**{"nodes": 10_000, "degree": 10.0, **shape}) if degrees is None else _counts(degrees)
    top = len(counts) - 1
    return counts, bter.decaying(top, **curve) if clustering is None else _coefficients(clustering, top)


def report(indptr, indices, **options):
    """Return the lines of a table: nodes and clustering by degree, as the options of `make` ask and as they are."""
    counts, coefficients = asked(**options)
    lines = [f"{'degree':>15} {'nodes asked':>12} {'found':>12} {'clustering asked':>17} {'found':>8}"]
    for row in bter.compare(np.asarray(indptr), np.asarray(indices), counts, coefficients):
        degrees = f"{row['low']:,}" if row["low"] == row["high"] else f"{row['low']:,} to {row['high']:,}"
        (one, two), (three, four) = row["nodes"], (f"{c:.4f}" if c is not None else "-" for c in row["clustering"])
        lines.append(f"{degrees:>15} {one:>12,} {two:>12,} {three:>17} {four:>8}")
    nodes = int(counts.sum())
    asked_mean, found_mean = counts @ np.arange(len(counts)) / nodes, len(indices) / (len(indptr) - 1)
    lines.append(f"mean degree asked {asked_mean:.4f}, found {found_mean:.4f}")
    return lines


def _given(file, name, **parameters):
    parameters = {key: value for key, value in parameters.items() if value is not None}
    if file is not None and parameters:
        raise ConfigError(f"{name} and {next(iter(parameters))}: one of the two")
    return parameters


def _counts(path):
    pairs = _pairs(path, "degrees", np.int64)
    nodes = int(pairs[:, 1].astype(object).sum())
    if (pairs < 0).any():
        raise DataError(f"{path}: degrees: {pairs.min()} is below 0")
    check_nodes(nodes, 0, f"{path}: degrees")
    if pairs[:, 0].max() >= nodes:
        raise DataError(f"{path}: degrees: the largest is {pairs[:, 0].max()}, "
                        f"expected less than the number of nodes, {nodes}")
    counts = np.zeros(int(pairs[:, 0].max()) + 1, np.int64)
    counts[pairs[:, 0]] = pairs[:, 1]
    return counts


def _coefficients(path, top):
    pairs = _pairs(path, "clustering", np.float64)
    if (at := first_true(~((pairs[:, 1] >= 0) & (pairs[:, 1] <= 1) & (pairs[:, 0] >= 0)))) is not None:
        raise DataError(f"{path}: clustering: row {at} is {pairs[at].tolist()}, expected a degree and 0 to 1")
    pairs = pairs[np.argsort(pairs[:, 0])]
    return np.where(np.arange(top + 1) < 2, 0.0, np.interp(np.arange(top + 1), pairs[:, 0], pairs[:, 1]))


def _pairs(path, field, dtype):
    pairs = textfile.read(path, field, dtype)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise DataError(f"{path}: {field}: expected two columns, found shape {pairs.shape}")
    once, times = np.unique(pairs[:, 0], return_counts=True)
    if (at := first_true(times > 1)) is not None:
        raise DataError(f"{path}: {field}: degree {once[at]:g} is there twice")
    return pairs
