"""The VMEM estimate against the compiler's own allocations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.kernel import sample_kernels as samples
from tpulab.kernel import trace

CASES: list[tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]] = [
    (samples.matmul(256, 256, 256), (jax.ShapeDtypeStruct((512, 512), jnp.float32),) * 2),
    (
        samples.copy_blocks((64, 4, 128), (4,), lambda i: (i, 0, 0)),
        (jax.ShapeDtypeStruct((256, 4, 128), jnp.bfloat16),),
    ),
    (
        samples.copy_blocks((8192,), (4,), lambda i: (i,)),
        (jax.ShapeDtypeStruct((32768,), jnp.float32),),
    ),
    (samples.double_buffered, (jax.ShapeDtypeStruct((64, 128), jnp.float32),)),
    (samples.pipelined_double(4), (jax.ShapeDtypeStruct((32, 256), jnp.float32),)),
]


@pytest.mark.needs_libtpu
@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_estimate_equals_what_the_compiler_allocates(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    from tpulab.compiler import compile as compile_for

    program = compile_for(function, *arguments, chip="v5e")
    assert trace(function, *arguments).vmem_bytes == program.vmem.used_bytes
