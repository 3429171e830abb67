"""Draw the results of the benchmarks, or the timeline of a run, as a picture. Needs `pip install '.[plot]'`.

    plot.py spmm.json                                    bars of ms, sarlite beside peers; min and max as whiskers
    plot.py scaling.json --x ranks                       lines; --x takes any key of the rows (width, heads, ...)
    plot.py limits.json --x row_bytes --y gb_per_s       any other number of the rows
    plot.py run.json                                     `--trace run.json` of the command: a lane a rank and track

FILE.json becomes FILE.png, beside it or in `--out`.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from sarlite.errors import ConfigError, import_optional

LABELS = ("case", "model", "graph", "way", "mode", "prefetch", "width", "heads", "ranks", "threads")  # keys that name a row
LOG_FROM = 20  # ratio of the largest to the smallest value from which an axis is logarithmic
LEGEND_NAMES = 12


class Point(NamedTuple):
    label: str  # name of the measurement
    series: str  # name of the library
    x: float
    value: float
    low: float
    high: float


def points(rows, y, x=None):
    """Return the values of key `y` as Points, for sarlite and each peer in each row; `x` is the key of the horizontal axis, or None."""
    rows = [row for row in rows if x is None or row.get(x) is not None]
    varying = [key for key in LABELS if key != x and len({str(row.get(key)) for row in rows}) > 1]
    by_key = {}
    for row in rows:
        label = " ".join(str(row[key]) if isinstance(row[key], str) else f"{key} {row[key]}"
                         for key in varying or ["case"] if row.get(key) is not None)
        for series, prefix in (("sarlite", ""), (row.get("peer"), "peer_")):
            value = row.get(prefix + y)
            if series and value is not None:
                low, high = (row.get(f"{prefix}{y}_{end}", value) for end in ("min", "max"))
                by_key[label, series, row.get(x)] = Point(label, series, row.get(x), value, low, high)
    return list(by_key.values())  # sarlite's values are in the row of each peer


def draw_rows(axes, rows, y, x):
    """Draw the rows' values of key `y` into `axes`: as bars if `x` is None, else as lines over the values of key `x`."""
    drawn = points(rows, y, x)
    if not drawn:
        raise SystemExit(f"no row has {y!r}" + (f" and {x!r}" if x else ""))
    (draw_bars if x is None else draw_lines)(axes, drawn)
    axes.set_ylabel(y)
    values = [point.value for point in drawn if point.value > 0]
    if values and max(values) > LOG_FROM * min(values):
        axes.set_yscale("log")
    if len({(point.series, None if x is None else point.label) for point in drawn}) > 1:
        axes.legend()


def draw_bars(axes, drawn):
    labels, names = (list(dict.fromkeys(values)) for values in ([p.label for p in drawn], [p.series for p in drawn]))
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        mine = [point for point in drawn if point.series == name]
        places = [labels.index(point.label) + (k - (len(names) - 1) / 2) * width for point in mine]
        axes.bar(places, [p.value for p in mine], width, yerr=_whiskers(mine), label=name)
    axes.set_xticks(range(len(labels)), labels, rotation=30 if len(labels) > 4 else 0, ha="right" if len(labels) > 4
                    else "center")


def draw_lines(axes, drawn):
    lines = defaultdict(list)
    for point in sorted(drawn, key=lambda point: point.x):
        lines[point.label, point.series].append(point)
    for (label, series), line in lines.items():
        axes.errorbar([p.x for p in line], [p.value for p in line], yerr=_whiskers(line), marker="o",
                      label=f"{label}, {series}")
    ticks = sorted({point.x for point in drawn})
    if ticks[0] > 0 and ticks[-1] >= 4 * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _whiskers(drawn):
    return [[p.value - p.low for p in drawn], [p.high - p.value for p in drawn]]


def draw_trace(axes, trace, start, end):
    """Draw Trace Event JSON into `axes`, from `start` to `end` ms, a lane for each thread; return the number of lanes."""
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    if not events:
        raise SystemExit("the trace has no complete events (ph X)")
    zero = min(event["ts"] for event in events)
    lanes = sorted({(event["pid"], event["tid"]) for event in events})
    spans = defaultdict(list)
    for event in events:
        begin, length = (event["ts"] - zero) / 1e3, event["dur"] / 1e3
        if begin + length >= start and (end is None or begin <= end):
            spans[event["name"], lanes.index((event["pid"], event["tid"]))].append((begin, length))
    total = defaultdict(float)
    for (name, _), lane_spans in spans.items():
        total[name] += sum(length for _, length in lane_spans)
    names = sorted(total, key=total.get, reverse=True)  # the longest first, so that inner spans are drawn on top
    for (name, lane), lane_spans in sorted(spans.items(), key=lambda item: names.index(item[0][0])):
        axes.broken_barh(lane_spans, (lane - 0.4, 0.8), facecolors=f"C{names.index(name) % 10}", edgecolors="none")
    axes.set_yticks(range(len(lanes)), _lane_labels(trace["traceEvents"], lanes))
    axes.invert_yaxis()
    axes.set_xlim(left=start, right=end)
    axes.set_xlabel("ms")
    handles = [axes.barh(0, 0, color=f"C{k % 10}", label=name) for k, name in enumerate(names[:LEGEND_NAMES])]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    return len(lanes)


def _lane_labels(events, lanes):
    processes = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"
                 and event["name"] == "process_name"}
    tracks = {(event["pid"], event["tid"]): event["args"]["name"]
              for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    return [f"{processes.get(pid, pid)}, {tracks.get((pid, tid), tid)}" for pid, tid in lanes]


def draw(file, content, picture, args):
    """Draw the content of `file`, result rows (list) or a trace (dict), and save the image as the file `picture`."""
    figure = import_optional("matplotlib.figure", "a picture").Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    if isinstance(content, dict):
        n_lanes = draw_trace(axes, content, args.start, args.end)
        figure.set_size_inches(14, 1.5 + 0.4 * n_lanes)
    else:
        x = args.x or ("ranks" if len({row.get("ranks") for row in content}) > 1 else None)
        draw_rows(axes, content, args.y, x)
        axes.set_xlabel(x or "")
    axes.set_title(file.stem)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)


def main(argv=None):
    args = arguments().parse_args(argv)
    for file in args.files:
        picture = (args.out or file.parent) / f"{file.stem}.{args.format}"
        content = json.loads(file.read_text())
        if isinstance(content, list) and any("skipped" in row for row in content):
            print(f"{file}: skipped, nothing to draw")
            continue
        try:
            draw(file, content, picture, args)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from None
        print(picture)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--format", choices=("png", "svg"), default="png")
    parser.add_argument("--x", metavar="KEY",
                        help="draw lines over this key (default: ranks where they vary, else bars)")
    parser.add_argument("--y", metavar="KEY", default="ms")
    parser.add_argument("--start", type=float, default=0.0, metavar="MS", help="of a trace, what is drawn")
    parser.add_argument("--end", type=float, metavar="MS")
    return parser


if __name__ == "__main__":
    sys.exit(main())
