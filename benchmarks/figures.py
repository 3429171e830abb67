"""Runner for experiments of a paper: measures each figure, draws it as FIGURE.svg, and writes all tables into a README.md.

`paper.py` and `mg_gcn.py` share this module. The rows that a run measures go to `--rows`, build/bench/PROGRAM, where
`--draw` reads them again; the folder of results, `--out`, has no rows. A figure that is measured again replaces its own
picture and its own section of README.md alone. The sections stand after the line `MARK`; the text before that line is
written by hand.
"""

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import harness
import plot

from sarlite import kernels
from sarlite.errors import ConfigError, import_optional

PLACES = ("figures", "out", "rows", "graphs", "json", "draw")
MARK = "<!-- From here on written by the command; see above. -->"


class Panel(NamedTuple):
    """Description of one pair of axes in a picture: the kind of plot, and the keys of a row that give x, the series and y.

    A row without y or series is left out.
    """

    kind: str  # bars, stacked, lines or lanes
    x: str
    series: str
    y: str
    label: str  # label of y, with its unit


class Figure(NamedTuple):
    """Description of a paper's experiment: title, published result, measuring function, table columns, and panels of the picture."""

    title: str
    paper: str  # the paper's result
    measure: Callable  # (args, ...) -> lists of rows, one after the other
    columns: dict  # columns for `harness.report`
    panels: tuple
    shown: Callable = lambda row: True  # True if the tables show a row


def parser(description, names, program):
    """Return the argument parser, with this description, of the benchmark `program`, which measures the experiments `names`."""
    result = harness.parser(description)
    result.add_argument("--figures", type=harness.words, default=list(names), metavar="LIST",
                        help=f"of {','.join(names)} (default: all)")
    result.add_argument("--rows", type=Path, default=harness.BUILD / "bench" / program, metavar="DIR",
                        help=f"where each figure's rows are written (default: build/bench/{program})")
    result.add_argument("--out", type=Path, metavar="DIR", help="where each figure's picture and README.md are written")
    result.add_argument("--draw", action="store_true",
                        help="measure nothing; write into --out what --rows has of the figures")
    harness.graphs_option(result)
    result.add_argument("--part", type=int, default=1, metavar="N", help="an N-th of the nodes and of the edges")
    return result


def run(figures: dict, parser, args, *measure_args):
    """Measure the figures that `args` names by calls of `Figure.measure(args, *measure_args)`; write tables, pictures and README.md.

    Parameters
    ----------
    figures : dict of name to Figure
    parser : ArgumentParser
    args : Namespace
        From `parser`.
    *more
        Further arguments of `Figure.measure`, passed after `args`.
    """
    unknown = [name for name in args.figures if name not in figures]
    if unknown or (args.draw and not args.out):
        raise SystemExit(f"--figures: {', '.join(unknown)} not of {', '.join(figures)}" if unknown
                         else "--draw needs --out DIR")
    rows = []
    for name in () if args.draw else args.figures:
        rows += measure(name, figures[name], parser, args, measure_args)
        if args.json:
            harness.write_rows(args.json, rows)
        if args.out:
            write(figures, args, [name])
    if args.draw:
        write(figures, args, [name for name in args.figures if _file(args, name).exists()])


def measure(name, figure: Figure, parser, args, measure_args):
    """Measure figure `name` by `figure.measure(args, *measure_args)`, store the result rows, print their table and return the rows."""
    about, begin, rows = measurement_record(parser, args, name), time.monotonic(), []
    for group in figure.measure(args, *measure_args):
        rows += group
        _save(args, name, {**about, "minutes": None, "rows": rows})  # so far: a later job may fail
    shown = [row for row in rows if figure.shown(row)]
    harness.report(f"Figure {name}. The paper: {figure.paper}", shown, figure.columns)
    _save(args, name, {**about, "minutes": round((time.monotonic() - begin) / 60, 1), "rows": rows})
    return rows


