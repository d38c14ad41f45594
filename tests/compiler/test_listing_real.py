"""The parser on listings that the compiler writes, for every generation."""

from __future__ import annotations

from typing import Any

import pytest

from tpulab.compiler.listing import parse_listing
from tpulab.simulator.constants import constants_for
from tpulab.simulator.flow import blocks_of
from tpulab.simulator.opcodes import Kind, classify

pytestmark = pytest.mark.needs_libtpu


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "7x"])
def test_listings_of_every_generation(chip: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    from tpulab.compiler import compile as compile_for_chip

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        product = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)
        shifted = product - product.max(axis=-1, keepdims=True)
        o_ref[...] = jnp.exp(shifted).T

    array = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)

    def run(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[
                pl.BlockSpec((128, 256), lambda i: (i, 0)),
                pl.BlockSpec((256, 256), lambda i: (0, 0)),
            ],
            out_specs=pl.BlockSpec((256, 128), lambda i: (0, i)),
            out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32),
        )(x, y)

    program = compile_for_chip(run, array, array, chip=chip)
    texts = [piece.listing_text for piece in program.pieces if piece.has_listing]
    texts.append(program.top_level_text)
    for text in texts:
        listing = parse_listing(text)
        assert listing.render() == text
        # Counted another way: a line that begins with an address, and every separator.
        lines = [line for line in text.splitlines() if line.lstrip().startswith("0")]
        assert len(listing.bundles) == len(lines)
    listing = program.kernels[0].listing
    counts = listing.opcode_counts()
    unknown = [name for name in counts if classify(name).kind is Kind.UNKNOWN]
    unheard = [name for name in counts if not classify(name).known]
    assert unknown == []
    assert unheard == []
    assert any(name.startswith("vmatmul") for name in counts)
    blocks = blocks_of(listing, constants_for(chip).branch_delay_slots)
    assert sum(block.branch for block in blocks) == counts.get("sbr.rel", 0)
