"""Blocks in motion: which block of each array a grid step needs, and when it moves."""

from __future__ import annotations

from collections.abc import Iterable

from tpulab.kernel import Kernel, PallasCall
from tpulab.units import bytes_text
from tpulab.visual.figure import Figure
from tpulab.visual.svg import ORANGE, SKY, VERMILLION, Drawing, shortened, text_width
from tpulab.visual.windows import OperandFrames, frames, one_call, outside_text

#: Steps that one static picture shows.
FRAMES = 8
_LARGEST_PANEL, _LARGE_PANEL = 84.0, 150.0
_SMALLEST_SIDE = 14.0
_MOST_LINES = 32
#: a block of a large array is drawn at least this high and wide, so that it can be seen
_SMALLEST_BLOCK = 3.0
_NARROWEST_LEFT, _WIDEST_NAME = 120.0, 230.0
#: how thick a block that lies outside of its array is drawn, beside the array
_OUTSIDE = 8.0


def blocks_in_motion(call: PallasCall | Kernel) -> Figure:
    """Draw the blocks of a call at its first steps (and its last).

    One row an operand, one column a step. The block a step works on is filled: solid when it moves
    at that step, hatched when it stays in VMEM from the step before.

    Args:
        call: one ``pallas_call`` of a traced kernel, ``tpulab.trace(...).calls[0]``, or the traced
            kernel if it has only one.

    Raises:
        UsageError: no operand of the call is moved in blocks, or the kernel has several calls.
    """
    call = one_call(call)
    operands = frames(call)
    steps = shown_steps(call.steps)
    coordinates = call.step_coordinates()
    sizes = [_panel_size(operand.shape) for operand in operands]
    left = 8.0 + max(*(_description_width(operand) for operand in operands), _NARROWEST_LEFT)
    wheres = [_where(coordinates[step]) for step in steps]
    widest = max(text_width(text, 10) for text in [*wheres, str(call.steps)])
    column = max(max(width for width, _ in sizes) + 22.0, widest + 12.0)
    drawing = Drawing(left + column * len(steps) + 8.0)
    drawing.text(0, 14, "grid step", bold=True)
    drawing.text(0, 30, _grid_text(call), size=11)
    for position, step in enumerate(steps):
        x = left + column * position
        drawing.text(x, 14, str(step + 1), bold=True)
        drawing.text(x, 30, wheres[position], size=10)
        if position and step != steps[position - 1] + 1:
            drawing.text(x - 16, 14, "…", bold=True)
    y = 44.0
    for operand, (width, height) in zip(operands, sizes, strict=True):
        row_height = max(height, 58.0)
        _describe(drawing, operand, y)
        for position, step in enumerate(steps):
            _panel(drawing, operand, step, left + column * position, y, width, height)
        y += row_height + 24.0
    _legend(drawing, y + 2, any(any(operand.outside) for operand in operands))
    drawing.height = y + 12.0
    return Figure(
        title=f"Blocks of {call.name} in motion",
        alt=_sentence(call, operands),
        svg=drawing.render(_sentence(call, operands)),
        header=("operand", "array", "block", "moves", "of steps", "bytes moved"),
        rows=tuple(
            (
                f"{operand.name} ({operand.role})",
                "×".join(map(str, operand.shape)),
                "×".join(map(str, operand.block)),
                str(operand.moves),
                str(call.steps),
                bytes_text(operand.moved_bytes),
            )
            for operand in operands
        ),
    )


def shown_steps(steps: int) -> list[int]:
    """The steps a static picture shows: all of a short grid; of a long one the first and last."""
    if steps <= FRAMES:
        return list(range(steps))
    return [*range(FRAMES - 1), steps - 1]


