"""A small SVG writer: same input, same bytes.

Text and lines are drawn in ``currentColor``, the colour of the text around the picture, so that
they can be read on a light and on a dark page. Areas use the palette of Okabe and Ito, which
remains distinguishable with any kind of colour blindness (*Color Universal Design*, 2008), and are
never told apart by colour alone.
"""

from __future__ import annotations

import html

ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"

#: Text on a filled area: 4.5:1 or better on every colour of the palette but BLUE.
ON_FILL = "#000000"

_FONT = "system-ui, 'DejaVu Sans', sans-serif"


def number(value: float) -> str:
    """A coordinate with at most two decimals, written the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


class Drawing:
    """Collects shapes; coordinates in pixels from the top left corner.

    Args:
        width: width of the picture.
        height: height of the picture; may be set later, when it is known.
    """

    def __init__(self, width: float, height: float = 0.0) -> None:
        self.width = width
        self.height = height
        self._shapes: list[str] = []
        self._patterns: dict[str, str] = {}

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
        tooltip: str | None = None,
    ) -> None:
        """A rectangle; ``stroke`` is None for no outline, ``tooltip`` shows under the pointer."""
        attributes = f'x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.0))}"'
        attributes += f' height="{number(max(height, 0.0))}" fill="{fill}"'
        if stroke:
            attributes += f' stroke="{stroke}"'
        if opacity != 1.0:
            attributes += f' opacity="{number(opacity)}"'
        if dashed:
            attributes += ' stroke-dasharray="3 2"'
        if tooltip:
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

    def hatch(self, colour: str, angle: int = 45) -> str:
        """A hatched fill on a light ground of the same colour, to be told apart without colour."""
        name = f"hatch-{colour.lstrip('#').lower()}-{angle % 180}"
        self._patterns[name] = (
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse"'
            f' patternTransform="rotate({angle})"><rect width="6" height="6" fill="{colour}"'
            f' opacity="0.35"/><rect width="2.5" height="6" fill="{colour}"/></pattern>'
        )
        return f"url(#{name})"

    def render(self, label: str) -> str:
        """The SVG element.

        Args:
            label: what a screen reader says in place of the picture.
        """
        width, height = number(self.width), number(self.height)
        patterns = "".join(self._patterns[name] for name in sorted(self._patterns))
        definitions = f"<defs>{patterns}</defs>" if patterns else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-label="{html.escape(label)}"'
            f' font-family="{_FONT}">{definitions}' + "".join(self._shapes) + "</svg>"
        )
