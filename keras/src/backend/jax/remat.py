"""Rematerialization on JAX: `jax.checkpoint` around a fresh function.

`jax.checkpoint` remembers its trace by function object, and with it the
values that the function closes over. Each call of a region therefore makes a
new function: what it closes over (variables above all) is read afresh, enters
the checkpoint as a hidden argument and gets its gradient.
"""

import contextlib
import functools
import warnings

import jax
from jax._src.ad_checkpoint import name_p
from jax._src.core import trace_state_clean
from jax._src.interpreters.partial_eval import Offloadable
from jax.ad_checkpoint import checkpoint_name

from keras.src.backend.config import is_nnx_enabled


def checkpoint(run, inputs, policy=None):
    """Calls `run.first(*inputs)`, keeping only the inputs for the gradient.

    Args:
        run: A region's `Run`.
        inputs: List of tensors.
        policy: A `RematPolicy`, or `None` to keep nothing.

    Returns:
        The flat list of tensors that `run.first` returns.
    """
    keep = None if policy is None else keep_function(policy)

    def first(*inputs):
        return run.first(*inputs)

    return jax.checkpoint(first, policy=keep)(*inputs)


KINDS = {"dot_general": "matmul", "conv_general_dilated": "conv"}


def keep_function(policy):
    """A `RematPolicy` in the form that `jax.checkpoint` takes."""

    def keep(primitive, *avals, **params):
        name = params.get("name") if primitive is name_p else None
        op = "name" if name else KINDS.get(primitive.name, primitive.name)
        has_batch = op == "matmul" and bool(params["dimension_numbers"][1][0])

        def spec():
            bind = lambda *args: primitive.bind(*args, **params)
            out = jax.tree.leaves(jax.eval_shape(bind, *avals))[0]
            return tuple(out.shape), str(out.dtype)

        kept = policy.keeps(op, has_batch, name, spec)
        if kept and policy.offloads(name) and can_offload():
            return Offloadable(src="device", dst="pinned_host")
        return kept

    return keep


@functools.cache
def can_offload():
    """Whether the device has a memory of the host beside its own."""
    device = jax.local_devices()[0]
    kinds = {m.kind for m in device.addressable_memories()}
    if {"device", "pinned_host"} <= kinds:
        return True
    warnings.warn(
        "This device has no separate memory of the host, so values that a "
        f"`RematPolicy` offloads are kept where they are. Device: {device}"
    )
    return False


def name_value(x, name):
    return checkpoint_name(x, name)


def jit_options():
    """Options of `jax.jit` with which the trainer compiles its step.

    XLA:CPU deletes optimization barriers and then merges each second run with
    the first, so that nothing would be saved. GPU and TPU are left alone.
    """
    if is_nnx_enabled() or jax.default_backend() != "cpu":
        return {}
    return {"compiler_options": compiler_options()}


def compiler_options():
    """What keeps XLA:CPU from undoing rematerialization."""
    return {"xla_disable_hlo_passes": "cse_barrier_expander"}


def records_gradient():
    """Whether a gradient may be taken of what runs now."""
    return not trace_state_clean()


def scan(f, init, xs):
    """A loop with a region in its body; unrolled ones share no memory."""
    return jax.lax.scan(f, init, xs)


def is_input(x):
    """Whether `x` enters a region as a tensor; a concrete one is a constant."""
    return any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves(x))


def is_output(x):
    return isinstance(x, jax.Array) or is_input(x)


def read(variable, run):
    return variable._value


def assigned(value, before):
    """The value that a variable has once `value` was assigned to it."""
    return value


def check_reads(run):
    """Nothing to do: arrays never change."""


def is_early_stop(error):
    return False


@contextlib.contextmanager
def building():
    """Makes new variables concrete although a trace is open."""
    with jax.ensure_compile_time_eval():
        yield
