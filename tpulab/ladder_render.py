"""Ladders as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tpulab.ladder_causes import bytes_text, time_text

if TYPE_CHECKING:
    from tpulab.ladder import ChipLadder, Comparison, Rung

_WIDTH = 100
# a unit that is busy for less of the run is not what limits it
_MOSTLY_BUSY = 0.6


def _heading(one: ChipLadder) -> str:
    version = one.compiler_version or "no TPU compiler"
    return f"{one.function} on {one.chip} ({version})"


def _summary(one: ChipLadder) -> list[str]:
    """Sentences below the rungs."""
    lines = []
    fraction = one.fraction_of_bound
    if fraction is not None and one.predicted_seconds is not None:
        lines.append(
            f"Predicted {time_text(one.predicted_seconds)}: {fraction:.0%} of the speed of light; "
            f"limited by {_limit(one)}."
        )
    facts = []
    if one.vmem_bytes is not None:
        facts.append(f"{bytes_text(one.vmem_bytes)} of VMEM")
    if one.spills is not None:
        facts.append(f"{one.spills:,} spills and reloads")
    if one.hbm_bytes is not None:
        facts.append(f"{bytes_text(one.hbm_bytes)} through HBM")
    if facts:
        lines.append(", ".join(facts) + ".")
    loss = one.largest_loss
    if loss is not None:
        lines.append(f"Next ({loss.name}): {loss.advice}")
    if one.prediction_error:
        lines.append(f"How far to trust it: {one.prediction_error}.".replace("..", "."))
    lines += [f"Warning: {sentence}" for sentence in one.warnings]
    return lines


def _limit(one: ChipLadder) -> str:
    """The busiest unit; latency where no unit is busy for most of the run."""
    share = getattr(one.timeline, "limiting_share", 1.0)
    if share >= _MOSTLY_BUSY:
        return str(one.limiting_unit)
    return f"latency (the busiest unit, {one.limiting_unit}, is busy {share:.0%} of the time)"


def _wrap(text: str, indent: str) -> list[str]:
    import textwrap

    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent]


def _added(seconds: float) -> str:
    if seconds == 0:
        return "+0"
    return f"{'-' if seconds < 0 else '+'}{time_text(abs(seconds))}"


def _rung_lines(rungs: tuple[Rung, ...]) -> list[str]:
    lines = []
    before = 0.0
    for number, rung in enumerate(rungs):
        added = rung.seconds - before
        gap = "" if number == 0 else _added(added)
        lines.append(f"  {rung.name:<15}{time_text(rung.seconds):>10}{gap:>12}  {rung.kind}")
        lines += _wrap(rung.cause, "      ")
        before = rung.seconds
    return lines


def chip_text(one: ChipLadder) -> str:
    """A chip's ladder for a terminal."""
    lines = [_heading(one)]
    rungs = one.rungs or one.known_rungs
    if rungs:
        lines += _rung_lines(rungs)
    if one.refusal is not None:
        lines.append(f"  refused at {one.refusal.stage}:")
        for line in one.refusal.reason.splitlines():
            lines += _wrap(line.strip(), "    ")
    for sentence in _summary(one):
        lines += _wrap(sentence, "  ")
    return "\n".join(line.rstrip() for line in lines)


_CELL = "padding:2px 8px;text-align:left;vertical-align:top"
_NUMBER = "padding:2px 8px;text-align:right;vertical-align:top;white-space:nowrap"
# dark enough on white and light enough on dark notebooks; a bar is never the only carrier of a fact
_BAR = {"bound": "#0072b2", "predicted": "#d55e00", "measured": "#009e73"}


