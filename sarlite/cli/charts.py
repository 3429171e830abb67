"""SVG charts for HTML pages: lines, bars, matrices and timelines. Colours are the page's CSS variables."""

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 480, 230, 58, 22, 8
COLOURS = 8
MOST_POINTS = 2000
"""Largest number of points of a curve. A longer curve is drawn with every k-th point and the last point."""
MOST_SPANS = 4000
"""Largest number of spans in a timeline. The longest spans are drawn."""
DASHES = {"train": "1 4", "val": "7 4", "test": ""}
"""Dash pattern of each split's curves, in SVG units. A curve without a split is solid."""


class Curve(NamedTuple):
    """Curve of a line chart. Its colour stands for its series, and its dash pattern for its split (train, val or test).

    Attributes
    ----------
    series : str
        Name of the run or of the series. Curves with the same name have the same colour.
    split : str
        Key of `DASHES`, or "".
    points : sequence of (x, y)
    """

    series: str
    split: str
    points: Sequence[tuple[float, float]]


class TracedSpan(NamedTuple):
    """Interval of time that a thread spent on one activity, such as a training step, read from the file of --trace.

    Attributes
    ----------
    name : str
        Name of the activity.
    rank : int
        Process number in the trace: the rank + 1.
    thread : int
        Number of the thread.
    start, length : float
        Beginning and duration in microseconds.
    """

    name: str
    rank: int
    thread: int
    start: float
    length: float


def colour(number: int) -> str:
    """Return the CSS colour of the series with index `number`: one of the page's `COLOURS` colours, or a computed hue beyond them.

    Examples
    --------
    >>> colour(0), colour(9)
    ('var(--c0)', 'hsl(158 60% 50%)')
    """
    return f"var(--c{number})" if number < COLOURS else f"hsl({number * 137.5 % 360:.0f} 60% 50%)"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return the numbers to write beside an axis from `low` to `high`: all multiples of a round step in this range, at most `most`
    + 1 numbers.

    Examples
    --------
    >>> ticks(0, 9)
    [0, 2, 4, 6, 8]
    """
    if not high - low > 1e-300:
        high = low + (abs(low) or 1.0)
    step = 10 ** math.floor(math.log10((high - low) / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


class Chart:
    """Base class of figures with a title, a legend and an SVG drawing; a subclass yields the drawing's elements in `marks`."""

    wide = False
    """True if the figure takes the width of the page."""

    def __init__(self, title: str) -> None:
        self.title = title

    def html(self) -> str:
        """Return the figure as an HTML element."""
        keys = "".join(f'<span class="key"><i style="background:{colour(at)}"></i>{html.escape(name)}</span> '
                       for at, name in enumerate(self.legend()))
        keys += "".join(f'<span class="key"><svg class="dash" viewBox="0 0 24 4"><path class="line" stroke="var(--text)" '
                        f'stroke-dasharray="{DASHES[split]}" d="M0 2H24"/></svg>{html.escape(split)}</span> '
                        for split in self.splits())
        width, height = self.size()
        return (f'<figure{" class=wide" * self.wide}><figcaption>{html.escape(self.title)}</figcaption>{keys}'
                f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(self.title)}">'
                f'{"".join(self.marks())}</svg></figure>')

    def legend(self) -> Sequence[str]:
        """Return the names of the series, in the order of their colours."""
        return ()

    def splits(self) -> Sequence[str]:
        """Return the splits whose dash patterns the legend explains."""
        return ()

    def size(self) -> tuple[int, int]:
        """Return the width and the height of the SVG, in SVG units."""
        return WIDTH, HEIGHT

    def marks(self) -> Iterator[str]:
        """Yield the SVG elements of the figure as text."""
        raise NotImplementedError


