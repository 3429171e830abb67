"""The account that is stored with a data set: how each column and row of the user's tables was used.

The commands `convert` and `info` print the account.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from sarlite.data.tables.sources import Table, unnamed
from sarlite.data.times import show_time
from sarlite.types import Array, JsonDict

_SHOWN = 12  # most columns, or classes, that a line names


def columns_used(table: Table, uses: Iterable[tuple[str, str]], left: Mapping[str, str] = MappingProxyType({})) -> JsonDict:
    """Return {"source", "rows", "columns"} of `table`, where "columns" tells how each column was used. `uses` are (column, use)
    pairs, and `left` maps unused columns to the reason.

    Parameters
    ----------
    table : Table
    uses : iterable of (str, str)
        A column and a use of the column.
    left : dict of str to str
        Reason for a column without a use; the default reason is that no option names it.
    """
    columns: dict[str, str] = {}
    for name, use in uses:
        columns[name] = f"{columns[name]} and {use}" if name in columns else use
    for name in table.columns:
        why = "an index without a name" if unnamed(name) else left.get(name, "no option names it")
        columns.setdefault(name, f"left out: {why}")
    return {"source": table.where, "rows": table.n_rows, "columns": {name: columns[name] for name in table.columns}}


def times_shown(times: Array, kind: str) -> dict[str, str]:
    """Return {"kind": `kind`, "first": text of the earliest time, "last": text of the latest} of `times`, whose `kind` is "dates" or
    "integers"; only "kind" if `times` is empty.
    """
    shown = {"first": times.min(), "last": times.max()} if len(times) else {}
    return {"kind": kind, **{name: show_time(time, kind) for name, time in shown.items()}}


def lines(account: JsonDict) -> Iterator[str]:
    """Yield lines of text about an account, the record of how the columns and rows of a user's tables were used."""
    yield from account.get("outside", ())
    for name, entry in account.get("nodes", {}).items():
        for source in entry["sources"]:
            yield f"{name}: {source['rows']:,} rows of {source['source']}"
            yield from _column_lines(source["columns"])
        yield f"{name}: {entry['nodes']:,} nodes{_ids(entry)}, {entry['isolated']:,} without edges"
        if "alike" in entry:
            yield f"{name}: {entry['alike']['ids']:,} ids differ only in blanks, capitals or Unicode form: {entry['alike']['example']}"
        yield from _time_lines(name, entry)
        if entry.get("classes"):
            shown = [f"{word} {n:,}" for word, n in [*entry["classes"].items()][:_SHOWN]]
            more = len(entry["classes"]) - len(shown)
            yield f"{name}: {len(entry['classes']):,} classes: {', '.join(shown)}{f', and {more:,} more' if more else ''}"
        groups = _alike(entry.get("classes") or {})
        if groups:
            yield f"{name}: {sum(map(len, groups)):,} classes differ only in blanks, capitals or Unicode form, such as {groups[0]}"
        if "labelled" in entry:
            yield f"{name}: {entry['nodes'] - entry['labelled']:,} unlabelled; " + ", ".join(
                f"{split} {n:,}" for split, n in entry["split"].items()) + f" ({entry['split_from']})"
    for name, entry in account.get("edges", {}).items():
        yield f"{name}: {entry['source']['rows']:,} rows of {entry['source']['source']}"
        yield from _column_lines(entry["source"]["columns"])
        notes = [f"{entry['self_edges']:,} self edges", f"{entry['duplicates']:,} repeat another edge"]
        notes += [f"{entry['negative_weights']:,} have a negative weight"] if entry.get("negative_weights") else []
        notes += [f"{n:,} {what}" for what, n in entry.get("changes", {}).items()]
        yield f"{name}: {entry['edges']:,} edges, {', '.join(notes)}"
        yield from _time_lines(name, entry)


def _alike(classes):
    """Return groups of names in `classes` that differ only in blanks, capitals, invisible letters or Unicode form: "A" and "a "."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(unicodedata.normalize("NFC", name).strip(" \t\r\n\xa0\u00ad\u200b\u200d\u2060\ufeff").lower(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _ids(entry):
    return {"word": ", known by words", "number": ", known by their numbers as names"}.get(entry.get("ids"), "")


def _time_lines(name, entry):
    times = entry.get("times", {})
    if "first" in times:
        yield f"{name}: times ({times['kind']}) from {times['first']} to {times['last']}"


def _column_lines(columns):
    by_use: dict[str, list[str]] = {}
    for name, use in columns.items():
        by_use.setdefault(use, []).append(name)
    for use, names in by_use.items():
        more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        yield f"  {', '.join(names[:_SHOWN])}{more}: {use}"
