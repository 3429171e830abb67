"""HTML page of explanations: for each node, bars of its attributions and a drawing of its most important edges."""

import html
import math
from collections.abc import Sequence
from itertools import chain

from sarlite.cli.explanation import COLUMN, EDGE, FEATURE, GRADIENTS, METHODS, Attribution, End, Explanation
from sarlite.cli.report_command import STYLE

_WIDTH, _ROW, _LEFT, _MIDDLE = 480, 18, 236, 348
_SIDE, _RING, _MOST_EDGES = 480, 95, 30
_STYLE = STYLE + """
.plus { fill: var(--c0); stroke: var(--c0); } .minus { fill: var(--c1); stroke: var(--c1); }
circle { fill: var(--back); stroke: var(--text); } circle.centre { fill: var(--text); } path { fill: none; }
main > figure:has(circle) { grid-row: span 3; } circle ~ text { paint-order: stroke; stroke: var(--back); stroke-width: 3px; }
"""


def page(explanations: Sequence[Explanation], score: str) -> str:
    """Return an HTML page about `explanations` of nodes; it needs no network and no scripts. `score` is the kind of their scores,
    such as "probability".

    Parameters
    ----------
    explanations : sequence of Explanation
    score : {"log-odds", "probability", "output"}
        Kind of the explained scores.
    """
    heading = f"{len(explanations):,} explained prediction{'s' * (len(explanations) != 1)}"
    parts = [f"<h1>{heading}</h1><p>Blue raises the {score}, orange lowers it. Integrated gradients add up to the change of the score "
             "from the baseline; occlusion is the change when one feature is set to its mean, or one edge is left out.</p>",
             *(_section(explanation, score) for explanation in explanations)]
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><title>explained predictions</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
            f'{"".join(parts)}</body></html>\n')


def _section(explanation: Explanation, score: str) -> str:
    charts = [_bars(f"{kind}s, {method}", attributions) for kind in (FEATURE, COLUMN, EDGE) for method in METHODS
              if (attributions := explanation.of(kind, method))]
    edges = explanation.of(EDGE, GRADIENTS)[:_MOST_EDGES]
    drawing = [_drawing(explanation, edges)] if edges else []
    return (f"<h2>{html.escape(explanation.node)}: {score} of {html.escape(explanation.label)}: {explanation.score:.4g}</h2>"
            f"<p>With all features at the baseline: {explanation.features.without:.4g}. Without the {explanation.n_edges:,} "
            f"edges that reach the node: {explanation.edges.without:.4g}.</p><main>{''.join(drawing + charts)}</main>")


def _bars(title: str, rows: Sequence[Attribution]) -> str:
    """Return an HTML figure with a bar for each attribution in `rows`: to the right for a positive value, to the left for a
    negative one.
    """
    most = max(abs(attribution.value) for attribution in rows) or 1.0
    marks = [f'<line class="grid" x1="{_MIDDLE}" x2="{_MIDDLE}" y1="0" y2="{len(rows) * _ROW}"/>']
    for number, attribution in enumerate(rows):
        y, length = number * _ROW, abs(attribution.value) / most * (_WIDTH - _MIDDLE - 60)
        name, kind = _words(attribution), "minus" if attribution.value < 0 else "plus"
        left = _MIDDLE - length if attribution.value < 0 else _MIDDLE
        marks.append(f'<text x="{_LEFT}" y="{y + 12}" text-anchor="end">{_short(name, 36)}<title>{html.escape(name)}</title></text>'
                     f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 6}"/>'
                     f'<text x="{_WIDTH}" y="{y + 12}" text-anchor="end">{attribution.value:+.3g}</text>')
    return _figure(title, _WIDTH, len(rows) * _ROW, marks)


def _words(attribution: Attribution) -> str:
    return attribution.name if not attribution.ends else f"{attribution.ends[0].id} → {attribution.ends[1].id} ({attribution.name})"


def _short(text: str, most: int) -> str:
    return html.escape(text if len(text) <= most else text[: most - 1] + "…")