class LineChart(Chart):
    """Line chart of curves: a colour for each series, such as a run, and a dash pattern for each split.

    Parameters
    ----------
    title : str
    curves : sequence of Curve
    whole : bool
        True if the ticks of the horizontal axis are integers, as for epochs.
    """

    def __init__(self, title: str, curves: Sequence[Curve], whole: bool = True) -> None:
        super().__init__(title)
        self.curves, self.whole = curves, whole
        self.series = [*dict.fromkeys(curve.series for curve in curves)]

    def legend(self) -> Sequence[str]:
        return self.series if len(self.series) > 1 else ()

    def splits(self) -> Sequence[str]:
        return [split for split in DASHES if any(curve.split == split for curve in self.curves)]

    def marks(self) -> Iterator[str]:
        xs, ys = zip(*(point for curve in self.curves for point in curve.points))
        of_x, of_y = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
        x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
        y_low, y_high = min(min(ys), of_y[0]), max(max(ys), of_y[-1])

        def place(x, y):
            across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - 8)
            return across, HEIGHT - BOTTOM - (y - y_low) / ((y_high - y_low) or 1) * (HEIGHT - BOTTOM - TOP)

        for y in of_y:
            at = place(x_low, y)[1]
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>'
            yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>'
        for x in of_x:
            if not self.whole or float(x).is_integer():
                yield f'<text x="{place(x, y_low)[0]:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{x:g}</text>'
        for curve in self.curves:
            number, points = self.series.index(curve.series), curve.points
            name, dash = " ".join(filter(None, (curve.series, curve.split))), DASHES.get(curve.split, "")
            every = -(-len(points) // MOST_POINTS)
            drawn = [*points[::every], points[-1]]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*point) for point in drawn))
            title = f"<title>{html.escape(f'{name}: {points[-1][1]:.6g} at {points[-1][0]:g}')}</title>"
            yield (f'<polyline class="line" stroke="{colour(number)}" stroke-dasharray="{dash}" points="{path}">'
                   f'{title}</polyline>')
            x, y = place(*points[-1])
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour(number)}">{title}</circle>'


class Bars(Chart):
    """Horizontal bar chart that groups the bars of several runs by name.

    Parameters
    ----------
    title : str
    values : dict of str to dict of str to float
        Length of each bar, by run and then by name.
    shown : callable
        shown(value) -> text beside the bar.
    """

    ROW = 16

    def __init__(self, title: str, values: Mapping[str, Mapping[str, float]], shown: Callable[[float], str]) -> None:
        super().__init__(title)
        self.values, self.shown = values, shown
        self.names = [*dict.fromkeys(name for of_run in values.values() for name in of_run)]

    def legend(self) -> Sequence[str]:
        return [*self.values] if len(self.values) > 1 else ()

    def size(self) -> tuple[int, int]:
        return WIDTH, max(1, len(self.names)) * (len(self.values) * self.ROW + 6)

    def marks(self) -> Iterator[str]:
        most = max((value for of_run in self.values.values() for value in of_run.values()), default=0) or 1
        left, right, y = 110, 80, 0
        for name in self.names:
            yield f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>'
            for number, of_run in enumerate(self.values.values()):
                if name in of_run:
                    length = of_run[name] / most * (WIDTH - left - right)
                    size, words = f'width="{length:.1f}" height="{self.ROW - 4}"', html.escape(self.shown(of_run[name]))
                    yield f'<rect x="{left}" y="{y + 2}" {size} fill="{colour(number)}"/>'
                    yield f'<text x="{left + length + 4:.1f}" y="{y + 12}">{words}</text>'
                y += self.ROW
            y += 6


