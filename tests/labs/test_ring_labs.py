"""What is special to labs 30 and 31: devices are started first, and who judges is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpulab.classroom.release import labs, released_notebook

ROOT = Path(__file__).resolve().parents[2]
RINGS = [lab for lab in labs(ROOT) if lab.name[:2] in ("30", "31")]


@pytest.mark.parametrize("lab", RINGS, ids=[lab.name for lab in RINGS])
def test_host_devices_start_before_jax_is_used(lab) -> None:
    code = [cell for cell in released_notebook(lab)["cells"] if cell["cell_type"] == "code"]
    parameters, imports = code[:2]
    assert "jax" not in parameters["source"]
    lines = imports["source"].splitlines()
    start = next(i for i, line in enumerate(lines) if "start_host_devices(8)" in line)
    assert not any("jax" in line for line in lines[:start])


@pytest.mark.parametrize("lab", RINGS, ids=[lab.name for lab in RINGS])
def test_the_lab_says_that_a_model_of_the_links_judges_speed(lab) -> None:
    first = released_notebook(lab)["cells"][0]["source"]
    assert "model of" in first
    assert "until many chips are simulated" in first.replace("\n", " ")
