"""A small SVG writer: same input, same bytes.

Text and lines are drawn in ``currentColor``, the colour of the text around the picture, so that
they can be read on a light and on a dark page. Areas use the palette of Okabe and Ito, which
remains distinguishable with any kind of colour blindness (*Color Universal Design*, 2008), and are
never told apart by colour alone.
"""

from __future__ import annotations

import html
import math

ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"

#: Text on a filled area: 4.5:1 or better on every colour of the palette but BLUE.
ON_FILL = "#000000"

_HATCH_DISTANCE = 5.0
_FONT = "system-ui, 'DejaVu Sans', sans-serif"


def number(value: float) -> str:
    """A coordinate with at most two decimals, written the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


_NARROW = frozenset("ijlftrI.,:;'|!()[]{} -/1")
_WIDE = frozenset("mwMW@%→←↓↑…—")


def text_width(text: str, size: float = 12.0, bold: bool = False) -> float:
    """About how wide a line is drawn, in pixels; rather too wide than too narrow.

    The page chooses the font, so this holds for the widest of the usual ones, DejaVu Sans.
    """
    units = 0.0
    for letter in text:
        if letter in _NARROW:
            units += 0.42
        elif letter in _WIDE or letter.isupper():
            units += 0.78 if letter not in _WIDE else 0.98
        else:
            units += 0.64
    return units * size * (1.12 if bold else 1.0)


def shortened(text: str, width: float, size: float = 12.0, bold: bool = False) -> str:
    """The text, or as much of both of its ends as fits into ``width`` pixels."""
    if text_width(text, size, bold) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head = (kept + 1) // 2
        short = f"{text[:head]}…{text[len(text) - (kept - head) :]}"
        if text_width(short, size, bold) <= width:
            return short
    return text[:1] + "…"


class Drawing:
    """Collects shapes; coordinates in pixels from the top left corner.

    Args:
        width: width of the picture.
        height: height of the picture; may be set later, when it is known.
        tooltips: False leaves them out, for a picture that is one of many.
    """

    def __init__(self, width: float, height: float = 0.0, *, tooltips: bool = True) -> None:
        self.width = width
        self.height = height
        self._tooltips = tooltips
        self._shapes: list[str] = []

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str | None = None,
        opacity: float = 1.0,
        dashed: bool = False,
        width_of_line: float = 1.0,
        tooltip: str | None = None,
    ) -> None:
        """A rectangle; ``stroke`` is None for no outline, ``tooltip`` shows under the pointer."""
        attributes = f'x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.0))}"'
        attributes += f' height="{number(max(height, 0.0))}" fill="{fill}"'
        if stroke:
            attributes += f' stroke="{stroke}"'
        if width_of_line != 1.0:
            attributes += f' stroke-width="{number(width_of_line)}"'
        if opacity != 1.0:
            attributes += f' opacity="{number(opacity)}"'
        if dashed:
            attributes += ' stroke-dasharray="3 2"'
        if tooltip and self._tooltips:
            self._shapes.append(f"<rect {attributes}><title>{html.escape(tooltip)}</title></rect>")
        else:
            self._shapes.append(f"<rect {attributes}/>")

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str = "currentColor",
        width: float = 1.0,
        opacity: float = 1.0,
        dashes: str | None = None,
    ) -> None:
        """A straight line; ``dashes`` as in SVG's stroke-dasharray."""
        attributes = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
        attributes += f' stroke="{stroke}" stroke-width="{number(width)}"'
        if opacity != 1.0:
            attributes += f' opacity="{number(opacity)}"'
        if dashes:
            attributes += f' stroke-dasharray="{dashes}"'
        self._shapes.append(f"<line {attributes}/>")

    def polyline(
        self,
        points: list[tuple[float, float]],
        *,
        stroke: str,
        width: float = 2.0,
        dashes: str = "",
    ) -> None:
        """Connected lines through the points."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{stroke}"'
            f' stroke-width="{number(width)}"{dash}/>'
        )

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str = "currentColor",
        width: float = 1.5,
        head: float = 7.0,
        tooltip: str | None = None,
    ) -> None:
        """A straight line with a head at (x2, y2)."""
        length = math.hypot(x2 - x1, y2 - y1)
        if not length:
            return
        along, across = (x2 - x1) / length, (y2 - y1) / length
        end_x, end_y = x2 - along * head, y2 - across * head
        self.line(x1, y1, end_x, end_y, stroke=stroke, width=width)
        side = head * 0.45
        points = (
            (x2, y2),
            (end_x - across * side, end_y + along * side),
            (end_x + across * side, end_y - along * side),
        )
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        title = f"<title>{html.escape(tooltip)}</title>" if tooltip and self._tooltips else ""
        self._shapes.append(f'<polygon points="{path}" fill="{stroke}">{title}</polygon>')

    def polygon(self, points: list[tuple[float, float]], *, fill: str) -> None:
        """A filled shape."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._shapes.append(f'<polygon points="{path}" fill="{fill}" stroke="currentColor"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        size: float = 12.0,
        bold: bool = False,
        fill: str = "currentColor",
        opacity: float = 1.0,
    ) -> None:
        """A line of text; ``anchor`` is start, middle or end, ``y`` the base line."""
        attributes = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
        attributes += f' fill="{fill}"'
        if anchor != "start":
            attributes += f' text-anchor="{anchor}"'
        if bold:
            attributes += ' font-weight="600"'
        if opacity != 1.0:
            attributes += f' opacity="{number(opacity)}"'
        self._shapes.append(f"<text {attributes}>{html.escape(text)}</text>")

    def hatched(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        colour: str,
        lines: str = "/",
        stroke: str | None = None,
        tooltip: str | None = None,
    ) -> None:
        r"""A rectangle filled with lines on a light ground, to be told apart without colour.

        The lines are drawn one by one: a pattern would be found by its name, and a page with
        several figures has that name several times, perhaps in a part that is not shown.

        Args:
            x: left edge.
            y: upper edge.
            width: of the rectangle.
            height: of the rectangle.
            colour: of lines and ground.
            lines: their direction, one of ``/``, ``\\``, ``|`` and ``-``.
            stroke: colour of the outline, None for none.
            tooltip: shows under the pointer.
        """
        self.rectangle(x, y, width, height, fill=colour, opacity=0.35)
        path = "".join(
            f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"
            for x1, y1, x2, y2 in _hatching(x, y, width, height, lines)
        )
        if path:
            self._shapes.append(
                f'<path d="{path}" stroke="{colour}" stroke-width="2" fill="none"/>'
            )
        self.rectangle(x, y, width, height, fill="transparent", stroke=stroke, tooltip=tooltip)

    def open_group(self, **data: str) -> None:
        """Start a group that a widget finds by its ``data-`` attributes; see `close_group`."""
        attributes = "".join(f' data-{name}="{html.escape(value)}"' for name, value in data.items())
        self._shapes.append(f"<g{attributes}>")

    def close_group(self) -> None:
        """End the group that was opened last."""
        self._shapes.append("</g>")

    def insert(self, shapes: str) -> None:
        """Add shapes that are SVG already."""
        self._shapes.append(shapes)

    @property
    def shapes(self) -> str:
        """What was drawn, without the SVG element around it."""
        return "".join(self._shapes)

    def render(self, label: str) -> str:
        """The SVG element.

        Args:
            label: what a screen reader says in place of the picture.
        """
        width, height = number(self.width), number(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-label="{html.escape(label)}"'
            f' font-family="{_FONT}">{self.shapes}</svg>'
        )


