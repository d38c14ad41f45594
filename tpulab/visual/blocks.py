"""Blocks in motion: which block of each array a grid step needs, and when it moves."""

from __future__ import annotations

from dataclasses import dataclass

from tpulab.errors import UsageError
from tpulab.kernel import Operand, PallasCall
from tpulab.visual.figure import Figure, bytes_text
from tpulab.visual.svg import ORANGE, SKY, Drawing

#: Steps that one static picture shows.
FRAMES = 8
_LARGEST_PANEL = 84.0
_SMALLEST_SIDE = 14.0
_MOST_LINES = 32


@dataclass(frozen=True)
class OperandFrames:
    """What one operand's window does, step by step.

    Attributes:
        name: the kernel's parameter.
        role: "input" or "output".
        shape: of the array, as rows × columns: leading dimensions are folded into the rows.
        block: rows × columns of a block.
        corners: (row, column) of the block's first element at every step.
        moving: whether it is fetched (input) or written back (output) at the step.
        moved_bytes: traffic of all steps.
    """

    name: str
    role: str
    shape: tuple[int, int]
    block: tuple[int, int]
    corners: tuple[tuple[int, int], ...]
    moving: tuple[bool, ...]
    moved_bytes: int

    @property
    def moves(self) -> int:
        """How many times a block moves."""
        return sum(self.moving)


def frames(call: PallasCall) -> tuple[OperandFrames, ...]:
    """The windows of a call's blocked operands.

    Raises:
        UsageError: no operand of the call is moved in blocks.
    """
    shown = tuple(
        _operand_frames(call, operand)
        for operand in call.operands
        if operand.is_pipelined and operand.indices is not None and operand.memory_space == "vmem"
    )
    if not shown:
        raise UsageError(
            f"{call.name} has no operand that the pipeline moves in blocks",
            hint="operands in pl.ANY are copied by the kernel itself; look at its timeline instead",
        )
    return shown


def blocks_in_motion(call: PallasCall) -> Figure:
    """Draw the blocks of a call at its first steps (and its last).

    One row an operand, one column a step. The block a step works on is filled: solid when it moves
    at that step, hatched when it stays in VMEM from the step before.

    Args:
        call: one ``pallas_call`` of a traced kernel, ``tpulab.trace(...).calls[0]``.

    Raises:
        UsageError: no operand of the call is moved in blocks.
    """
    operands = frames(call)
    steps = shown_steps(call.steps)
    coordinates = call.step_coordinates()
    sizes = [_panel_size(operand.shape) for operand in operands]
    left, column = 148.0, max(width for width, _ in sizes) + 22.0
    drawing = Drawing(left + column * len(steps) + 8.0)
    drawing.text(0, 14, "grid step", bold=True)
    drawing.text(0, 30, _grid_text(call), size=11)
    for position, step in enumerate(steps):
        x = left + column * position
        drawing.text(x, 14, str(step + 1), bold=True)
        where = ", ".join(str(int(value)) for value in coordinates[step])
        drawing.text(x, 30, f"({where})" if where else "", size=10)
        if position and step != steps[position - 1] + 1:
            drawing.text(x - 16, 14, "…", bold=True)
    y = 44.0
    for operand, (width, height) in zip(operands, sizes, strict=True):
        row_height = max(height, 58.0)
        _describe(drawing, operand, y)
        for position, step in enumerate(steps):
            _panel(drawing, operand, step, left + column * position, y, width, height)
        y += row_height + 24.0
    _legend(drawing, y + 2)
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


def _operand_frames(call: PallasCall, operand: Operand) -> OperandFrames:
    assert operand.indices is not None
    rows, columns = _two_dimensional(operand.shape)
    sizes = operand.block_sizes
    corners = []
    for index in operand.indices:
        start = [
            int(value) if axis in operand.element_dims else int(value) * size
            for axis, (value, size) in enumerate(zip(index, sizes, strict=True))
        ]
        row = 0
        for value, extent in zip(start[:-1], operand.shape[:-1], strict=True):
            row = row * extent + value
        corners.append((row, start[-1] if start else 0))
    block_rows, block_columns = _two_dimensional(sizes)
    return OperandFrames(
        name=operand.name,
        role="input" if operand.is_input else "output",
        shape=(rows, columns),
        block=(min(block_rows, rows), min(block_columns, columns)),
        corners=tuple(corners),
        moving=tuple(bool(moves) for moves in operand.moving),
        moved_bytes=operand.moved_bytes,
    )


def _two_dimensional(shape: tuple[int, ...]) -> tuple[int, int]:
    if not shape:
        return 1, 1
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1]


def _panel_size(shape: tuple[int, int]) -> tuple[float, float]:
    rows, columns = shape
    scale = _LARGEST_PANEL / max(rows, columns)
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
    rows, columns = operand.shape
    row, column = operand.corners[step]
    # a block that hangs over the edge is drawn up to the edge
    left = x + width * min(column, columns) / columns
    top = y + height * min(row, rows) / rows
    right = x + width * min(column + operand.block[1], columns) / columns
    bottom = y + height * min(row + operand.block[0], rows) / rows
    colour = SKY if operand.role == "input" else ORANGE
    moves = operand.moving[step]
    drawing.rectangle(x, y, width, height, stroke="currentColor")
    place = (left, top, right - left, bottom - top)
    tooltip = f"step {step + 1}: {operand.name} from row {row}, column {column}, "
    tooltip += _movement(operand, moves)
    if moves:
        drawing.rectangle(*place, fill=colour, tooltip=tooltip)
    else:
        drawing.hatched(*place, colour=colour, tooltip=tooltip)
    _grid_lines(drawing, operand, x, y, width, height)
    if moves:
        arrow = "↓" if operand.role == "input" else "↑"
        drawing.text(x + width + 3, y + 11, arrow, size=13, bold=True)


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


def _describe(drawing: Drawing, operand: OperandFrames, y: float) -> None:
    drawing.text(0, y + 12, operand.name, bold=True)
    drawing.text(0, y + 27, f"{operand.role} {'×'.join(map(str, operand.shape))}", size=11)
    drawing.text(0, y + 41, f"block {'×'.join(map(str, operand.block))}", size=11)
    verb = "fetched" if operand.role == "input" else "written"
    drawing.text(0, y + 55, f"{verb} {operand.moves}×", size=11)


def _legend(drawing: Drawing, y: float) -> None:
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
        x += 32 + 6.1 * len(text)
    drawing.width = max(drawing.width, x)


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
    return f"In {steps}, {'; '.join(parts)}."
