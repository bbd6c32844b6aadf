"""The order of second runs in a graph that XLA compiles.

XLA drops control dependencies, and merges what is computed twice from the
same values: a second run that only waits would be merged with the first, and
nothing saved. So it starts from values that XLA cannot tell to be the same.
"""

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.ops import control_flow_util


def compiles():
    """Whether XLA compiles the graph that is being made."""
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def after(gradients, inputs, reads):
    """Copies of the tensors that depend on the gradients.

    Args:
        gradients: List of tensors.
        inputs: Nest of tensors.
        reads: List of tensors, the values of variables.

    Returns:
        The pair of `inputs` and `reads`, of equal values.
    """
    known = tf.nest.flatten([inputs, reads], expand_composites=True)
    if has_accelerator():
        again = behind_barrier(known, gradients)
    else:
        count = len(tf.nest.flatten(inputs, expand_composites=True))
        never = is_any_above_infinity(gradients)
        # Weights are there anyway. What is drawn from a seed would be kept.
        again = [
            depending(x, never) if i < count or x.dtype.is_integer else x
            for i, x in enumerate(known)
        ]
    return tf.nest.pack_sequence_as(
        [inputs, reads], again, expand_composites=True
    )


def has_accelerator():
    return any(d.device_type != "CPU" for d in tf.config.list_logical_devices())


def behind_barrier(tensors, gradients):
    """The tensors, behind a barrier that waits for the gradients."""

    @tf.custom_gradient
    def barrier(*known):
        result = xla.optimization_barrier(*known, *gradients)
        return result[: len(known)], lambda *incoming: incoming

    return barrier(*tensors)


def is_any_above_infinity(gradients):
    """A scalar that is always false, of which XLA does not know it.

    XLA on a CPU deletes barriers before it merges what is equal.
    """
    found = tf.constant(False)
    for g in gradients:
        first = tf.reshape(g, [-1])[:1]  # none in an empty batch
        if first.dtype.is_complex:
            first = tf.math.real(first)
        found |= tf.reduce_any(first > tf.constant(float("inf"), first.dtype))
    return found


def depending(x, never):
    """`x`, or what is never seen."""
    if not (x.dtype.is_numpy_compatible and x.dtype != tf.string):
        return tf.identity(x)
    return tf.where(never, tf.zeros_like(x), x)