def _hatching(
    x: float, y: float, width: float, height: float, lines: str
) -> list[tuple[float, float, float, float]]:
    """Segments of parallel lines inside a rectangle, as x1, y1, x2, y2."""
    if width <= 0 or height <= 0:
        return []
    right, bottom = x + width, y + height
    segments = []
    if lines == "|":
        count = int(width / _HATCH_DISTANCE)
        at = [x + (i + 0.5) * _HATCH_DISTANCE for i in range(count)]
        return [(column, y, column, bottom) for column in at]
    if lines == "-":
        count = int(height / _HATCH_DISTANCE)
        at = [y + (i + 0.5) * _HATCH_DISTANCE for i in range(count)]
        return [(x, row, right, row) for row in at]
    # diagonals: u runs along the upper and then the far edge
    distance = _HATCH_DISTANCE * 1.4142
    for i in range(int((width + height) / distance) + 1):
        u = (i + 0.5) * distance
        if u >= width + height:
            break
        upper, lower = (min(u, width), max(u - width, 0.0)), (max(u - height, 0.0), min(u, height))
        if lines == "/":
            segments.append((x + upper[0], y + upper[1], x + lower[0], y + lower[1]))
        else:
            segments.append((right - upper[0], y + upper[1], right - lower[0], y + lower[1]))
    return segments
