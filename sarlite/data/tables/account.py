"""The account of every column and row, which is kept with the data set and printed by `convert` and `info`."""

from collections.abc import Iterator
from typing import Any

from sarlite.data.tables.sources import Table, unnamed
from sarlite.data.times import show_time

_SHOWN = 12  # columns, or classes, of one kind that a line names


def columns_used(table: Table, uses: dict[str, str], left: dict[str, str]) -> dict[str, Any]:
    """Return what a source's columns are used for.

    Parameters
    ----------
    table : Table
    uses : dict of str to str
        Use of each column that has one.
    left : dict of str to str
        Why columns without a use have none, where something else is to say than that nothing names the column.
    """
    found = {}
    for name in table.columns:
        why = "an index without a name" if unnamed(name) else left.get(name, "no option names it")
        found[name] = uses[name] if name in uses else f"left out: {why}"
    return {"source": table.where, "rows": table.n_rows, "columns": found}


def times_shown(times: Any, kind: str) -> dict[str, str]:
    """Return the kind of an array of times, and the first and the last time as text; the kind alone without rows."""
    shown = {"first": times.min(), "last": times.max()} if len(times) else {}
    return {"kind": kind, **{name: show_time(time, kind) for name, time in shown.items()}}


def lines(account: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that show an account."""
    for name, told in account.get("nodes", {}).items():
        for source in told["sources"]:
            yield f"{name}: {source['rows']:,} rows of {source['source']}"
            yield from _column_lines(source["columns"])
        yield f"{name}: {told['nodes']:,} nodes{_ids(told)}, {told['isolated']:,} without edges"
        yield from _time_lines(name, told)
        if told.get("classes"):
            shown = [f"{word} {n:,}" for word, n in [*told["classes"].items()][:_SHOWN]]
            more = len(told["classes"]) - len(shown)
            yield f"{name}: {len(told['classes']):,} classes: {', '.join(shown)}{f', and {more:,} more' if more else ''}"
        if "labelled" in told:
            yield f"{name}: {told['nodes'] - told['labelled']:,} unlabelled; " + ", ".join(
                f"{split} {n:,}" for split, n in told["split"].items()) + f" ({told['split_from']})"
    for name, told in account.get("edges", {}).items():
        yield f"{name}: {told['source']['rows']:,} rows of {told['source']['source']}"
        yield from _column_lines(told["source"]["columns"])
        notes = [f"{told['self_edges']:,} self edges", f"{told['duplicates']:,} repeat another edge"]
        notes += [f"{n:,} {what}" for what, n in told.get("changes", {}).items()]
        yield f"{name}: {told['edges']:,} edges, {', '.join(notes)}"
        yield from _time_lines(name, told)


def _ids(told):
    return {"word": ", known by words", "number": ", known by their numbers as names"}.get(told.get("ids"), "")


def _time_lines(name, told):
    times = told.get("times", {})
    if "first" in times:
        yield f"{name}: times ({times['kind']}) from {times['first']} to {times['last']}"


def _column_lines(columns):
    by_use: dict[str, list[str]] = {}
    for name, use in columns.items():
        by_use.setdefault(use, []).append(name)
    for use, names in by_use.items():
        more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        yield f"  {', '.join(names[:_SHOWN])}{more}: {use}"
