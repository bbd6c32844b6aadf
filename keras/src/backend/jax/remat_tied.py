"""Convolutions in regions: what keeps XLA:CPU from copying all kernels.

A program for XLA has no order but that of its data. What depends on weights
alone can come first, and what nothing else reads, last.
"""

import contextlib
import functools
import threading

import jax
from jax.custom_derivatives import SymbolicZero

_open = threading.local()


@contextlib.contextmanager
def tying():
    """Lets `tied` tie, in regions and in plain parts of plans."""
    before = getattr(_open, "ties", False)
    _open.ties = True
    try:
        yield
    finally:
        _open.ties = before


def tied(x, kernel):
    """The inputs of a convolution: neither is there alone, nor its gradient.

    XLA:CPU would make copies of all kernels when a step begins: in the layout
    of the backward pass, and because it may update a kernel before the
    gradient of `x`, which reads it, is made.
    """
    if not getattr(_open, "ties", False) or jax.default_backend() != "cpu":
        return x, kernel
    if not all(isinstance(v, jax.core.Tracer) for v in (x, kernel)):
        return x, kernel
    return tie(x, kernel)


@jax.custom_jvp
def tie(x, kernel):
    return jax.lax.optimization_barrier((x, kernel))


@functools.partial(tie.defjvp, symbolic_zeros=True)
def tie_gradients(values, tangents):
    if not any(isinstance(t, SymbolicZero) for t in tangents):
        tangents = jax.lax.optimization_barrier(tangents)
    return jax.lax.optimization_barrier(values), tangents


def in_order(fn):
    """A call in a plain part, in which kernels are not copied."""

    @functools.wraps(fn)
    def call(*args, **kwargs):
        with tying():
            return fn(*args, **kwargs)

    return call
