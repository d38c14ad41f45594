"""Work of a kernel's body over its whole grid: matrix products, vector arithmetic, copies.

The body's jaxpr is walked once for all grid steps. Scalars (program ids, loop counters, values from
scalar prefetch) are carried along by ``evaluate``; a ``cond`` on them (``pl.when``) splits the steps
into those that take a branch and those that don't, exactly. What hangs on data counts as done, and
a note says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.evaluate import UNKNOWN, evaluate, is_known, lanes_of
from tpulab.kernel.model import KernelFacts, Matmul, Scratch, array_bytes, padded_bytes

#: Equations that may be evaluated, per call, to follow loops iteration by iteration.
LOOP_BUDGET = 400_000

_TRANSCENDENTAL = frozenset(
    "exp exp2 log log1p expm1 logistic tanh sin cos tan sinh cosh asin acos atan asinh acosh atanh "
    "atan2 sqrt rsqrt cbrt erf erfc erf_inv pow digamma lgamma reciprocal".split()
)
_ARITHMETIC = frozenset(
    "add sub mul div rem max min neg abs sign floor ceil round eq ne lt le gt ge and or xor not "
    "select_n clamp shift_left shift_right_logical shift_right_arithmetic square is_finite "
    "nextafter add_any population_count".split()
)
_REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin reduce_xor "
    "cumsum cummax cummin cumprod cumlogsumexp".split()
)


@dataclasses.dataclass(eq=False)
class Ref:
    """A Ref while its kernel is walked.

    ``table`` holds known contents (scalar prefetch, SMEM that the kernel fills); ``written`` marks
    the lanes in which the present step has stored to it.
    """

    name: str
    space: str
    shape: tuple[int, ...]
    dtype: str
    role: str  # "prefetch", "input", "output", "scratch" or "scoped"
    table: np.ndarray | None = None
    table_known: np.ndarray | None = None
    written: np.ndarray | None = None
    carried: np.ndarray | None = None
    carried_where: str | None = None
    touched: bool = False


@dataclasses.dataclass(eq=False)
class Tally:
    """Running totals, one entry per grid step."""

    mxu: np.ndarray
    vpu: np.ndarray
    transcendental: np.ndarray
    read_bytes: int = 0
    written_bytes: int = 0
    remote_bytes: int = 0
    dma_count: int = 0
    matmuls: dict[tuple[Any, ...], int] = dataclasses.field(default_factory=dict)


def matmul_shape(equation: Any) -> tuple[int, int, int, int]:
    """(batch, m, k, n) of a ``dot_general`` equation."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs = jax_internals.shape_of(equation.invars[0].aval)
    rhs = jax_internals.shape_of(equation.invars[1].aval)
    batch = math.prod(lhs[axis] for axis in lhs_batch)
    depth = math.prod(lhs[axis] for axis in lhs_contract)
    skip_lhs, skip_rhs = {*lhs_contract, *lhs_batch}, {*rhs_contract, *rhs_batch}
    rows = math.prod(size for axis, size in enumerate(lhs) if axis not in skip_lhs)
    columns = math.prod(size for axis, size in enumerate(rhs) if axis not in skip_rhs)
    return batch, rows, depth, columns


