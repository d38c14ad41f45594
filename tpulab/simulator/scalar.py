"""Scalar operations as Python source: int32 in two's complement, on physical registers.

A scalar register is a Python int in −2³¹…2³¹−1, a predicate is a bool. A value that comes out of
the vector unit, or from memory whose contents nobody gave, is ``UNKNOWN``: it may be moved and
computed with, but a branch, a transfer or a semaphore that depends on it is refused.

The functions here turn one operation of a listing into one Python expression; ``codegen.py`` puts
them together.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

from tpulab.compiler.listing import Op, register


class Untranslatable(Exception):
    """A scalar operation that has no translation; the text says which."""


class Unknown:
    """The value of a scalar that only the chip would know. Everything made from it is unknown."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _decide(self, *_: object) -> bool:
        raise UnknownDecision

    def __repr__(self) -> str:
        return "UNKNOWN"

    def _same(self, *_: object) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _same
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __neg__ = __invert__ = _same
    # Code that was generated without care for unknown values stops at the first of these.
    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __index__ = _decide  # type: ignore[assignment]
    __eq__ = __ne__ = bit_length = bit_count = _decide  # type: ignore[assignment]


class UnknownDecision(Exception):
    """Something had to be decided on an unknown value."""


UNKNOWN = Unknown()
_MASK = 0xFFFFFFFF


def wrap(value: Any) -> Any:
    """An integer of any size as an int32 in two's complement."""
    if value is UNKNOWN:
        return value
    return ((value + 0x80000000) & _MASK) - 0x80000000


def float_bits(value: float) -> int:
    """The bits of a float32 as an int32."""
    try:
        return int(struct.unpack("<i", struct.pack("<f", value))[0])
    except OverflowError:
        return int(
            struct.unpack("<i", struct.pack("<f", float("inf") if value > 0 else -float("inf")))[0]
        )


