"""The one place that touches JAX structures which are not public API, by idea a module.

(But for those of its TPU interpreter while that runs, see ``interpreter_internals``.)

Checked with jax 0.10.2 and 0.12.0. Everything else in this room works on what these functions
return, so that a new JAX needs changes here only. Differences handled so far: 0.12 has one
``Jaxpr`` class (no ``ClosedJaxpr``), ``scan`` describes its operands by a flat tree and not by
counts, and the TPU interpreter raises on a race unless told to warn.
"""

from tpulab.kernel.jax_internals.calls import (
    BlockMapping,
    CallStructure,
    Copy,
    kernels_in,
    leaves_device,
    semantics_name,
    take_apart,
    take_apart_copy,
)
from tpulab.kernel.jax_internals.devices import (
    backend_started,
    make_jaxpr,
    map_on_mesh,
    settle_platform,
    tracing_for,
)
from tpulab.kernel.jax_internals.interpreting import (
    as_function,
    evaluate_equation,
    evaluate_vectorised,
    faithful_params,
    replace_interpret,
    reset_interpreter,
)
from tpulab.kernel.jax_internals.places import (
    argument_names,
    equation_location,
    function_and_location,
    same_source,
    source_of,
    user_line,
)
from tpulab.kernel.jax_internals.structure import (
    KERNEL_PRIMITIVES,
    Literal,
    all_equations,
    binders,
    dtype_of,
    indexers,
    inner_jaxprs,
    is_jaxpr,
    is_ref,
    is_slice,
    jaxpr_constants,
    kernel_equations,
    memory_space,
    mesh_axes,
    open_jaxpr,
    scan_counts,
    shape_of,
    while_counts,
    without_dead_code,
)

__all__ = [
    "BlockMapping",
    "CallStructure",
    "Copy",
    "KERNEL_PRIMITIVES",
    "Literal",
    "all_equations",
    "argument_names",
    "as_function",
    "backend_started",
    "binders",
    "dtype_of",
    "equation_location",
    "evaluate_equation",
    "evaluate_vectorised",
    "faithful_params",
    "function_and_location",
    "indexers",
    "inner_jaxprs",
    "is_jaxpr",
    "is_ref",
    "is_slice",
    "jaxpr_constants",
    "kernel_equations",
    "kernels_in",
    "leaves_device",
    "make_jaxpr",
    "map_on_mesh",
    "memory_space",
    "mesh_axes",
    "open_jaxpr",
    "replace_interpret",
    "reset_interpreter",
    "same_source",
    "scan_counts",
    "semantics_name",
    "settle_platform",
    "shape_of",
    "source_of",
    "take_apart",
    "take_apart_copy",
    "tracing_for",
    "user_line",
    "while_counts",
    "without_dead_code",
]
