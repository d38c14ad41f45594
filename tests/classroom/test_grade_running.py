"""Files in, results out: names, resuming, interruption, lost processes, pages; no verdicts."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest

from tests.classroom import submitted as given
from tpulab.classroom.submissions import GradeOptions, grade, pages, running
from tpulab.classroom.submissions.answers import Piece
from tpulab.classroom.submissions.results import Job, empty_result, refused
from tpulab.errors import UsageError

SCHEMA = json.loads(
    (given.ROOT / "tpulab/classroom/submissions/result_schema.json").read_text("utf-8")
)
THREAD = ThreadPoolExecutor(1)


def results_in(out: Path) -> dict[str, dict]:
    found = {}
    for path in (out / "submissions").glob("*.json"):
        result = json.loads(path.read_text("utf-8"))
        jsonschema.validate(result, SCHEMA)
        found[result["submission"]] = result
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Blank labs of two students and what else a folder of a class holds."""
    for name in ("ada", "bob"):
        given.write(tmp_path / "in" / name / "00_first_kernel.ipynb", given.released())
    (tmp_path / "in" / "bob" / ".ipynb_checkpoints").mkdir()
    given.write(tmp_path / "in/bob/.ipynb_checkpoints/00_first_kernel.ipynb", given.released())
    (tmp_path / "in" / "helpers.py").write_text("def pad(x):\n    return x\n")
    (tmp_path / "in" / "zoe.ipynb").write_bytes(b"\x80\x81")
    (tmp_path / "in" / "empty.ipynb").touch()
    return tmp_path / "in"


def test_a_class_of_blank_and_bad_files(folder, tmp_path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    report = grade([folder], tmp_path / "out", executor=THREAD)
    assert not report.complete
    assert [path.rpartition("/")[2] for path in report.skipped] == ["helpers.py"]
    found = results_in(tmp_path / "out")
    assert {name: result["status"] for name, result in found.items()} == {
        "ada/00_first_kernel.ipynb": "graded",
        "bob/00_first_kernel.ipynb": "graded",
        "empty.ipynb": "unreadable",
        "zoe.ipynb": "unreadable",
    }
    blank = found["ada/00_first_kernel.ipynb"]
    assert (blank["points"], blank["max_points"], blank["messages"]) == (0, 4, [])
    assert {item["status"] for item in blank["exercises"]} == {"not attempted"}
    assert [item["answered"] for item in blank["by_hand"]] == [False, False]
    assert found["empty.ipynb"]["messages"] == ["empty.ipynb is empty"]
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_summaries_agree_with_the_results(folder, tmp_path) -> None:
    grade([folder], tmp_path / "out", executor=THREAD)
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))
    found = results_in(tmp_path / "out")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out/summary.csv").read_text("utf-8"))))
    page = (tmp_path / "out/index.html").read_text("utf-8")
    assert len(summary["submissions"]) == len(rows) == len(found) == 4
    for entry, row in zip(summary["submissions"], rows):
        result = json.loads((tmp_path / "out" / entry["result"]).read_text("utf-8"))
        assert result == found[entry["submission"]]
        assert (tmp_path / "out" / entry["page"]).is_file()
        assert entry["page"] in page
        assert row["submission"] == entry["submission"]
        assert row["status"] == entry["status"] == result["status"]
        assert float(row["points"]) == result["points"]
    assert rows[0]["first_kernel.add"] == "0.0"
    assert rows[-1]["first_kernel.add"] == ""


