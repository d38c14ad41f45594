"""Pictures and widgets in a real browser: what is measured there, keyboard, and accessibility.

The widgets run on a stand-in for Jupyter's model; a lab in JupyterLab has a test of its own.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.visual.helpers import (
    call_of,
    gathered,
    long_names_call,
    made_up,
    matmul_call,
    through_slots,
)
from tpulab.visual import (
    blocks_in_motion,
    chip_map,
    choose_roofline,
    collective_times,
    ladder_waterfall,
    matmul_roofline,
    pipeline_timeline,
    ring_in_motion,
    roofline,
    step_through,
    tiling_roofline,
)
from tpulab.visual.figure import Figure
from tpulab.visual.svg import Drawing

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
CLIMB = [("128 blocks", 60.0, 12e12), ("256 blocks", 113.0, 50e12), ("512 blocks", 205.0, 102e12)]
THEMES = {"light": ("#ffffff", "#1a1a1a"), "dark": ("#111111", "#e0e0e0")}

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine"),
]

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>pictures</title>
<style>body {{ background: {ground}; color: {text}; font-family: sans-serif }} {css}</style></head>
<body><main id="main"><h1>pictures</h1>{body}</main></body></html>"""

SCRIPT = """<script type="module">
const state = {state}, calls = {{}};
const model = {{
  get: (key) => state[key],
  set: (key, value) => {{ state[key] = value; }},
  save_changes() {{}},
  on: (event, call) => {{ (calls[event] ??= []).push(call); }},
  off() {{}},
}};
window.state = state;
window.fromPython = (key, value) => {{
  state[key] = value;
  for (const call of calls["change:" + key] || []) call();
}};
const widget = await import("data:text/javascript;base64,{module}");
widget.default.render({{ model, el: document.getElementById("main") }});
window.ready = true;
</script>"""

