"""Equations of a jaxpr made ready to be evaluated many times.

What can be read off an equation once (its handler's name, literals, result dtype, how an indexer or
a copy is put together) is read once, so that following a loop costs microseconds an equation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpulab.kernel import jax_internals


class Unknown:
    """The value of what can't be evaluated; there is one, ``UNKNOWN``."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


def lanes_of(value: Any, dtype: str | None = None) -> np.ndarray:
    """A plain value as a known value that all lanes share."""
    array = np.asarray(value)
    if dtype is not None and dtype not in ("semaphore", str(array.dtype)):
        try:
            array = array.astype(dtype)
        except TypeError:
            pass
    return array[None]


@dataclasses.dataclass(eq=False)
class Index:
    """One dimension of an indexer: a position among the flat operands, or a constant.

    Attributes:
        position: of the operand that holds the index or the slice's start, None for a constant.
        value: the constant, or the constant start. size: of a slice (an int, or a position in
            ``size_position``), None for a single index. stride: of a slice.
    """

    position: int | None = None
    value: int = 0
    size: int | None = None
    size_position: int | None = None
    stride: int = 1

    @property
    def is_slice(self) -> bool:
        """True when the dimension stays."""
        return self.size is not None or self.size_position is not None


#: One list of ``Index`` per transform that is plain indexing; None when there is another kind.
Indexer = list[list[Index]] | None


@dataclasses.dataclass(eq=False)
class Transfer:
    """A copy: positions of the two Refs among the flat operands, and how each is indexed."""

    source: int
    destination: int
    source_index: Indexer
    destination_index: Indexer
    remote: bool


class Instruction:
    """One equation, read once."""

    __slots__ = (
        "_indexer",
        "_place",
        "_transfer",
        "equation",
        "inputs",
        "literals",
        "name",
        "out_dtype",
        "out_shape",
        "outputs",
        "price",
    )

    def __init__(self, equation: Any) -> None:
        self.equation = equation
        self.name: str = equation.primitive.name
        self.inputs: list[Any] = []
        self.literals: list[np.ndarray | None] = []
        for atom in equation.invars:
            literal = isinstance(atom, jax_internals.Literal)
            self.inputs.append(None if literal else atom)
            self.literals.append(
                lanes_of(atom.val, jax_internals.dtype_of(atom.aval)) if literal else None
            )
        self.outputs: list[Any] = list(equation.outvars)
        self.out_shape: tuple[int, ...] = ()
        self.out_dtype: str = ""
        if self.outputs:
            self.out_shape = jax_internals.shape_of(self.outputs[0].aval)
            self.out_dtype = jax_internals.dtype_of(self.outputs[0].aval)
        self.price: tuple[str, int] | None = None
        self._indexer: Indexer | str = ""
        self._transfer: Transfer | None = None
        self._place: str | None | bool = False

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters."""
        params: dict[str, Any] = self.equation.params
        return params

    @property
    def place(self) -> str | None:
        """file:line in the user's code."""
        if self._place is False:
            self._place = jax_internals.equation_location(self.equation)
        return self._place if isinstance(self._place, str) else None

    def input_shape(self, position: int) -> tuple[int, ...]:
        """Shape of an operand."""
        return jax_internals.shape_of(self.equation.invars[position].aval)

    def input_dtype(self, position: int) -> str:
        """Canonical dtype name of an operand."""
        return jax_internals.dtype_of(self.equation.invars[position].aval)

    def indexer(self, skip: int) -> Indexer:
        """How a load or store indexes its Ref; positions count from operand ``skip``."""
        if isinstance(self._indexer, str):
            flat = [_Position(place) for place in range(len(self.inputs) - skip)]
            self._indexer = _read_indexer(jax_internals.indexers(self.params["tree"], flat))
        return self._indexer

    def transfer(self) -> Transfer:
        """How a ``dma_start`` or ``dma_wait`` is put together; positions count all operands."""
        if self._transfer is None:
            flat = [_Position(place) for place in range(len(self.inputs))]
            copy = jax_internals.take_apart_copy(self.params["tree"], flat)
            self._transfer = Transfer(
                copy.source.place,
                copy.destination.place,
                _read_indexer(copy.source_transforms),
                _read_indexer(copy.destination_transforms),
                copy.remote,
            )
        return self._transfer


class _Position:
    """Stands for a flat operand while a tree of them is put together."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.shape = ()
        self.dtype = np.dtype(np.int32)


def _read_indexer(transforms: Sequence[Any] | None) -> Indexer:
    if transforms is None:
        return None
    read = []
    for transform in transforms:
        if not hasattr(transform, "indices"):
            return None
        read.append([_read_index(item) for item in transform.indices])
    return read


def _read_index(item: Any) -> Index:
    if jax_internals.is_slice(item):
        index = Index(stride=int(getattr(item, "stride", 1) or 1))
        if isinstance(item.start, _Position):
            index.position = item.start.place
        else:
            index.value = int(item.start)
        if isinstance(item.size, _Position):
            index.size_position = item.size.place
        else:
            index.size = int(item.size)
        return index
    if isinstance(item, _Position):
        return Index(position=item.place)
    return Index(value=int(item))


@dataclasses.dataclass(eq=False)
class Program:
    """A jaxpr as instructions."""

    names: list[Any]
    constants: tuple[Any, ...]
    instructions: list[Instruction]
    results: list[Any]
    result_literals: list[np.ndarray | None]
    jaxpr: Any


class Programs:
    """Programs by jaxpr, each made once."""

    def __init__(self) -> None:
        self._made: dict[int, Program] = {}

    def __call__(self, jaxpr: Any) -> Program:
        """The program of a jaxpr."""
        program = self._made.get(id(jaxpr))
        if program is None:
            program = _make_program(jaxpr)
            # the program keeps the jaxpr alive, so that its id stays its own
            self._made[id(jaxpr)] = program
        return program


def _make_program(jaxpr: Any) -> Program:
    inner = jax_internals.open_jaxpr(jaxpr)
    results, literals = [], []
    for atom in inner.outvars:
        literal = isinstance(atom, jax_internals.Literal)
        results.append(None if literal else atom)
        literals.append(lanes_of(atom.val, jax_internals.dtype_of(atom.aval)) if literal else None)
    return Program(
        jax_internals.binders(jaxpr),
        jax_internals.jaxpr_constants(jaxpr),
        [Instruction(equation) for equation in inner.eqns],
        results,
        literals,
        jaxpr,
    )