def test_who_hands_in_nothing_gradable_stays_in_the_list(folder, tmp_path) -> None:
    """A report, a picture in a folder of one's own, an empty folder, a file without exercise."""
    (folder / "zed").mkdir()
    (folder / "zed" / "report.pdf").write_bytes(b"%PDF")
    (folder / "una").mkdir()
    (folder / "yan" / "deep").mkdir(parents=True)
    (folder / "yan" / "deep" / "notes.py").write_text("x = 1\n")
    # what lies beside somebody's notebook is theirs
    (folder / "ada" / "images").mkdir()
    (folder / "ada" / "images" / "plot.png").touch()
    out = tmp_path / "out"
    report = grade([folder], out, executor=THREAD)
    assert not report.complete
    found = {name: each for name, each in results_in(out).items() if each["status"] == "skipped"}
    assert set(found) == {"una", "yan", "zed"}
    assert "report.pdf" in found["zed"]["messages"][0]
    assert "empty" in found["una"]["messages"][0]
    assert (out / "index.html").read_text("utf-8").count("! skipped") == 3
    # in a flat folder only documents are somebody's work
    flat = tmp_path / "flat"
    given.write(flat / "tim.ipynb", given.released())
    for name in ("pictures/a.png", "zed/report.pdf", "late.pdf"):
        (flat / name).parent.mkdir(exist_ok=True)
        (flat / name).touch()
    files, skipped = running.find_files([flat], out)
    assert list(files) == ["tim.ipynb", "zed"]
    assert [Path(path).name for path in skipped] == ["late.pdf"]
    several = running.find_files([folder / "ada", folder / "zed", folder / "una"], out)[0]
    assert list(several) == ["ada/00_first_kernel.ipynb", "una", "zed"]
    nested = tmp_path / "nested"
    given.write(nested / "lab00" / "ada" / "a.ipynb", given.released())
    (nested / "lab00" / "bob").mkdir()
    assert list(running.find_files([nested], out)[0]) == ["lab00/ada/a.ipynb", "lab00/bob"]


def test_answers_in_words_are_told_of_and_shown_together(tmp_path) -> None:
    notebook = given.released()
    question = next(c for c in notebook["cells"] if given.grade_id(c) == given.questions()[0])
    question["source"] = "Because the bus is narrow."
    given.write(tmp_path / "in" / "ada.ipynb", notebook)
    given.write(tmp_path / "in" / "bob.ipynb", given.released())
    out = tmp_path / "out"
    grade([tmp_path / "in"], out, executor=THREAD)
    ada, bob = json.loads((out / "summary.json").read_text("utf-8"))["submissions"]
    assert ada["by_hand"] == {"questions": 2, "answered": 1, "max_points": 4.0}
    assert bob["by_hand"]["answered"] == 0
    row = next(csv.DictReader(io.StringIO((out / "summary.csv").read_text("utf-8"))))
    assert (row["by_hand_answered"], row["by_hand_max_points"]) == ("1", "4.0")
    index = (out / "index.html").read_text("utf-8")
    assert "0 of 4 (+4 by hand)" in index
    assert "1 of 2 answered" in index
    assert "1 answer in words waits" in index
    assert "(+4 by hand)" in (out / ada["page"]).read_text("utf-8")
    together = (out / "by_hand.html").read_text("utf-8")
    assert together.count("Because the bus is narrow.") == 1
    assert together.count("not answered") == 3


def test_the_index_says_what_failed() -> None:
    result = evil_result()
    item = result["exercises"][0]
    item["verdict"]["steps"][0]["summary"] = "the block is " + "very " * 60 + "large"
    result["exercises"].append({**item, "exercise": "first_kernel.mul", "status": "missing",
                                "verdict": None, "messages": ["no cell defines mul"]})  # fmt: skip
    page = running.summaries.as_page([result], {result["submission"]: "evil"})
    assert "first_kernel.add: not legal: the block is very" in page
    assert "very …</li>" in page
    assert "first_kernel.mul: no cell defines mul" in page


def test_pages_say_whom_they_are_for() -> None:
    assert "names the shapes of hidden cases" in pages.page(evil_result())


def test_a_result_that_holds_is_kept(folder, tmp_path) -> None:
    out, said = tmp_path / "out", []

    def run(**options) -> dict[str, bool]:
        said.clear()
        grade([folder], out, GradeOptions(**options), executor=THREAD,
              say=lambda result, *_: said.append(result))  # fmt: skip
        return {result["submission"]: result["kept"] for result in said}

    assert set(run().values()) == {False}
    assert set(run().values()) == {True}
    assert set(run(again=True).values()) == {False}
    # another secret, other hidden cases
    assert set(run(secret="another").values()) == {False}
    assert set(run().values()) == {False}
    changed = folder / "ada/00_first_kernel.ipynb"
    notebook = given.released()
    notebook["cells"].append(given.code("1 + 1"))
    given.write(changed, notebook)
    assert run()["ada/00_first_kernel.ipynb"] is False
    assert run()["bob/00_first_kernel.ipynb"] is True
    damaged = out / "submissions" / "zoe.json"
    damaged.write_text("{")
    assert run()["zoe.ipynb"] is False


