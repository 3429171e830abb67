"""Parts and results of ranks as files, for a distributed program in any language under its own launcher.

case.json
    schema          1
    name, op, dtype, attributes     as in a .sarcase
    n_nodes, n_ranks
    owner           record of the rank of each node, (n_nodes,) int64
    ranks           list of one object a rank: folder ("rank-0"), ids, src, dst, eids (records), arrays, state,
                    cotangents (records by
                    name), results (what is to be written: name -> shape)

A record is {"file", "dtype", "shape", "sha256"}, in the rank's folder; `owner` beside case.json. What each means tells
`Part`: src and dst are global ids, rows of arrays those of `ids` and `eids`. A rank writes NAME.npy for each of
`results` into its folder of the results: outputs always; "layers.0" and so on, and gradients "d<name>", where it
promises them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sarlite.errors import DataError
from sarlite.oracle import npy
from sarlite.oracle.parts import Part
from sarlite.oracle.sarcase import SCHEMA

_OF_EDGES = ("ids", "src", "dst", "eids")
_BY_NAME = ("arrays", "state", "cotangents")


def write_parts(parts: Sequence[Part], folder: str | Path) -> Path:
    """Write what each rank gets, and a case.json that tells where, and return the folder.

    Parameters
    ----------
    parts : sequence of Part
        Of all ranks, in their order.
    folder : path
        A new directory.

    Raises
    ------
    DataError
        Something stands at `folder`; a name is not one of letters, digits, "_", "-" and "."; an attribute is no JSON.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise DataError(f"{folder}: something else stands there; parts are written to a new directory") from None
    first = parts[0]
    told = {"schema": SCHEMA, "name": first.name, "op": first.op, "dtype": first.dtype,
            "attributes": dict(first.attributes),
            "n_nodes": first.n_nodes, "n_ranks": len(parts), "owner": npy.write(folder / "owner.npy", first.owner),
            "ranks": [_written(part, folder / folder_of(part)) for part in parts]}  # fmt: skip
    npy.write_json(folder / "case.json", told, folder)
    return folder


def read_results(folder: str | Path, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Return what each rank of a program wrote, as `check_ranks` takes it.

    Parameters
    ----------
    folder : path
        Has rank-N/NAME.npy for each of the `results` of part N; what a rank did not write is not there.
    parts : sequence of Part
        What the program was given.

    Raises
    ------
    DataError
        Naming the file: a rank has no folder, a .npy file there is none of its results, or it has another shape than
        was promised, another size than its header needs, or is a link. No memory is taken for it.
    """
    return [_result(Path(folder) / folder_of(part), part) for part in parts]


def folder_of(part: Part) -> str:
    """Return the name of a rank's folder."""
    return f"rank-{part.rank}"


def _written(part: Part, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return {"folder": folder.name,
            **{name: npy.write(folder / f"{name}.npy", getattr(part, name)) for name in _OF_EDGES},
            **{group: npy.write_group(folder, group, getattr(part, group)) for group in _BY_NAME},
            "results": {name: list(shape) for name, shape in part.results.items()}}  # fmt: skip


def _result(folder: Path, part: Part) -> dict[str, Any]:
    if not folder.is_dir() or folder.is_symlink():
        raise DataError(f"{folder}: there are no results of rank {part.rank} of {part.size}")
    paths = {path.name.removesuffix(".npy"): path for path in sorted(folder.glob("*.npy"))}
    if unknown := [path for name, path in paths.items() if name not in part.results]:
        raise DataError(f"{unknown[0]}: it is none of {', '.join(f'{name}.npy' for name in part.results)}")
    found = {name: npy.read_result(paths[name], name, shape) for name, shape in part.results.items() if name in paths}
    of = {name: f"d{name}" for name in (*part.arrays, *part.state)}
    layers = [name for name in part.results if name.startswith("layers.")]
    result: dict[str, Any] = {name: found[name] for name in found if name not in (*of.values(), *layers)}
    if layers and all(name in found for name in layers):
        result["layers"] = [found[name] for name in layers]
    return {**result, "gradients": {name: found[file] for name, file in of.items() if file in found}}
