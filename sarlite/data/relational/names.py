"""Names of node types and relations, as files and in meta.json, and what a relational graph's meta.json must say of them."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from sarlite.errors import DataError

_MOST_BYTES = 255  # of a file's name


def check_relation(relation: tuple[str, ...], types: Iterable[str], where: Any) -> tuple[str, ...]:
    """Return a relation; raises a DataError where it names a type that is none of `types`."""
    for name in (relation[0], relation[2]):
        if name not in types:
            raise DataError(f"{where}: relation {'.'.join(relation)}: node type {name!r} is none of {', '.join(types)}")
    return relation


def key(*words: str) -> str:
    """Return the name of a type or a relation as a file's: letters, digits, _ - ~ stand as they are, other bytes as %XX, words by dots.

    Raises
    ------
    DataError
        It is empty, no text, or longer than a file's name may be.
    """
    shown = ".".join(map(str, words))
    if not all(isinstance(word, str) and word for word in words):
        raise DataError(f"node types and relations: {shown!r}: a name is text, and not empty")
    try:
        found = ".".join(quote(word, safe="").replace(".", "%2E") for word in words)
    except UnicodeEncodeError:
        raise DataError(f"node types and relations: {ascii(shown)} cannot be written as UTF-8") from None
    if len(found) > _MOST_BYTES:
        raise DataError(f"node types and relations: {shown[:80]!r}...: {len(found)} bytes, but a file's name has at most {_MOST_BYTES}")
    return found


def words(text: str, n: int) -> tuple[str, ...]:
    """Return the `n` names that `key` made one of; raises a ValueError where it did not."""
    found = tuple(unquote(word, errors="strict") for word in text.split("."))
    try:
        made = key(*found)
    except DataError as error:
        raise ValueError(str(error)) from None
    if len(found) != n or made != text:
        raise ValueError(f"expected {n} name{'s' if n > 1 else ''}, joined by dots and encoded as files' names are")
    return found


def check_relational(path: Any, meta: dict[str, Any]) -> None:
    """Raise a DataError where the types, the relations and the target of a meta.json do not fit together."""
    types = [_words(path, "nodes", name, 1)[0] for name in meta["nodes"]]
    for name in meta["edges"]:
        check_relation(_words(path, "edges", name, 3), types, path)
    target = meta["target"]
    if not isinstance(target, str) or target not in meta["nodes"]:
        raise DataError(f"{path}: target: {target!r} is none of the node types {', '.join(meta['nodes'])}")
    for name, told in meta["nodes"].items():
        arrays, offsets = ((told.get(what) if isinstance(told, dict) else None) for what in ("arrays", "offsets"))
        odd = [field for field in ("labels", "train", "val", "test") if name != target and isinstance(arrays, dict) and field in arrays]
        if odd:
            raise DataError(f"{path}: nodes: {name}: {odd[0]}: labels and splits are of the target alone, {target}")
        whole = meta["nodes"][target].get("offsets") if isinstance(meta["nodes"][target], dict) else None
        if isinstance(offsets, list) and isinstance(whole, list) and len(offsets) != len(whole):
            raise DataError(f"{path}: nodes: {name}: offsets: {len(offsets) - 1} parts, but {target} has {len(whole) - 1}")


def _words(path, place, name, n):
    try:
        return words(name, n)
    except ValueError as error:
        raise DataError(f"{path}: {place}: {name!r}: {error}") from None
