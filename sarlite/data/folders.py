"""Encoding of the names of node types and relations as names of folders: bytes other than letters and digits become %XX."""

from collections.abc import Iterable
from urllib.parse import quote, unquote

from sarlite.errors import DataError

_MOST_BYTES = 255  # longest name of a file in bytes


def key(*words: str) -> str:
    """Return the folder name of a node type (one word) or a relation (three words, joined by dots).

    Letters, digits and _ - ~ stay as they are; other bytes become %XX.

    Raises
    ------
    DataError
        If a word is empty or no text, or the result is longer than a name of a file may be.

    Examples
    --------
    >>> key("user", "buys & sells", "item")
    'user.buys%20%26%20sells.item'
    """
    shown = ".".join(map(str, words))
    if not all(isinstance(word, str) and word for word in words):
        raise DataError(f"node types and relations: {shown!r}: a name is text, and not empty")
    try:
        encoded = ".".join(quote(word, safe="").replace(".", "%2E") for word in words)
    except UnicodeEncodeError:
        raise DataError(f"node types and relations: {ascii(shown)} cannot be written as UTF-8") from None
    if len(encoded) > _MOST_BYTES:
        raise DataError(f"node types and relations: {shown[:80]!r}...: {len(encoded)} bytes, "
                        f"but a file's name has at most {_MOST_BYTES}")
    return encoded


def words(text: str, n: int) -> tuple[str, ...]:
    """Return the `n` words that `key` encoded as `text`; raise a ValueError if `key` cannot have written `text`."""
    decoded = tuple(unquote(word, errors="strict") for word in text.split("."))
    try:
        encoded = key(*decoded)
    except DataError as error:
        raise ValueError(str(error)) from None
    if len(decoded) != n or encoded != text:
        raise ValueError(f"expected {n} name{'s' if n > 1 else ''}, joined by dots and encoded as files' names are")
    return decoded


def check_relation(relation: tuple[str, ...], types: Iterable[str], where: object) -> None:
    """Raise a DataError that begins with `where` if the source or destination type of `relation` is not in `types`."""
    for name in (relation[0], relation[2]):
        if name not in types:
            raise DataError(f"{where}: relation {'.'.join(relation)}: node type {name!r} is not one of {', '.join(types)}")
