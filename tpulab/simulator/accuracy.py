"""How far the prediction is from times that others measured on real chips.

``python -m tpulab.simulator.accuracy`` compiles each kernel, runs it here and prints what was
published, what is predicted, and what the plain roofline says. The rows are in ``measured.csv``,
with the ids of their source. Wall-clock rows contain the time to hand the call to the device, which
is taken off (``DISPATCH_SECONDS``).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tpulab.simulator.constants import constants_for
from tpulab.simulator.options import Options
from tpulab.simulator.running import simulate

DISPATCH_SECONDS = 110e-6
"""What a wall-clock row of the JAX documentation contains besides the kernel: its smallest rows, of
0.12 ms, are nearly all of it."""


@dataclass(frozen=True)
class Row:
    """A published time.

    Attributes:
        id: identifier of the row.
        source: where it was published.
        chip: the chip.
        kernel: what ran.
        shape: problem size, as published.
        blocks: block sizes, as published.
        seconds: time on the device, dispatch taken off.
        dispatch_share: part of the published time that was taken off.
    """

    id: str
    source: str
    chip: str
    kernel: str
    shape: str
    blocks: str
    seconds: float
    dispatch_share: float


@dataclass(frozen=True)
class Result:
    """A published time beside its prediction.

    Attributes:
        row: the published time.
        predicted_seconds: what the simulator says.
        roofline_seconds: the larger of work over peak and of unique bytes over bandwidth.
        limiting_unit: what limits, according to the simulator.
        steps_per_second: how many grid steps were simulated per second of wall clock.
    """

    row: Row
    predicted_seconds: float
    roofline_seconds: float
    limiting_unit: str
    steps_per_second: float

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted_seconds / self.row.seconds - 1

    @property
    def error_with_dispatch(self) -> float:
        """Signed relative error against the time as published, dispatch put back in."""
        published = self.row.seconds / (1 - self.row.dispatch_share)
        return (self.predicted_seconds + published * self.row.dispatch_share) / published - 1

    @property
    def roofline_error(self) -> float:
        """Signed relative error of the roofline."""
        return self.roofline_seconds / self.row.seconds - 1


def rows() -> tuple[Row, ...]:
    """The published times that there is a kernel for."""
    text = files("tpulab.simulator").joinpath("measured.csv").read_text(encoding="utf-8")
    found = []
    for line in csv.DictReader(text.splitlines()):
        value = float(line["value"])
        taken_off = 0.0
        if line["metric"] == "wall_time":
            published = value * {"us": 1e-6, "ms": 1e-3}[line["unit"]]
            taken_off = DISPATCH_SECONDS
            seconds = published - taken_off
        elif line["unit"] == "% of 819 GB/s":
            published = seconds = 2 * 2 * _elements(line["shape"]) / (value / 100 * 819e9)
        else:
            raise ValueError(f"row {line['id']}: no rule for {line['metric']} in {line['unit']}")
        found.append(
            Row(
                line["id"],
                line["source"],
                line["chip"],
                line["kernel"],
                line["shape"],
                line["blocks"],
                seconds,
                taken_off / published,
            )
        )
    return tuple(found)


def _elements(shape: str) -> int:
    count = 1
    for size in shape.strip("()").replace(",", "x").split("x"):
        count *= int(size)
    return count


def matmul(
    size: int, blocks: tuple[int, int, int], *, transposed: bool = False, activation: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The matrix product of the JAX documentation's guide: 3-D grid, float32 accumulator in VMEM.

    Args:
        size: rows, columns and depth.
        blocks: block sizes (m, k, n).
        transposed: whether the right operand is stored transposed.
        activation: whether a ReLU follows in the last step.

    Returns:
        the function and the shapes of its arguments.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    block_m, block_k, block_n = blocks
    dimensions = (((1,), (1 if transposed else 0,)), ((), ()))

    def kernel(x_ref: Any, y_ref: Any, z_ref: Any, accumulator: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _clear() -> None:
            accumulator[...] = jnp.zeros_like(accumulator)

        accumulator[...] += jax.lax.dot_general(
            x_ref[...], y_ref[...], dimensions, preferred_element_type=jnp.float32
        )

        @pl.when(pl.program_id(2) == size // block_k - 1)
        def _store() -> None:
            value = accumulator[...]
            z_ref[...] = (jax.nn.relu(value) if activation else value).astype(z_ref.dtype)

    if transposed:
        right = pl.BlockSpec((block_n, block_k), lambda i, j, k: (j, k))
    else:
        right = pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j))

    def product(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(size // block_m, size // block_n, size // block_k),
            in_specs=[pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)), right],
            out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((size, size), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary")
            ),
        )(x, y)

    operand = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    return product, (operand, operand)


def rowwise(
    kind: str, shape: tuple[int, int], block_shape: tuple[int, int]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A kernel over rows: ``"scale"``, ``"softmax"`` or ``"rmsnorm"``, bfloat16 in and out."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x_ref: Any, z_ref: Any) -> None:
        value = x_ref[...]
        if kind != "scale":
            value = value.astype(jnp.float32)
        if kind == "scale":
            value = value * 2
        elif kind == "softmax":
            value = jnp.exp(value - value.max(axis=-1, keepdims=True))
            value = value / value.sum(axis=-1, keepdims=True)
        else:
            value = value * jax.lax.rsqrt((value * value).mean(axis=-1, keepdims=True) + 1e-6)
        z_ref[...] = value.astype(z_ref.dtype)

    spec = pl.BlockSpec(block_shape, lambda i, j: (i, j))
    array = jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def run(x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(shape[0] // block_shape[0], shape[1] // block_shape[1]),
            in_specs=[spec],
            out_specs=spec,
            out_shape=array,
        )(x)

    return run, (array,)


def kernel_of(row: Row) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The kernel that a row measured, written anew from its description."""
    if "matmul" in row.kernel:
        size = int(row.shape.split("x")[0])
        if "bm=bk=bn=" in row.blocks:
            side = int(row.blocks.rsplit("=", 1)[1])
            blocks = (side, side, side)
        else:
            named = dict(part.split("=") for part in row.blocks.split())
            blocks = (int(named["bm"]), int(named["bk"]), int(named["bn"]))
        return matmul(
            size,
            blocks,
            transposed="transposed" in row.kernel,
            activation="activation" in row.kernel,
        )
    shape = tuple(int(part) for part in row.shape.strip("()").replace(",", "x").split("x"))
    kind = row.kernel.split()[1]
    # The rows of softmax give 128 rows a block; of rmsnorm nothing is said.
    block = (512, 1024) if kind == "scale" else (128, shape[1])
    return rowwise(kind, (shape[0], shape[1]), block)


