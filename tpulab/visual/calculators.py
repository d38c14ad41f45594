"""The calculators as forms: change a field, and numbers and figure follow.

Stock ipywidgets with their own labels, so that keyboard and screen reader work as in any form. What
a form shows is drawn by the functions of :mod:`tpulab.visual.calculator_figures`; where no kernel
runs, in a static page for example, the figure of the last state stands in its place.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets

from tpulab.errors import TpulabError
from tpulab.hardware import chips as all_chips
from tpulab.hardware import get_chip
from tpulab.roofline import KINDS, parse_bytes, parse_size, parse_slice
from tpulab.visual.calculator_figures import collective_times, matmul_roofline, tiling_roofline
from tpulab.visual.figure import Figure

_DTYPES = ("bfloat16", "int8", "float32")
_ORDERS = {
    "m, n, k: k fastest": "mnk",
    "n, m, k: k fastest": "nmk",
    "m, k, n: n fastest": "mkn",
    "n, k, m: m fastest": "nkm",
}
# words, for a drop-down shows None as nothing chosen
_WRAPAROUND: Mapping[str, bool | None] = {
    "as such a slice has it": None,
    "every axis a ring": True,
    "no axis a ring": False,
}


class Calculator(ipywidgets.VBox):
    """Fields, and below them what follows from their values.

    Args:
        title: what is calculated.
        fields: name → widget with a ``value``.
        calculate: values of all fields, by name → figure; what it raises as a
            :class:`~tpulab.errors.TpulabError` is shown as a sentence.

    Attributes:
        fields: the widgets by name; setting a value recalculates.
        figure: the last figure that could be made.
        problem: the sentence on what is wrong with the values now, empty when nothing is.

    Raises:
        TpulabError: the values to begin with cannot be calculated.
    """

    def __init__(
        self,
        title: str,
        fields: Mapping[str, Any],
        calculate: Callable[[dict[str, Any]], Figure],
    ) -> None:
        self.fields = dict(fields)
        self.problem = ""
        self._calculate = calculate
        self._result = ipywidgets.HTML()
        self._status = ipywidgets.HTML()
        self.figure = calculate(self.values)
        heading = ipywidgets.HTML(f"<strong>{html.escape(title)}</strong>")
        form = ipywidgets.Box(
            list(self.fields.values()), layout={"flex_flow": "row wrap", "align_items": "center"}
        )
        super().__init__([heading, form, self._status, self._result])
        self._show()
        for field in self.fields.values():
            field.observe(self._changed, names="value")

    @property
    def values(self) -> dict[str, Any]:
        """What the fields hold now."""
        return {name: field.value for name, field in self.fields.items()}

    def set(self, **values: Any) -> None:
        """Set several fields and calculate once.

        Raises:
            TpulabError: there is no such field, or its widget does not take the value.
        """
        for field in self.fields.values():
            field.unobserve(self._changed, names="value")
        try:
            for name, value in values.items():
                if name not in self.fields:
                    from tpulab.errors import UnknownNameError

                    raise UnknownNameError("field", name, self.fields)
                try:
                    self.fields[name].value = value
                except Exception as error:
                    raise TpulabError(f"the field {name} does not take {value!r}") from error
        finally:
            for field in self.fields.values():
                field.observe(self._changed, names="value")
            self._changed()

    def _changed(self, change: Any = None) -> None:
        try:
            self.figure = self._calculate(self.values)
        except TpulabError as error:
            self.problem = " – ".join(filter(None, (error.what, error.hint)))
        except (ArithmeticError, ValueError) as error:
            self.problem = f"these values cannot be calculated: {error}"
        else:
            self.problem = ""
        self._show()

    def _show(self) -> None:
        # a screen reader says what is in a status without moving there
        sentence = self.problem and f"{self.problem}. Below is the last result."
        self._status.value = f'<p role="status" style="margin:0">{html.escape(sentence)}</p>'
        self._result.value = self.figure.to_html()

    def __repr__(self) -> str:
        return self.figure.text

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        widget, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        # whoever cannot show the widget (a static page, an untrusted notebook) gets the figure
        merged = {**widget, **self.figure._repr_mimebundle_()}
        return (merged, metadata) if isinstance(bundle, tuple) else merged


def _text(label: str, value: Any, width: str = "11em") -> Any:
    # a value counts when it is complete: on Enter, or when the field is left
    return ipywidgets.Text(
        str(value),
        description=label,
        continuous_update=False,
        style={"description_width": "initial"},
        layout={"width": width},
    )


def _choice(label: str, options: Any, value: Any, width: str = "auto") -> Any:
    return ipywidgets.Dropdown(
        options=options,
        value=value,
        description=label,
        style={"description_width": "initial"},
        layout={"width": width},
    )


def _chip_names() -> list[str]:
    return [chip.name for chip in all_chips()]


def _dtypes(*names: str) -> list[str]:
    return list(dict.fromkeys([*_DTYPES, *names]))


def roofline_calculator(
    m: int = 32,
    k: int = 4096,
    n: int = 14336,
    *,
    dtype: str = "bfloat16",
    rhs_dtype: str | None = None,
    chips: Sequence[str] = ("v5e", "v6e"),
) -> Calculator:
    """A form: a product [m, k] × [k, n], its operands' dtypes, chips → least times and limits.

    Args:
        m, k, n: sizes to begin with.
        dtype: of the left operand and the result.
        rhs_dtype: of the right operand; `dtype` if None.
        chips: names of one to five chips.

    Raises:
        TpulabError: the values to begin with do not exist.
    """
    right = rhs_dtype or dtype

    def calculate(values: dict[str, Any]) -> Figure:
        names = [name.strip() for name in values["chips"].split(",") if name.strip()]
        return matmul_roofline(
            *(parse_size(values[name], name) for name in "mkn"),
            dtype=values["dtype"],
            rhs_dtype=values["rhs_dtype"],
            chips=[get_chip(name) for name in dict.fromkeys(names)],
        )

    fields = {
        "m": _text("m (rows, tokens)", m, "15em"),
        "k": _text("k", k, "8em"),
        "n": _text("n", n, "8em"),
        "dtype": _choice("left operand", _dtypes(dtype, right), dtype),
        "rhs_dtype": _choice("right operand", _dtypes(dtype, right), right),
        "chips": _text("chips", ", ".join(chips), "16em"),
    }
    return Calculator("Least time of a matrix product", fields, calculate)


def tiling_calculator(
    m: int = 4096,
    k: int = 4096,
    n: int = 4096,
    *,
    block: Sequence[int] = (512, 512, 512),
    dtype: str = "bfloat16",
    rhs_dtype: str | None = None,
    order: str = "mnk",
    chip: str = "v5e",
) -> Calculator:
    """A form: a product, its blocks and the order of the grid → traffic, VMEM, time.

    Args:
        m, k, n: sizes to begin with.
        block: block sizes along m, k and n.
        dtype, rhs_dtype: of the operands; the right one has `dtype` if None.
        order: grid axes, slowest first, such as ``"mnk"``.
        chip: whose memory and matrix unit.

    Raises:
        TpulabError: the values to begin with do not exist.
    """
    right = rhs_dtype or dtype
    orders = _ORDERS if order in _ORDERS.values() else {**_ORDERS, ", ".join(order): order}

    def calculate(values: dict[str, Any]) -> Figure:
        names = ("m", "k", "n", "block_m", "block_k", "block_n")
        return tiling_roofline(
            *(parse_size(values[name], name) for name in names),
            dtype=values["dtype"],
            rhs_dtype=values["rhs_dtype"],
            order=values["order"],
            chip=values["chip"],
        )

    fields = {
        "m": _text("m", m, "8em"),
        "k": _text("k", k, "8em"),
        "n": _text("n", n, "8em"),
        "block_m": _text("block_m", block[0], "10em"),
        "block_k": _text("block_k", block[1], "10em"),
        "block_n": _text("block_n", block[2], "10em"),
        "order": _choice("grid, slowest first", list(orders.items()), order),
        "dtype": _choice("left operand", _dtypes(dtype, right), dtype),
        "rhs_dtype": _choice("right operand", _dtypes(dtype, right), right),
        "chip": _choice("chip", _chip_names(), get_chip(chip).name),
    }
    return Calculator("Blocks of a matrix product", fields, calculate)


def collectives_calculator(
    kind: str = "all-gather",
    size: str | int = "32 MiB",
    *,
    axes: str | Sequence[int] = "4x4",
    chip: str = "v5e",
    wraparound: bool | None = None,
) -> Calculator:
    """A form: a collective, its bytes and the slice → time, latency or bandwidth, which links.

    Args:
        kind: one of :data:`tpulab.roofline.KINDS`.
        size: of the whole array: bytes, ``"32 MiB"`` or ``"bf16[2048,8192]"``.
        axes: chips along the axes it runs over, ``"4x4"`` or (4, 4).
        chip: whose links.
        wraparound: whether the axes are rings; None for what a slice of just these axes has.

    Raises:
        TpulabError: the values to begin with do not exist.
    """
    shape = axes if isinstance(axes, str) else "x".join(map(str, axes))
    rings = next(word for word, value in _WRAPAROUND.items() if value is wraparound)

    def calculate(values: dict[str, Any]) -> Figure:
        return collective_times(
            values["kind"],
            parse_bytes(values["size"]),
            parse_slice(values["axes"]),
            chip=values["chip"],
            wraparound=_WRAPAROUND[values["wraparound"]],
        )

    fields = {
        "kind": _choice("collective", list(KINDS), kind),
        "size": _text("whole array", size, "16em"),
        "axes": _text("chips along the axes", shape, "15em"),
        "wraparound": _choice("wraparound", list(_WRAPAROUND), rings),
        "chip": _choice("chip", _chip_names(), get_chip(chip).name),
    }
    return Calculator("Time of a collective", fields, calculate)