def measurement_record(parser, args, name):
    """Return a dict that describes the measurement of figure `name`: date, commit, processor, load, and the command that repeats it."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    revision = subprocess.run(git, capture_output=True, text=True)
    return {"date": datetime.date.today().isoformat(), "commit": revision.stdout.strip() or "unknown",
            "processor": processor(),
            "load": round(os.getloadavg()[0], 1), "command": command(parser, args, name)}


def processor():
    with suppress(OSError), open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
        return f"{model}, {len(os.sched_getaffinity(0))} cores, {kernels.instruction_sets()[-1]}"
    return platform.machine()


def command(parser, args, name):
    """Return the command line that measures figure `name` again: the options in `args` that differ from the parser's defaults."""
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", "--figures", name]
    for key, value in vars(args).items():
        if key not in PLACES and value != parser.get_default(key):
            words += ["--" + key.replace("_", "-"), ",".join(map(str, value)) if isinstance(value, list)
                      else str(value)]
    return shlex.join(words)


def _save(args, name, record):
    args.rows.mkdir(parents=True, exist_ok=True)
    _file(args, name).write_text(json.dumps(record, indent=1) + "\n")


def _file(args, name):
    return args.rows / f"figure-{name}.json"


def write(figures, args, names):
    """Draw the figures `names` from their stored rows, and rewrite their sections of README.md; other sections stay as they are."""
    args.out.mkdir(parents=True, exist_ok=True)
    page = args.out / "README.md"
    before, _, behind = (page.read_text() if page.exists() else f"# {args.out.name}").partition(MARK)
    sections = {text.split(":")[0]: text.rstrip() for text in behind.split("## Figure ")[1:]}
    for name in names:
        record = json.loads(_file(args, name).read_text())
        draw(figures[name], record["rows"], args.out / f"figure-{name}.svg")
        sections[name] = section(name, figures[name], record)
    written_sections = [f"## Figure {sections[name]}" for name in figures if name in sections]
    page.write_text("\n\n".join([before.rstrip(), MARK, *written_sections]) + "\n")


def section(name, figure: Figure, record: dict):
    """Return the section of figure `name` in README.md, after "## Figure ": its table, picture and command, from the stored `record`."""
    first, *others = table(figure, [row for row in record["rows"] if figure.shown(row)])
    lines = ["| " + " | ".join(line) + " |" for line in (first, ["---"] * len(first), *others)]
    minutes = "not finished" if record["minutes"] is None else f"{record['minutes']} minutes"
    about = f"{record['date']}, commit {record['commit']}, {record['processor']}, load {record['load']} before it; {minutes}."
    picture = f"![figure {name}](figure-{name}.svg)"
    return "\n".join([f"{name}: {figure.title}", "", f"The paper: {figure.paper}.", "", picture, "", *lines, "",
                      f"`{record['command']}`: {about}"])


def table(figure: Figure, rows: list[dict]):
    """Return the numbers that the figure shows as lists of cells, headings first: a line for each x, a column for each series.

    For panels of spans, `figure.columns` gives the columns.
    """
    if any(panel.kind == "lanes" for panel in figure.panels):
        return harness.cells(rows, figure.columns)
    cell_values = {}
    for panel in figure.panels:
        for row in rows:
            if None not in (row.get(panel.y), row.get(panel.series)):
                cell_values.setdefault((row[panel.x], row[panel.series]), []).append(_number(row[panel.y]))
    heading = f"{figure.panels[0].x}: " + "; ".join(panel.label for panel in figure.panels)
    columns = {str(series): lambda place, series=series: "; ".join(cell_values.get((place, series), ())) or None
               for _, series in cell_values}
    return harness.cells(list(dict.fromkeys(place for place, _ in cell_values)), {heading: str, **columns})


