"""A verdict as text for a terminal and as HTML for a notebook. No colour carries meaning alone."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Mapping

from tpulab.grading.places import readable
from tpulab.grading.verdict import StepResult, Verdict

_WORDS = {True: "passed", False: "FAILED", None: "–"}
_MARKS = {True: "✓", False: "✗", None: "·"}
_BELOW_TOP = "◐"
# after Okabe and Ito: told apart with any colour vision, and dark enough behind white letters, so
# that a light and a dark notebook both read well
_COLOURS = {True: "#00664f", False: "#a63d00", None: "#5f6368", "below top": "#8a5a00"}
# a number and its unit belong on one line
_FIGURE = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|ns|B|KiB|MiB|GiB|GB/s|rows|steps|elements)(?!\w))")


def as_text(verdict: Verdict) -> str:
    """Plain text, no longer than a screen."""
    lines = [f"{verdict.exercise} · {verdict.title}"]
    if not verdict.attempted:
        return "\n".join([*lines, f"  not attempted: {verdict.steps[0].summary}"])
    for step in verdict.steps:
        lines.append(step_line(step))
        lines += step_explanation(step)
    lines.append(f"  → {verdict.headline}")
    if verdict.failed is not None and verdict.output.strip():
        tail = verdict.output.strip().splitlines()[-6:]
        lines += ["  your code printed:", *(f"    {line[:160]}" for line in tail)]
    return "\n".join(lines)


def step_line(step: StepResult) -> str:
    """The line of one step."""
    mark = _BELOW_TOP if step.below_top else _MARKS[step.passed]
    return f"  {mark} {step.name:<9} {_WORDS[step.passed]:<7} {step.summary}".rstrip()


def step_explanation(step: StepResult) -> list[str]:
    """The lines below a step that failed or is not at the top yet."""
    lines: list[str] = []
    if step.passed is not False and not step.below_top:
        return lines
    for label, text in (
        ("", step.detail),
        ("at ", readable(step.where)),
        ("try ", step.hint),
    ):
        for paragraph in filter(None, text.splitlines()):
            wrapped = textwrap.wrap(
                label + paragraph, 92, subsequent_indent=" " * len(label), break_long_words=False
            )
            lines += [f"      {line}" for line in wrapped]
    return lines


def as_html(verdict: Verdict) -> str:
    """A small table; words and marks say what the colours say."""
    head = f"<strong>{html.escape(verdict.exercise)}</strong> · {html.escape(verdict.title)}"
    if not verdict.attempted:
        return _frame(
            f"{head}<div>not attempted: {html.escape(verdict.steps[0].summary)}</div>",
            verdict.headline,
        )
    rows = "".join(_row(step) for step in verdict.steps)
    after = _ladders(verdict)
    if verdict.failed is not None and verdict.output.strip():
        tail = "\n".join(line[:200] for line in verdict.output.strip().splitlines()[-6:])
        after += (
            "<details><summary>your code printed</summary>"
            f"<pre style='margin:0'>{html.escape(tail)}</pre></details>"
        )
    after += f"<div style='margin-top:.4em'>→ {_escaped(verdict.headline)}</div>"
    table = (
        "<table style='border-collapse:collapse;margin:.3em 0'>"
        f"<caption style='text-align:left;padding:0'>{head}</caption>"
        "<thead><tr><th scope='col' style='text-align:left'>step</th>"
        "<th scope='col' style='text-align:left'>answer</th>"
        "<th scope='col' style='text-align:left'>why</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
    return _frame(table + after, verdict.headline)


def _row(step: StepResult) -> str:
    colour = _COLOURS["below top" if step.below_top else step.passed]
    mark = _BELOW_TOP if step.below_top else _MARKS[step.passed]
    below = ""
    if step.passed is False or step.below_top:
        if step.detail:
            detail = _escaped(step.detail)
            below += f"<div style='white-space:pre-wrap'>{detail}</div>"
        if step.where:
            below += f"<div>at <code>{html.escape(readable(step.where))}</code></div>"
        if step.hint:
            below += f"<div><strong>try</strong> {_escaped(step.hint)}</div>"
    word = {True: "passed", False: "failed", None: "not judged"}[step.passed]
    if step.below_top:
        word = "passed, not at the top"
    return (
        "<tr style='vertical-align:top'>"
        f"<th scope='row' style='text-align:left;padding-right:1em'>{step.name}</th>"
        "<td style='text-align:left;white-space:nowrap;padding-right:1em'>"
        f"<span style='background:{colour};color:#fff;padding:0 .4em;border-radius:3px'>"
        f"{mark} {word}</span></td>"
        f"<td style='text-align:left'>{_escaped(step.summary)}{below}</td></tr>"
    )


def _escaped(sentence: str) -> str:
    return _FIGURE.sub("\N{NO-BREAK SPACE}", html.escape(sentence))


def _ladders(verdict: Verdict) -> str:
    """Where the predicted time goes, folded, one table a chip."""
    fast = next((step for step in verdict.steps if step.name == "fast"), None)
    parts = []
    for chip, row in fast.data.items() if fast is not None else ():
        rungs = row.get("rungs") if isinstance(row, Mapping) else None
        if not rungs:
            continue
        body = "".join(
            f"<tr><th scope='row' style='text-align:left'>{html.escape(rung['name'])}</th>"
            f"<td style='text-align:right'>{1e6 * rung['seconds']:,.1f}</td>"
            f"<td style='text-align:left'>{html.escape(rung['cause'])}</td></tr>"
            for rung in rungs
        )
        parts.append(
            f"<details><summary>where the time goes on {html.escape(chip)}</summary><table>"
            "<thead><tr><th scope='col' style='text-align:left'>rung</th>"
            "<th scope='col'>µs</th><th scope='col' style='text-align:left'>cause</th></tr>"
            f"</thead><tbody>{body}</tbody></table></details>"
        )
    return "".join(parts)


def _frame(inner: str, label: str) -> str:
    return (
        f"<div role='group' aria-label='{html.escape(label, quote=True)}' "
        "style='border-left:4px solid #5f6368;padding:.2em .8em;max-width:60em'>"
        f"{inner}</div>"
    )
