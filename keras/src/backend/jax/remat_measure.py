"""What a training step keeps on JAX, from the step as JAX differentiates it.

The residuals are what the traced forward part hands to the backward part;
the peak is the buffer assignment of the compiled step.
"""

import re

import jax

from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.jax import remat
from keras.src.backend.jax.remat_compiled import shared_buffers
from keras.src.backend.jax.remat_values import OUTSIDE
from keras.src.backend.jax.remat_values import Program
from keras.src.backend.jax.remat_values import is_var
from keras.src.backend.jax.remat_values import number
from keras.src.backend.jax.remat_values import size


def kept_values(forward, data, variables):
    """Traces a step's forward part and lists what it keeps for the backward.

    Args:
        forward: Takes a list of tensors, returns the loss.
        data: List of tensors.
        variables: The Keras variables of the model.

    Returns:
        List of `(path, bytes, label)`: the name scope that made each value,
        and what a policy kept it as or `None`.
    """
    loss_of, policies = pure(forward, variables), []

    def linearized(trained, others, data):
        return jax.vjp(lambda t: loss_of(t, others, data), trained)

    arguments = (*values_of(variables), data)
    with remat.observed(policies):
        jaxpr = jax.make_jaxpr(linearized)(*arguments).jaxpr
    roots, program = shared_buffers(jaxpr), Program(jaxpr)
    kept = {roots.get(v, v): None for v in jaxpr.outvars[1:] if is_var(v)}
    outside = {*jaxpr.invars, *jaxpr.constvars}
    paths = {v: path_of(eqn) for eqn in jaxpr.eqns for v in eqn.outvars}
    return [
        (
            paths[v],
            size(v),
            label_of(program, number(program.place, v), policies),
        )
        for v in kept
        if v not in outside
    ]


def label_of(program, i, policies):
    """What the policy of a region kept a value as, or `None`."""
    if i == OUTSIDE:
        return None
    value = program.values[i]
    spec = lambda: value.spec
    for mark in re.findall(rf"{remat.MARK}(\d+)", value.path):
        policy = policies[int(mark)]
        if policy.keeps_value(value.op, value.has_batch, value.names, spec):
            return policy.label(value.op, value.names)
    return None


def pure(forward, variables):
    """The loss as a function of trained values, other values and data."""
    trained = [v for v in variables if v.trainable]
    others = [v for v in variables if not v.trainable]

    def loss_of(trained_values, other_values, data):
        mapping = [*zip(trained, trained_values), *zip(others, other_values)]
        with StatelessScope(state_mapping=mapping, collect_losses=True):
            return forward(data)

    return loss_of


def values_of(variables):
    trained = [v.value for v in variables if v.trainable]
    others = [v.value for v in variables if not v.trainable]
    return trained, others


def path_of(eqn):
    """The name scope of an equation, without names of transformations."""
    stack = str(eqn.source_info.name_stack)
    while "(" in stack:
        bare = re.sub(r"\w+\(([^()]*)\)", r"\1", stack)
        if bare == stack:
            break
        stack = bare
    return re.sub(rf"{remat.MARK}\d+/?", "", stack)


def peak_bytes(forward, data, variables):
    """Most bytes at once in a step, beyond weights and batch.

    Args:
        forward: Takes a list of tensors, returns the loss.
        data: List of tensors.
        variables: The Keras variables of the model.

    Returns:
        An integer, or `None` if the compiler does not tell.
    """
    options = remat.jit_options().get("compiler_options", {})
    if options:  # Slower code on CPU, of the same buffers, twice as soon.
        options["xla_backend_optimization_level"] = 0
    step = jax.jit(jax.grad(pure(forward, variables)))
    lowered = step.lower(*values_of(variables), data)
    compiled = lowered.compile(compiler_options=options)
    found = compiled.memory_analysis()
    if found is None:
        return None
    return int(found.temp_size_in_bytes + found.output_size_in_bytes)