def scene(
    call: PallasCall, operands: tuple[OperandFrames, ...]
) -> tuple[str, tuple[tuple[float, float, float, float], ...]]:
    """Everything of a large picture of one step but the blocks themselves.

    Returns:
        The SVG, with an empty group ``data-frame`` for the blocks, and where the panel of each
        operand is: left, top, width, height.
    """
    drawing = Drawing(0.0)
    places = []
    x, top = 0.0, 44.0
    for operand in operands:
        width, height = _panel_size(operand.shape, _LARGE_PANEL)
        column = max(width + 26.0, 132.0, *(text_width(t, 11) for t in _description(operand)))
        drawing.text(x, 12, shortened(operand.name, column, bold=True), bold=True)
        shape, block, _ = _description(operand)
        drawing.text(x, 26, shape, size=11)
        drawing.text(x, 39, block, size=11)
        drawing.rectangle(x + 1, top + 1, width, height, stroke="currentColor")
        _grid_lines(drawing, operand, x + 1, top + 1, width, height)
        places.append((x + 1, top + 1, width, height))
        x += column + 18.0
    drawing.open_group(frame="blocks")
    drawing.close_group()
    drawing.width = x
    drawing.height = top + max(height for _, _, _, height in places) + 24.0
    return drawing.render(f"Blocks of {call.name}"), tuple(places)


def block_states(
    operands: tuple[OperandFrames, ...],
    places: tuple[tuple[float, float, float, float], ...],
    step: int,
) -> str:
    """The blocks of one step, as shapes for the group of `scene`."""
    drawing = Drawing(0.0, tooltips=False)
    for operand, (x, y, width, height) in zip(operands, places, strict=True):
        _block(drawing, operand, step, x, y, width, height)
        # below a block that is drawn under its array
        base = y + height + (21 if operand.outside[step] else 16)
        drawing.text(x, base, operand.movement(step), size=11)
    return drawing.shapes


def _panel_size(shape: tuple[int, int], largest: float = _LARGEST_PANEL) -> tuple[float, float]:
    rows, columns = shape
    scale = largest / max(rows, columns)
    return max(columns * scale, _SMALLEST_SIDE), max(rows * scale, _SMALLEST_SIDE)


def _panel(
    drawing: Drawing,
    operand: OperandFrames,
    step: int,
    x: float,
    y: float,
    width: float,
    height: float,
) -> None:
    drawing.rectangle(x, y, width, height, stroke="currentColor")
    _block(drawing, operand, step, x, y, width, height)
    _grid_lines(drawing, operand, x, y, width, height)


def _block(
    drawing: Drawing,
    operand: OperandFrames,
    step: int,
    x: float,
    y: float,
    width: float,
    height: float,
) -> None:
    rows, columns = operand.shape
    row, column = operand.corners[step]
    if operand.outside[step]:
        _block_outside(drawing, operand, step, x, y, width, height)
        return
    # a block that hangs over the edge is drawn up to the edge
    left = x + width * min(column, columns) / columns
    top = y + height * min(row, rows) / rows
    right = x + width * min(column + operand.block[1], columns) / columns
    bottom = y + height * min(row + operand.block[0], rows) / rows
    left, right = _visible(left, right, x, x + width)
    top, bottom = _visible(top, bottom, y, y + height)
    colour = SKY if operand.role == "input" else ORANGE
    moves = operand.moving[step]
    place = (left, top, right - left, bottom - top)
    tooltip = f"step {step + 1}: {operand.name} from row {row}, column {column}, "
    tooltip += _movement(operand, moves)
    if moves:
        drawing.rectangle(*place, fill=colour, tooltip=tooltip)
    else:
        drawing.hatched(*place, colour=colour, tooltip=tooltip)
    if moves:
        arrow = "↓" if operand.role == "input" else "↑"
        drawing.text(x + width + 3, y + 11, arrow, size=13, bold=True)


def _block_outside(
    drawing: Drawing,
    operand: OperandFrames,
    step: int,
    x: float,
    y: float,
    width: float,
    height: float,
) -> None:
    """A block that does not exist: beside the array, on the side on which it would lie."""
    (rows, columns), (row, column) = operand.shape, operand.corners[step]
    left = x + width * min(max(column, 0), columns) / columns
    top = y + height * min(max(row, 0), rows) / rows
    across = min(width * operand.block[1] / columns, x + width - left)
    down = min(height * operand.block[0] / rows, y + height - top)
    # an index that is wrong along a folded dimension may still fall on rows that exist
    if column < 0:
        left, across = x - _OUTSIDE - 1, _OUTSIDE
    elif column >= columns or 0 <= row < rows:
        left, across = x + width + 1, _OUTSIDE
    if row < 0:
        top, down = y - _OUTSIDE - 1, _OUTSIDE
    elif row >= rows:
        top, down = y + height + 1, _OUTSIDE
    across, down = max(across, _SMALLEST_BLOCK), max(down, _SMALLEST_BLOCK)
    tooltip = f"step {step + 1}: {operand.name} from row {row}, column {column}, outside the array"
    place = (left, top, across, down)
    drawing.hatched(*place, colour=VERMILLION, lines="\\", stroke="currentColor", tooltip=tooltip)
    drawing.text(x + width + 11, y + 11, "!", size=13, bold=True)


