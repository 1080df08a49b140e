"""Tables and charts of what was measured: HTML with SVG in it for notebooks, and figures of matplotlib. Every text is escaped, as
titles and names may be anybody's."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .errors import UnsupportedError

# Of a step, as a time split has them, each with its colour.
PARTS = {"data_wait": "#d55e00", "transfer": "#cc79a7", "forward": "#0072b2", "backward": "#56b4e9", "optimizer": "#009e73",
         "other": "#999999"}
_OF_VERDICT = {"kept": "#009e73", "refused": "#d55e00", "failed": "#cc79a7"}  # What is open is grey.
_GREY = "#999999"
_WIDTH, _LABELS, _ROW = 680, 230, 22  # Of an SVG, in pixels.


class Interval(NamedTuple):
    """What a change gained."""

    name: str
    verdict: str
    gain: float  # 0.21: 21 % faster.
    low: float | None  # None: not known, as after a single pair.
    high: float | None

    @property
    def ends(self) -> tuple[float, float]:
        """Of its bar, which has no length where there is no interval."""
        return (self.gain, self.gain) if self.low is None or self.high is None else (self.low, self.high)


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, as names are, and the others, too: a notebook's own style has all to the right."""
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} style="text-align:left">{html.escape(cell)}</{tag}>' for cell in cells) + "</tr>"

    return f"<table><thead>{line(head, 'th')}</thead><tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line of text for each row, its cells in columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _svg(title: str, height: int, shapes: Iterable[str]) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
            f'font-family="sans-serif" font-size="12"><title>{html.escape(title)}</title>'
            f"{''.join(shapes)}</svg>")


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "currentColor") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'


def _bounds(intervals: Sequence[Interval]) -> tuple[float, float]:
    """Of the axis: every gain and 0, and of the intervals what leaves the gains to be told apart."""
    gains = [interval.gain for interval in intervals]
    room = 2 * max(0.05, *map(abs, gains))
    return (max(min(-0.01, *(interval.ends[0] for interval in intervals)), -room, -1.0),
            min(max(0.01, *(interval.ends[1] for interval in intervals)), room))


def intervals_svg(title: str, intervals: Sequence[Interval]) -> str:
    """A row for each: its gain as a dot, its 95 % interval as a line. Empty where nothing was measured."""
    if not intervals:
        return ""
    low, high = _bounds(intervals)
    scale = (_WIDTH - _LABELS - 80) / (high - low)

    def place(gain: float) -> float:
        return _LABELS + (min(max(gain, low), high) - low) * scale

    shapes = [f'<line x1="{place(0):.1f}" x2="{place(0):.1f}" y1="0" y2="{_ROW * len(intervals)}" stroke="{_GREY}"/>']
    for row, one in enumerate(intervals):
        y, colour = _ROW * (row + 0.5), _OF_VERDICT.get(one.verdict, _GREY)
        begin, end = map(place, one.ends)
        shapes += [
            _text(_LABELS - 10, y + 4, one.name, "end"),
            f'<line x1="{begin:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>',
            f'<circle cx="{place(one.gain):.1f}" cy="{y}" r="5" fill="{colour}"/>',
            _text(_WIDTH - 70, y + 4, f"{one.gain:+.1%}"),
        ]
    return _svg(title, _ROW * len(intervals), shapes)


def intervals_figure(title: str, intervals: Sequence[Interval]) -> Any:
    """The same as a matplotlib Figure."""
    figure = _new_figure(7, 1 + 0.35 * max(1, len(intervals)))
    axes = figure.subplots()
    axes.set_title(_plain(title))
    axes.set_xlabel("gain in %, with its 95 % interval")
    axes.axvline(0, color=_GREY)
    axes.set_yticks(range(len(intervals)), [_plain(one.name) for one in intervals])
    for row, one in enumerate(intervals):
        begin, end = one.ends
        axes.errorbar([100 * one.gain], [row], xerr=[[100 * (one.gain - begin)], [100 * (end - one.gain)]], fmt="o",
                      color=_OF_VERDICT.get(one.verdict, _GREY))
    if intervals:
        low, high = _bounds(intervals)
        beside = 3 * (high - low)  # Of the axis 3 %, so that a dot at its end is whole.
        axes.set_xlim(100 * low - beside, 100 * high + beside)
        axes.invert_yaxis()
    return figure


def shares_of(split: Mapping[str, Any]) -> dict[str, float]:
    """Of a time split as dicts have it, the share of a step that each part takes; empty where there was no time."""
    total = split["total_s"]
    return {part: split[f"{part}_s"] / total for part in PARTS} if total > 0 else {}


def split_html(split: Mapping[str, Any]) -> str:
    """Where the time of a step goes: a table, and a bar of the parts one behind the other."""
    shares, steps = shares_of(split), max(1, split["steps"])
    rows = [(part.replace("_", " "), f"{1000 * split[f'{part}_s'] / steps:.3g} ms", f"{share:.1%}") for part, share in shares.items()]
    shapes, x = [], 0.0
    for part, share in shares.items():
        shapes.append(f'<rect x="{x:.1f}" y="0" width="{_WIDTH * share:.1f}" height="{_ROW}" fill="{PARTS[part]}">'
                      f"<title>{html.escape(part)} {share:.1%}</title></rect>")
        if share > 0.12:  # Else there is no room for its name.
            shapes.append(_text(x + 4, 15, part.replace("_", " "), colour="black"))
        x += _WIDTH * share
    return table(("part of a step", "mean", "share"), rows) + _svg("Where the time of a step goes", _ROW, shapes)


def split_figure(title: str, split: Mapping[str, Any]) -> Any:
    """The same as a matplotlib Figure."""
    shares = shares_of(split)
    figure = _new_figure(7, 2.5)
    axes = figure.subplots()
    axes.set_title(_plain(title))
    axes.set_xlabel("share of a step in %")
    axes.barh([part.replace("_", " ") for part in shares], [100 * share for share in shares.values()], color=list(PARTS.values()))
    axes.invert_yaxis()
    return figure


def _plain(text: str) -> str:
    """For matplotlib, which takes what stands between two dollars for mathematics."""
    return text.replace("$", r"\$")


def _new_figure(width: float, height: float) -> Any:
    """Of nobody's pyplot: it goes when it is no longer held."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        raise UnsupportedError("figure: wanted matplotlib, found none; pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")
