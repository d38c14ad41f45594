"""Work of a kernel's body over its whole grid: matrix products, vector arithmetic, copies.

The body's jaxpr is walked once for all grid steps. Scalars (program ids, loop counters, values from
scalar prefetch) are carried along by ``evaluate``; a ``cond`` on them (``pl.when``) splits the
steps into those that take a branch and those that don't, exactly. What hangs on data counts as
done, and a note says so.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tpulab.kernel import jax_internals, loops, unrolling
from tpulab.kernel.evaluate import UNKNOWN, evaluate, is_known, lanes_of
from tpulab.kernel.instructions import Instruction, Programs
from tpulab.kernel.memory import MemoryWalk, Tally
from tpulab.kernel.model import KernelFacts, Matmul, Scratch
from tpulab.kernel.refs import Ref, make_ref, scratch_of

#: Equations that may be evaluated, per call, to follow loops iteration by iteration.
LOOP_BUDGET = 300_000

#: Equations beyond which a loop is worth compiling; compiling costs a tenth of a second.
COMPILE_FROM = 10_000

_TRANSCENDENTAL = frozenset({
    "exp", "exp2", "log", "log1p", "expm1", "logistic", "tanh", "sin", "cos", "tan", "sinh",
    "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2", "sqrt", "rsqrt", "cbrt",
    "erf", "erfc", "erf_inv", "pow", "digamma", "lgamma", "reciprocal",
})  # fmt: skip
_ARITHMETIC = frozenset({
    "add", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", "sign", "floor", "ceil",
    "round", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "select_n", "clamp",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "square", "is_finite",
    "nextafter", "add_any", "population_count",
})  # fmt: skip
_REDUCTIONS = frozenset({
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
    "argmax", "argmin", "reduce_xor", "cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp",
})  # fmt: skip
_WIDE = frozenset({"int64", "uint64", "float64"})


def matmul_shape(instruction: Instruction) -> tuple[int, int, int, int]:
    """(batch, m, k, n) of a ``dot_general``."""
    dimensions = instruction.params["dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimensions
    lhs, rhs = instruction.input_shape(0), instruction.input_shape(1)
    batch = math.prod(lhs[axis] for axis in lhs_batch)
    depth = math.prod(lhs[axis] for axis in lhs_contract)
    skip_lhs, skip_rhs = {*lhs_contract, *lhs_batch}, {*rhs_contract, *rhs_batch}
    rows = math.prod(size for axis, size in enumerate(lhs) if axis not in skip_lhs)
    columns = math.prod(size for axis, size in enumerate(rhs) if axis not in skip_rhs)
    return batch, rows, depth, columns


class Counter(MemoryWalk):
    """Walks a kernel's body for a set of grid steps.

    Args:
        coordinates: int array [steps, grid rank] of the steps to count.
        grid: the grid's bounds. vmapped_dims: axes that ``program_id`` doesn't see.
        programs: shared between counters of one kernel, so that it is read once.
        axis_names: names of grid axes, for ``axis_index``.
    """

    def __init__(
        self,
        coordinates: np.ndarray,
        grid: tuple[int, ...],
        vmapped_dims: tuple[int, ...],
        programs: Programs | None = None,
        axis_names: tuple[str | None, ...] = (),
    ) -> None:
        self.steps = coordinates.shape[0]
        self.grid = grid
        self.axes = [axis for axis in range(len(grid)) if axis not in vmapped_dims]
        self.axis_names = axis_names
        self.coordinates = coordinates.astype(np.int32)
        self.programs = programs if programs is not None else Programs()
        self.budget = LOOP_BUDGET
        # in sequential mode, the step that is walked; otherwise all steps are lanes at once
        self.offset = 0
        self.lanes = self.steps
        zeros = np.zeros(self.steps, np.int64)
        self.tally = Tally(zeros, zeros.copy(), zeros.copy())
        self.notes: dict[str, None] = {}
        # conditions and trip counts that could not be evaluated
        self.unresolved = 0
        # nesting of bodies that stand for many iterations, or whose execution depends on data
        self.summarised = 0
        self.conditional = 0
        # how often each branch of a condition runs, within a loop that XLA has followed
        self.decisions: dict[int, list[np.ndarray]] = {}
        self.smem_written = False
        self.scoped: dict[tuple[Any, ...], Scratch] = {}
        self.wide: dict[tuple[str, str | None], None] = {}
        self.any_accesses: dict[tuple[str, str | None], None] = {}
        self.smem_vector: dict[tuple[str, str | None], None] = {}
        self.vmem_scalar: dict[tuple[str, str | None], None] = {}
        self._control: dict[int, tuple[bool, int, Any]] = {}

    def count(self, kernel: Any, refs: Sequence[Ref]) -> None:
        """Walk the body for all steps at once."""
        with np.errstate(all="ignore"):
            self.walk(kernel, list(refs), np.ones(1, np.int64))

    def count_sequentially(self, kernel: Any, refs: Sequence[Ref]) -> bool:
        """Walk the body step by step, following its SMEM; False when that takes too long."""
        self.lanes = 1
        with np.errstate(all="ignore"):
            for step in range(self.steps):
                if self.budget < 0:
                    return False
                self.offset = step
                for ref in refs:
                    ref.written = None
                self.walk(kernel, list(refs), np.ones(1, np.int64))
        return True

    def walk(self, jaxpr: Any, arguments: Sequence[Any], weight: np.ndarray) -> list[Any]:
        """Count one jaxpr.

        Args:
            jaxpr: open or closed. arguments: values of its invars (the constants of a closed jaxpr
                are taken from it). weight: int array [lanes] or [1], how often it runs.

        Returns:
            The values of its results.
        """
        program = self.programs(jaxpr)
        values = list(arguments)
        if len(values) < len(program.names):
            values = [*(lanes_of(constant) for constant in program.constants), *values]
        environment: dict[Any, Any] = dict(zip(program.names, values, strict=False))
        # an operation on many lanes costs more than its fixed overhead
        self.budget -= len(program.instructions) * (1 + self.lanes // 4096)
        for ins in program.instructions:
            inputs = [
                literal if variable is None else environment.get(variable, UNKNOWN)
                for variable, literal in zip(ins.inputs, ins.literals, strict=True)
            ]
            outputs = self._run(ins, inputs, weight)
            for variable, value in zip(ins.outputs, outputs, strict=False):
                environment[variable] = value
        return [
            literal if variable is None else environment.get(variable, UNKNOWN)
            for variable, literal in zip(program.results, program.result_literals, strict=True)
        ]

    def _run(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        handler = _HANDLERS.get(ins.name)
        if handler is not None:
            return handler(self, ins, inputs, weight)
        if ins.price is None:
            ins.price = self._price(ins)
        kind, amount = ins.price
        if kind == "call":
            return self._call(ins, inputs, weight)
        if amount:
            target = self.tally.vpu if kind == "vpu" else self.tally.transcendental
            self._add(target, weight, amount)
        return evaluate(ins, inputs)

    def _price(self, ins: Instruction) -> tuple[str, int]:
        """("vpu", "transcendental", "call" or "", amount) of one run of an equation."""
        name, shape = ins.name, ins.out_shape
        if any(True for _ in jax_internals.inner_jaxprs(ins.params)):
            return "call", 0
        if ins.out_dtype in _WIDE and name != "convert_element_type":
            self.wide[ins.out_dtype, ins.place] = None
        size = math.prod(shape)
        if name in _REDUCTIONS:
            return "vpu", math.prod(ins.input_shape(0))
        if not shape:
            return "", 0  # scalars are the scalar core's business
        if name in _TRANSCENDENTAL:
            return "transcendental", size
        if name in _ARITHMETIC:
            return "vpu", size
        if name == "integer_pow":
            power = abs(int(ins.params["y"]))
            # square and multiply, as jax's own estimate counts it
            return "vpu", size * max(0, power.bit_length() - 1 + power.bit_count() - 1)
        if name == "conv_general_dilated":
            return "vpu", 2 * size * math.prod(ins.input_shape(1)[1:])
        return "", 0

    @contextlib.contextmanager
    def _summary(self, *, conditional: bool = False) -> Iterator[None]:
        """A body that is walked once for many runs; conditional: it may not run at all."""
        self.summarised += 1
        self.conditional += conditional
        yield
        self.summarised -= 1
        self.conditional -= conditional

    def _looks(self, jaxpr: Any) -> tuple[bool, int]:
        """(iterations can differ, what one costs to follow)."""
        held = self._control.get(id(jaxpr))
        if held is None:
            cost = loops.equation_count(jaxpr) * (1 + self.lanes // 4096)
            held = self._control[id(jaxpr)] = (loops.has_control(jaxpr), cost, jaxpr)
        return held[0], held[1]

    # -- scalars ---------------------------------------------------------------------------------

    def _program_id(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        return [self._coordinate(self.axes[ins.params["axis"]])]

    def _coordinate(self, axis: int) -> np.ndarray:
        if self.lanes == 1:
            return self.coordinates[self.offset : self.offset + 1, axis]
        return self.coordinates[:, axis]

    def _num_programs(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        return [np.array([self.grid[self.axes[ins.params["axis"]]]], np.int32)]

    def _axis_index(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        name = ins.params.get("axis_name")
        if name in self.axis_names:
            return [self._coordinate(self.axis_names.index(name))]
        self.note("counted as the first device of the mesh")
        return [np.zeros(1, np.int32)]

    # -- matrix products -------------------------------------------------------------------------

    def _dot(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        batch, rows, depth, columns = matmul_shape(ins)
        self._add(self.tally.mxu, weight, 2 * batch * rows * depth * columns)
        precision = ins.params.get("precision")
        if isinstance(precision, tuple):
            precision = precision[0]
        name = None if precision is None else str(getattr(precision, "name", precision)).upper()
        dtypes = ins.input_dtype(0), ins.input_dtype(1), ins.out_dtype
        key = (rows, depth, columns, batch, *dtypes, name, ins.place)
        self.tally.matmuls[key] = self.tally.matmuls.get(key, 0) + self._total(weight)
        return [UNKNOWN]

    # -- control ---------------------------------------------------------------------------------

    def _cond(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        branches = ins.params["branches"]
        index, operands = inputs[0], inputs[1:]
        decided = self.decisions.get(id(ins))
        if decided is not None:
            for branch, often in zip(branches, decided, strict=True):
                if often.any():
                    self.walk(branch, operands, often)
            return [UNKNOWN] * len(ins.outputs)
        if not is_known(index):
            self.unresolved += 1
            self.note("a condition depends on data; counted as taken", ins)
            costs = [loops.equation_count(branch) for branch in branches]
            heaviest = max(range(len(branches)), key=lambda branch: (costs[branch], branch))
            with self._summary(conditional=True):
                self.walk(branches[heaviest], operands, weight)
            return [UNKNOWN] * len(ins.outputs)
        index = np.clip(index.astype(np.int64), 0, len(branches) - 1)
        if index.shape[0] == 1:
            return self.walk(branches[int(index[0])], operands, weight)
        chosen = np.unique(index)
        if chosen.size == 1:
            return self.walk(branches[int(chosen[0])], operands, weight)
        results: list[Any] | None = None
        for branch in chosen:
            here = index == branch
            masked = weight * here
            # lanes whose results nothing will look at
            if not masked.any():
                continue
            values = self.walk(branches[int(branch)], operands, masked)
            if results is None:
                results = list(values)
            else:
                results = [_merge(here, new, old) for new, old in zip(values, results, strict=True)]
        return results if results is not None else [UNKNOWN] * len(ins.outputs)

    def _scan(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        body, length = ins.params["jaxpr"], int(ins.params["length"])
        count, carried = jax_internals.scan_counts(ins.params)
        constants, carry = inputs[:count], inputs[count : count + carried]
        slices = [UNKNOWN] * (len(inputs) - count - carried)
        produced = [UNKNOWN] * (len(ins.outputs) - carried)
        differs, cost = self._looks(body)
        if differs and length * cost > COMPILE_FROM:
            after = self._decided(body, constants, carry, slices, length, weight)
            if after is not None:
                return [*after, *produced]
        follow = differs and length * cost <= self.budget
        if differs and not follow:
            self.note(f"a loop of {length:,} iterations is too long to follow one by one", ins)
            self.tally.dma_exact = False
        # what a short loop copies is looked at place by place
        copies = not differs and length * cost <= COMPILE_FROM
        follow = follow or (copies and loops.has_any(body, ("dma_start",)))
        while follow and length > 0:
            before = self.unresolved
            carry = self.walk(body, [*constants, *carry, *slices], weight)[:carried]
            length -= 1
            # when nothing that changes is known, all further iterations look the same
            follow = self.unresolved == before or any(map(is_known, carry))
        if length:
            start = loops.carry_within(body, count, carry)
            with self._summary():
                self.walk(body, [*constants, *start, *slices], weight * length)
            carry = loops.carry_after(body, count, carry, length)
        return [*carry, *produced]

    def _decided(
        self,
        body: Any,
        constants: list[Any],
        carry: list[Any],
        slices: list[Any],
        length: int,
        weight: np.ndarray,
    ) -> list[Any] | None:
        """Count a loop whose branches XLA has worked out; carried values after it, or None."""
        found = unrolling.decide(self.programs(body), constants, carry, length)
        if found is None:
            return None
        for key, counts in found.taken.items():
            self.decisions[key] = [weight * count for count in counts]
        start = loops.carry_within(body, len(constants), carry)
        with self._summary():
            self.walk(body, [*constants, *start, *slices], weight * length)
        for key in found.taken:
            del self.decisions[key]
        after = loops.carry_after(body, len(constants), carry, length)
        return [found.carry.get(position, value) for position, value in enumerate(after)]

    def _while(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        condition, body = ins.params["cond_jaxpr"], ins.params["body_jaxpr"]
        condition_count, body_count = jax_internals.while_counts(ins.params)
        condition_constants = inputs[:condition_count]
        body_constants = inputs[condition_count : condition_count + body_count]
        carry = inputs[condition_count + body_count :]
        trips = loops.trip_count(condition, body, condition_constants, body_count, carry)
        differs, cost = self._looks(body)
        short = trips is not None and trips.shape[0] == 1 and trips[0] * cost <= COMPILE_FROM
        if (
            trips is not None
            and not differs
            and not (short and loops.has_any(body, ("dma_start",)))
        ):
            start = loops.carry_within(body, body_count, carry)
            with self._summary():
                self.walk(body, [*body_constants, *start], weight * trips)
            return loops.carry_after(body, body_count, carry, trips)
        if trips is not None and trips.shape[0] == 1 and trips[0] * cost > COMPILE_FROM:
            after = self._decided(body, body_constants, carry, [], int(trips[0]), weight)
            if after is not None:
                return after
        active = np.ones(1, bool)
        while True:
            if self.budget < cost:
                self.note("a while loop is too long to follow; the rest is not counted", ins)
                self.tally.dma_exact = False
                self.unresolved += 1
                return [UNKNOWN] * len(carry)
            # the condition's own arithmetic is scalar and free
            test = self.walk(condition, [*condition_constants, *carry], weight * 0)[0]
            if not is_known(test):
                self.unresolved += 1
                self.note("how often a loop runs depends on data; counted as once", ins)
                with self._summary(conditional=True):
                    unknown = [UNKNOWN] * len(carry)
                    self.walk(body, [*body_constants, *unknown], weight * active)
                return unknown
            active = active & test.astype(bool)
            if not active.any():
                return carry
            new = self.walk(body, [*body_constants, *carry], weight * active)
            if active.all():
                carry = new
            else:
                carry = [_merge(active, value, old) for value, old in zip(new, carry, strict=True)]

    def _call(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        """Any other primitive with a body that takes the equation's operands in order."""
        for _, _, sub in jax_internals.inner_jaxprs(ins.params):
            width = len(jax_internals.open_jaxpr(sub).invars)
            if width == len(inputs) or len(jax_internals.binders(sub)) == len(inputs):
                results = self.walk(sub, inputs, weight)
                if len(results) == len(ins.outputs):
                    return results
                return [UNKNOWN] * len(ins.outputs)
        self.note(f"the body of {ins.name!r} is not counted", ins)
        return [UNKNOWN] * len(ins.outputs)

    def _run_scoped(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        body = ins.params["jaxpr"]
        names = jax_internals.binders(body)
        arguments = list(inputs)
        for position, variable in enumerate(names[len(inputs) :]):
            ref = make_ref(f"scoped{position}", variable.aval, "scoped")
            self.scoped[ins.place, position, ref.shape, ref.dtype, ref.space] = scratch_of(
                ref, scoped=True
            )
            if ref.space == "smem":
                ref.follow_contents()
            arguments.append(ref)
        return self.walk(body, arguments, weight)


def _merge(mask: np.ndarray, new: Any, old: Any) -> Any:
    if new is old:
        return new
    if not is_known(new, old):
        return UNKNOWN
    shaped = mask.reshape(mask.shape + (1,) * (max(new.ndim, old.ndim) - 1))
    return np.where(shaped, new, old)


_HANDLERS = {
    "program_id": Counter._program_id,
    "num_programs": Counter._num_programs,
    "axis_index": Counter._axis_index,
    "dot_general": Counter._dot,
    "cond": Counter._cond,
    "scan": Counter._scan,
    "while": Counter._while,
    "run_scoped": Counter._run_scoped,
    "get": Counter._get,
    "load": Counter._get,
    "swap": Counter._swap,
    "store": Counter._swap,
    "addupdate": Counter._addupdate,
    "dma_start": Counter._dma_start,
    "dma_wait": Counter._dma_wait,
}


def matmuls_of(tally: Tally) -> tuple[Matmul, ...]:
    """The tally's matrix products as data, most work first."""
    products = [
        Matmul(m, k, n, batch, lhs, rhs, out, count, precision, where)
        for (m, k, n, batch, lhs, rhs, out, precision, where), count in tally.matmuls.items()
    ]
    return tuple(sorted(products, key=lambda product: -product.flops))


def facts_of(counter: Counter, refs: Sequence[Ref]) -> KernelFacts:
    """What the legality rules want to know."""
    return KernelFacts(
        wide_types=tuple(counter.wide),
        any_accesses=tuple(counter.any_accesses),
        smem_vector_loads=tuple(counter.smem_vector),
        vmem_scalar_stores=tuple(counter.vmem_scalar),
        carried=tuple(
            (ref.name, ref.role, ref.carried, ref.carried_where)
            for ref in refs
            if ref.carried is not None
        ),
        stored={ref.name: ref.stored for ref in refs if ref.stored is not None},
        untouched_outputs=tuple(r.name for r in refs if r.role == "output" and not r.touched),
    )