def test_a_neighbour_that_is_imported_counts_as_part(tmp_path) -> None:
    source = "from tiles import ROWS\n" + given.solution("add")
    path = given.write(tmp_path / "in" / "a.ipynb", given.with_answers(add=source))
    job = Job(str(path), "a.ipynb")
    (path.parent / "tiles.py").write_text("ROWS = 1")
    before = running._fingerprint([], job)
    (path.parent / "other.py").write_text("x = 1")
    assert running._fingerprint([], job) == before
    (path.parent / "tiles.py").write_text("ROWS = 2")
    assert running._fingerprint([], job) != before


def test_another_submission_cannot_be_imported(tmp_path) -> None:
    """In a flat folder everybody's files lie beside each other."""
    from tpulab.classroom.submissions.beside import beside
    from tpulab.classroom.submissions.reading import Cell, read

    (tmp_path / "grace.py").write_text(given.solution("add"))
    (tmp_path / "tiles.py").write_text("import sizes\nimport grace\n")
    (tmp_path / "sizes.py").write_text("ROWS = 8\n")
    (tmp_path / "kit" / "deep").mkdir(parents=True)
    for name in ("kit/__init__.py", "kit/deep/__init__.py", "kit/data.bin", "other.py"):
        (tmp_path / name).touch()
    path = given.write(tmp_path / "ada.ipynb", given.released())
    source = "import grace, numpy\nfrom tiles import ROWS\nimport kit.deep"
    found = beside(read(path), [Piece(Cell(1, "code", source), 1, source)])
    assert [path.name for path in found.helpers] == ["tiles.py", "kit", "sizes.py"]
    assert found.submissions == ("grace.py",)
    found.copy_to(tmp_path / "run")
    copied = {path.relative_to(tmp_path / "run").as_posix() for path in
              (tmp_path / "run").rglob("*") if path.is_file()}  # fmt: skip
    assert copied == {"tiles.py", "sizes.py", "kit/__init__.py", "kit/deep/__init__.py"}


def test_the_secret_comes_from_a_file_or_the_environment(tmp_path, monkeypatch) -> None:
    from tpulab.commands import grade as verb
    from tpulab.commands.parser import parse

    (tmp_path / "secret").write_text("a term\n")
    (tmp_path / "void").touch()
    monkeypatch.setenv(verb.SECRET_VARIABLE, "winter")
    assert verb._secret(None) == "winter"
    # what is graded would inherit it
    assert verb.SECRET_VARIABLE not in os.environ
    assert verb._secret(None) is None
    assert verb._secret(str(tmp_path / "secret")) == "a term"
    for file in ("void", "none"):
        with pytest.raises(UsageError):
            verb._secret(str(tmp_path / file))
    words = ["grade", "x", "--out", "y", "--secret-file", "z"]
    assert parse(words).secret_file == "z"


def test_wrong_and_unknown_labs(tmp_path) -> None:
    lab = given.write(tmp_path / "in" / "a.ipynb", given.released())
    other = given.write(tmp_path / "in" / "b.ipynb", given.notebook_of([given.code("x = 1")]))
    notebook = given.notebook_of([given.code("x = 1")])
    notebook["metadata"] = {"tpulab": {"lab": "77_of_another_year"}}
    year = given.write(tmp_path / "in" / "c.ipynb", notebook)
    grade([lab], tmp_path / "one", GradeOptions(lab="10"), executor=THREAD)
    found = results_in(tmp_path / "one")["a.ipynb"]
    assert (found["status"], found["points"], found["max_points"]) == ("wrong lab", 0, 9)
    assert "00_first_kernel" in found["messages"][0]
    grade([other, year], tmp_path / "two", executor=THREAD)
    found = results_in(tmp_path / "two")
    assert {result["status"] for result in found.values()} == {"unknown lab"}
    assert "77_of_another_year" in found["c.ipynb"]["messages"][0]


def test_names_become_files_that_differ(tmp_path) -> None:
    names = [
        "ada/x.ipynb", "ada--x.ipynb", "ada/x.py", "Ada/X.ipynb", "../../etc/passwd.ipynb",
        "a b/ü.ipynb", ".ipynb", "=cmd.ipynb", "x" * 300 + ".ipynb", "y" * 300 + ".ipynb",
    ]  # fmt: skip
    slugs = running._slugs(names)
    assert len({slug.lower() for slug in slugs.values()}) == len(names)
    assert all(slug == Path(slug).name and not slug.startswith(".") for slug in slugs.values())
    assert max(map(len, slugs.values())) <= 110
    assert running._slugs(names) == slugs


