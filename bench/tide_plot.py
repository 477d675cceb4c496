"""The tide as a picture: arrivals and each run's tokens a second over the day, with every move marked. Plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

BIN_S = 5.0
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 360, 60, 40, 50
COLOURS = {"latency": "#3465a4", "throughput": "#cc6600", "scheduled": "#2e8b57"}
_OTHER = "#555555"


def plot(runs: Sequence[dict[str, Any]], arrivals_s: Sequence[float], length_s: float) -> str:
    """runs: each with "run", "ended" (second, tokens) and "moves" (at_s, how, gap_s)."""
    last_s: float = max([length_s, *(at_s for run in runs for at_s, _ in run["ended"])])
    bins = int(last_s // BIN_S) + 1
    series = {run["run"]: _binned(run["ended"], bins) for run in runs}
    asked = _binned([(at_s, 1) for at_s in arrivals_s], bins)
    most = max([1.0, *(value for values in series.values() for value in values)])
    most_asked = max([0.1, *asked])

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * at_s / last_s

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for number, value in enumerate(asked):
        top, left = y(value / most_asked), x(number * BIN_S)
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{x(BIN_S) - LEFT - 1:.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}" fill="#e8e8e8"/>'
        )
    for run in runs:
        points = " ".join(
            f"{x((number + 0.5) * BIN_S):.1f},{y(value / most):.1f}" for number, value in enumerate(series[run["run"]])
        )
        colour = COLOURS.get(run["run"], _OTHER)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for move in run["moves"]:
            told = escape(f"{move['how']} at {move['at_s']:.0f} s, gap {move['gap_s']} s: {move['reason']}")
            parts.append(
                f'<line x1="{x(move["at_s"]):.1f}" x2="{x(move["at_s"]):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
                f'stroke="{colour}" stroke-dasharray="3 3"><title>{told}</title></line>'
            )
    parts += _axes(x, y, last_s, most, most_asked)
    for number, run in enumerate(runs):
        colour, left = COLOURS.get(run["run"], _OTHER), LEFT + 150 * number
        parts.append(f'<rect x="{left}" y="14" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 20}" y="20">{escape(run["run"])}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axes(x: Any, y: Any, last_s: float, most: float, most_asked: float) -> list[str]:
    parts = [f'<text x="{LEFT}" y="38">tokens a second; grey: arrivals, up to {most_asked:.1f} a second</text>']
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{most * share:.0f}</text>')
    for number in range(5):
        at_s = last_s * number / 4
        parts.append(f'<text x="{x(at_s):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{at_s:.0f} s</text>')
    return parts


def _binned(values: Sequence[Any], bins: int) -> list[float]:
    """Sums a second."""
    sums = [0.0] * bins
    for at_s, amount in values:
        sums[min(bins - 1, int(at_s // BIN_S))] += amount / BIN_S
    return sums
