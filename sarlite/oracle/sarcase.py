"""Reading and writing of a .sarcase, a directory that holds one test case (operator, graph, inputs and results) as `case.json` and .npy
files, without code or pickle.

case.json
    schema          1
    name, op        as of `Case`
    n_src, n_dst    numbers of rows
    dtype, accumulate, index_dtype      `dtype` is `Case.format`
    attributes      such as {"reduce": "mean", "dialect": "paper"}
    src, dst        records of the edges' rows, (n_edges,) int64
    arrays, state, cotangents, expected, bounds, got
                    records by name; gradients are in `expected`, `bounds` and `got` as d<name>. The last four may be
                    empty
    finding         the finding, or null

A record is {"file", "dtype", "shape", "sha256"}, with the hash of the whole .npy file.
"""

import json
import os
import shutil
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sarlite.errors import DataError, SarliteError, check_int, reading, regular
from sarlite.oracle import npy
from sarlite.oracle.case import Case
from sarlite.oracle.choices import DTYPES, INDEX_DTYPES, SUMS
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import NUMBERS, POSITIONS, Finding, SavedCase, Verdict

SCHEMA = 1
_GROUPS = ("arrays", "state", "cotangents", "expected", "bounds", "got")
_TEXTS = {"dtype": DTYPES, "accumulate": SUMS, "index_dtype": INDEX_DTYPES}
_FIELD_OF = {"dtype": "format", "accumulate": "accumulate", "index_dtype": "index_dtype"}  # key of case.json -> attribute of `Case`
_FIELDS = ("schema", "name", "op", "n_src", "n_dst", *_TEXTS, "attributes", "src", "dst", *_GROUPS, "finding")
_FINDING = ("verdict", "level", "output", "cause", *POSITIONS, *NUMBERS, "edges")
_LATER = ("edge", "row")  # fields that older files do not have
_JSON_LIMIT = 1 << 24  # bytes
_ROWS_LIMIT = npy.LIMIT // 8  # arrays by row, such as degrees, take 8 bytes for each row


