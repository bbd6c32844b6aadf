"""Values that wait in the memory of the host on JAX."""

import functools
import warnings

import jax
from jax._src.core import trace_ctx
from jax._src.interpreters.partial_eval import Offloadable

from keras.src.backend.common.remat_policy import warn_not_offloaded

DIFFERENTIATING = ("JVPTrace", "LinearizeTrace")


def offloading():
    """What a policy of `jax.checkpoint` returns of an offloaded value.

    Returns:
        The mark of an offloaded value, or `True`, to keep it where it is.
    """
    if not has_host_memory():
        return True
    if is_second_order():
        warn_second_order()
        return True
    return Offloadable(src="device", dst="pinned_host")


@functools.cache
def has_host_memory():
    """Whether the device has a memory of the host beside its own."""
    device = jax.local_devices()[0]
    kinds = {m.kind for m in device.addressable_memories()}
    if {"device", "pinned_host"} <= kinds:
        return True
    warn_not_offloaded(device)
    return False


def is_second_order():
    """Whether the gradient of a gradient is being taken."""
    trace, found = trace_ctx.trace, 0
    while trace is not None:
        found += type(trace).__name__ in DIFFERENTIATING
        trace = getattr(trace, "parent_trace", None)
    return found > 1


@functools.cache
def warn_second_order():
    """Says once that nothing is offloaded in gradients of gradients."""
    warnings.warn(
        "`jax.checkpoint` takes no gradients of gradients through values in "
        "the memory of the host, so those that a `RematPolicy` offloads are "
        "kept on the device there."
    )