def roofline_seconds(row: Row) -> float:
    """The plain roofline: the larger of operations over peak and of unique bytes over bandwidth."""
    constants = constants_for(row.chip)
    if "matmul" in row.kernel:
        size = int(row.shape.split("x")[0])
        compute = 2 * size**3 / constants.peak_flops_per_second["bfloat16"]
        return max(compute, 3 * 2 * size**2 / constants.hbm_bytes_per_second)
    return 2 * 2 * _elements(row.shape) / constants.hbm_bytes_per_second


def predict(row: Row, options: Options | None = None) -> Result:
    """Compile a row's kernel and predict its time.

    Raises:
        TpulabError: it can't be compiled or simulated.
    """
    import time

    from tpulab.compiler import compile as compile_for_chip

    function, arguments = kernel_of(row)
    program = compile_for_chip(function, *arguments, chip=row.chip)
    start = time.perf_counter()
    timeline = simulate(program, options=options or Options(deadline_seconds=300))
    elapsed = time.perf_counter() - start
    return Result(
        row,
        timeline.seconds,
        roofline_seconds(row),
        timeline.limiting_unit,
        timeline.steps / elapsed,
    )


def table(results: Iterable[Result]) -> str:
    """The results as text, one line a row."""
    lines = [
        f"{'row':8} {'kernel':40} {'size':>15} {'published':>10} {'predicted':>10} {'error':>7} "
        f"{'roofline':>10} {'error':>7}  {'dispatch was':>12} {'with it':>8}"
    ]
    for result in results:
        row = result.row
        lines.append(
            f"{row.id:8} {row.kernel[:24] + ' ' + row.blocks[:15]:40} {row.shape[:15]:>15} "
            f"{row.seconds * 1e3:>7.3f} ms {result.predicted_seconds * 1e3:>7.3f} ms "
            f"{result.error:>+7.1%} {result.roofline_seconds * 1e3:>7.3f} ms "
            f"{result.roofline_error:>+7.0%}  {row.dispatch_share:>12.0%} "
            f"{result.error_with_dispatch:>+8.1%}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table for all rows, or for those whose ids are given."""
    wanted = set(sys.argv[1:] if arguments is None else arguments)
    results = []
    for row in rows():
        if wanted and row.id not in wanted:
            continue
        results.append(predict(row))
        print(table(results).splitlines()[-1] if len(results) > 1 else table(results), flush=True)
    if results:
        errors = sorted(abs(result.error) for result in results)
        print(
            f"median error {errors[len(errors) // 2]:.1%}, largest {errors[-1]:.1%}; "
            f"{sum(error <= 0.1 for error in errors)} of {len(errors)} within 10 %"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
