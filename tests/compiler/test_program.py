from __future__ import annotations

import pickle
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

from tests.compiler import kernels
from tests.compiler.kernels import spec
from tpulab.compiler import compiler_version
from tpulab.hardware import chips, get_chip

pytestmark = pytest.mark.needs_libtpu
CHIPS = [chip.name for chip in chips()]


@pytest.mark.parametrize("chip", CHIPS)
def test_matmul_on_every_chip(compiler, chip):
    # v2 and v3 take no bfloat16 operands in kernels
    dtype, name, size = (
        (jnp.float32, "f32", 4) if chip in ("v2", "v3") else (jnp.bfloat16, "bf16", 2)
    )
    function, arguments = kernels.matmul(4096, 256, dtype)
    program = compiler.compile(function, *arguments, chip=chip)
    assert program.chip == chip
    assert program.compiler_version == compiler_version()
    assert [piece.kind for piece in program.pieces] == ["kernel"]
    (piece,) = program.pieces
    assert piece.calls == 1
    assert piece.calls_exact
    assert [str(shape) for shape in piece.operand_shapes] == [f"{name}[4096,4096]"] * 2
    assert [shape.memory_space for shape in piece.result_shapes] == ["hbm"]

    # an independent count: every line of the listing that has an address is a bundle
    text = piece.listing_text
    addresses = re.findall(r"^ *(0x[0-9a-f]+|0) [ A-Z]*:", text, re.MULTILINE)
    assert len(piece.listing.bundles) == len(addresses) == piece.slots.bundles
    matmuls = len(re.findall(r"= vmatmul", text))
    assert 0 < matmuls <= piece.slots.used["MXU"]

    # three windows twice, and the accumulator, to the byte
    windows = 3 * 2 * 256 * 256 * size
    scratch = 256 * 256 * 4
    vmem = program.vmem
    assert vmem.used_bytes == windows + scratch + vmem.spill_bytes
    assert vmem.used_bytes == sum(a.size_bytes for a in vmem.allocations)
    assert vmem.limit_bytes == get_chip(chip).core.default_scoped_vmem_bytes
    assert [a.kind for a in vmem.allocations if a.kind != "spill"].count("input window") == 2

    assert program.memory["argument_bytes"] == 2 * 4096 * 4096 * size
    assert program.memory["output_bytes"] == 4096 * 4096 * size
    assert program.seconds_to_compile > 0


def test_spills_and_pressure_agree_with_the_listing(compiler):
    function, arguments = kernels.matmul(4096, 512)
    program = compiler.compile(function, *arguments, chip="v5e")
    text = program.pieces[0].listing_text
    stores = len(re.findall(r"= vst \[vmem:\[#allocation\d+_spill", text))
    fills = len(re.findall(r"= vld \[vmem:\[#allocation\d+_spill", text))
    assert (program.spill_stores, program.spill_fills) == (stores, fills)
    assert program.spills == stores + fills > 0
    assert program.register_pressure > 64
    # a spilled register is 4 KiB
    assert program.vmem.spill_bytes % 4096 == 0
    small = compiler.compile(kernels.add_one, spec(8, 128), chip="v5e")
    assert small.spills == 0
    assert 1 <= small.register_pressure <= 64


def test_source_lines_follow_the_source(compiler):
    source = (
        "import jax\nfrom jax.experimental import pallas as pl\n"
        "def kernel(x_ref, o_ref):\n    x = x_ref[...]\n    o_ref[...] = x * 2.5\n"
        "def f(x):\n    return pl.pallas_call(kernel, out_shape=x)(x)\n"
    )

    def lines(text: str, name: str) -> tuple[set[int], bool]:
        scope: dict[str, object] = {}
        exec(compile(text, name, "exec"), scope)
        program = compiler.compile(scope["f"], spec(8, 128), chip="v5e")
        ops = [op for bundle in program.pieces[0].listing.bundles for op in bundle.ops]
        assert name.rpartition("/")[2] in program.pieces[0].listing_text
        assert "/somewhere" not in program.pieces[0].listing_text
        return {op.source_line for op in ops if op.source_line}, program.from_cache

    assert lines(source, "/somewhere/one.py") == ({4, 5}, False)
    # the cached listing gets the new lines
    assert lines("# moved\n" * 3 + source, "/somewhere/else.py") == ({7, 8}, True)


