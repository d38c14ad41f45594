"""Ladders of functions on several devices: by the link model, with what it leaves out said."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib import resources
from pathlib import Path

import jax
import jsonschema
import numpy as np
import pytest

from tests.kernel import ring_kernels as ring
from tpulab.hardware import get_chip
from tpulab.kernel import TooFewDevices, on_devices, run, start_host_devices
from tpulab.kernel.running import transfers_between
from tpulab.ladder import compare, ladder
from tpulab.ladder_links import _two_to_a_chip
from tpulab.roofline.links import link_time

pytestmark = pytest.mark.needs_libtpu

SCHEMA = json.loads(resources.files("tpulab").joinpath("ladder_schema.json").read_text("utf-8"))
SHARD = 2048 * 128 * 4


@pytest.fixture(scope="module", autouse=True)
def _devices() -> None:
    start_host_devices(8)


def test_two_rungs_by_hand() -> None:
    one = ladder(on_devices(ring.all_gather, 8), "f32[8,2048,128]", chip="v5e")
    assert one.refusal is None, str(one)
    light, links = one.rungs
    assert (light.name, links.name, links.kind) == ("speed of light", "links", "predicted")
    # seven shards into every device, over two links of 45 GB/s; and over one, with 1 us a hop
    assert light.seconds == pytest.approx(7 * SHARD / 90e9)
    assert one.predicted_seconds == pytest.approx(7 * (SHARD / 45e9 + 1e-6))
    assert "8 of 16 ways of the links carry nothing" in links.cause
    assert "each way round" in links.advice
    assert any("not counted" in warning for warning in one.warnings)
    assert one.vmem_bytes is not None
    jsonschema.validate(one.to_json(), SCHEMA)
    text = str(one)
    assert "links" in text
    assert "judged by the link model" in text
    assert "<table>" in one._repr_html_()
    both = ladder(on_devices(ring.all_gather_both_ways, 8), "f32[8,2048,128]", chip="v5e")
    assert "times as fast" in str(compare(one, both))


def test_a_chip_of_two_devices_is_said_to_be_one() -> None:
    said = _two_to_a_chip(get_chip("7x"))
    assert "a 7x chip is 2 devices, which share its links" in said[0]
    assert _two_to_a_chip(get_chip("v5e")) == ()


def test_a_deadlock_is_a_refusal_with_the_wait() -> None:
    one = ladder(on_devices(ring.gather_with_a_silent_device, 4), "f32[4,8,128]", chip="v5e")
    assert one.refusal is not None
    assert one.refusal.stage == "simulate"
    assert "device 1 waits for a copy that no device sends" in one.refusal.reason


def test_more_devices_than_there_are() -> None:
    function = on_devices(ring.shift, 32)
    one = ladder(function, "f32[32,8,128]", chip="v5e")
    assert one.refusal is not None
    assert "start_host_devices(32)" in one.refusal.reason
    with pytest.raises(TooFewDevices, match="runs on 32 devices"):
        run(function, np.zeros((32, 8, 128), np.float32), mode="faithful")


def test_kernels_of_jax_on_a_mesh_without_devices() -> None:
    """JAX's own all-gather: half of each shard each way round, in n - 1 rounds."""
    from tests.kernels_in_jax.all_gather import all_gather

    x = np.zeros((64, 128), np.float32)
    transfers = transfers_between(all_gather, x)
    assert len(transfers) == 2 * 4 * 3
    assert {one.size_bytes for one in transfers} == {8 * 128 * 4}
    assert max(one.round for one in transfers) == 3
    found = link_time(transfers, "v5e", 4)
    assert found.unused_links == ()
    assert found.bandwidth_seconds == pytest.approx(3 * 8 * 128 * 4 / 45e9)


def test_two_mesh_axes_are_refused_in_words() -> None:
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec("x", "y")

    def both_axes(x: jax.Array) -> jax.Array:
        return jax.shard_map(
            _shift_along_y, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )(x)

    one = ladder(both_axes, "f32[16,256]", chip="v5e")
    assert one.refusal is not None
    assert "x: 2 × y: 2" in one.refusal.reason


def _shift_along_y(x: jax.Array) -> jax.Array:
    from jax import lax
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref, o_ref, send, recv):
        peer = (lax.axis_index("x"), 1 - lax.axis_index("y"))
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id=peer)
        copy.start()
        copy.wait()

    return ring.call(kernel, x, x.shape, [pltpu.SemaphoreType.DMA] * 2, collective_id=None)


def test_the_command_on_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rings.py"
    file.write_text(
        textwrap.dedent(
            """
            import jax, jax.numpy as jnp
            import tpulab
            from tests.kernel.ring_kernels import all_gather_both_ways

            gather = tpulab.on_devices(all_gather_both_ways, 8)


            def make_args():
                return (jax.ShapeDtypeStruct((8, 512, 128), jnp.float32),)
            """
        )
    )
    command = [sys.executable, "-m", "tpulab", "ladder", f"{file}:gather", "--json"]
    done = subprocess.run(
        [*command, "--chip", "v5e"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[2],
        env={**__import__("os").environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    entry = json.loads(done.stdout)["chips"]["v5e"]
    jsonschema.validate(json.loads(done.stdout), SCHEMA)
    shard = 512 * 128 * 4
    assert entry["predicted_seconds"] == pytest.approx(4 * (shard / 45e9 + 1e-6))