class Matrix(Chart):
    """Square matrix of cells; a larger value has a darker cell. Up to `MOST_NAMED` rows have numbers in the cells.

    Parameters
    ----------
    title : str
    values : list of list of float
        Values by row and column.
    shown : callable
        shown(value) -> text of the cell.
    names : list of str
        Names of the rows, which are also the names of the columns.
    axes : (str, str)
        Words for a row and for a column, such as ("from rank", "to rank").
    """

    MOST_NAMED = 12

    def __init__(self, title: str, values: Sequence[Sequence[float]], shown: Callable[[float], str],
                 names: Sequence[str], axes: tuple[str, str]) -> None:
        super().__init__(f"{title} (rows: {axes[0]}, columns: {axes[1]})")
        self.values, self.shown, self.names, self.axes = values, shown, names, axes
        self.side = (WIDTH - LEFT) / max(len(values), 5)

    def size(self) -> tuple[int, int]:
        return WIDTH, round(TOP + BOTTOM + len(self.values) * self.side / 2)

    def marks(self) -> Iterator[str]:
        most, side, named = max(map(max, self.values)) or 1, self.side, len(self.values) <= self.MOST_NAMED
        for i, row in enumerate(self.values):
            y = BOTTOM + i * side / 2
            if named:
                name = html.escape(self.names[i][:9])
                yield f'<text x="{LEFT - 6}" y="{y + side / 4 + 4:.1f}" text-anchor="end">{name}</text>'
                yield f'<text x="{LEFT + (i + 0.5) * side:.1f}" y="{BOTTOM - 6}" text-anchor="middle">{name}</text>'
            for j, value in enumerate(row):
                words = f"{self.axes[0]} {self.names[i]}, {self.axes[1]} {self.names[j]}: {self.shown(value)}"
                yield (f'<rect x="{LEFT + j * side:.2f}" y="{y:.2f}" width="{side:.2f}" height="{side / 2:.2f}" '
                       f'fill="{colour(0)}" fill-opacity="{0.05 + 0.6 * value / most:.3f}">'
                       f'<title>{html.escape(words)}</title></rect>')
                if named:
                    yield (f'<text class="cell" x="{LEFT + (j + 0.5) * side:.1f}" y="{y + side / 4 + 4:.1f}" '
                           f'text-anchor="middle">{html.escape(self.shown(value))}</text>')


class Timeline(Chart):
    """Timeline of the ranks' threads: one row per thread, with shorter intervals drawn over the longer intervals around them.

    Parameters
    ----------
    title : str
    spans : sequence of TracedSpan
        Spans of all threads. Up to 16 threads are drawn.
    """

    wide = True
    ROW = 18

    def __init__(self, title: str, spans: Sequence[TracedSpan]) -> None:
        super().__init__(title)
        self.rows = [*dict.fromkeys(sorted((span.rank, span.thread) for span in spans))][:16]
        drawn = [span for span in spans if (span.rank, span.thread) in self.rows]
        self.spans = sorted(drawn, key=lambda span: -span.length)[:MOST_SPANS]
        names = dict.fromkeys(span.name for span in self.spans)
        self.names = [name for name in names if not name.startswith(("epoch", "step"))]

    def legend(self) -> Sequence[str]:
        return self.names[:COLOURS]

    def size(self) -> tuple[int, int]:
        return 2 * WIDTH, len(self.rows) * self.ROW + BOTTOM

    def marks(self) -> Iterator[str]:
        first = min(span.start for span in self.spans)
        length = max(span.start + span.length for span in self.spans) - first or 1
        scale = (2 * WIDTH - LEFT - 8) / length
        for row, (rank, thread) in enumerate(self.rows):
            yield f'<text x="{LEFT - 6}" y="{row * self.ROW + 12}" text-anchor="end">{rank - 1}:{thread // 1000}</text>'
        for span in self.spans:
            if span.name in self.names:
                y = self.rows.index((span.rank, span.thread)) * self.ROW
                words = f'{span.name}, rank {span.rank - 1}: {span.length / 1e3:.3g} ms'
                x, width = LEFT + (span.start - first) * scale, max(span.length * scale, 0.2)
                yield (f'<rect x="{x:.2f}" y="{y + 1}" width="{width:.2f}" height="{self.ROW - 3}" '
                       f'fill="{colour(self.names.index(span.name))}"><title>{html.escape(words)}</title></rect>')
        for tick in ticks(0, length / 1e3, 8):
            at = LEFT + tick * 1e3 * scale
            yield f'<text x="{at:.1f}" y="{len(self.rows) * self.ROW + 14}" text-anchor="middle">{tick:g}</text>'
