"""Kernel files to start from: ``tpulab new NAME --kind matmul`` writes one that works.

Modules:
    writing: the kinds, and how a file is made from a kind's template.
    workbench: what the written files call to check and time their kernel.

The templates are plain Python in ``templates/``, which run and are tested as they stand.
"""

from __future__ import annotations

from tpulab.scaffolds.writing import KINDS, write

__all__ = ["KINDS", "write"]
