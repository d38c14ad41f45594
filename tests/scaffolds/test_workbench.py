"""What the written files call, against values worked by hand."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from tpulab.errors import TpulabError
from tpulab.scaffolds import workbench
from tpulab.scaffolds.workbench import CheckFailed


def double(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def leaves_half_unwritten(x):
    def kernel(x_ref, out_ref):
        out_ref[:4] = 2 * x_ref[:4]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


def test_agreement_is_said_and_the_first_wrong_element_is_named(capsys):
    workbench.agree(double, [X], 2.0 * X)
    assert "✓ float32[8,128]: equals the oracle (fast and faithful" in capsys.readouterr().out
    want = 2.0 * X
    want[3, 5] += 1
    with pytest.raises(CheckFailed, match=r"1 of 1,024 elements are wrong; at \[3, 5\]") as caught:
        workbench.agree(double, [X], want)
    assert "it is 778 and should be 779" in str(caught.value)
    workbench.agree(double, [X], want, rtol=2 / 779)
    with pytest.raises(CheckFailed, match="the oracle's is"):
        workbench.agree(double, [X], want[:4])


def test_what_nothing_has_written_is_not_right_by_luck():
    with pytest.raises(CheckFailed, match=r"512 of 1,024 elements are wrong; at \[4, 0\].*nan"):
        workbench.agree(leaves_half_unwritten, [X], 2.0 * X)
    with pytest.raises(CheckFailed, match="never written"):
        workbench.agree(leaves_half_unwritten, [X], 2.0 * X, modes=("faithful",))


def test_a_broken_rule_is_told_before_the_compiler_is_asked():
    from tpulab.exercises.known_wrong.grids import row_sums_parallel

    shape = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)]
    with pytest.raises(CheckFailed, match="v5p: out_ref carries a value.*marked parallel"):
        workbench.accepted(row_sums_parallel, shape, "v5p")


@pytest.mark.needs_libtpu
def test_what_the_compiler_says_of_vmem_is_told(capsys):
    workbench.accepted(double, [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)], "v5e")
    # without a grid both arrays of 4 MiB lie in VMEM whole
    assert (
        "✓ v5e: the compiler takes it; 8 MiB of 16 MiB of VMEM, no spills"
        in capsys.readouterr().out
    )
    with pytest.raises(TpulabError, match="(?i)vmem"):
        workbench.accepted(double, [jax.ShapeDtypeStruct((8192, 1024), jnp.float32)], "v5e")


def test_measured_on_this_chip_only(monkeypatch, capsys):
    from tpulab.grading import measuring

    shape = [jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)]
    assert workbench.measured_seconds(double, shape, "v5e") is None
    assert "no TPU" in capsys.readouterr().out
    monkeypatch.setattr(measuring, "on_tpu", lambda: True)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="TPU v6 lite")])
    assert workbench.measured_seconds(double, shape, "v5e") is None
    assert "this machine's TPU is a v6e" in capsys.readouterr().out
    seconds = workbench.measured_seconds(lambda x: x + 1, shape, "v6e")
    assert seconds is not None
    assert 0 < seconds < 1


def test_time_on_links_is_that_of_the_arrays_asked_for(monkeypatch):
    import tpulab
    from tpulab.hardware import get_chip
    from tpulab.kernel import RunReport, Transfer

    # two rounds of a ring of four, one way; 4 KiB each on the small arrays
    transfers = tuple(
        Transfer(4 * round_ + device, round_, device, (device + 1) % 4, 4096, None, "")
        for round_ in (1, 2)
        for device in range(4)
    )
    monkeypatch.setattr(
        tpulab,
        "run",
        lambda *a, **k: (None, RunReport(transfers=transfers, devices=4)),
        raising=False,
    )
    small = [np.zeros((4, 8, 128), np.float32)]
    text = workbench.time_on_links(
        double, small, [jax.ShapeDtypeStruct((4, 8, 1280000), "f4")], "v5e"
    )
    ici = get_chip("v5e").ici
    seconds = 2 * 4096 * 10_000 / ici.link_bandwidth_bytes_per_second
    assert f"{seconds * 1e3:.2f} ms for bytes" in text
    assert f"{2 * ici.hop_latency_seconds * 1e6:.2f} µs for hops" in text
    assert "in 2 rounds" in text
    assert "4 of 8 links carry nothing" in text