def _number(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def draw(figure: Figure, rows: list[dict], picture: Path):
    """Draw a figure's panels of the result rows, side by side, into the SVG file `picture`."""
    panels = [(panel, [row for row in rows if None not in (row.get(panel.y), row.get(panel.series))])
              for panel in figure.panels]
    panels = [(panel, points) for panel, points in panels if points]
    try:
        module = import_optional("matplotlib.figure", "a picture")
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    import matplotlib

    style, drawn = {"svg.fonttype": "none", "svg.hashsalt": "sarlite", "font.size": 9}, StringIO()
    with matplotlib.rc_context({**style, "font.sans-serif": ["DejaVu Sans", "Arial"]}):
        chart = module.Figure(figsize=(max(4.5 * len(panels), 7), 4.5), layout="constrained")
        for axes, (panel, points) in zip(chart.subplots(1, len(panels), squeeze=False)[0], panels):
            KINDS[panel.kind](axes, panel, points)
        chart.savefig(drawn, format="svg", metadata={"Date": None})
    picture.write_text(compact(drawn.getvalue()))


def compact(svg):
    """Return the SVG text with one element per line, without metadata and ids, and with coordinates rounded to a tenth of a point."""
    unseen = r"<metadata>.*?</metadata>|<!--.*?-->|<!DOCTYPE.*?>| transform=\"rotate\(-0 .*?\)\"| id=\"\w+_\d+\""
    svg = re.sub(unseen, "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d\d+", lambda n: f"{float(n[0]):.1f}", tag[0]), svg)
    lines = []
    for line in svg.splitlines():
        if re.match(" {0,3}<[^/]", line):
            lines.append(line.strip())
        else:
            lines[-1] += " " + line.strip()
    return "\n".join(line.replace("> <", "><").rstrip() for line in lines) + "\n"


def bars(axes, panel, rows):
    ends = [(row, *(row.get(f"{panel.y}_{end}", row[panel.y]) for end in ("min", "max"))) for row in rows]
    plot.draw_bars(axes,
                   [plot.Point(str(row[panel.x]), str(row[panel.series]), 0, row[panel.y], low, high)
                    for row, low, high in ends])
    _label(axes, panel, rows)
    if max(row[panel.y] for row in rows) > plot.LOG_FROM * min(row[panel.y] for row in rows) > 0:
        axes.set_yscale("log")


def stacked(axes, panel, rows):
    places, tops = list(dict.fromkeys(str(row[panel.x]) for row in rows)), defaultdict(float)
    for name in dict.fromkeys(row[panel.series] for row in rows):
        values = {str(row[panel.x]): row[panel.y] for row in rows if row[panel.series] == name}
        axes.bar(places, [values.get(place, 0) for place in places], bottom=[tops[place] for place in places],
                 label=name)
        for place, value in values.items():
            tops[place] += value
    axes.set_xticks(range(len(places)), places, rotation=30, ha="right")
    _label(axes, panel, rows)


def lines(axes, panel, rows):
    for name in dict.fromkeys(row[panel.series] for row in rows):
        mine = sorted((row[panel.x], row[panel.y]) for row in rows if row[panel.series] == name)
        axes.plot(*zip(*mine), marker="o" if len(mine) < 20 else None, markersize=3, label=name)
    if len({row[panel.x] for row in rows}) < 20:
        ticks = sorted({row[panel.x] for row in rows})
        if ticks[0] > 0 and ticks[-1] >= 16 * ticks[0]:
            axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    _label(axes, panel, rows)


def lanes(axes, panel: Panel, rows: list[dict]):
    """Draw a timeline into `axes`, with one lane for each x: a bar for each row, which starts at `begin_ms` and whose length is y.

    The series gives the colour of a bar. A bar that is long enough shows the number of its stage.
    """
    places, names = (list(dict.fromkeys(row[key] for row in rows)) for key in (panel.x, panel.series))
    for name in names:
        mine = [row for row in rows if row[panel.series] == name]
        for row in mine:
            axes.barh(places.index(row[panel.x]), row[panel.y], 0.8, row["begin_ms"], color=f"C{names.index(name)}",
                      edgecolor="white",
                      label=name if row is mine[0] else None)
            if row[panel.y] > 0.03 * max(r["begin_ms"] + r[panel.y] for r in rows):
                axes.text(row["begin_ms"] + row[panel.y] / 2, places.index(row[panel.x]), row["stage"], ha="center",
                          va="center")
    axes.set_yticks(range(len(places)), places)
    axes.invert_yaxis()
    _label(axes, panel, rows, panel.label, "")


def _label(axes, panel, rows, x=None, y=None):
    axes.set_xlabel(panel.x if x is None else x)
    axes.set_ylabel(panel.label if y is None else y)
    if len({row[panel.series] for row in rows}) > 1:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)


KINDS = {"bars": bars, "stacked": stacked, "lines": lines, "lanes": lanes}
