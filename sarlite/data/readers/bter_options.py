"""Options of specs such as "bter:nodes=1000,degree=8": degree and clustering distributions, from files or parameters."""

import numpy as np

from sarlite.data import textfile
from sarlite.data.raw import check_nodes
from sarlite.errors import ConfigError, DataError
from sarlite.structure import bter
from sarlite.structure.validation import first_true


def make(degrees=None, clustering=None, nodes=None, degree=None, max_degree=None, beta=None, cmax=None, xi=None, **options):
    """Return a random graph of the BTER model, from its distributions of degrees and of clustering coefficients. The distributions are in
    the files `degrees` and `clustering`; without a file, log-normal degrees (number of `nodes`, mean `degree`, `max_degree`, exponent
    `beta`) or an exponential decay of the clustering (from `cmax`, at rate `xi`) are used.

    Parameters
    ----------
    degrees : path, optional
        File of two columns: a degree, and the number of nodes that have the degree. The file replaces `nodes`, `degree`,
        `max_degree` and `beta`.
    clustering : path, optional
        File of two columns: a degree, and the mean clustering coefficient of its nodes. Coefficients of other degrees are
        interpolated linearly. The file replaces `cmax` and `xi`.
    nodes, degree, max_degree, beta : optional
        Arguments of `structure.bter.log_normal`. The defaults are 10,000 nodes of mean degree 10.
    cmax, xi : float, optional
        Arguments of `structure.bter.decaying`.
    **options
        Arguments of `structure.bter.bter`.

    Returns
    -------
    generate.Generated

    Raises
    ------
    ConfigError
        If an option is out of its range, or if both a file and a parameter that the file replaces are passed.
    DataError
        If a file cannot be read, or if its numbers are not a distribution.
    """
    return bter.bter(*requested(degrees, clustering, nodes, degree, max_degree, beta, cmax, xi), **options)


def requested(degrees=None, clustering=None, nodes=None, degree=None, max_degree=None, beta=None, cmax=None, xi=None, **_):
    """Return (number of nodes, clustering coefficient) for each degree from 0 on, as two arrays: the distributions that `make` with these
    options draws a graph from. They come from the files `degrees` and `clustering`, or from formulas with the other parameters.

    Parameters
    ----------
    degrees, clustering, nodes, degree, max_degree, beta, cmax, xi
        Options of `make`; other options are ignored.

    Returns
    -------
    counts : (max degree + 1,) int64
    coefficients : (max degree + 1,) float64
    """
    shape = _parameters(degrees, "degrees", nodes=nodes, degree=degree, max_degree=max_degree, beta=beta)
    curve = _parameters(clustering, "clustering", cmax=cmax, xi=xi)
    counts = bter.log_normal(**{"nodes": 10_000, "degree": 10.0, **shape}) if degrees is None else _counts(degrees)
    top = len(counts) - 1
    return counts, bter.decaying(top, **curve) if clustering is None else _coefficients(clustering, top)


def report(indptr, indices, **options):
    """Return lines of a table that compares the degrees and clustering of a drawn graph, the CSR (`indptr`, `indices`), with the requested
    values. `options` are the arguments of `make` that the graph was drawn with.

    Parameters
    ----------
    indptr, indices : array
        The drawn graph as CSR.
    **options
        Options of `make`.
    """
    counts, coefficients = requested(**options)
    lines = [f"{'degree':>15} {'nodes asked':>12} {'found':>12} {'clustering asked':>17} {'found':>8}"]
    for row in bter.compare(np.asarray(indptr), np.asarray(indices), counts, coefficients):
        degrees = f"{row['low']:,}" if row["low"] == row["high"] else f"{row['low']:,} to {row['high']:,}"
        (one, two), (three, four) = row["nodes"], (f"{c:.4f}" if c is not None else "-" for c in row["clustering"])
        lines.append(f"{degrees:>15} {one:>12,} {two:>12,} {three:>17} {four:>8}")
    nodes = int(counts.sum())
    asked_mean, found_mean = counts @ np.arange(len(counts)) / nodes, len(indices) / (len(indptr) - 1)
    lines.append(f"mean degree asked {asked_mean:.4f}, found {found_mean:.4f}")
    return lines


def _parameters(file, name, **parameters):
    """Return {name: value} of the `parameters` that are not None. Raise a ConfigError if there are any although the user passed `file`, the
    value of the option `name`, which replaces them.
    """
    parameters = {key: value for key, value in parameters.items() if value is not None}
    if file is not None and parameters:
        raise ConfigError(f"{name} and {next(iter(parameters))} exclude each other: pass one of the two")
    return parameters


def _counts(path):
    """Return the number of nodes of each degree that the file `path` lists, (max degree + 1,) int64."""
    pairs = _pairs(path, "degrees", np.int64)
    nodes = int(pairs[:, 1].astype(object).sum())
    if (pairs < 0).any():
        raise DataError(f"{path}: degrees: {pairs.min()} is below 0")
    check_nodes(nodes, 0, f"{path}: degrees")
    if pairs[:, 0].max() >= nodes:
        raise DataError(f"{path}: degrees: the largest is {pairs[:, 0].max()}, " f"expected less than the number of nodes, {nodes}")
    counts = np.zeros(int(pairs[:, 0].max()) + 1, np.int64)
    counts[pairs[:, 0]] = pairs[:, 1]
    return counts


def _coefficients(path, top):
    """Return the clustering coefficients of the degrees 0 to `top`, (top + 1,), interpolated between the degrees that the file
    `path` lists.
    """
    pairs = _pairs(path, "clustering", np.float64)
    if (at := first_true(~((pairs[:, 1] >= 0) & (pairs[:, 1] <= 1) & (pairs[:, 0] >= 0)))) is not None:
        raise DataError(f"{path}: clustering: row {at} is {pairs[at].tolist()}, expected a degree and 0 to 1")
    pairs = pairs[np.argsort(pairs[:, 0])]
    return np.where(np.arange(top + 1) < 2, 0.0, np.interp(np.arange(top + 1), pairs[:, 0], pairs[:, 1]))


def _pairs(path, name_in_errors, dtype):
    """Return the content of a file of two columns, degree and value, as an (n, 2) array; raise a DataError if a degree is repeated."""
    pairs = textfile.read(path, name_in_errors, dtype)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise DataError(f"{path}: {name_in_errors}: expected two columns, found shape {pairs.shape}")
    once, times = np.unique(pairs[:, 0], return_counts=True)
    if (at := first_true(times > 1)) is not None:
        raise DataError(f"{path}: {name_in_errors}: degree {once[at]:g} appears twice")
    return pairs
