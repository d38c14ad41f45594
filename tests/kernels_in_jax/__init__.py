"""The Pallas TPU kernels that ship inside JAX, with arguments a practitioner would use.

Every file holds one or more plain functions and a `make_args()` that returns their arguments:
concrete arrays where the kernel's control flow reads them (scalar prefetch), shapes elsewhere.
So each is also an example for the command line:

    python -m tpulab ladder tests/kernels_in_jax/matmul.py:matmul --chip v5e,v6e
"""
