"""What every drawing function returns."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulab.units import bytes_text, seconds_text

__all__ = ["Figure", "bytes_text", "seconds_text"]

# a column with wider cells holds sentences
_WIDEST_FIGURE = 24


@dataclass(frozen=True)
class Figure:
    """A picture, the sentence that replaces it, and its numbers.

    Attributes:
        title: what is shown.
        alt: the picture in one or two sentences, generated from its data.
        svg: the SVG element; text and lines in ``currentColor``.
        header: names of the table's columns.
        rows: the numbers behind the picture, as text.
    """

    title: str
    alt: str
    svg: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The figure for a terminal: title, sentence, table."""
        return "\n".join([self.title, self.alt, *_text_table(self.header, self.rows)])

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def standalone_svg(self) -> str:
        """The picture as a file of its own: dark on a white ground."""
        style = 'style="color:#1a1a1a;background:#ffffff"'
        return self.svg.replace("<svg ", f"<svg {style} ", 1)

    def to_html(self) -> str:
        """The picture in a page, its numbers one click away."""
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.header)
        body = "".join(
            f'<tr><th scope="row">{html.escape(row[0])}</th>'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        # styles of the picture's own, for pages that set widths of svg elements
        svg = self.svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
        return (
            f'<figure style="margin:0.5em 0">{svg}'
            f"<figcaption>{html.escape(self.alt)}</figcaption>"
            f"<details><summary>Numbers of this figure</summary><table><tr>{head}</tr>{body}"
            f"</table></details></figure>"
        )

    def save(self, path: Path | str) -> Path:
        """Write the picture as an SVG file and return its path."""
        path = Path(path)
        path.write_text(self.standalone_svg(), encoding="utf-8")
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/html": self.to_html(),
            "image/svg+xml": self.standalone_svg(),
            "text/plain": self.text,
        }


def _text_table(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> list[str]:
    """Columns of figures to the right, names and sentences to the left."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    to_left = [column == 0 or width > _WIDEST_FIGURE for column, width in enumerate(widths)]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, to_left, strict=True)
        ).rstrip()
        for row in table
    ]