@pytest.mark.slow
def test_pieces_come_in_the_order_of_execution(compiler):
    program = compiler.compile(kernels.many_pieces, spec(256, 256), spec(256, 256), chip="v5e")
    pieces = program.pieces
    called = [piece.calls for piece in program.kernels]
    assert called == [1, 1, 7, 1, 5]
    exact = [piece.calls_exact for piece in program.kernels]
    assert exact == [True, True, True, False, True]
    # equal kernels share a listing; the first reads HBM and is another program
    assert len({piece.listing_name for piece in program.kernels}) == 2
    assert pieces[0].kind == "kernel"
    sort = next(i for i, piece in enumerate(pieces) if piece.opcode == "sort")
    assert all(i < sort for i, piece in enumerate(pieces) if piece.kind == "kernel")
    for piece in pieces:
        if piece.has_listing:
            assert piece.listing.bundles
        else:
            assert piece.listing_text == ""
            with pytest.raises(ValueError, match="no bundle listing"):
                _ = piece.listing
    # the top level calls the pieces that have listings, in this order
    names = re.findall(r"inlined_call[^\n]*/\* %(\S+) = ", program.top_level_text)
    with_listing = [piece.name for piece in pieces if piece.has_listing]
    assert [name for name in with_listing if name in names] == [
        name for name in names if name in with_listing
    ]
    assert set(with_listing) == set(names)


def test_the_limit_a_kernel_asks_for_is_reported(compiler):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    def large(x):
        parameters = pltpu.CompilerParams(vmem_limit_bytes=40 << 20)
        return pl.pallas_call(kernel, out_shape=spec(2048, 2048), compiler_params=parameters)(x)

    program = compiler.compile(large, spec(2048, 2048), chip="v5e")
    assert program.vmem.limit_bytes == 40 << 20
    assert program.vmem.used_bytes == 32 << 20
    assert program.vmem.capacity_bytes == 128 << 20


@pytest.mark.parametrize("chip", ["v5e", "7x"])
def test_remote_copies_over_a_mesh(compiler, chip):
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    for function, options in (
        (kernels.ring_on(mesh), {}),
        (kernels.ring_on(None), {"mesh": {"x": 4}}),
    ):
        program = compiler.compile(function, spec(32, 128), chip=chip, **options)
        assert program.devices == 4
        kernel = program.kernels[0]
        assert [shape.shape for shape in kernel.operand_shapes] == [(8, 128)]
        assert "dma.general" in kernel.listing_text or "vsyncadd" in kernel.listing_text
        # arguments lie where shard_map wants them: XLA adds no collective and no slice, at most
        # copies between HBM and VMEM
        assert {piece.opcode for piece in program.pieces} <= {
            "custom-call",
            "copy",
            "copy-start",
            "copy-done",
        }


def test_more_devices_than_the_usual_topology(compiler):
    mesh = AbstractMesh((16,), ("x",), axis_types=(AxisType.Auto,))
    program = compiler.compile(kernels.ring_on(mesh), spec(128, 128), chip="v5e")
    assert program.devices == 16
    assert program.kernels[0].operand_shapes[0].shape == (8, 128)
    grid = AbstractMesh((2, 2), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        kernels.add_one,
        mesh=grid,
        in_specs=jax.sharding.PartitionSpec("y", "x"),
        out_specs=jax.sharding.PartitionSpec("y", "x"),
        check_vma=False,
    )
    program = compiler.compile(mapped, spec(64, 512), chip="v4")
    assert program.devices == 4
    assert program.kernels[0].operand_shapes[0].shape == (32, 256)


def test_no_kernel_and_no_argument(compiler):
    plain = compiler.compile(lambda x: jnp.sin(x) @ x, spec(256, 256), chip="v5e")
    assert plain.kernels == ()
    assert plain.pieces
    assert plain.vmem.used_bytes == 0
    assert (plain.spills, plain.register_pressure) == (0, 0)
    constant = compiler.compile(lambda: jnp.ones((8, 128)), chip="v5e")
    assert constant.memory["argument_bytes"] == 0


def test_a_program_can_be_sent_to_another_process(compiler):
    function, arguments = kernels.matmul(1024, 256)
    program = compiler.compile(function, *arguments, chip="v5e")
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    assert again.pieces[0].listing_text == program.pieces[0].listing_text
    assert "matmul" not in repr(program) or len(repr(program)) < 200


def test_no_path_of_this_machine_in_what_is_kept(compiler):
    function, arguments = kernels.matmul(1024, 256)
    program = compiler.compile(function, *arguments, chip="v5e")
    assert "stack_frame_id" not in program.hlo_text
    assert "FileNames" not in program.hlo_text
    assert program.hlo.entry


def test_sixty_four_bit_arrays_around_a_kernel(compiler):
    def wide(x, n):
        return kernels.add_one(x.astype(jnp.float32)) + n

    with jax.enable_x64(True):
        arguments = spec(8, 128, dtype=jnp.float64), spec(dtype=jnp.int64)
        program = compiler.compile(wide, *arguments, chip="v5e")
    assert program.memory["argument_bytes"] >= 8 * 128 * 8
    assert program.kernels