def save(item: SavedCase | Finding | Case, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write `item`, a case alone or with a finding or results, to the new directory `path`, and return the path. With `overwrite`,
    an older case there is replaced.

    Parameters
    ----------
    item : SavedCase, Finding or Case
    path : path
        A new directory.
    overwrite : bool
        True if a directory that holds a case, and nothing else, is replaced.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    DataError
        `path` exists and is not to be replaced, or is no case alone; a name has other characters than letters, digits,
        "_", "-" and "."; JSON has no such attribute; or the finding has no case.

    Notes
    -----
    The files are written to a temporary directory beside `path`, which is then renamed.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import oracle
    >>> case = oracle.Reference("gather").case(oracle.EdgeList([0, 1], [1, 0], 2, 2), name="two edges", width=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = oracle.save(case, folder + "/two.sarcase")
    ...     files = sorted(file.name for file in path.iterdir())
    ...     saved = oracle.load(path)
    >>> files
    ['arrays.x.npy', 'case.json', 'dst.npy', 'src.npy']
    >>> saved.case.name, saved.case.x.shape, saved.finding is None
    ('two edges', (2, 3), True)
    """
    if isinstance(item, Finding):
        if isinstance(item.case, str):
            raise DataError(f"{path}: the finding has only the name of its case, {item.case!r}, and no arrays")
        item = replace(item.evidence or SavedCase(item.case), finding=item)
    elif isinstance(item, Case):
        item = SavedCase(item)
    path = Path(path)
    if os.path.lexists(path) and not (overwrite and _is_case(path)):
        what = "exists already; overwrite=True replaces it" if _is_case(path) else "exists already and is not a case"
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
    """Return True if the directory `path` holds a case in the format of `save`, and no other files."""
    if path.is_symlink() or not (path / "case.json").is_file():
        return False
    try:
        document = _parsed(path / "case.json")
        records = [document["src"], document["dst"], *(record for group in _GROUPS for record in document[group].values())]
        return {file.name for file in path.iterdir()} <= {"case.json", *(record["file"] for record in records)}
    except (SarliteError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def load(path: str | os.PathLike[str]) -> SavedCase:
    """Return the SavedCase in the directory `path`, written by `save`, or by another program in the same format.

    Parameters
    ----------
    path : path

    Returns
    -------
    SavedCase

    Raises
    ------
    DataError
        In one line with file, field and value: a field is missing, unknown or impossible; a file name is a path; a
        file's header, size or hash differs from its record; or the files exceed 4 GiB. All is checked before arrays are
        read.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import oracle
    >>> case = oracle.Reference("gather").case(oracle.EdgeList([0, 1], [1, 0], 2, 2), name="two edges", width=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = oracle.load(oracle.save(case, folder + "/two.sarcase"))
    >>> saved.case.name, saved.case.x.shape
    ('two edges', (2, 3))
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
    document = json.loads(source.read_bytes(), object_pairs_hook=_once, parse_constant=_no_number)
    _has(document, "", _FIELDS)
    if document["schema"] != SCHEMA:
        raise DataError(f"{source}: schema is {document['schema']!r}, this version reads {SCHEMA}")
    return document


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
        "finding": None if item.finding is None else item.finding.to_dict(),
    }  # fmt: skip


def _loaded(folder, document):
    for name in ("name", "op"):
        _text(document, name)
    for name, allowed in _TEXTS.items():
        if document[name] not in allowed:
            raise DataError(f"{folder}: {name} is {document[name]!r}, expected one of {', '.join(allowed)}")
    n_src, n_dst = (_rows(document, name) for name in ("n_src", "n_dst"))
    _within(folder, document)
    src, dst = (_index(folder, document, name) for name in ("src", "dst"))
    groups = {group: {name: npy.read(folder, f"{group}.{name}", record) for name, record in document[group].items()}
              for group in _GROUPS}
    for name, bound in groups["bounds"].items():
        expected = groups["expected"].get(name)
        if expected is None or expected.shape != bound.shape:
            other = "not an array" if expected is None else f"shape {expected.shape}"
            raise DataError(f"{folder}: bounds.{name} has shape {bound.shape}, but expected.{name} is {other}")
    case = Case(document["name"], document["op"], EdgeList(src, dst, n_src, n_dst), groups.pop("arrays"),
                _attributes(document["attributes"]), groups.pop("state"),
                **{field: document[name] for name, field in _FIELD_OF.items()})
    return SavedCase(case, finding=None if document["finding"] is None else _finding(document["finding"], case), **groups)


def _within(folder: Path, document: Mapping[str, Any]) -> None:
    """Raise DataError unless the array files named in `document`, a parsed case.json, lie in `folder` and together stay below 4 GiB."""
    total = 0
    for group in _GROUPS:
        if not isinstance(document[group], dict):
            raise DataError(f"{folder}: {group} is not an object of records")
        for name, record in document[group].items():
            npy.plain_name(name, f"{folder}: {group}")
            if not isinstance(record, dict):
                raise DataError(f"{folder}: {group}.{name} is not a record")
            path = folder / npy.plain_name(record.get("file"), f"{folder}: {group}.{name}")
            total += path.lstat().st_size
    if total >= npy.LIMIT:
        raise DataError(f"{folder}: {total} bytes, at most {npy.LIMIT}")


def _index(folder, document, name):
    if not isinstance(document[name], dict):
        raise DataError(f"{folder}: {name} is not a record")
    index = npy.read(folder, name, document[name])
    if index.dtype.kind != "i" or index.ndim != 1:
        raise DataError(f"{folder}: {name}: {index.dtype} of shape {index.shape}, expected (n_edges,) int64")
    return index


def _rows(document, name):
    if check_int(name, document[name]) > _ROWS_LIMIT:
        raise DataError(f"{name} is {document[name]}, at most {_ROWS_LIMIT}")
    return document[name]


def _text(document, name):
    if not isinstance(document[name], str) or len(document[name]) > 1000:
        raise DataError(f"{name} is {document[name]!r}, but must be a text of at most 1000 characters")
    return document[name]


def _attributes(attributes):
    if not isinstance(attributes, dict):
        raise DataError(f"attributes is {attributes!r}, but must be an object")
    return {name: _tuples(value) for name, value in attributes.items()}


def _tuples(value: Any) -> Any:
    """Return a JSON value with a tuple in place of each list."""
    if isinstance(value, list):
        return tuple(_tuples(each) for each in value)
    return {name: _tuples(each) for name, each in value.items()} if isinstance(value, dict) else value


def _finding(document, case):
    if isinstance(document, dict):
        document = {**dict.fromkeys(_LATER), **document}
    _has(document, "finding", _FINDING)
    if document["verdict"] not in Verdict.__members__:
        raise DataError(f"finding.verdict is {document['verdict']!r}, expected one of {', '.join(Verdict.__members__)}")
    places = {name: None if document[name] is None else check_int(f"finding.{name}", document[name]) for name in POSITIONS}
    numbers = {name: None if document[name] is None else float(document[name]) for name in NUMBERS}
    edges = tuple(tuple(check_int("finding.edges", end) for end in edge) for edge in document["edges"])
    texts = [_text(document, name) for name in ("level", "output", "cause")]
    return Finding(Verdict[document["verdict"]], texts[0], case, texts[1], texts[2], edges=edges, **places, **numbers)


def _has(document: Any, what: str, fields: Collection[str]) -> None:
    """Raise a DataError that names `what` unless `document`, a value of JSON, is an object with exactly these fields."""
    if not isinstance(document, dict):
        raise DataError(f"{what or 'case.json'} is not an object")
    if odd := [name for name in document if name not in fields]:
        raise DataError(f"{what}{what and '.'}{odd[0]} is not a known field")
    if missing := [name for name in fields if name not in document]:
        raise DataError(f"{what}{what and '.'}{missing[0]} is missing")


def _once(pairs):
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise DataError("a field occurs twice")
    return fields


def _no_number(text):
    raise DataError(f"{text} is not a number of JSON")
