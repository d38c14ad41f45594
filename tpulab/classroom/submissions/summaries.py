"""All submissions of a run together: JSON for programs, CSV for a gradebook, HTML for people."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tpulab.classroom.submissions.pages import badge, document, escaped, messages, number, score
from tpulab.classroom.submissions.results import FORMAT

_COLUMNS = ("submission", "lab", "status", "points", "max_points", "messages")


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
        skipped: Python files that hold no exercise.
    """
    return {
        "summary.json": json.dumps(
            as_json(results, slugs, left, skipped), indent=2, ensure_ascii=False
        )
        + "\n",
        "summary.csv": as_csv(results),
        "index.html": as_page(results, slugs, left, skipped),
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
        row = [result[column] for column in _COLUMNS[:-1]] + ["; ".join(result["messages"])]
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
        notes.append(f"Python files without an exercise, left out: {', '.join(skipped)}")
    body.append(messages(notes, "About this run"))
    for lab in dict.fromkeys(result["lab"] for result in results):
        body.append(_table(lab, [result for result in results if result["lab"] == lab], slugs))
    body.append(
        '<footer><p><a href="summary.csv">summary.csv</a> · '
        '<a href="summary.json">summary.json</a></p></footer>'
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
        said = "; ".join(result["messages"])
        rows.append(
            f'<tr><th scope="row"><a href="{escaped(link)}">{escaped(result["submission"])}</a>'
            f'</th><td class="number">{score(result)}</td><td>{badge(result["status"])}</td>{cells}'
            f'<td class="said">{escaped(said)}</td></tr>'
        )
    title = lab or "no lab"
    return (
        f"<h2>{escaped(title)}</h2>"
        f'<div class="wide" role="region" aria-label="{escaped(title)}" tabindex="0"><table>'
        f"<caption>Points of {len(results)} submission{'s' if len(results) != 1 else ''}</caption>"
        '<thead><tr><th scope="col">submission</th><th scope="col">points</th>'
        f'<th scope="col">result</th>{head}<th scope="col">what was found</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


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
