"""Record of the use of every column and row of the tables, stored with the data set as its account.

The commands `convert` and `info` print the account.
"""

from collections.abc import Iterator

from sarlite.data.tables.sources import Table, unnamed
from sarlite.data.times import show_time
from sarlite.types import Array, JsonDict

_SHOWN = 12  # most columns, or classes, that a line names


def columns_used(table: Table, uses: dict[str, str], left: dict[str, str]) -> JsonDict:
    """Record the use of every column of one source, such as "label", or the reason why the column was left out.

    The result is the source's entry in the account, a dict that JSON can hold.

    Parameters
    ----------
    table : Table
    uses : dict of str to str
        Use of each column that has a use.
    left : dict of str to str
        Reason for a column without a use; the default reason is that no option names it.
    """
    columns = {}
    for name in table.columns:
        why = "an index without a name" if unnamed(name) else left.get(name, "no option names it")
        columns[name] = uses[name] if name in uses else f"left out: {why}"
    return {"source": table.where, "rows": table.n_rows, "columns": columns}


def times_shown(times: Array, kind: str) -> dict[str, str]:
    """Return the kind of an array of times, and its first and last time as text; without rows only the kind."""
    shown = {"first": times.min(), "last": times.max()} if len(times) else {}
    return {"kind": kind, **{name: show_time(time, kind) for name, time in shown.items()}}


def lines(account: JsonDict) -> Iterator[str]:
    """Format an account, the record of how columns and rows were used, as lines of text."""
    for name, entry in account.get("nodes", {}).items():
        for source in entry["sources"]:
            yield f"{name}: {source['rows']:,} rows of {source['source']}"
            yield from _column_lines(source["columns"])
        yield f"{name}: {entry['nodes']:,} nodes{_ids(entry)}, {entry['isolated']:,} without edges"
        yield from _time_lines(name, entry)
        if entry.get("classes"):
            shown = [f"{word} {n:,}" for word, n in [*entry["classes"].items()][:_SHOWN]]
            more = len(entry["classes"]) - len(shown)
            yield f"{name}: {len(entry['classes']):,} classes: {', '.join(shown)}{f', and {more:,} more' if more else ''}"
        if "labelled" in entry:
            yield f"{name}: {entry['nodes'] - entry['labelled']:,} unlabelled; " + ", ".join(
                f"{split} {n:,}" for split, n in entry["split"].items()) + f" ({entry['split_from']})"
    for name, entry in account.get("edges", {}).items():
        yield f"{name}: {entry['source']['rows']:,} rows of {entry['source']['source']}"
        yield from _column_lines(entry["source"]["columns"])
        notes = [f"{entry['self_edges']:,} self edges", f"{entry['duplicates']:,} repeat another edge"]
        notes += [f"{n:,} {what}" for what, n in entry.get("changes", {}).items()]
        yield f"{name}: {entry['edges']:,} edges, {', '.join(notes)}"
        yield from _time_lines(name, entry)


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
