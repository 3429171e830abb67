"""Parts and results of ranks as files, for a distributed program in any language under its own launcher.

case.json
    schema          1
    name, op, dtype, attributes     as in a .sarcase
    n_nodes, n_ranks
    owner           record of the rank of each node, (n_nodes,) int64
    ranks           list with one object for each rank: folder ("rank-0"); ids, src, dst, eids (records);
                    arrays, state, cotangents (records by name); results (shapes by name, to be written)

A record is {"file", "dtype", "shape", "sha256"}. Its file is in the rank's folder; the file of `owner` is beside
case.json. `RankPart` has the meaning of each array. A rank writes NAME.npy into its folder of the results for each name
of `results`: all outputs, and those of "layers.0" and so on and of the gradients "d<name>" that the program computes.
"""

from collections.abc import Sequence
from pathlib import Path

from sarlite.errors import DataError
from sarlite.oracle import npy
from sarlite.oracle.parts import RankPart
from sarlite.oracle.sarcase import SCHEMA

_OF_EDGES = ("ids", "src", "dst", "eids")
_BY_NAME = ("arrays", "state", "cotangents")


def write_parts(parts: Sequence[RankPart], folder: str | Path) -> Path:
    """Write `parts`, the inputs of each rank, as files in `folder`, with a case.json that lists the files; return the folder.

    Parameters
    ----------
    parts : sequence of RankPart
        The parts of all ranks, in order.
    folder : path
        A new directory.

    Returns
    -------
    Path
        The folder, which has case.json, owner.npy and a folder rank-N for each rank.

    Raises
    ------
    DataError
        `folder` exists; a name has other characters than letters, digits, "_", "-" and "."; or JSON has no such
        attribute.

    Examples
    --------
    The files of a graph that is divided between two ranks:

    >>> import tempfile
    >>> from sarlite import oracle
    >>> def run(parts):
    ...     with tempfile.TemporaryDirectory() as folder:
    ...         path = oracle.write_parts(parts, folder + "/parts")
    ...         print(sorted(file.name for file in path.iterdir()))
    ...     raise oracle.Unsupported("shown only")
    >>> report = oracle.check_ranks(run, "gather", ranks=[2], parts=["random"], graphs="ring-3", gradients=False)
    ['case.json', 'owner.npy', 'rank-0', 'rank-1']
    ['case.json', 'owner.npy', 'rank-0', 'rank-1']
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise DataError(f"{folder}: exists already; parts are written to a new directory") from None
    first = parts[0]
    document = {"schema": SCHEMA, "name": first.name, "op": first.op, "dtype": first.dtype,
            "attributes": dict(first.attributes),
            "n_nodes": first.n_nodes, "n_ranks": len(parts), "owner": npy.write(folder / "owner.npy", first.owner),
            "ranks": [_written(part, folder / folder_of(part)) for part in parts]}  # fmt: skip
    npy.write_json(folder / "case.json", document, folder)
    return folder


def read_results(folder: str | Path, parts: Sequence[RankPart]) -> list[dict[str, object]]:
    """Read the results that the ranks of a program wrote to `folder`, and return {name: array} for each rank, as `check_ranks`
    expects. `parts` are the inputs of the ranks.

    Parameters
    ----------
    folder : path
        Has rank-N/NAME.npy for the `results` of part N. A result that a rank did not write is left out.
    parts : sequence of RankPart
        The program's input.

    Returns
    -------
    list of dict of str to array
        Results of each rank by name, in the order of `parts`.

    Raises
    ------
    DataError
        A rank has no folder; or a .npy file there is no result of the rank, is a link, has another shape than promised,
        or another size than its header needs. The error names the file. Nothing is read into memory before these
        checks.

    Examples
    --------
    A run whose ranks write their results as files:

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from sarlite import oracle
    >>> def run(parts):
    ...     with tempfile.TemporaryDirectory() as folder:
    ...         for part in parts:
    ...             (pathlib.Path(folder) / f"rank-{part.rank}").mkdir()
    ...             np.save(f"{folder}/rank-{part.rank}/out.npy", part.arrays["x"][part.src])
    ...         return oracle.read_results(folder, parts)
    >>> oracle.check_ranks(run, "gather", ranks=[1], graphs="ring-3", gradients=False).verdict.name
    'PASS'
    """
    return [_result(Path(folder) / folder_of(part), part) for part in parts]


def folder_of(part: RankPart) -> str:
    """Return the name of a rank's folder, such as "rank-0"."""
    return f"rank-{part.rank}"


def _written(part: RankPart, folder: Path) -> dict[str, object]:
    folder.mkdir()
    return {"folder": folder.name,
            **{name: npy.write(folder / f"{name}.npy", getattr(part, name)) for name in _OF_EDGES},
            **{group: npy.write_group(folder, group, getattr(part, group)) for group in _BY_NAME},
            "results": {name: list(shape) for name, shape in part.results.items()}}  # fmt: skip


def _result(folder: Path, part: RankPart) -> dict[str, object]:
    if not folder.is_dir() or folder.is_symlink():
        raise DataError(f"{folder}: there are no results of rank {part.rank} of {part.size}")
    paths = {path.name.removesuffix(".npy"): path for path in sorted(folder.glob("*.npy"))}
    if unknown := [path for name, path in paths.items() if name not in part.results]:
        raise DataError(f"{unknown[0]}: it is not one of {', '.join(f'{name}.npy' for name in part.results)}")
    arrays = {name: npy.read_result(paths[name], name, shape) for name, shape in part.results.items() if name in paths}
    of = {name: f"d{name}" for name in (*part.arrays, *part.state)}
    layers = [name for name in part.results if name.startswith("layers.")]
    result: dict[str, object] = {name: arrays[name] for name in arrays if name not in (*of.values(), *layers)}
    if layers and all(name in arrays for name in layers):
        result["layers"] = [arrays[name] for name in layers]
    return {**result, "gradients": {name: arrays[file] for name, file in of.items() if file in arrays}}
