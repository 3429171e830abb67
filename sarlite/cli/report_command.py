"""`python -m sarlite.report`: write an HTML page about runs of sarlite.train, which needs no network."""

import html
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sarlite.cli.charts import DASHES, Bars, Curve, LineChart, Matrix, Timeline, TracedSpan
from sarlite.cli.config import read_toml
from sarlite.cli.folder import CONFIG, FILES, METRICS, SCHEMA, SUMMARY
from sarlite.cli.run_report import duration
from sarlite.cli.score_charts import score_charts, threshold_rows
from sarlite.command import Parser, readable, refuse_input, run_command, show
from sarlite.errors import ConfigError, DataError, reading, regular, writing
from sarlite.files import atomic_write
from sarlite.tasks.metric_table import lower_is_better
from sarlite.types import JsonObject

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --faint: #d0d4d9; --dim: #656c76;
  --c0: #1f6feb; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5; --c4: #0b7285; --c5: #a37200; --c6: #c2255c;
  --c7: #5c5f66; }
@media (prefers-color-scheme: dark) { :root { --back: #15181c; --text: #e3e6ea; --faint: #3a4048; --dim: #9aa3ad;
  --c0: #6cb0ff; --c1: #ff9d5c; --c2: #69db7c; --c3: #da9bf0; --c4: #5fd3e0; --c5: #ffd43b; --c6: #faa2c1;
  --c7: #adb5bd; } }
@media print { :root { --back: #fff; --text: #000; --faint: #bbb; --dim: #444; } figure { break-inside: avoid; } }
body { background: var(--back); color: var(--text); font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1100px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--faint); }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 1rem 2rem; }
figure { margin: 0; } figcaption { font-weight: 600; } figure.wide { grid-column: 1 / -1; } .table { overflow-x: auto; }
svg { width: 100%; height: auto; overflow: visible; } svg text { fill: var(--dim); font-size: 11px; }
svg .cell { fill: var(--text); }
.grid { stroke: var(--faint); stroke-width: 1; } .line { fill: none; stroke-width: 1.8; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font-size: 13px; white-space: pre-wrap; } .key { white-space: nowrap; margin-right: .8em; }
svg.dash { width: 1.6em; height: .3em; margin-right: .3em; vertical-align: middle; }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; border-radius: 2px; }
"""


class RunFiles(NamedTuple):
    """Contents of a run's folder that the HTML report shows: options, the record of each epoch, and the summary.

    Attributes
    ----------
    name : str
        Path of the folder.
    options : dict
        Options in config.toml.
    epochs : list of dict
        Records in metrics.jsonl, one for each epoch.
    summary : dict
        Contents of summary.json; {} if the run has not ended.
    """

    name: str
    options: JsonObject
    epochs: list[JsonObject]
    summary: JsonObject


def read(folder: str) -> RunFiles:
    """Return the contents of the files in a run's folder that the HTML report shows.

    Parameters
    ----------
    folder : str
        Path of the folder.

    Raises
    ------
    DataError
        The folder has no run, or one of its files is invalid; the message names the file and the line.
    """
    path = Path(folder)
    if not (path / METRICS).exists():
        raise DataError(f"{folder}: not the folder of a run: it has no {METRICS}")
    options = read_toml(path / CONFIG)
    with reading(path / METRICS):
        lines = regular(path / METRICS).read_text(encoding="utf-8").splitlines()
    epochs = [_epoch(f"{path / METRICS}: line {number}", line) for number, line in enumerate(lines, 1)]
    if not epochs:
        raise DataError(f"{path / METRICS}: the file has no epoch")
    summary = {}
    if (path / SUMMARY).exists():
        with reading(path / SUMMARY):
            text = regular(path / SUMMARY).read_bytes()
        summary = _object(path / SUMMARY, text)
        if summary.get(SCHEMA) != 1:
            raise DataError(f"{path / SUMMARY}: {SCHEMA} is {summary.get(SCHEMA)!r}, expected 1")
    return RunFiles(str(folder), options, epochs, summary)


def _object(where: object, text: str | bytes) -> Any:
    """Return the JSON object in `text` as a dict. For any other text, raise a DataError that begins with `where`, the file and the
    line of the text.
    """
    with reading(where):
        contents = json.loads(text)
    if not isinstance(contents, dict):
        raise DataError(f"{where}: not a JSON object")
    return contents


def _number(value):
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def _epoch(where: str, line: str) -> Any:
    """Return the record of an epoch, a dict, in `line`, a line of metrics.jsonl. If it is invalid, raise a DataError that begins
    with `where`, the file and the line number.
    """
    record = _object(where, line)
    for name, value in record.items():
        with reading(f"{where}: {name}"):
            if value is not None and not (name == "parameters" and isinstance(value, str)):
                _number(value)
    if type(record.get("epoch")) is not int:
        raise DataError(f"{where}: the record has no epoch")
    return record


# ---- the page


def page(runs: list[RunFiles], spans: list[TracedSpan] | None = None) -> str:
    """Return an HTML page that compares `runs`. With `spans`, intervals from the trace of one run, it has a timeline; None stands
    for no timeline.

    Parameters
    ----------
    runs : list of RunFiles
    spans : list of TracedSpan, optional
        Events of a trace, from `spans_of`; None for no timeline.
    """
    names = ", ".join(run.name for run in runs)
    parts = [f"<h1>{_text(names)}</h1>", _results(runs), "<h2>Training</h2><main>", *_curves(runs), "</main>"]
    ended = [run for run in runs if run.summary]
    if ended:
        parts += ["<h2>Memory, bytes and time</h2><main>", *_counted(ended), *_pairs(ended), "</main>"]
        outcomes = [*_probabilities(ended), *(chart for run in ended for chart in _outcome(run, len(runs) > 1))]
        parts += ["<h2>Predictions of the best model</h2><main>", *outcomes, "</main>"] if outcomes else []
    if spans:
        parts += ["<h2>Timeline</h2><main>", Timeline("spans of the first ranks, in ms", spans).html(), "</main>"]
    parts += ["<h2>Options</h2>", _options(runs)]
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(names)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
            f'{"".join(parts)}</body></html>\n')


def _curves(runs: list[RunFiles]) -> list[str]:
    """Return line charts as HTML: one for each number that the runs recorded by epoch. The train, val and test curves of a metric
    share a chart.
    """
    charts: dict[str, list[Curve]] = {}
    for run in runs:
        for key in dict.fromkeys(key for record in run.epochs for key in record
                                  if key not in ("epoch", "parameters")):
            points = [(record["epoch"], record[key]) for record in run.epochs if record.get(key) is not None]
            chart, split = _chart_of(key)
            if points:
                charts.setdefault(chart, []).append(Curve(run.name, split, points))
    return [LineChart(f"{chart} by epoch", curves).html() for chart, curves in charts.items()]


def _chart_of(key: str) -> tuple[str, str]:
    """Return (title of the chart, split) for `key`, the name of a number in metrics.jsonl: ("loss", "val") for "val_loss"."""
    split, _, rest = key.partition("_")
    if split in DASHES and rest:
        return rest.replace("_", " "), split
    chart = {"seconds": "seconds of an epoch's steps", "lr": "learning rate"}.get(key, key)
    return chart, "train" if key == "loss" else ""


def _counted(runs):
    """Yield bar charts as HTML that compare `runs`: peak memory by rank, bytes by phase, seconds by activity, and nodes and edges
    by part.
    """
    for title, values_of, shown in (
        ("peak memory of a rank above libraries and edges", _peaks, readable),
        ("bytes that all ranks sent, by phase", lambda run: run.summary["counted"]["sent_bytes"], readable),
        ("seconds", _seconds, duration),
        ("nodes of a part", lambda run: _of_parts(run, "nodes"), "{:,.0f}".format),
        ("edges of a part", lambda run: _of_parts(run, "edges"), "{:,.0f}".format),
    ):
        values = {}
        for run in runs:
            with reading(Path(run.name) / SUMMARY):
                values[run.name] = {str(name): _number(value) for name, value in values_of(run).items()}
        if any(values.values()):  # one rank sends nothing
            yield Bars(title, values, shown).html()


def _pairs(runs):
    """Yield matrices as HTML for the `runs` that report them: for each phase, bytes by sending and receiving rank; then numbers of edges by
    the parts (one for each rank) of their two nodes.
    """
    for run in runs:
        suffix = f", {run.name}" if len(runs) > 1 else ""
        with reading(Path(run.name) / SUMMARY):
            for phase, values in run.summary.get("sent_pairs", {}).items():
                yield Matrix(f"bytes of rows, {phase}{suffix}", _square(values), readable, [*map(str, range(len(values)))],
                             ("from rank", "to rank")).html()
            if tiles := run.summary.get("tiles"):
                parts = [*map(str, range(len(tiles)))]
                yield Matrix(f"edges by pair of parts{suffix}", _square(tiles), "{:,.0f}".format, parts,
                             ("part of the destination", "part of the source")).html()


def _square(values):
    """Return the matrix `values` as a list of rows of float. Raise a ValueError if it is not square, or has an entry that is no
    finite number.
    """
    rows = [[_number(value) for value in row] for row in values]
    if not rows or {*map(len, rows)} != {len(rows)}:
        raise ValueError("a matrix is not square")
    return rows


def _outcome(run, show_run_name):
    """Yield HTML about the predictions of `run`: a table of counts by threshold, and for each split a confusion matrix or
    histogram. Titles have the run's name if `show_run_name`.
    """
    outcome = run.summary.get("outcome") or {"splits": {}}
    with reading(Path(run.name) / SUMMARY):
        if outcome.get("scores", {}).get("ranked"):
            split, rows = threshold_rows(outcome)
            yield (f"<figure class=wide><figcaption>rows by threshold, {split}{f', {_text(run.name)}' if show_run_name else ''}"
                   f"</figcaption>{_table(_THRESHOLD_HEADS, rows)}</figure>")
        for split, values in outcome["splits"].items():
            title = f"{split}{f', {run.name}' if show_run_name else ''}"
            if outcome["kind"] == "confusion":
                names = outcome.get("classes") or [*map(str, range(len(values)))]
                yield Matrix(f"confusion, {title}", _square(values), "{:,.0f}".format, names,
                             ("true class", "predicted class")).html()
            else:
                edges = [*map(_number, outcome["edges"])]
                centres = [(a + b) / 2 for a, b in zip(edges, edges[1:])]
                curves = [Curve(str(name), "", [*zip(centres, map(_number, counts))])
                          for name, counts in zip(outcome["series"], values)]
                yield LineChart(f"histogram, {title}", curves, whole=False).html()


_THRESHOLD_HEADS = ("threshold", "true positive", "false positive", "false negative", "true negative", "precision",
                    "recall", "F1")


def _probabilities(runs):
    """Return charts of the predicted probabilities as a list of HTML texts; each chart has curves of all `runs`."""
    outcomes = {}
    for run in runs:
        with reading(Path(run.name) / SUMMARY):
            outcomes[run.name] = run.summary.get("outcome") or {}
            list(score_charts({run.name: outcomes[run.name]}))  # raise errors here, where `reading` names the file
    return [*score_charts(outcomes)]


def _peaks(run):
    return {f"rank {rank}": value for rank, value in enumerate(run.summary["counted"]["peak_bytes"])}


def _of_parts(run, key):
    return {f"part {part}": value for part, value in enumerate(run.summary["data"]["partition"][key])}


def _seconds(run):
    return {name: run.summary["seconds"][name] for name in ("load", "partition", "epochs")}


def _results(runs):
    """Return an HTML table of the runs' results and of the options that differ: a row for each run, best validation score first."""
    results = ("ranks", "mode", "epochs", "best epoch", "train", "validation", "test", "no edges", "metric")
    differ = [name for name in _differing(runs) if name not in ("data", "model", *results)]
    heads = ("run", "data", "model", *differ, *results)
    rows = []
    for run in runs:
        with reading(Path(run.name) / SUMMARY):
            rows.append((_sort_key(run), _result(run, differ)))
    return _table(heads, [row for _, row in sorted(rows, key=lambda pair: pair[0])])


def _sort_key(run):
    """Return a tuple that sorts a run among others: ended runs come first, then runs are ordered by name of the metric, then the
    best validation score first.
    """
    if not run.summary:
        return 1, "", 0.0
    metric, score = run.summary["metric"], run.summary["best"]["scores"].get(f"val_{_key(run.summary)}")
    return 0, metric, float("inf") if score is None else _number(score) * (1 if lower_is_better(metric) else -1)


def _key(summary):
    return summary["metric"].replace("-", "_")


def _result(run, option_names):
    """Return the cells of the row of `run` in the table of results. `option_names` are the options that have a column."""
    options = [json.dumps(run.options[name]) if name in run.options else "-" for name in option_names]
    summary, cells = run.summary, [run.name, run.options.get("data", ""), run.options.get("model", ""), *options]
    if not summary:
        return [*cells, run.options.get("ranks", ""), run.options.get("mode", ""), run.epochs[-1]["epoch"], "not ended", "", "", "", "", ""]
    scores = summary["best"]["scores"]
    shown = [_score(scores.get(f"{split}_{_key(summary)}")) for split in DASHES]
    without_edges = _score(summary["counted"].get("baseline", {}).get("features", {}).get("test"))
    return [*cells, summary["ranks"], summary["mode"], run.epochs[-1]["epoch"], summary["best"]["epoch"], *shown,
            without_edges, summary["metric"]]


def _differing(runs):
    """Return the names of the options whose values differ between `runs`."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    return [name for name in names if len({repr(run.options.get(name)) for run in runs}) > 1]


def _score(value):
    return "-" if value is None else f"{value:.4f}"


def _options(runs):
    """Return an HTML table of all options, with a column for each of `runs`; options with different values come first."""
    names, differ = [*dict.fromkeys(name for run in runs for name in run.options)], _differing(runs)
    order = differ + [name for name in names if name not in differ]
    rows = [[name, *(json.dumps(run.options[name], default=str) if name in run.options else "-" for run in runs)] for name in order]
    return _table(("option", *(run.name for run in runs)), [*rows, ["versions", *map(_versions, runs)]])


def _versions(run):
    with reading(Path(run.name) / SUMMARY):
        return ", ".join(f"{name} {version}" for name, version in run.summary.get("versions", {}).items())


def _table(heads, rows):
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    head_cells = "".join(f"<th>{_text(head)}</th>" for head in heads)
    return f'<div class="table"><table><tr>{head_cells}</tr>{lines}</table></div>'


def _cell(value):
    return f'<td class="{"number" if isinstance(value, int | float) else "text"}">{_text(value)}</td>'


def _text(value):
    return html.escape(f"{value:,}" if isinstance(value, int) else str(value))


# ---- the command


def spans_of(path: str) -> list[TracedSpan]:
    """Return the intervals of time, such as training steps, in `path`, a file that --trace wrote."""
    with reading(path):
        events = json.loads(regular(path).read_bytes())["traceEvents"]
        return [TracedSpan(str(event["name"]), int(event["pid"]), int(event["tid"]), _number(event["ts"]), _number(event["dur"]))
                for event in events if event["ph"] == "X"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.report` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    return run_command(lambda: _main(argv))


def _main(argv):
    parser = Parser(prog="python -m sarlite.report", description="Write one page of HTML about runs of sarlite.train.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run; several runs share their charts")
    parser.add_argument("--out", default="report.html", metavar="FILE.html",
                        help="the page; an old file is replaced (%(default)s)")
    parser.add_argument("--trace", metavar="FILE.json", help="timeline that a run has written with --trace")
    options = parser.parse_args(argv)
    if repeated := [run for run in options.runs if options.runs.count(run) > 1]:
        raise ConfigError(f"RUN: {repeated[0]} is named twice")
    names = {str(path): path for run in options.runs for path in map(Path(run).joinpath, FILES)}
    refuse_input("--out", options.out, {**names, "--trace": options.trace})
    text = page([read(run) for run in options.runs], spans_of(options.trace) if options.trace else None)
    with writing(options.out):
        atomic_write(options.out, text.encode(errors="backslashreplace"))  # a path in the text may not be UTF-8
    show(f"{options.out}: {len(options.runs)} run{'s' * (len(options.runs) > 1)}")


if __name__ == "__main__":
    sys.exit(main())
