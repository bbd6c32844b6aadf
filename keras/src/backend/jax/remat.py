"""Rematerialization on JAX: `jax.checkpoint` around a fresh function.

`jax.checkpoint` remembers its trace by function object, and with it the
values that the function closes over. Each call of a region therefore makes a
new function: what it closes over (variables above all) is read afresh, enters
the checkpoint as a hidden argument and gets its gradient.
"""

import contextlib

import jax
from jax._src.core import trace_state_clean


def checkpoint(run, inputs, policy=None):
    """Calls `run.first(*inputs)`, keeping only the inputs for the gradient.

    Args:
        run: A region's `Run`.
        inputs: List of tensors.
        policy: A `RematPolicy`, or `None` to keep nothing.

    Returns:
        The flat list of tensors that `run.first` returns.
    """
    keep = None if policy is None else policy_function(policy)

    def first(*inputs):
        return run.first(*inputs)

    return jax.checkpoint(first, policy=keep)(*inputs)


def records_gradient():
    """Whether a gradient may be taken of what runs now."""
    return not trace_state_clean()


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