def bits_float(bits: Any) -> float:
    """The float32 with the given bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits & _MASK))[0])


def lifted(function: Any) -> Any:
    """The same function, giving UNKNOWN as soon as one argument is UNKNOWN."""

    def call(*arguments: Any) -> Any:
        for argument in arguments:
            if argument is UNKNOWN:
                return UNKNOWN
        return function(*arguments)

    return call


def _divide(a: int, b: int) -> int:
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return wrap(quotient if (a < 0) == (b < 0) else -quotient)


def _remainder(a: int, b: int) -> int:
    if b == 0:
        return a
    rest = abs(a) % abs(b)
    return wrap(-rest if a < 0 else rest)


def _shift_left(a: int, n: int) -> int:
    return wrap(a << n) if 0 <= n < 32 else 0


def _shift_right_logical(a: int, n: int) -> int:
    return wrap((a & _MASK) >> n) if 0 <= n < 32 else 0


def _shift_right_arithmetic(a: int, n: int) -> int:
    return a >> min(n & _MASK, 31)


def _count_leading_zeros(a: int) -> int:
    return 32 - (a & _MASK).bit_length()


def _f2(operation: Any) -> Any:
    return lambda a, b: float_bits(operation(bits_float(a), bits_float(b)))


def _to_integer(bits: int) -> int:
    value = bits_float(bits)
    if value != value:
        return 0
    return int(max(-(2**31), min(2**31 - 1, value)))


def _rounded(operation: Any) -> Any:
    def call(bits: int) -> int:
        value = bits_float(bits)
        # Infinities and NaN stay what they are.
        return float_bits(float(operation(value))) if math.isfinite(value) else bits

    return call


HELPERS: dict[str, Any] = {
    "wrap": wrap,
    "UNKNOWN": UNKNOWN,
    "shl": _shift_left,
    "shlo": lambda a, n: wrap(a << n | (1 << n) - 1) if 0 <= n < 32 else -1,
    "shrl": _shift_right_logical,
    "shra": _shift_right_arithmetic,
    "sdiv": _divide,
    "srem": _remainder,
    "udiv": lambda a, b: wrap((a & _MASK) // (b & _MASK)) if b else -1,
    "urem": lambda a, b: wrap((a & _MASK) % (b & _MASK)) if b else a,
    "umin": lambda a, b: a if (a & _MASK) < (b & _MASK) else b,
    "umax": lambda a, b: a if (a & _MASK) > (b & _MASK) else b,
    "smin": min,
    "smax": max,
    "clz": _count_leading_zeros,
    "popc": lambda a: (a & _MASK).bit_count(),
    "ult": lambda a, b: (a & _MASK) < (b & _MASK),
    "carry": lambda a, b: (a & _MASK) + (b & _MASK) > _MASK,
    "fadd": _f2(lambda a, b: a + b),
    "fsub": _f2(lambda a, b: a - b),
    "fmul": _f2(lambda a, b: a * b),
    "fmin": _f2(min),
    "fmax": _f2(max),
    "flt": lambda a, b: bits_float(a) < bits_float(b),
    "fle": lambda a, b: bits_float(a) <= bits_float(b),
    "fceil": _rounded(math.ceil),
    "ffloor": _rounded(math.floor),
    "mulhi_u": lambda a, b: wrap(((a & _MASK) * (b & _MASK)) >> 32),
    "mulhi_s": lambda a, b: wrap((a * b) >> 32),
    "feq": lambda a, b: bits_float(a) == bits_float(b),
    "s2f": lambda a: float_bits(float(a)),
    "f2s": _to_integer,
}
"""What generated code may call, by name."""

_CARELESS = frozenset({"wrap", "UNKNOWN"})


def helpers(careful: bool) -> dict[str, Any]:
    """The helper functions, made to pass UNKNOWN through when ``careful``."""
    if not careful:
        return dict(HELPERS)
    made = {name: value if name in _CARELESS else lifted(value) for name, value in HELPERS.items()}
    made["lt"] = lifted(lambda a, b: a < b)
    made["le"] = lifted(lambda a, b: a <= b)
    made["eq"] = lifted(lambda a, b: a == b)
    made["not_"] = lifted(lambda a: not a)
    made["and_"] = _and
    made["or_"] = _or
    made["select"] = lambda p, a, b: UNKNOWN if p is UNKNOWN else (a if p else b)
    made["put"] = _put
    return made


def _put(memory: dict[int, Any], address: Any, value: Any, first: int, end: int) -> None:
    """Store a word; when nobody knows where, all words that it can be are unknown."""
    if address is not UNKNOWN:
        memory[address] = value
        return
    for place in memory:
        if first <= place < end:
            memory[place] = UNKNOWN


def _and(a: Any, b: Any) -> Any:
    # A false operand decides, whatever the other is.
    if a is UNKNOWN:
        return UNKNOWN if b is UNKNOWN or b else False
    return b if a else False


def _or(a: Any, b: Any) -> Any:
    if a is UNKNOWN:
        return UNKNOWN if b is UNKNOWN or not b else True
    return True if a else b


_ADDRESS = re.compile(r"#(allocation\d+\w*)")
_HEX = re.compile(r"\$?(0x[0-9a-fA-F]+)$")


class Translator:
    """Turns operations into expressions.

    Args:
        address_of: gives the address of an allocation's name.
        careful: whether unknown values may occur, so that each step must allow for them.
    """

    def __init__(self, address_of: Any, careful: bool) -> None:
        self.address_of = address_of
        self.careful = careful

    def operand(self, text: str) -> str:
        """An operand as a Python expression: a register, an integer, an address, float bits."""
        negated = text.startswith("!")
        if negated:
            return self.negate(self.operand(text[1:]))
        name = register(text)
        if name is not None:
            return name
        if text.startswith(("[", "#")):
            return self.address(text.strip("[]"))
        try:
            return str(wrap(int(text.lstrip("$"), 0)))
        except ValueError:
            pass
        if text in ("true", "false"):
            return text.capitalize()
        try:
            return str(float_bits(float(text)))
        except ValueError:
            raise Untranslatable(f"the operand {text!r}") from None

    def address(self, text: str) -> str:
        """A sum like ``#allocation3 + %s590_s22`` or ``%s5_s5 + $0x2`` as an expression."""
        if ":" in text.split("#", 1)[0]:
            text = text.split(":", 1)[1].strip("[]")
        constant = 0
        parts: list[str] = []
        for part in (piece.strip(" []") for piece in text.split("+")):
            found = _ADDRESS.search(part)
            number = _HEX.match(part)
            if found:
                constant += self.address_of(found.group(1))
            elif number:
                constant += int(number.group(1), 16)
            elif part.lstrip("-").isdigit():
                constant += int(part)
            elif register(part):
                parts.append(str(register(part)))
            else:
                raise Untranslatable(f"the address {text!r}")
        if constant or not parts:
            parts.append(str(constant))
        return " + ".join(parts)

    def negate(self, expression: str) -> str:
        """The opposite of a predicate."""
        return f"not_({expression})" if self.careful else f"(not {expression})"

    def expression(self, op: Op) -> tuple[str, bool]:
        """The value of a pure scalar operation and whether it may leave the int32 range.

        Raises:
            Untranslatable: there is no rule for the operation.
        """
        stem, _, rest = op.opcode.partition(".")
        arguments = [self.operand(text) for text in op.operands]
        unsigned = rest.startswith("u32")
        floating = rest.startswith("f32")
        if stem in ("smov", "int_to_ptr", "ptr_to_int", "pmov", "sbitcast"):
            return arguments[0], False
        if stem == "scalar_lea":
            return " + ".join(arguments), len(arguments) > 1
        if floating and stem in ("sadd", "ssub", "smul", "smin", "smax"):
            return f"f{stem[1:]}({arguments[0]}, {arguments[1]})", False
        if stem in ("sadd", "ssub", "smul"):
            sign = {"sadd": "+", "ssub": "-", "smul": "*"}[stem]
            return f"{arguments[0]} {sign} {arguments[1]}", True
        if stem == "smulhi":
            return f"mulhi_{'u' if unsigned else 's'}({', '.join(arguments)})", False
        if floating and stem in ("sceil", "sfloor"):
            return f"f{stem[1:]}({arguments[0]})", False
        if stem in ("sand", "sor", "sxor"):
            sign = {"sand": "&", "sor": "|", "sxor": "^"}[stem]
            return f"{arguments[0]} {sign} {arguments[1]}", False
        if stem == "snot":
            return f"~{arguments[0]}", False
        if stem == "sneg":
            return f"-{arguments[0]}", True
        if stem == "sabs":
            return f"smax({arguments[0]}, -{arguments[0]})", True
        if stem in ("sshll", "sshrl", "sshra"):
            return self._shift(stem, arguments)
        if stem == "sshllo":
            return f"shlo({arguments[0]}, {arguments[1]})", False
        if stem in ("smin", "smax"):
            return f"{'u' if unsigned else 's'}{stem[1:]}({', '.join(arguments)})", False
        if stem in ("sdiv", "srem"):
            return f"{'u' if unsigned else 's'}{stem[1:]}({', '.join(arguments[:2])})", False
        if stem == "sclz":
            return f"clz({arguments[0]})", False
        if stem == "spopcnt":
            return f"popc({arguments[0]})", False
        if stem == "scvt":
            if rest.startswith("s32.f32"):
                return f"s2f({arguments[0]})", False
            # With all ones as its second operand, the rounding of v4 is towards zero.
            if rest.startswith(("f32.s32", "pr.f32.s32")):
                return f"f2s({arguments[0]})", False
        if stem == "sc":
            return f"carry({arguments[0]}, {arguments[1]})", False
        if stem == "scmp":
            return self._compare(rest, arguments), False
        if stem in ("por", "pand", "pnand", "pnor", "pxor", "pneg"):
            return self._predicate(stem, arguments), False
        if stem in ("scalar_select", "ssel"):
            if self.careful:
                return f"select({', '.join(arguments)})", False
            return f"{arguments[1]} if {arguments[0]} else {arguments[2]}", False
        raise Untranslatable(f"the scalar operation {op.opcode}")

    def _shift(self, stem: str, arguments: list[str]) -> tuple[str, bool]:
        value, amount = arguments
        if amount.isdigit() and int(amount) < 32:
            if stem == "sshll":
                return f"{value} << {amount}", True
            if stem == "sshra":
                return f"{value} >> {amount}", False
            if int(amount) > 0:
                return f"({value} & 4294967295) >> {amount}", False
        name = {"sshll": "shl", "sshrl": "shrl", "sshra": "shra"}[stem]
        return f"{name}({value}, {amount})", False

    def _compare(self, rest: str, arguments: list[str]) -> str:
        relation, kind = rest.split(".")[:2]
        a, b = arguments
        if kind == "f32":
            return {
                "lt": f"flt({a}, {b})",
                "gt": f"flt({b}, {a})",
                "le": f"fle({a}, {b})",
                "ge": f"fle({b}, {a})",
                "eq": f"feq({a}, {b})",
                "ne": self.negate(f"feq({a}, {b})"),
            }[relation]
        if kind == "u32" and relation in ("lt", "gt", "le", "ge"):
            return {
                "lt": f"ult({a}, {b})",
                "gt": f"ult({b}, {a})",
                "le": self.negate(f"ult({b}, {a})"),
                "ge": self.negate(f"ult({a}, {b})"),
            }[relation]
        if kind not in ("s32", "u32"):
            raise Untranslatable(f"the comparison of {kind}")
        if self.careful:
            return {
                "lt": f"lt({a}, {b})",
                "gt": f"lt({b}, {a})",
                "le": f"le({a}, {b})",
                "ge": f"le({b}, {a})",
                "eq": f"eq({a}, {b})",
                "ne": f"not_(eq({a}, {b}))",
            }[relation]
        sign = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "==", "ne": "!="}[relation]
        return f"{a} {sign} {b}"

    def _predicate(self, stem: str, arguments: list[str]) -> str:
        a = arguments[0]
        b = arguments[1] if len(arguments) > 1 else a
        if stem == "pneg":
            return self.negate(a)
        if stem == "pxor":
            return (
                f"({self.negate(a)}) != ({self.negate(b)})"
                if not self.careful
                else (f"not_(eq({a}, {b}))")
            )
        if self.careful:
            inner = f"{'or_' if stem in ('por', 'pnor') else 'and_'}({a}, {b})"
        else:
            inner = f"({a} {'or' if stem in ('por', 'pnor') else 'and'} {b})"
        return self.negate(inner) if stem in ("pnand", "pnor") else inner
