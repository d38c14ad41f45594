"""Results as HTML pages: complete in themselves, without scripts and without a request.

Whatever comes from a submission is escaped, and a content policy forbids the page to load or run
anything, should something be forgotten.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from tpulab.exercises.model import STEPS

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
#: What whoever hands pages out must know.
FOR_WHOM = (
    "This page is for whoever grades: it names the shapes of hidden cases. Hand it to a student "
    "when the lab is over; what is handed in later with the same secret meets the same cases."
)
#: status of an exercise or a submission: (mark, words, class)
STATUS: Mapping[str, tuple[str, str, str]] = {
    "passed": ("✓", "passed", "good"),
    "failed": ("✗", "failed", "bad"),
    "not attempted": ("·", "not attempted", "none"),
    "missing": ("·", "missing", "none"),
    "not judged": ("!", "not judged", "odd"),
    "graded": ("✓", "graded", "good"),
    "unreadable": ("!", "unreadable", "odd"),
    "skipped": ("!", "skipped", "odd"),
    "wrong lab": ("!", "wrong lab", "odd"),
    "unknown lab": ("!", "unknown lab", "odd"),
}
_ANSWERS = {
    "passed": ("✓", "good"),
    "failed": ("✗", "bad"),
}
# a terminal's colours, and characters that turn the direction of a line
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]"
)


def escaped(text: Any) -> str:
    """Text for any place in a page, without what a browser or a reader could be misled by."""
    return html.escape(_CONTROL.sub("", str(text)), quote=True)


def number(value: float | None) -> str:
    """Points, without needless zeros."""
    return "–" if value is None else f"{round(value, 2):g}"


def document(title: str, body: str) -> str:
    """A whole page."""
    style = resources.files(__package__).joinpath("page.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def score(item: Mapping[str, Any]) -> str:
    """Points of a submission or an exercise."""
    if item["max_points"] is None:
        return "no points"
    return f"{number(item['points'])} of {number(item['max_points'])}"


def open_points(result: Mapping[str, Any]) -> str:
    """The points of a submission that a person still gives, empty for none."""
    points = sum(question["max_points"] for question in result["by_hand"])
    return f" (+{number(points)} by hand)" if points else ""


def badge(status: str) -> str:
    """A status as mark, word and colour."""
    mark, words, kind = STATUS[status]
    return f'<span class="badge {kind}">{mark} {words}</span>'


def page(result: Mapping[str, Any]) -> str:
    """The page of one submission."""
    name = result["submission"]
    head = [
        f"<h1>{escaped(name)}</h1>",
        f'<p class="score">{score(result).removesuffix(" points")} points{open_points(result)} '
        f"{badge(result['status'])}</p>",
        f"<p>{_about(result)}</p>",
        messages(result["messages"], "What was found in the file"),
    ]
    exercises = result["exercises"]
    if exercises:
        head += ["<h2>Exercises</h2>", _overview(exercises)]
        head += [_exercise(item) for item in exercises]
    if result["by_hand"]:
        head += ["<h2>Questions that a person grades</h2>"]
        head += [_question(item) for item in result["by_hand"]]
    head.append(
        "<footer><p>Points are given by the last verdict passed and the rung reached. Times are "
        "predicted: the TPU compiler's program was simulated, no TPU was asked. Hidden cases are "
        f"shapes and values that the lab does not show.</p><p>{FOR_WHOM}</p></footer>"
    )
    return document(f"{name} · graded", "\n".join(filter(None, head)))


def _about(result: Mapping[str, Any]) -> str:
    parts = [f"lab {result['lab']}" if result["lab"] else "no lab"]
    parts.append(f"tpulab {result['tpulab_version']}")
    if result["compiler_version"]:
        parts.append(str(result["compiler_version"]))
    if result["sha256"]:
        parts.append(f"SHA-256 {result['sha256'][:12]}…")
    return escaped(" · ".join(parts))


def messages(found: Sequence[str], label: str) -> str:
    """A list of sentences, empty for none."""
    if not found:
        return ""
    items = "".join(f"<li>{escaped(text)}</li>" for text in found)
    return f'<ul class="messages" aria-label="{escaped(label)}">{items}</ul>'


def _overview(exercises: Iterable[Mapping[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{escaped(step)}</th>' for step in STEPS)
    rows = []
    for item in exercises:
        answers = {}
        if item["verdict"] and item["verdict"]["attempted"]:
            answers = {step["name"]: step["answer"] for step in item["verdict"]["steps"]}
        cells = "".join(_cell(answers.get(step)) for step in STEPS)
        rows.append(
            f'<tr><th scope="row"><a href="#{escaped(item["grade_id"])}">'
            f"{escaped(item['exercise'])}</a></th>"
            f'<td class="number">{score(item)}</td>'
            f"<td>{badge(item['status'])}</td>{cells}<td>{escaped(_rung(item))}</td>"
            f'<td class="said">{escaped(_times(item))}</td></tr>'
        )
    return (
        '<div class="wide" role="region" aria-label="All exercises" tabindex="0"><table>'
        "<caption>Points, verdicts and predicted time of each exercise</caption>"
        '<thead><tr><th scope="col">exercise</th><th scope="col">points</th>'
        f'<th scope="col">result</th>{head}<th scope="col">rung</th>'
        f'<th scope="col">predicted time</th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
        "</div>"
    )


def _cell(answer: str | None) -> str:
    if answer is None or answer == "not judged":
        # why it was not judged is said below, where there is room
        return "<td>–</td>"
    mark, kind = _ANSWERS[answer]
    return f'<td><span class="{kind}-text">{mark} {escaped(answer)}</span></td>'


def _rung(item: Mapping[str, Any]) -> str:
    verdict = item["verdict"]
    if not item["rung"] or not verdict:
        return "–"
    return f"{verdict['rung_number']} of {verdict['rung_count']}: {item['rung']}"


def _times(item: Mapping[str, Any]) -> str:
    from tpulab.grading.advice import time_text

    found = item["predicted_seconds"]
    # a number stays with its unit
    times = (f"{chip} {time_text(seconds)}".replace(" ", "\N{NO-BREAK SPACE}")
             for chip, seconds in found.items())  # fmt: skip
    return ", ".join(times) or "–"


def _exercise(item: Mapping[str, Any]) -> str:
    from tpulab.grading import Verdict
    from tpulab.grading.render import as_html

    parts = [
        f'<section id="{escaped(item["grade_id"])}">',
        f"<h3>{escaped(item['exercise'])} · {escaped(item['title'])}</h3>",
        f"<p>{number(item['points'])} of {number(item['max_points'])} points "
        f"{badge(item['status'])}</p>",
        messages(item["messages"], f"What was found about {item['exercise']}"),
    ]
    if item["verdict"]:
        parts.append(as_html(Verdict.from_dict(_clean(item["verdict"]), item["title"])))
    hidden = item["hidden"]
    if hidden["cases"]:
        cases = "".join(
            f"<li>{escaped(case['name'])}: {escaped(case['arguments'])}, "
            f"{escaped(', '.join(case['fills']))} values"
            + (": <strong>wrong</strong>" if case["name"] in hidden["wrong"] else "")
            + "</li>"
            for case in hidden["cases"]
        )
        parts.append(
            f"<details><summary>{len(hidden['cases'])} hidden cases</summary><ul>{cases}</ul>"
            "</details>"
        )
    parts.append(_source(item["code"]))
    if item["output"].strip():
        parts.append(
            "<details><summary>what the code printed</summary>"
            f'<pre tabindex="0">{escaped(item["output"])}</pre></details>'
        )
    return "\n".join(filter(None, [*parts, "</section>"]))


def _clean(value: Any) -> Any:
    """A verdict's texts without control characters; the renderer escapes the rest."""
    if isinstance(value, str):
        return _CONTROL.sub("", value)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _source(pieces: Sequence[Mapping[str, Any]]) -> str:
    if not pieces:
        return ""
    blocks = []
    for name, group in groupby(pieces, key=lambda piece: piece["name"]):
        lines: list[str] = []
        for piece in group:
            first = piece["first_line"]
            lines += [""] if lines else []
            lines += [
                f"{first + position:>4}  {escaped(line)}"
                for position, line in enumerate(piece["source"].split("\n"))
            ]
        text = "\n".join(lines)
        blocks.append(f'<p>{escaped(name)}</p><pre tabindex="0">{text}</pre>')
    return f"<details><summary>the code that was graded</summary>{''.join(blocks)}</details>"


def _question(item: Mapping[str, Any]) -> str:
    state = "answered" if item["answered"] else "not answered"
    text = f'<pre class="text" tabindex="0">{escaped(item["text"])}</pre>'
    return (
        f"<section><h3>{escaped(item['grade_id'])}</h3>"
        f"<p>{state}; up to {number(item['max_points'])} points, not counted above</p>"
        f"{text if item['answered'] else ''}</section>"
    )
