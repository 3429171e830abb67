"""Cases as files: a .sarcase is a directory of `case.json` and .npy files, for any language. No code, no pickle.

case.json
    schema          1
    name, op        as of `Case`
    n_src, n_dst    numbers of rows
    dtype, accumulate, index_dtype
    attributes      as {"reduce": "mean", "dialect": "paper"}
    src, dst        records of the edges' rows, (n_edges,) int64
    arrays, state, cotangents, expected, bounds, got
                    records by name; `cotangents`, `expected` (outputs, and gradients as d<name>), `bounds` and `got`
                    may be empty
    finding         what was found, or null

A record is {"file", "dtype", "shape", "sha256"}, the hash of the whole .npy file.
"""

import json
import os
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

from sarlite.errors import DataError, SarliteError, reading, regular, whole
from sarlite.oracle import npy
from sarlite.oracle.case import Case
from sarlite.oracle.choices import DTYPES, INDEX_DTYPES, SUMS
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import NUMBERS, PLACES, Finding, Saved, Verdict

SCHEMA = 1
_GROUPS = ("arrays", "state", "cotangents", "expected", "bounds", "got")
_TEXTS = {"dtype": DTYPES, "accumulate": SUMS, "index_dtype": INDEX_DTYPES}
_FIELD_OF = {"dtype": "format", "accumulate": "accumulate", "index_dtype": "index_dtype"}  # of `Case`
_FIELDS = ("schema", "name", "op", "n_src", "n_dst", *_TEXTS, "attributes", "src", "dst", *_GROUPS, "finding")
_FINDING = ("verdict", "level", "output", "cause", *PLACES, *NUMBERS, "edges")
_LATER = ("edge", "row")  # places that older files do not have
_JSON_LIMIT = 1 << 24  # bytes
_ROWS_LIMIT = npy.LIMIT // 8  # what is counted by row takes 8 bytes each