def chip_html(one: ChipLadder) -> str:
    """A chip's ladder as a table with bars; every bar's figure is also there as text."""
    rungs = one.rungs or one.known_rungs
    parts = [f'<div class="tpulab-ladder"><table><caption>{escape(_heading(one))}</caption>']
    if rungs:
        parts.append(
            "<thead><tr>"
            + "".join(
                f'<th scope="col" style="{_CELL}">{name}</th>'
                for name in ("rung", "time", "added", "kind", "to scale", "cause")
            )
            + "</tr></thead><tbody>"
        )
        longest = max(rung.seconds for rung in rungs) or 1.0
        before = 0.0
        for number, rung in enumerate(rungs):
            added = "" if number == 0 else _added(rung.seconds - before)
            width = 120 * rung.seconds / longest
            bar = (
                f'<div aria-hidden="true" style="width:{width:.0f}px;height:0.8em;'
                f'background:{_BAR[rung.kind]}"></div>'
            )
            parts.append(
                f'<tr><th scope="row" style="{_CELL};white-space:nowrap">{escape(rung.name)}</th>'
                f'<td style="{_NUMBER}">{time_text(rung.seconds)}</td>'
                f'<td style="{_NUMBER}">{added}</td>'
                f'<td style="{_CELL}">{rung.kind}</td>'
                f'<td style="{_CELL};min-width:124px">{bar}</td>'
                f'<td style="{_CELL}">{escape(rung.cause)}</td></tr>'
            )
            before = rung.seconds
        parts.append("</tbody>")
    parts.append("</table>")
    if one.refusal is not None:
        parts.append(
            f"<p><strong>Refused at {escape(one.refusal.stage)}.</strong></p>"
            f'<pre style="white-space:pre-wrap">{escape(one.refusal.reason)}</pre>'
        )
    parts += [f"<p>{escape(sentence)}</p>" for sentence in _summary(one)]
    parts.append("</div>")
    return "".join(parts)


def _comparison_rows(comparison: Comparison, chip: str) -> list[tuple[str, str, str, str]]:
    before = {rung.name: rung for rung in comparison.before.chips[chip].rungs}
    after = {rung.name: rung for rung in comparison.after.chips[chip].rungs}
    rows = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        change = f"{new.seconds / old.seconds - 1:+.1%}" if old and new and old.seconds else ""
        rows.append(
            (
                name,
                time_text(old.seconds) if old else "-",
                time_text(new.seconds) if new else "-",
                change,
            )
        )
    return rows


def _verdict(comparison: Comparison, chip: str) -> str:
    factor = comparison.speedup[chip]
    if factor is None:
        sides = ((comparison.before, "before"), (comparison.after, "after"))
        return "; ".join(
            f"{when}: {side.chips[chip].refusal}"
            for side, when in sides
            if side.chips[chip].refusal is not None
        )
    if abs(factor - 1) < 0.001:
        return "as fast as before"
    return f"{factor:.3g} times as fast" if factor > 1 else f"{1 / factor:.3g} times as slow"


def comparison_text(comparison: Comparison) -> str:
    """Two ladders side by side for a terminal."""
    lines = []
    for chip in comparison.chips:
        lines.append(
            f"{comparison.before.function} -> {comparison.after.function} on {chip}: "
            f"{_verdict(comparison, chip)}"
        )
        for name, old, new, change in _comparison_rows(comparison, chip):
            lines.append(f"  {name:<15}{old:>10}  ->{new:>10}  {change:>8}")
    return "\n".join(lines)


def comparison_html(comparison: Comparison) -> str:
    """Two ladders side by side as tables."""
    parts = []
    for chip in comparison.chips:
        caption = (
            f"{comparison.before.function} → {comparison.after.function} on {chip}: "
            f"{_verdict(comparison, chip)}"
        )
        parts.append(f"<table><caption>{escape(caption)}</caption><thead><tr>")
        parts += [
            f'<th scope="col" style="{_CELL}">{name}</th>'
            for name in ("rung", "before", "after", "change")
        ]
        parts.append("</tr></thead><tbody>")
        for name, old, new, change in _comparison_rows(comparison, chip):
            parts.append(
                f'<tr><th scope="row" style="{_CELL}">{escape(name)}</th>'
                + "".join(f'<td style="{_NUMBER}">{cell}</td>' for cell in (old, new, change))
                + "</tr>"
            )
        parts.append("</tbody></table>")
    return "".join(parts)