class Counter:
    """Walks a kernel's body for a set of grid steps.

    Args:
        coordinates: int array [steps, grid rank] of the steps to count.
        grid: the grid's bounds; vmapped_dims: axes that ``program_id`` doesn't see.
        sequential: steps are walked one at a time, so that SMEM contents can be followed.
    """

    def __init__(
        self,
        coordinates: np.ndarray,
        grid: tuple[int, ...],
        vmapped_dims: tuple[int, ...],
        budget: int = LOOP_BUDGET,
    ) -> None:
        self.steps = coordinates.shape[0]
        self.grid = grid
        self.axes = [axis for axis in range(len(grid)) if axis not in vmapped_dims]
        self.coordinates = coordinates.astype(np.int32)
        self.offset = 0
        self.lanes = self.steps
        zeros = np.zeros(self.steps, np.int64)
        self.tally = Tally(zeros, zeros.copy(), zeros.copy())
        self.budget = budget
        self.notes: dict[str, None] = {}
        self.unresolved = 0
        self.uncertain = 0
        self.smem_written = False
        self.scoped: dict[tuple[Any, ...], Scratch] = {}
        self.wide: dict[tuple[str, str | None], None] = {}
        self.any_accesses: dict[tuple[str, str | None], None] = {}
        self.smem_vector: dict[tuple[str, str | None], None] = {}
        self.vmem_scalar: dict[tuple[str, str | None], None] = {}
        self._costs: dict[int, tuple[str, int]] = {}
        self._keep: list[Any] = []
        self._control: dict[int, bool] = {}

    # -- entry points ---------------------------------------------------------------------------

    def count(self, kernel: Any, refs: Sequence[Ref]) -> None:
        """Walk the body for all steps at once."""
        self.walk(kernel, list(refs), np.ones(1, np.int64))

    def count_sequentially(self, kernel: Any, refs: Sequence[Ref]) -> None:
        """Walk the body step by step, following what it keeps in SMEM."""
        self.lanes = 1
        for step in range(self.steps):
            self.offset = step
            for ref in refs:
                ref.written = None
            self.walk(kernel, list(refs), np.ones(1, np.int64))

    @property
    def follows_smem(self) -> bool:
        """Steps are walked one at a time."""
        return self.lanes == 1

    # -- the walk -------------------------------------------------------------------------------

    def walk(self, jaxpr: Any, arguments: Sequence[Any], weight: np.ndarray) -> list[Any]:
        """Count one jaxpr.

        Args:
            jaxpr: open or closed. arguments: values of its invars (constants of a closed jaxpr
                are taken from it). weight: int array [lanes] or [1], how often it runs.
        Returns:
            The values of its results.
        """
        inner = jax_internals.open_jaxpr(jaxpr)
        constants = jax_internals.jaxpr_constants(jaxpr)
        values = list(arguments)
        names = jax_internals.binders(jaxpr)
        if len(values) < len(names):
            values = [*(lanes_of(constant) for constant in constants), *values]
        environment: dict[Any, Any] = dict(zip(names, values, strict=False))

        def read(atom: Any) -> Any:
            if isinstance(atom, jax_internals.Literal):
                return lanes_of(atom.val, jax_internals.dtype_of(atom.aval))
            return environment.get(atom, UNKNOWN)

        # an operation on many lanes costs more than its fixed overhead
        self.budget -= len(inner.eqns) * (1 + self.lanes // 4096)
        for equation in inner.eqns:
            inputs = [read(atom) for atom in equation.invars]
            outputs = self.equation(equation, inputs, weight)
            for variable, value in zip(equation.outvars, outputs, strict=False):
                environment[variable] = value
        return [read(atom) for atom in inner.outvars]

    def equation(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        """Count one equation and return its results."""
        name = equation.primitive.name
        handler = _HANDLERS.get(name)
        if handler is not None:
            return handler(self, equation, inputs, weight)
        subs = list(jax_internals.inner_jaxprs(equation.params))
        if subs:
            return self._call(equation, subs, inputs, weight)
        self._charge(equation, weight)
        return evaluate(equation, inputs)

    def _charge(self, equation: Any, weight: np.ndarray) -> None:
        cost = self._costs.get(id(equation))
        if cost is None:
            cost = self._price(equation)
            self._costs[id(equation)] = cost
            self._keep.append(equation)
        kind, amount = cost
        if not amount:
            return
        if kind == "vpu":
            self._add(self.tally.vpu, weight, amount)
        else:
            self._add(self.tally.transcendental, weight, amount)

    def _add(self, target: np.ndarray, weight: np.ndarray, amount: int) -> None:
        if self.lanes == 1 and self.steps > 1:
            target[self.offset] += int(weight[0]) * amount
        else:
            target += weight * amount

    def _total(self, weight: np.ndarray) -> int:
        return int(weight[0]) * self.lanes if weight.shape[0] == 1 else int(weight.sum())

    def _price(self, equation: Any) -> tuple[str, int]:
        name = equation.primitive.name
        if not equation.outvars:
            return "", 0
        aval = equation.outvars[0].aval
        shape = jax_internals.shape_of(aval)
        dtype = jax_internals.dtype_of(aval)
        if dtype in ("int64", "uint64", "float64") and name != "convert_element_type":
            self.wide[dtype, jax_internals.equation_location(equation)] = None
        size = math.prod(shape)
        if name in _REDUCTIONS:
            return "vpu", math.prod(jax_internals.shape_of(equation.invars[0].aval))
        if not shape:
            return "", 0  # scalars are the scalar core's business
        if name in _TRANSCENDENTAL:
            return "transcendental", size
        if name in _ARITHMETIC:
            return "vpu", size
        if name == "integer_pow":
            power = abs(int(equation.params["y"]))
            # square and multiply, as jax's own estimate counts it
            return "vpu", size * max(0, power.bit_length() - 1 + power.bit_count() - 1)
        if name == "conv_general_dilated":
            kernel = jax_internals.shape_of(equation.invars[1].aval)
            return "vpu", 2 * size * math.prod(kernel[1:])
        return "", 0

    def note(self, text: str, equation: Any = None) -> None:
        """Remember an assumption, with its place."""
        place = jax_internals.equation_location(equation) if equation is not None else None
        self.notes[f"{text} ({place})" if place else text] = None

    # -- handlers -------------------------------------------------------------------------------

    def _program_id(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        axis = self.axes[equation.params["axis"]]
        if self.lanes == 1:
            return [self.coordinates[self.offset : self.offset + 1, axis]]
        return [self.coordinates[:, axis]]

    def _num_programs(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        return [np.array([self.grid[self.axes[equation.params["axis"]]]], np.int32)]

    def _axis_index(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        self.note("counted as the first device of the mesh")
        return [np.zeros(1, np.int32)]

    def _dot(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        batch, rows, depth, columns = matmul_shape(equation)
        self._add(self.tally.mxu, weight, 2 * batch * rows * depth * columns)
        precision = equation.params.get("precision")
        if isinstance(precision, tuple):
            precision = precision[0]
        key = (
            rows,
            depth,
            columns,
            batch,
            jax_internals.dtype_of(equation.invars[0].aval),
            jax_internals.dtype_of(equation.invars[1].aval),
            jax_internals.dtype_of(equation.outvars[0].aval),
            None if precision is None else str(getattr(precision, "name", precision)).upper(),
            jax_internals.equation_location(equation),
        )
        self.tally.matmuls[key] = self.tally.matmuls.get(key, 0) + self._total(weight)
        return [UNKNOWN]

    def _cond(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        branches = equation.params["branches"]
        index, operands = inputs[0], inputs[1:]
        if not is_known(index):
            self.unresolved += 1
            self.note("a condition depends on data; counted as taken", equation)
            heaviest = max(range(len(branches)), key=lambda b: (_size(branches[b]), b))
            self.uncertain += 1
            self.walk(branches[heaviest], operands, weight)
            self.uncertain -= 1
            return [UNKNOWN] * len(equation.outvars)
        index = np.clip(index.astype(np.int64), 0, len(branches) - 1)
        chosen = np.unique(index)
        if chosen.size == 1:
            return self.walk(branches[int(chosen[0])], operands, weight)
        results: list[Any] | None = None
        for branch in chosen:
            here = index == branch
            masked = weight * here
            if not masked.any():
                continue
            values = self.walk(branches[int(branch)], operands, masked)
            if results is None:
                results = list(values)
            else:
                results = [
                    _merge(here, new, old) for new, old in zip(values, results, strict=True)
                ]
        return results if results is not None else [UNKNOWN] * len(equation.outvars)

    def _scan(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        params = equation.params
        body, length = params["jaxpr"], int(params["length"])
        count, carried = jax_internals.scan_counts(params)
        constants, carry = inputs[:count], inputs[count : count + carried]
        slices = len(inputs) - count - carried
        produced = len(equation.outvars) - carried
        if length == 0:
            return carry + [UNKNOWN] * produced
        cost = length * _size(body) * (1 + self.lanes // 4096)
        if self._has_control(body) and cost <= self.budget:
            for _ in range(length):
                before = self.unresolved
                out = self.walk(body, [*constants, *carry, *[UNKNOWN] * slices], weight)
                carry = out[:carried]
                if self.unresolved > before and not any(is_known(value) for value in carry):
                    length -= 1
                    if length <= 0:
                        return carry + [UNKNOWN] * produced
                    break
                length -= 1
            else:
                return carry + [UNKNOWN] * produced
        elif self._has_control(body):
            self.note(f"a loop of {length:,} iterations is too long to follow one by one", equation)
        start = [
            value if _invariant(body, count, position) else UNKNOWN
            for position, value in enumerate(carry)
        ]
        # the loop counter of fori_loop and pl.loop: known after the loop, unknown within it
        after = [
            _advance(body, count, position, value, length) if value is not UNKNOWN else UNKNOWN
            for position, value in enumerate(carry)
        ]
        self.uncertain += 1
        self.walk(body, [*constants, *start, *[UNKNOWN] * slices], weight * length)
        self.uncertain -= 1
        final = [
            kept if kept is not UNKNOWN else moved for kept, moved in zip(start, after, strict=True)
        ]
        return final + [UNKNOWN] * produced

    def _while(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        params = equation.params
        condition, body = params["cond_jaxpr"], params["body_jaxpr"]
        condition_count, body_count = jax_internals.while_counts(params)
        condition_constants = inputs[:condition_count]
        body_constants = inputs[condition_count : condition_count + body_count]
        carry = inputs[condition_count + body_count :]
        trips = _trip_count(condition, body, condition_constants, body_count, carry)
        if trips is not None and not self._has_control(body):
            start = [
                value if _invariant(body, body_count, position) else UNKNOWN
                for position, value in enumerate(carry)
            ]
            after = [
                _advance(body, body_count, position, value, trips)
                if value is not UNKNOWN
                else UNKNOWN
                for position, value in enumerate(carry)
            ]
            self.uncertain += 1
            self.walk(body, [*body_constants, *start], weight * trips)
            self.uncertain -= 1
            return [
                kept if kept is not UNKNOWN else moved
                for kept, moved in zip(start, after, strict=True)
            ]
        cost = (_size(body) + _size(condition)) * (1 + self.lanes // 4096)
        active = np.ones(1, bool)
        while True:
            if self.budget < cost:
                self.note("a while loop is too long to follow; the rest is not counted", equation)
                self.unresolved += 1
                return [UNKNOWN] * len(carry)
            # the condition's own arithmetic is scalar and free
            test = self.walk(condition, [*condition_constants, *carry], weight * 0)[0]
            if not is_known(test):
                self.unresolved += 1
                self.note("how often a loop runs depends on data; counted as once", equation)
                self.uncertain += 1
                self.walk(body, [*body_constants, *[UNKNOWN] * len(carry)], weight * active)
                self.uncertain -= 1
                return [UNKNOWN] * len(carry)
            active = active & test.astype(bool)
            if not active.any():
                return carry
            new = self.walk(body, [*body_constants, *carry], weight * active)
            carry = [
                value if active.all() else _merge(active, value, old)
                for value, old in zip(new, carry, strict=True)
            ]

    def _run_scoped(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        body = equation.params["jaxpr"]
        inner = jax_internals.open_jaxpr(body)
        names = jax_internals.binders(body)
        allocated = names[len(inputs) :] if len(names) > len(inputs) else inner.invars
        place = jax_internals.equation_location(equation)
        arguments = list(inputs)
        for position, variable in enumerate(allocated):
            ref = make_ref(f"scoped{position}", variable.aval, "scoped")
            key = (place, position, ref.shape, ref.dtype, ref.space)
            self.scoped[key] = scratch_of(ref, scoped=True)
            if ref.space == "smem":
                ref.table = np.zeros(ref.shape, ref.dtype)
                ref.table_known = np.zeros(ref.shape, bool)
            arguments.append(ref)
        return self.walk(body, arguments, weight)

    def _get(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        ref = inputs[0]
        if not isinstance(ref, Ref):
            return [UNKNOWN]
        self._read(ref, equation, weight)
        shape = jax_internals.shape_of(equation.outvars[0].aval)
        if ref.space == "smem" and math.prod(shape) > 1 and ref.role != "prefetch":
            self.smem_vector[ref.name, jax_internals.equation_location(equation)] = None
        if ref.table is None:
            return [UNKNOWN]
        index = self._index(ref, equation.params["tree"], inputs[1:])
        if index is None:
            return [UNKNOWN]
        if ref.table_known is not None and not np.all(ref.table_known[index]):
            return [UNKNOWN]
        value = np.asarray(ref.table[index])
        return [value if value.ndim == len(shape) + 1 else value[None]]

    def _swap(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        ref, value = inputs[0], inputs[1]
        if not isinstance(ref, Ref):
            return [UNKNOWN]
        old_is_used = type(equation.outvars[0]).__name__ != "DropVar" if equation.outvars else False
        if old_is_used and equation.primitive.name == "addupdate":
            self._read(ref, equation, weight)
        shape = jax_internals.shape_of(equation.invars[1].aval)
        if ref.space == "vmem" and not shape and ref.shape:
            self.vmem_scalar[ref.name, jax_internals.equation_location(equation)] = None
        if ref.space in ("any", "hbm"):
            self.any_accesses[ref.name, jax_internals.equation_location(equation)] = None
        if ref.space == "smem":
            self.smem_written = True
        self._write(ref, weight)
        if ref.table is None or ref.table_known is None:
            return [UNKNOWN]
        index = self._index(ref, equation.params["tree"], inputs[2:])
        if index is None:
            ref.table_known[...] = False
            return [UNKNOWN]
        if not weight.any():
            return [UNKNOWN]
        if is_known(value) and not self.uncertain and self.follows_smem and value.shape[0] == 1:
            ref.table[index] = value
            ref.table_known[index] = True
        else:
            ref.table_known[index] = False
        return [UNKNOWN]

    def _addupdate(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        ref = inputs[0]
        if isinstance(ref, Ref):
            self._read(ref, equation, weight)
            self._write(ref, weight)
            size = math.prod(jax_internals.shape_of(equation.invars[1].aval))
            self._add(self.tally.vpu, weight, size if size > 1 else 0)
            if ref.table_known is not None:
                ref.table_known[...] = False
        return []

    def _index(self, ref: Ref, tree: Any, flat: Sequence[Any]) -> tuple[Any, ...] | None:
        """A numpy index with the lane axis in front, None when a part of it is not known."""
        if not is_known(*flat):
            return None
        transforms = jax_internals.indexers(tree, flat)
        if transforms is None or len(transforms) > 1:
            return None
        if not transforms:
            return ()
        index: list[Any] = []
        for item, size in zip(transforms[0].indices, ref.shape, strict=True):
            if jax_internals.is_slice(item):
                start, length, stride = item.start, item.size, getattr(item, "stride", 1)
                if is_known(start) or not isinstance(length, int):
                    return None
                index.append(slice(start, start + length * stride, stride))
            elif is_known(item) and item.ndim == 1:
                index.append(np.clip(item.astype(np.int64), 0, size - 1))
            elif isinstance(item, (int, np.integer)):
                index.append(int(item))
            else:
                return None
        if any(isinstance(item, slice) for item in index) and any(
            isinstance(item, np.ndarray) for item in index
        ):
            return None
        return tuple(index)

    def _read(self, ref: Ref, equation: Any, weight: np.ndarray) -> None:
        ref.touched = True
        if ref.space in ("any", "hbm") and equation.primitive.name == "get":
            self.any_accesses[ref.name, jax_internals.equation_location(equation)] = None
        if ref.role not in ("output", "scratch"):
            return
        fresh = weight > 0
        if ref.written is not None:
            fresh = fresh & ~ref.written
        if fresh.any():
            if ref.carried is None:
                ref.carried = np.zeros(self.steps, bool)
                ref.carried_where = jax_internals.equation_location(equation)
            if self.lanes == 1:
                ref.carried[self.offset] |= bool(fresh[0])
            else:
                ref.carried |= fresh

    def _write(self, ref: Ref, weight: np.ndarray) -> None:
        ref.touched = True
        done = weight > 0
        ref.written = done if ref.written is None else ref.written | done

    def _dma_start(self, equation: Any, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        known = dict(zip(equation.invars, inputs, strict=True))
        copy = jax_internals.take_apart_copy(equation)
        source, destination = known.get(copy.source), known.get(copy.destination)
        if not isinstance(source, Ref) or not isinstance(destination, Ref):
            return []
        elements = self._elements(source, copy.source_transforms, known)
        if elements is None:
            elements = self._elements(destination, copy.destination_transforms, known)
        if elements is None:
            self.note("a copy's size depends on data; counted in full", equation)
            elements = np.array([math.prod(source.shape)], np.int64)
        bits = array_bytes((8,), source.dtype)
        moved = elements * bits // 8
        total = self._total(np.broadcast_to(weight * moved, np.broadcast_shapes(
            weight.shape, moved.shape)))
        self.tally.dma_count += self._total(weight)
        self._read(source, equation, weight)
        self._write(destination, weight)
        if destination.table_known is not None:
            destination.table_known[...] = False
        outside = ("any", "hbm", "host")
        if copy.remote:
            self.tally.remote_bytes += total
        if source.space in outside:
            self.tally.read_bytes += total
        if destination.space in outside:
            self.tally.written_bytes += total
        return []

    def _elements(
        self, ref: Ref, transforms: Sequence[Any], known: dict[Any, Any]
    ) -> np.ndarray | None:
        if not transforms:
            return np.array([math.prod(ref.shape)], np.int64)
        last = transforms[-1]
        if not hasattr(last, "indices"):
            return None
        size = np.ones(1, np.int64)
        for item in last.indices:
            if not jax_internals.is_slice(item):
                continue
            length = item.size
            if not isinstance(length, (int, np.integer)):
                length = known.get(length, UNKNOWN)
                if not is_known(length):
                    return None
            size = size * length
        return size

    def _call(
        self, equation: Any, subs: list[Any], inputs: list[Any], weight: np.ndarray
    ) -> list[Any]:
        """Any other primitive with one body that takes the equation's operands in order."""
        for _, _, sub in subs:
            needed = len(jax_internals.open_jaxpr(sub).invars)
            if needed == len(inputs) or len(jax_internals.binders(sub)) == len(inputs):
                results = self.walk(sub, inputs, weight)
                if len(results) == len(equation.outvars):
                    return results
                return [UNKNOWN] * len(equation.outvars)
        self.note(f"the body of {equation.primitive.name!r} is not counted", equation)
        return [UNKNOWN] * len(equation.outvars)

    def _has_control(self, jaxpr: Any) -> bool:
        """Whether a loop body's work can differ from one iteration to the next."""
        key = id(jaxpr)
        if key not in self._control:
            self._keep.append(jaxpr)
            self._control[key] = _has_control(jaxpr)
        return self._control[key]


def _has_control(jaxpr: Any) -> bool:
    for equation in jax_internals.open_jaxpr(jaxpr).eqns:
        if equation.primitive.name in ("cond", "while"):
            return True
        for _, _, sub in jax_internals.inner_jaxprs(equation.params):
            if _has_control(sub):
                return True
    return False


_SIZES: dict[int, tuple[Any, int]] = {}


def _size(jaxpr: Any) -> int:
    """Equations in a jaxpr, loops inside it counted as often as they run."""
    held = _SIZES.get(id(jaxpr))
    if held is not None and held[0] is jaxpr:
        return held[1]
    total = 0
    for equation in jax_internals.open_jaxpr(jaxpr).eqns:
        inner = sum(_size(sub) for _, _, sub in jax_internals.inner_jaxprs(equation.params))
        if equation.primitive.name == "scan":
            inner *= int(equation.params["length"])
        total += 1 + inner
    if len(_SIZES) > 4096:
        _SIZES.clear()
    _SIZES[id(jaxpr)] = (jaxpr, total)
    return total


def _merge(mask: np.ndarray, new: Any, old: Any) -> Any:
    if not is_known(new, old):
        return new if new is old else UNKNOWN
    shaped = mask.reshape(mask.shape + (1,) * (max(new.ndim, old.ndim) - 1))
    return np.where(shaped, new, old)


def _invariant(body: Any, constants: int, position: int) -> bool:
    """A carried value that the loop body hands on unchanged."""
    inner = jax_internals.open_jaxpr(body)
    names = jax_internals.binders(body)[-(len(inner.invars)) :] if inner.invars else []
    return inner.outvars[position] is names[constants + position]


def _increment(body: Any, constants: int, position: int) -> int | None:
    """n when the body adds the literal n to a carried integer, else None."""
    inner = jax_internals.open_jaxpr(body)
    variable, result = inner.invars[constants + position], inner.outvars[position]
    for equation in inner.eqns:
        if result in equation.outvars and equation.primitive.name in ("add", "sub"):
            left, right = equation.invars
            if left is variable and isinstance(right, jax_internals.Literal):
                amount = int(right.val)
                return amount if equation.primitive.name == "add" else -amount
            if (
                right is variable
                and isinstance(left, jax_internals.Literal)
                and equation.primitive.name == "add"
            ):
                return int(left.val)
    return None


def _advance(body: Any, constants: int, position: int, value: Any, trips: Any) -> Any:
    """A loop counter after ``trips`` iterations, UNKNOWN for any other carried value."""
    if not is_known(value) or value.dtype.kind not in "iu" or value.ndim != 1:
        return UNKNOWN
    amount = _increment(body, constants, position)
    return UNKNOWN if amount is None else (value + amount * trips).astype(value.dtype)


def _trip_count(
    condition: Any, body: Any, constants: Sequence[Any], body_constants: int, carry: Sequence[Any]
) -> np.ndarray | None:
    """How often ``while i < n: i += step`` runs, per lane; None for any other loop."""
    inner = jax_internals.open_jaxpr(condition)
    if len(inner.eqns) != 1 or inner.eqns[0].primitive.name not in ("lt", "gt"):
        return None
    left, right = inner.eqns[0].invars
    if inner.eqns[0].primitive.name == "gt":
        left, right = right, left
    if left not in inner.invars or inner.outvars[0] is not inner.eqns[0].outvars[0]:
        return None
    position = inner.invars.index(left) - len(constants)
    if position < 0:
        return None
    step = _increment(body, body_constants, position)
    if isinstance(right, jax_internals.Literal):
        bound: Any = lanes_of(right.val)
    else:
        place = inner.invars.index(right)
        if place >= len(constants):
            if not _invariant(body, body_constants, place - len(constants)):
                return None
            bound = carry[place - len(constants)]
        else:
            bound = constants[place]
    start = carry[position]
    if step is None or step <= 0 or not is_known(start, bound):
        return None
    return np.maximum(0, -(-(bound.astype(np.int64) - start) // step))


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
}


def make_ref(name: str, aval: Any, role: str) -> Ref:
    """A Ref for a kernel parameter or an allocation."""
    return Ref(
        name,
        jax_internals.memory_space(aval),
        jax_internals.shape_of(aval),
        jax_internals.dtype_of(aval),
        role,
    )


def scratch_of(ref: Ref, *, scoped: bool = False) -> Scratch:
    """The scratch buffer that a Ref stands for, with its sizes."""
    if ref.space == "semaphore" or ref.dtype == "semaphore":
        size = 4 * math.prod(ref.shape)
        return Scratch(ref.name, ref.shape, "semaphore", "semaphore", size, size, scoped)
    return Scratch(
        ref.name,
        ref.shape,
        ref.dtype,
        ref.space,
        array_bytes(ref.shape, ref.dtype),
        padded_bytes(ref.shape, ref.dtype),
        scoped,
    )


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
        untouched_outputs=tuple(r.name for r in refs if r.role == "output" and not r.touched),
    )
