"""The instant verdict: a traced kernel held against the rules of a chip, in pure Python.

Each rule is known from the compiler's own refusals or from the interpreter's findings; their
numbers in the atlas of pitfalls stand beside them. A rule of severity "error" is one that the
lowering refuses or that makes results wrong by contract; "warning" is an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpulab.kernel import block_rules, body_rules, order_rules
from tpulab.kernel.model import Kernel
from tpulab.kernel.rule import Illegality, Rule

if TYPE_CHECKING:
    from tpulab.hardware import Chip

__all__ = ["RULES", "Illegality", "Rule", "illegalities"]

RULES: tuple[Rule, ...] = (
    block_rules.scalar_operand,
    block_rules.block_divisibility,
    block_rules.rank_one_blocks,
    block_rules.hbm_window,
    block_rules.window_without_grid,
    block_rules.mixed_element_dims,
    block_rules.element_alignment,
    block_rules.index_out_of_range,
    order_rules.non_consecutive_revisit,
    order_rules.parallel_carry,
    body_rules.hbm_access,
    body_rules.smem_vector_load,
    body_rules.vmem_scalar_store,
    body_rules.wide_types,
    body_rules.untouched_output,
    body_rules.barrier_and_id,
    order_rules.skipped_block,
    order_rules.read_before_write,
    body_rules.vmem_budget,
    body_rules.smem_budget,
    body_rules.copies_waited_for,
)


def illegalities(
    kernel: Kernel, chip: Chip | str | None = None, *, warnings: bool = False
) -> tuple[Illegality, ...]:
    """Every rule that a kernel breaks on a chip, errors first.

    Args:
        kernel: from ``trace``. chip: a ``Chip`` or its name; the one it was traced for by default.
        warnings: also estimates that the compiler may see differently (VMEM, waits).
    """
    from tpulab.hardware import get_chip

    if chip is None:
        chip = kernel.chip
    described = get_chip(chip) if isinstance(chip, str) else chip
    found: dict[Illegality, None] = {}
    for call in kernel.calls:
        for rule in RULES if call.steps else (block_rules.empty_grid,):
            found.update(dict.fromkeys(rule(call, described)))
    listed = sorted(found, key=lambda item: item.severity != "error")
    return tuple(item for item in listed if warnings or item.severity == "error")