def test_files_are_named_below_what_they_have_in_common(folder, tmp_path) -> None:
    out = tmp_path / "out"
    files = [folder / "ada/00_first_kernel.ipynb", folder / "bob/00_first_kernel.ipynb"]
    assert list(running.find_files([*files, files[0]], out)[0]) == [
        "ada/00_first_kernel.ipynb",
        "bob/00_first_kernel.ipynb",
    ]
    assert list(running.find_files(files[:1], out)[0]) == ["00_first_kernel.ipynb"]
    # results in the folder that is graded are no submissions
    given.write(folder / "out" / "old.ipynb", given.released())
    assert not [name for name in running.find_files([folder], folder / "out")[0] if "old" in name]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_a_name_that_is_no_text(tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/ad\xe4\x1b[31m.ipynb")).write_text("no")
    grade([folder], tmp_path / "out", executor=THREAD)
    (result,) = results_in(tmp_path / "out").values()
    assert result["status"] == "unreadable"
    assert "\x1b" not in (tmp_path / "out" / "index.html").read_text("utf-8")


def test_usage_errors_come_before_any_work(folder, tmp_path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "bad.toml").write_text("[steps]\nlegal = 2\n")
    (tmp_path / "void").mkdir()
    for files, out, options in (
        ([tmp_path / "void"], tmp_path / "out", {}),
        ([folder], tmp_path / "file" / "out", {}),
        ([folder], tmp_path / "out", {"credit_file": tmp_path / "bad.toml"}),
        ([folder], tmp_path / "out", {"hidden_file": tmp_path / "none.toml"}),
    ):
        with pytest.raises(UsageError):
            grade(files, out, GradeOptions(**options), executor=THREAD)
    assert not (tmp_path / "out" / "submissions").exists()


# ---- processes


def dies_when_told(job: Job) -> dict:
    """Stands for a submission that ends the process that grades it."""
    if "killer" in job.name:
        os._exit(9)
    return refused(empty_result(job.name, job.path), "unknown lab", "it is a test")


def test_a_process_that_dies_costs_its_file_only(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(running, "grade_one", dies_when_told)
    for name in ("a", "killer", "z"):
        given.write(tmp_path / "in" / f"{name}.ipynb", given.released())
    grade([tmp_path / "in"], tmp_path / "out", GradeOptions(jobs=2))
    found = results_in(tmp_path / "out")
    assert {name: result["status"] for name, result in found.items()} == {
        "a.ipynb": "unknown lab",
        "killer.ipynb": "not judged",
        "z.ipynb": "unknown lab",
    }
    assert "ended its grader" in found["killer.ipynb"]["messages"][0]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupted_run_keeps_what_it_has_and_goes_on(tmp_path) -> None:
    files, out = tmp_path / "in", tmp_path / "out"
    given.write(files / "a.ipynb", given.released())
    endless = "def spin():\n    while True:\n        pass\nN = spin()\n" + given.solution(
        "add"
    ).replace("out_ref[...] =", "out_ref[...] = N +")
    given.write(files / "b.ipynb", given.with_answers(add=endless))
    command = [sys.executable, "-m", "tpulab.cli", "grade", str(files), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--deadline", "200"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(given.ROOT), "TPULAB_HOME": str(out / "home")},
        start_new_session=True,
        text=True,
    )
    assert process.stderr is not None
    assert "a.ipynb: 0 of 4 points" in process.stderr.readline()
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    assert process.wait(timeout=30) == 130
    said = process.stderr.read()
    assert "1 of 2 submissions are done" in said
    assert "the same command goes on" in said
    found = results_in(out)
    assert list(found) == ["a.ipynb"]
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert (summary["complete"], summary["left"]) == (False, 1)
    assert "1 more are not graded yet" in (out / "index.html").read_text("utf-8")
    assert not list(out.rglob("*.part"))
    deadline = time.monotonic() + 15
    while left := _processes_at_home_in(out / "home"):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _processes_at_home_in(home: Path) -> list[str]:
    """Command lines of this user's processes with that TPULAB_HOME, whoever is their parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"TPULAB_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


# ---- pages

EVIL = "<script>alert(1)</script><img src=http://x.example/y onerror=alert(2)>\x1b[31m\u202e'\""


def evil_result() -> dict:
    result = empty_result(EVIL, EVIL)
    step = {
        "name": "legal", "answer": "failed", "summary": EVIL, "detail": EVIL, "hint": EVIL,
        "where": EVIL, "data": {}, "below_top": False,
    }  # fmt: skip
    verdict = {
        "exercise": "first_kernel.add", "attempted": True, "interrupted": False, "passed": False,
        "highest": None, "failed": "legal", "rung": None, "top_rung": False, "rung_number": 0,
        "rung_count": 1, "next_rung": "", "predicted_seconds": {}, "measured_seconds": None,
        "compiler_version": None, "steps": [step],
    }  # fmt: skip
    result.update(
        sha256="0" * 64, kind="notebook", lab="00_first_kernel", status="graded", max_points=4.0,
        messages=[EVIL], fingerprint="x",
        by_hand=[{"grade_id": "q", "max_points": 1.0, "answered": True, "text": EVIL}],
    )  # fmt: skip
    result["exercises"] = [
        {
            "exercise": "first_kernel.add", "title": "Add", "grade_id": "first_kernel-add",
            "status": "failed", "complete": True, "points": 0.0, "max_points": 1.0,
            "messages": [EVIL], "verdict": verdict, "rung": None, "predicted_seconds": {},
            "compiler_version": None,
            "hidden": {
                "cases": [{"name": "hidden case 1", "arguments": "f32[8]", "fills": ["random"]}],
                "wrong": ["hidden case 1"], "only_hidden_wrong": True,
            },
            "code": [{"cell": 1, "name": EVIL, "first_line": 1, "source": EVIL + "\n" + EVIL}],
            "output": EVIL * 3, "seconds": 1.0,
        }
    ]  # fmt: skip
    jsonschema.validate(result, SCHEMA)
    return result


def test_pages_escape_everything_and_ask_for_nothing() -> None:
    from html.parser import HTMLParser

    class Reader(HTMLParser):
        tags: set[str] = set()
        links: set[str] = set()

        def handle_starttag(self, tag, attributes):
            self.tags.add(tag)
            for name, value in attributes:
                assert not name.startswith("on"), (tag, name)
                if name in ("src", "href"):
                    self.links.add(str(value))

    reader = Reader()
    result = evil_result()
    slugs = {result["submission"]: "evil"}
    summaries = running.summaries
    for text in (
        pages.page(result),
        summaries.as_page([result], slugs),
        summaries.as_answers([result], slugs),
    ):
        reader.feed(text)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "default-src 'none'" in text
    assert not reader.tags & {"script", "img", "link", "iframe", "object", "base"}
    assert reader.links == {
        "#first_kernel-add", "submissions/evil.html", "summary.csv", "summary.json",
        "by_hand.html", "index.html",
    }  # fmt: skip


def test_no_spreadsheet_takes_a_name_for_a_formula() -> None:
    result = refused(empty_result("=HYPERLINK(1)", "x"), "unreadable", "+1")
    row = list(csv.reader(io.StringIO(running.summaries.as_csv([result]))))[1]
    assert row[0] == "'=HYPERLINK(1)"
    assert row[-1] == "'+1"


@pytest.mark.needs_browser
def test_pages_are_accessible_and_stay_offline(tmp_path) -> None:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    from tpulab.commands.testing import find_browser

    result = evil_result()
    slugs = {result["submission"]: "evil"}
    files = {
        "page.html": pages.page(result),
        "index.html": running.summaries.as_page([result], slugs, left=1, skipped=["x.py"]),
        "by_hand.html": running.summaries.as_answers([result], slugs),
    }
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            # axe is put into the page, which the page's own policy would forbid
            context = browser.new_context(color_scheme=scheme, bypass_csp=True)
            page = context.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.on("dialog", lambda dialog: asked.append(dialog.message))
            for name, text in files.items():
                (tmp_path / name).write_text(text, "utf-8")
                page.goto((tmp_path / name).as_uri())
                page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
                found = Axe().run(page)
                assert found.violations_count == 0, found.generate_report()
        browser.close()
    assert all(url.startswith("file:") and url.endswith(".html") for url in asked)