# texts that lie on each other, or stick out of their picture by more than a pixel
MEASURE = """() => [...document.querySelectorAll("figure > svg, .tpulab-player-picture svg")]
  .flatMap((svg, figure) => {
    const found = [], around = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")]
      .map((text) => [text.textContent, text.getBoundingClientRect()])
      .filter(([text, box]) => text && box.width);
    boxes.forEach(([text, box], index) => {
      if (box.left < around.left - 1 || box.right > around.right + 1 ||
          box.top < around.top - 1 || box.bottom > around.bottom + 1)
        found.push(`${figure}: ${text} sticks out`);
      for (const [other, its] of boxes.slice(index + 1)) {
        const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const high = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (wide > 1 && high > 3) found.push(`${figure}: ${text} and ${other} overlap`);
      }
    });
    return found;
  })"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    yield page
    page.close()
    assert problems == []


def show(page: Any, figures: list[Figure], theme: str) -> None:
    ground, text = THEMES[theme]
    body = "".join(figure.to_html() for figure in figures)
    page.set_content(PAGE.format(ground=ground, text=text, css="", body=body))


def run(page: Any, widget: Any, theme: str = "light") -> None:
    ground, text = THEMES[theme]
    hidden = {"layout", "tabbable", "tooltip"}
    state = {k: v for k, v in widget.get_state().items() if not k.startswith("_")}
    written = json.dumps({k: v for k, v in state.items() if k not in hidden})
    module = base64.b64encode(str(widget._esm).encode()).decode()
    script = SCRIPT.format(state=written.replace("</", "<\\/"), module=module)
    page.set_content(PAGE.format(ground=ground, text=text, css=str(widget._css), body=script))
    page.wait_for_function("window.ready")


def violations(page: Any) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in found]


def all_figures() -> list[Figure]:
    from tests.visual.test_timeline_and_ladder import _Ladder, _Rung

    rungs = tuple(
        _Rung(name, 1e-3 * (1 + number), "a cause in a sentence of ordinary length, " * number)
        for number, name in enumerate(("speed of light", "traffic", "tile padding", "pipeline"))
    )
    crowd = {f"work {number}": 120.0 + number for number in range(12)}
    return [
        blocks_in_motion(matmul_call(512, 128)),
        blocks_in_motion(call_of((256, 128), (256, 128), (), lambda: (0, 0))),
        blocks_in_motion(call_of((8, 128), (8, 128), (1, 1), lambda i, j: (0, 0))),
        blocks_in_motion(call_of((8192, 128), (8, 128), (1024,), lambda i: (i, 0))),
        blocks_in_motion(long_names_call()),
        pipeline_timeline(made_up(1)),
        pipeline_timeline(made_up(1000)),
        ladder_waterfall(_Ladder(rungs)),
        roofline(["v5e"], {"a piece of work with a rather long name": 120.0}, climb=CLIMB),
        roofline(["v2", "v4", "v5e", "v6e", "7x"], crowd),
        roofline(["v5e"], {"tiny": 0.02, "huge": 1e6}),
        *(chip_map(chip) for chip in ("v2", "v5e", "v5p", "v6e", "7x")),
        chip_map("v5e", matmul_call(512, 128)),
        chip_map("7x", long_names_call()),
        chip_map("v5e", matmul_call(512, 128), made_up(10)),
        *(ring_in_motion(gathered(devices)) for devices in (2, 3, 4, 8, 16)),
        *(ring_in_motion(gathered(devices), step=1) for devices in (2, 3, 4, 8, 16)),
        ring_in_motion(through_slots(4), chip="v5e"),
        matmul_roofline(32, 4096, 14336, rhs_dtype="int8", chips=["v4", "v5e", "v5p", "v6e"]),
        tiling_roofline(1024, 2048, 8192, 128, 2048, 512),
        tiling_roofline(16384, 16384, 16384, 128, 128, 128, chip="7x"),
        collective_times("all-gather", 1, (2,)),
        collective_times("all-reduce", 2**44, (16, 16), chip="v6e"),
    ]


def test_no_text_of_any_picture_covers_another(page: Any) -> None:
    figures = all_figures()
    show(page, figures, "light")
    assert page.evaluate(MEASURE) == []
    show(page, figures[::3], "dark")
    assert violations(page) == []


def test_the_measurement_finds_what_it_looks_for(page: Any) -> None:
    drawing = Drawing(60.0, 20.0)
    drawing.text(0, 12, "one word")
    drawing.text(20, 14, "another")
    show(
        page, [Figure("two words", "Two words.", drawing.render("Two words."), ("a",), ())], "dark"
    )
    found = page.evaluate(MEASURE)
    assert "0: one word and another overlap" in found
    assert "0: another sticks out" in found


def test_rounds_by_keyboard_and_button(page: Any) -> None:
    run(page, step_through(gathered(4)))
    slider = page.get_by_label("round", exact=True)
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.get_by_text("Round 2 of 3: every device sends 64 KiB to the next one").wait_for()
    assert page.evaluate("state.step") == 2
    assert "Round 2 of 3" in page.locator(".tpulab-player-picture svg").get_attribute("aria-label")
    assert "Round 2 of 3" in slider.get_attribute("aria-valuetext")
    page.get_by_role("button", name="step on").click()
    assert page.get_by_role("button", name="step on").is_disabled()
    page.evaluate("fromPython('step', 0)")
    page.get_by_text("Before the first round device 0 holds A").wait_for()
    assert page.get_by_role("button", name="step back").is_disabled()
    assert page.evaluate(MEASURE) == []
    assert violations(page) == []


def test_arrow_keys_go_on_after_a_button(page: Any) -> None:
    run(page, step_through(gathered(4)))
    forth = page.get_by_role("button", name="step on")
    forth.click()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("state.step") == 2
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("state.step") == 1
    # whoever came by the keyboard stays on the button, and is not left alone where it ends
    forth.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("state.step") == 1
    for _ in range(2):
        page.keyboard.press("Enter")
    assert forth.is_disabled()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("state.step") == 2


def test_blocks_outside_of_the_array_keep_clear_of_the_text(page: Any) -> None:
    call = call_of((1024, 1536), (512, 512), (2, 3), lambda i, j: (j, i + 2))
    show(page, [blocks_in_motion(call)], "light")
    assert page.evaluate(MEASURE) == []


def test_blocks_play_by_themselves_unless_less_motion_is_wanted(page: Any) -> None:
    widget = step_through(matmul_call(256, 128))
    run(page, widget, "dark")
    page.get_by_role("button", name="play").click()
    page.get_by_text("Step 2 of 8").wait_for(timeout=5000)
    page.get_by_role("button", name="pause").click()
    assert page.locator("[data-frame] rect").count() >= 3
    assert violations(page) == []
    page.emulate_media(reduced_motion="reduce")
    run(page, widget)
    assert page.get_by_role("button", name="play").count() == 0
    assert page.get_by_role("button", name="step on").count() == 1


def test_chips_and_layers_of_the_roofline(page: Any) -> None:
    climb = [(name, intensity, {"v5e": rate, "v6e": rate}) for name, intensity, rate in CLIMB]
    run(page, choose_roofline({"streaming": 1.0}, climb=climb, chips=["v5e", "v6e"]))
    picture = page.locator(".tpulab-player-picture")
    lines = page.locator(".tpulab-player-picture g[data-layers] > line:visible")
    assert lines.count() == 2
    page.get_by_label("256 blocks").uncheck()
    # the line now goes past the version in the middle
    assert lines.count() == 1
    assert picture.locator("circle:visible").count() == 2
    assert page.evaluate("state.hidden") == ["rung1"]
    page.get_by_role("combobox").select_option(label="v6e")
    page.get_by_text("Ridge points in FLOP/byte: v6e").wait_for()
    assert picture.locator("circle:visible").count() == 2
    page.evaluate("fromPython('hidden', [])")
    assert page.get_by_label("256 blocks").is_checked()
    assert picture.locator("circle:visible").count() == 3
    assert page.evaluate(MEASURE) == []
    assert violations(page) == []


def test_the_cursor_reads_the_run(page: Any) -> None:
    run(page, step_through(made_up(10)), "dark")
    page.get_by_label("show").select_option(label="1 step")
    page.evaluate("fromPython('start', 3)")
    # a tenth of the run is on the page, from where the matrix unit starts on the fourth step
    page.evaluate("fromPython('cursor', 0.5)")
    text = page.locator(".tpulab-scroller p").first.inner_text()
    assert text.startswith("At 453 ns: matrix unit on step 4; copying in 0 of step 5")
    page.get_by_label("cursor").focus()
    page.keyboard.press("End")
    text = page.locator(".tpulab-scroller p").first.inner_text()
    assert text == "At 506 ns: matrix unit on step 5; copying in 0 of step 6."
    assert page.evaluate("state.cursor") == 1
    box = page.locator("[data-strip]").get_attribute("viewBox").split()
    assert float(box[0]) > 0
    page.get_by_label("show").select_option(label="all steps")
    assert page.get_by_label("from grid step").is_disabled()
    ticks = page.locator("[data-tick] text").all_text_contents()
    assert (ticks[0], ticks[-1]) == ("0", "1.06 µs")
    assert page.evaluate(MEASURE) == []
    assert violations(page) == []
