"""Names of node types and relations as names of files' folders: letters and digits as they are, other bytes as %XX."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from sarlite.errors import DataError

_MOST_BYTES = 255  # of a file's name


def key(*words: str) -> str:
    """Return the name of a type or a relation as a file's: letters, digits and _ - ~ as they are, other bytes as %XX.

    The words of a relation are joined by dots.

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
        raise DataError(f"node types and relations: {shown[:80]!r}...: {len(found)} bytes, "
                        f"but a file's name has at most {_MOST_BYTES}")
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


def check_relation(relation: tuple[str, ...], types: Iterable[str], where: Any) -> None:
    """Raise a DataError where a relation names a type that is none of `types`."""
    for name in (relation[0], relation[2]):
        if name not in types:
            raise DataError(f"{where}: relation {'.'.join(relation)}: node type {name!r} is none of {', '.join(types)}")
