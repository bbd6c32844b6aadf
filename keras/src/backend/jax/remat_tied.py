"""Convolutions in regions: what keeps XLA:CPU from copying all kernels.

A program for XLA has no order but that of its data. What depends on weights
alone can come first, and what nothing else reads, last.
"""

import functools

import jax
from jax.custom_derivatives import SymbolicZero

from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes

TIES = "remat_ties"


def tying():
    """Lets `tied` tie, in regions and in plain parts of plans."""
    return attributes(**{TIES: True})


def tied(x, kernel):
    """The inputs of a convolution: neither is there alone, nor its gradient.

    XLA:CPU would make copies of all kernels when a step begins: in the layout
    of the backward pass, and because it may update a kernel before the
    gradient of `x`, which reads it, is made.
    """
    ties = global_state.get_global_attribute(TIES)
    if not ties or jax.default_backend() != "cpu":
        return x, kernel
    if not all(isinstance(v, jax.core.Tracer) for v in (x, kernel)):
        return x, kernel
    # In `shard_map` a barrier would make a kernel that all devices have alike
    # one that differs between them, which its gradient does not.
    if varies(x) != varies(kernel):
        return x, kernel
    return tie(x, kernel)


def varies(x):
    """The axes of `shard_map` along which devices have different values."""
    older = getattr(x.aval, "vma", None)
    return getattr(x.aval, "manual_axis_type", older)


@jax.custom_jvp
def tie(x, kernel):
    return jax.lax.optimization_barrier((x, kernel))


@functools.partial(tie.defjvp, symbolic_zeros=True)
def tie_gradients(values, tangents):
    if not any(isinstance(t, SymbolicZero) for t in tangents):
        tangents = jax.lax.optimization_barrier(tangents)
    return jax.lax.optimization_barrier(values), tangents


def is_tie(primitive, params):
    """Whether this is `tie`, or its barrier: the inputs once more."""
    if primitive.name != "custom_jvp_call":
        return primitive.name == "optimization_barrier"
    inner = [eqn.primitive.name for eqn in params["call_jaxpr"].eqns]
    return inner == ["optimization_barrier"]


def in_order(fn):
    """A call in a plain part, in which kernels are not copied."""

    @functools.wraps(fn)
    def call(*args, **kwargs):
        with tying():
            return fn(*args, **kwargs)

    return call
