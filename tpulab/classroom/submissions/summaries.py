"""All submissions of a run together: JSON for programs, CSV for a gradebook, HTML for people."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tpulab.classroom.submissions.pages import (
    badge,
    document,
    escaped,
    messages,
    number,
    open_points,
    score,
)
from tpulab.classroom.submissions.results import FORMAT

_COLUMNS = (
    "submission",
    "lab",
    "status",
    "points",
    "max_points",
    "by_hand_answered",
    "by_hand_max_points",
    "messages",
)
_LONGEST_REASON = 160
_ADJECTIVES = {"compiles": "compiled", "fast": "fast enough"}


def files(
    results: Sequence[Mapping[str, Any]],
    slugs: Mapping[str, str],
    left: int = 0,
    skipped: Sequence[str] = (),
) -> dict[str, str]:
    """The summary's files by name.

    Args:
        results: of the submissions, in order.
        slugs: file name, without ending, of each submission's result.
        left: submissions that were not graded, because the run was interrupted.
        skipped: files that were left out.
    """
    return {
        "summary.json": json.dumps(
            as_json(results, slugs, left, skipped), indent=2, ensure_ascii=False
        )
        + "\n",
        "summary.csv": as_csv(results),
        "index.html": as_page(results, slugs, left, skipped),
        "by_hand.html": as_answers(results, slugs),
    }


def as_json(
    results: Sequence[Mapping[str, Any]],
    slugs: Mapping[str, str],
    left: int = 0,
    skipped: Sequence[str] = (),
) -> dict[str, Any]:
    """The summary as plain values."""
    return {
        "format": FORMAT,
        "complete": left == 0,
        "left": left,
        "skipped": list(skipped),
        "submissions": [
            {
                **{key: result[key] for key in ("submission", "lab", "status", "points")},
                "max_points": result["max_points"],
                "by_hand": _by_hand(result),
                "messages": result["messages"],
                "result": f"submissions/{slugs[result['submission']]}.json",
                "page": f"submissions/{slugs[result['submission']]}.html",
                "exercises": {
                    item["exercise"]: {
                        key: item[key] for key in ("status", "points", "max_points", "rung")
                    }
                    for item in result["exercises"]
                },
            }
            for result in results
        ],
    }


def as_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """One line for each submission, and a column of points for each exercise."""
    names = _exercises(results)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*_COLUMNS, *names])
    for result in results:
        points = {item["exercise"]: item["points"] for item in result["exercises"]}
        waiting = _by_hand(result)
        row = [result[column] for column in _COLUMNS[:5]]
        row += [waiting["answered"], waiting["max_points"], "; ".join(_found(result))]
        writer.writerow([_cell(value) for value in [*row, *(points.get(name) for name in names)]])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value


def as_page(
    results: Sequence[Mapping[str, Any]],
    slugs: Mapping[str, str],
    left: int = 0,
    skipped: Sequence[str] = (),
) -> str:
    """The page that leads to all others."""
    body = ["<h1>Graded submissions</h1>"]
    count = len(results)
    odd = sum(result["status"] != "graded" for result in results)
    said = f"{count} submission{'s' if count != 1 else ''}"
    said += f", {odd} of which could not be graded in full" if odd else ", all graded"
    body.append(f"<p>{said}.</p>")
    notes = []
    if left:
        notes.append(f"the run was interrupted: {left} more are not graded yet")
    if skipped:
        notes.append(f"files without an exercise, left out: {', '.join(skipped)}")
    waiting = [_by_hand(result) for result in results]
    if any(each["answered"] for each in waiting):
        answers = sum(each["answered"] for each in waiting)
        are = "answer in words waits" if answers == 1 else "answers in words wait"
        notes.append(f"{answers} {are} for a person; the points for them are in no sum here")
    body.append(messages(notes, "About this run"))
    for lab in dict.fromkeys(result["lab"] for result in results):
        body.append(_table(lab, [result for result in results if result["lab"] == lab], slugs))
    body.append(
        '<footer><p><a href="by_hand.html">all answers in words</a> · '
        '<a href="summary.csv">summary.csv</a> · <a href="summary.json">summary.json</a></p>'
        "<p>For whoever grades: the pages of submissions name the shapes of hidden cases.</p>"
        "</footer>"
    )
    return document("Graded submissions", "\n".join(filter(None, body)))


def _table(lab: str | None, results: Sequence[Mapping[str, Any]], slugs: Mapping[str, str]) -> str:
    names = _exercises(results)
    # a long name may break after its track
    head = "".join(
        f'<th scope="col">{escaped(name).replace(".", ".<wbr>", 1)}</th>' for name in names
    )
    rows = []
    for result in results:
        entries = {item["exercise"]: item for item in result["exercises"]}
        cells = "".join(_entry(entries.get(name)) for name in names)
        link = quote(f"submissions/{slugs[result['submission']]}.html")
        waiting = _by_hand(result)
        answered = f"{waiting['answered']} of {waiting['questions']} answered"
        rows.append(
            f'<tr><th scope="row"><a href="{escaped(link)}">{escaped(result["submission"])}</a>'
            f'</th><td class="number">{score(result)}{open_points(result)}</td>'
            f"<td>{badge(result['status'])}</td>"
            f"<td>{answered if waiting['questions'] else '–'}</td>{cells}</tr>"
        )
        if said := _found(result):
            items = "".join(f"<li>{escaped(text)}</li>" for text in said)
            # a column of its own would lie beyond the edge of the screen
            rows.append(
                f'<tr class="reasons"><td class="said" colspan="{len(names) + 4}"><ul>{items}</ul>'
                "</td></tr>"
            )
    title = lab or "no lab"
    return (
        f"<h2>{escaped(title)}</h2>"
        f'<div class="wide" role="region" aria-label="{escaped(title)}" tabindex="0"><table>'
        f"<caption>Points of {len(results)} submission{'s' if len(results) != 1 else ''}</caption>"
        '<thead><tr><th scope="col">submission</th><th scope="col">points</th>'
        f'<th scope="col">result</th><th scope="col">to grade by hand</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _found(result: Mapping[str, Any]) -> list[str]:
    """What was found in a submission, and for each exercise that failed a few words on why."""
    said = list(result["messages"])
    for item in result["exercises"]:
        reason = _reason(item)
        if reason:
            if len(reason) > _LONGEST_REASON:
                reason = reason[:_LONGEST_REASON].rsplit(" ", 1)[0] + " …"
            said.append(f"{item['exercise']}: {reason}")
    return said


def _reason(item: Mapping[str, Any]) -> str:
    if item["status"] == "failed" and item["verdict"]:
        for step in item["verdict"]["steps"]:
            if step["answer"] == "failed":
                return f"not {_ADJECTIVES.get(step['name'], step['name'])}: {step['summary']}"
    if item["status"] in ("missing", "not judged") and item["messages"]:
        return str(item["messages"][-1])
    return ""


def _by_hand(result: Mapping[str, Any]) -> dict[str, Any]:
    """What waits for a person: questions, how many have an answer, and the points of all."""
    questions = result["by_hand"]
    return {
        "questions": len(questions),
        "answered": sum(item["answered"] for item in questions),
        "max_points": sum(item["max_points"] for item in questions),
    }


def as_answers(results: Sequence[Mapping[str, Any]], slugs: Mapping[str, str]) -> str:
    """The answers in words, all of one question together."""
    questions: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for result in results:
        for item in result["by_hand"]:
            key = str(result["lab"]), item["grade_id"]
            questions.setdefault(key, []).append((result["submission"], item))
    body = ["<h1>Answers in words</h1>"]
    if not questions:
        body.append("<p>No lab here asks for any.</p>")
    for (lab, name), items in questions.items():
        points = number(items[0][1]["max_points"])
        body.append(f"<h2>{escaped(lab)} · {escaped(name)}, {points} points</h2>")
        for submission, item in items:
            link = quote(f"submissions/{slugs[submission]}.html")
            text = "<p>not answered</p>"
            if item["answered"]:
                text = f'<pre class="text" tabindex="0">{escaped(item["text"])}</pre>'
            body.append(f'<h3><a href="{escaped(link)}">{escaped(submission)}</a></h3>{text}')
    body.append('<footer><p><a href="index.html">all submissions</a></p></footer>')
    return document("Answers in words", "\n".join(body))


def _entry(item: Mapping[str, Any] | None) -> str:
    if item is None:
        return "<td>–</td>"
    return (
        f'<td class="number">{number(item["points"])} <small>{escaped(item["status"])}</small></td>'
    )


def _exercises(results: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(
        dict.fromkeys(item["exercise"] for result in results for item in result["exercises"])
    )