def save(item: Saved | Finding | Case, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a case, a finding with its case, or all that belongs to it, and return the path.

    Parameters
    ----------
    item : Saved, Finding or Case
    path : path
        A new directory.
    overwrite : bool
        Whether a directory that holds a case, and nothing else, is replaced.

    Raises
    ------
    DataError
        Something stands at `path`, and is not to be replaced, or is no case alone; a name is not one of letters,
        digits, "_", "-" and "."; an attribute is no JSON.

    Notes
    -----
    The files are written to a private name beside `path`, which is then renamed.
    """
    if isinstance(item, Finding):
        item = replace(item.evidence or Saved(item.case), finding=item)
    elif isinstance(item, Case):
        item = Saved(item)
    path = Path(path)
    if os.path.lexists(path) and not (overwrite and _is_case(path)):
        what = "is there already; overwrite replaces it" if _is_case(path) else "something else stands there"
        raise DataError(f"{path}: {what}; a case is written to a new directory")
    private, old = (path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.{end}") for end in ("tmp", "old"))
    private.mkdir(parents=True)
    try:
        npy.write_json(private / "case.json", _described(item, private), path)
        if path.is_dir():
            path.rename(old)
        private.rename(path)
    finally:
        for folder in (private, old):
            shutil.rmtree(folder, ignore_errors=True)
    return path


def _is_case(path: Path) -> bool:
    """Return True if a directory holds a case of this schema, and no file or folder that the case does not name."""
    if path.is_symlink() or not (path / "case.json").is_file():
        return False
    try:
        told = _parsed(path / "case.json")
        records = [told["src"], told["dst"], *(record for group in _GROUPS for record in told[group].values())]
        return {file.name for file in path.iterdir()} <= {"case.json", *(record["file"] for record in records)}
    except (SarliteError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def load(path: str | os.PathLike[str]) -> Saved:
    """Read what `save` wrote, or somebody else as the module's head says.

    Raises
    ------
    DataError
        In one line with file, field and value: a field is missing, unknown or impossible; a file's name leads
        elsewhere; a file's header, size or hash is another; more than 4 GiB. Found before memory is taken.
    """
    folder = Path(path)
    source = folder / "case.json"
    try:
        with reading(source):
            return _loaded(folder, _parsed(source))
    except SarliteError as error:
        raise DataError(str(error) if str(folder) in str(error) else f"{source}: {error}") from error


def _parsed(source):
    if regular(source).stat().st_size > _JSON_LIMIT:
        raise DataError(f"{source}: more than {_JSON_LIMIT} bytes")
    told = json.loads(source.read_bytes(), object_pairs_hook=_once, parse_constant=_no_number)
    _has(told, "", _FIELDS)
    if told["schema"] != SCHEMA:
        raise DataError(f"{source}: schema is {told['schema']!r}, this version reads {SCHEMA}")
    return told


def _described(item, folder):
    case = item.case
    arrays = {"src": case.edges.src, "dst": case.edges.dst}
    groups = {"arrays": case.arrays, "state": case.state, **{name: getattr(item, name) for name in _GROUPS[2:]}}
    return {
        "schema": SCHEMA, "name": case.name, "op": case.op, "n_src": int(case.edges.n_src),
        "n_dst": int(case.edges.n_dst),
        **{name: getattr(case, field) for name, field in _FIELD_OF.items()}, "attributes": dict(case.attributes),
        **{name: npy.write(folder / f"{name}.npy", value) for name, value in arrays.items()},
        **{group: npy.write_group(folder, group, values) for group, values in groups.items()},
        "finding": None if item.finding is None else item.finding.told(),
    }  # fmt: skip


def _loaded(folder, told):
    for name in ("name", "op"):
        _text(told, name)
    for name, known in _TEXTS.items():
        if told[name] not in known:
            raise DataError(f"{folder}: {name} is {told[name]!r}, none of {', '.join(known)}")
    n_src, n_dst = (_rows(told, name) for name in ("n_src", "n_dst"))
    _within(folder, told)
    src, dst = (_index(folder, told, name) for name in ("src", "dst"))
    groups = {group: {name: npy.read(folder, f"{group}.{name}", record) for name, record in told[group].items()}
              for group in _GROUPS}
    for name, bound in groups["bounds"].items():
        expected = groups["expected"].get(name)
        if expected is None or expected.shape != bound.shape:
            other = "no array" if expected is None else f"shape {expected.shape}"
            raise DataError(f"{folder}: bounds.{name} has shape {bound.shape}, but expected.{name} is {other}")
    case = Case(told["name"], told["op"], EdgeList(src, dst, n_src, n_dst), groups.pop("arrays"),
                _attributes(told["attributes"]), groups.pop("state"),
                **{field: told[name] for name, field in _FIELD_OF.items()})
    return Saved(case, finding=None if told["finding"] is None else _finding(told["finding"], case), **groups)


def _within(folder, told):
    """Refuse groups that are none, names that are not plain, and more bytes together than one case may have."""
    total = 0
    for group in _GROUPS:
        if not isinstance(told[group], dict):
            raise DataError(f"{folder}: {group} is no object of records")
        for name, record in told[group].items():
            npy.plain(name, f"{folder}: {group}")
            if not isinstance(record, dict):
                raise DataError(f"{folder}: {group}.{name} is no record")
            path = folder / npy.plain(record.get("file"), f"{folder}: {group}.{name}")
            total += path.lstat().st_size
    if total >= npy.LIMIT:
        raise DataError(f"{folder}: {total} bytes, at most {npy.LIMIT}")


def _index(folder, told, name):
    if not isinstance(told[name], dict):
        raise DataError(f"{folder}: {name} is no record")
    index = npy.read(folder, name, told[name])
    if index.dtype.kind != "i" or index.ndim != 1:
        raise DataError(f"{folder}: {name}: {index.dtype} of shape {index.shape}, expected (n_edges,) int64")
    return index


def _rows(told, name):
    if whole(name, told[name]) > _ROWS_LIMIT:
        raise DataError(f"{name} is {told[name]}, at most {_ROWS_LIMIT}")
    return told[name]


def _text(told, name):
    if not isinstance(told[name], str) or len(told[name]) > 1000:
        raise DataError(f"{name} is {told[name]!r}, but must be a text of at most 1000 characters")
    return told[name]


def _attributes(told):
    if not isinstance(told, dict):
        raise DataError(f"attributes is {told!r}, but must be an object")
    return {name: _tuples(value) for name, value in told.items()}


def _tuples(value):
    """JSON's arrays as tuples, as attributes have them."""
    if isinstance(value, list):
        return tuple(_tuples(each) for each in value)
    return {name: _tuples(each) for name, each in value.items()} if isinstance(value, dict) else value


def _finding(told, case):
    if isinstance(told, dict):
        told = {**dict.fromkeys(_LATER), **told}
    _has(told, "finding", _FINDING)
    if told["verdict"] not in Verdict.__members__:
        raise DataError(f"finding.verdict is {told['verdict']!r}, none of {', '.join(Verdict.__members__)}")
    places = {name: None if told[name] is None else whole(f"finding.{name}", told[name]) for name in PLACES}
    numbers = {name: None if told[name] is None else float(told[name]) for name in NUMBERS}
    edges = tuple(tuple(whole("finding.edges", end) for end in edge) for edge in told["edges"])
    texts = [_text(told, name) for name in ("level", "output", "cause")]
    return Finding(Verdict[told["verdict"]], texts[0], case, texts[1], texts[2], edges=edges, **places, **numbers)


def _has(told, what, fields):
    """Raise DataError unless `told` is an object with exactly `fields`."""
    if not isinstance(told, dict):
        raise DataError(f"{what or 'case.json'} is no object")
    if odd := [name for name in told if name not in fields]:
        raise DataError(f"{what}{what and '.'}{odd[0]} is no field that is known")
    if missing := [name for name in fields if name not in told]:
        raise DataError(f"{what}{what and '.'}{missing[0]} is missing")


def _once(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DataError("a field stands twice")
    return found


def _no_number(text):
    raise DataError(f"{text} is no number of JSON")