def _figure(title: str, width: float, height: float, marks: Sequence[str]) -> str:
    return (f'<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{html.escape(title)}">{"".join(marks)}</svg></figure>')


def _drawing(explanation: Explanation, edges: Sequence[Attribution]) -> str:
    """Return an HTML figure of `edges`, the edges with the largest attributions: the explained node in the middle, and around it
    rings of the nodes 1, 2, ... hops away.
    """
    places, most = _places([*chain.from_iterable(edge.ends for edge in edges)]), max(abs(edge.value) for edge in edges) or 1.0
    marks = [_arrow(edge, places[edge.ends[0]], places[edge.ends[1]], abs(edge.value) / most) for edge in edges]
    for end, (x, y) in places.items():
        marks.append(f'<circle{"" if end.hops else " class=centre"} cx="{x:.1f}" cy="{y:.1f}" r="5"><title>'
                     f'{html.escape(f"{end.id} ({end.node_type}), {end.hops} hops")}</title></circle>'
                     f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{_short(end.id, 14)}</text>')
    return _figure(f"{len(edges)} of {explanation.n_edges:,} edges, by integrated gradients", _SIDE, _SIDE, marks)


def _places(ends: Sequence[End]) -> dict[End, tuple[float, float]]:
    """Return {node: (x, y) in the drawing} of the nodes `ends`. Nodes with the same number of hops to the explained node are evenly
    spaced on a ring around it.
    """
    rings: dict[int, list[End]] = {}
    for end in dict.fromkeys(ends):
        rings.setdefault(end.hops, []).append(end)
    radii = {hops: 0.0 if hops == 0 else _RING * (1 + at) for at, hops in enumerate(sorted(hops for hops in rings if hops))}
    scale = min(1.0, (_SIDE / 2 - 30) / max(radii.values(), default=1.0))
    places = {}
    for hops, nodes in rings.items():
        for at, end in enumerate(nodes):
            angle = 2 * math.pi * (at + hops / 4) / len(nodes)
            radius = radii.get(hops, 0.0) * scale
            places[end] = _SIDE / 2 + radius * math.sin(angle), _SIDE / 2 - radius * math.cos(angle)
    return places


def _arrow(edge: Attribution, start: tuple[float, float], end: tuple[float, float], share: float) -> str:
    """Return the SVG of an arrow for `edge` from the point `start` to the point `end`. Its width and opacity grow with `share`, the
    edge's |attribution| / the largest |attribution|.
    """
    (x0, y0), (x1, y1) = start, end
    kind, title = "minus" if edge.value < 0 else "plus", f"<title>{html.escape(f'{_words(edge)}: {edge.value:+.4g}')}</title>"
    style = f'class="{kind}" stroke-width="{0.8 + 3 * share:.2f}" stroke-opacity="{0.35 + 0.65 * share:.2f}"'
    length = math.hypot(x1 - x0, y1 - y0)
    if not length:
        return f'<path {style} style="fill:none" d="M{x0:.1f} {y0:.1f}c-28 28 28 28 0 0">{title}</path>'
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    cx, cy = (x0 + x1) / 2 - dy * length * 0.12, (y0 + y1) / 2 + dx * length * 0.12
    tip = math.hypot(x1 - cx, y1 - cy) or 1.0
    ux, uy = (x1 - cx) / tip, (y1 - cy) / tip
    ax, ay = x1 - 7 * ux, y1 - 7 * uy
    head = f"{ax:.1f},{ay:.1f} {ax - 8 * ux - 4 * uy:.1f},{ay - 8 * uy + 4 * ux:.1f} {ax - 8 * ux + 4 * uy:.1f},{ay - 8 * uy - 4 * ux:.1f}"
    return (f'<path {style} style="fill:none" d="M{x0:.1f} {y0:.1f}Q{cx:.1f} {cy:.1f} {ax:.1f} {ay:.1f}">{title}</path>'
            f'<polygon class="{kind}" fill-opacity="{0.35 + 0.65 * share:.2f}" stroke="none" points="{head}"/>')