def _visible(low: float, high: float, first: float, last: float) -> tuple[float, float]:
    """The stretch, or one of the smallest visible size around it, inside of (first, last)."""
    if high - low >= _SMALLEST_BLOCK:
        return low, high
    low = min(max(first, (low + high - _SMALLEST_BLOCK) / 2), last - _SMALLEST_BLOCK)
    return low, low + _SMALLEST_BLOCK


def _grid_lines(
    drawing: Drawing, operand: OperandFrames, x: float, y: float, width: float, height: float
) -> None:
    rows, columns = operand.shape
    down, across = -(-rows // operand.block[0]), -(-columns // operand.block[1])
    if down <= _MOST_LINES:
        for index in range(1, down):
            at = y + height * index * operand.block[0] / rows
            drawing.line(x, at, x + width, at, opacity=0.35, width=0.6)
    if across <= _MOST_LINES:
        for index in range(1, across):
            at = x + width * index * operand.block[1] / columns
            drawing.line(at, y, at, y + height, opacity=0.35, width=0.6)


def _movement(operand: OperandFrames, moves: bool) -> str:
    if operand.role == "input":
        return "fetched for this step" if moves else "kept from the step before"
    return "written back after this step" if moves else "stays for the next step"


def _where(coordinates: Iterable[int]) -> str:
    """Grid coordinates of a step; nothing for a call without a grid."""
    text = ", ".join(str(int(value)) for value in coordinates)
    return f"({text})" if text else ""


def _description(operand: OperandFrames) -> tuple[str, ...]:
    verb = "fetched" if operand.role == "input" else "written"
    return (
        f"{operand.role} {'×'.join(map(str, operand.shape))}",
        f"block {'×'.join(map(str, operand.block))}",
        f"{verb} {operand.moves:,}×",
    )


def _description_width(operand: OperandFrames) -> float:
    name = min(text_width(operand.name, bold=True), _WIDEST_NAME)
    return max(name, *(text_width(line, 11) for line in _description(operand)))


def _describe(drawing: Drawing, operand: OperandFrames, y: float) -> None:
    drawing.text(0, y + 12, shortened(operand.name, _WIDEST_NAME, bold=True), bold=True)
    for row, line in enumerate(_description(operand)):
        drawing.text(0, y + 27 + 14 * row, line, size=11)


def _legend(drawing: Drawing, y: float, outside: bool) -> None:
    x = 0.0
    entries = (
        (SKY, True, "↓ fetched for this step"),
        (SKY, False, "kept in VMEM"),
        (ORANGE, True, "↑ written back after this step"),
        (ORANGE, False, "stays for the next step"),
    )
    for colour, solid, text in entries:
        if solid:
            drawing.rectangle(x, y - 9, 14, 10, fill=colour, stroke="currentColor")
        else:
            drawing.hatched(x, y - 9, 14, 10, colour=colour, stroke="currentColor")
        drawing.text(x + 19, y, text, size=11)
        x += 34 + text_width(text, 11)
    if outside:
        text = "! outside the array"
        drawing.hatched(x, y - 9, 14, 10, colour=VERMILLION, lines="\\", stroke="currentColor")
        drawing.text(x + 19, y, text, size=11)
        x += 34 + text_width(text, 11)
    drawing.width = max(drawing.width, x - 14)


def _grid_text(call: PallasCall) -> str:
    if not call.grid:
        return "no grid: one step"
    return f"grid {'×'.join(map(str, call.grid))}"


def _sentence(call: PallasCall, operands: tuple[OperandFrames, ...]) -> str:
    steps = f"{call.steps} grid step{'s' if call.steps != 1 else ''}"
    parts = []
    for operand in operands:
        verb = "is fetched" if operand.role == "input" else "is written back"
        times = "once" if operand.moves == 1 else f"{operand.moves} times"
        parts.append(f"a block of {operand.name} {verb} {times}")
    text = f"In {steps}, {'; '.join(parts)}."
    for operand in operands:
        if any(operand.outside):
            text += f" {outside_text(operand)}"
    return text
