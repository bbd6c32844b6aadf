"""The order in which regions run again in a graph of TensorFlow.

An executor starts any operation whose inputs are there, in no fixed order.
Control edges make the regions run again one at a time: one starts when the
gradient of its results is there, and all gradients made before are done; it
hands its own gradient on when those of its weights are done.
"""

import tensorflow as tf

from keras.src.backend.tensorflow import remat_xla

SEEN = "_remat_operations_seen"


def after(gradients, inputs, reads):
    """Copies of the tensors that exist only once the gradients are there."""
    gradients = [values_of(g) for g in gradients]
    if remat_xla.compiles():
        return remat_xla.after(gradients, inputs, reads)
    with tf.control_dependencies(gradients):
        again = copies_of(inputs)
        reads = [tf.identity(x) for x in reads]
    return again, reads


def unread_gradients():
    """Gradients made in this graph since the last call that nothing reads yet.

    Those of weights in plain parts: nothing else would keep an executor from
    starting the next region while they wait, with all that they need.
    """
    graph = tf.compat.v1.get_default_graph()
    operations = graph.get_operations()
    since = getattr(graph, SEEN, 0)
    setattr(graph, SEEN, len(operations))
    return [
        x
        for op in operations[since:]
        if "gradient" in op.name and op.type != "Placeholder"
        for x in op.outputs[:1]
        if is_differentiable(x) and not any(y.consumers() for y in op.outputs)
    ]


def finished(found, n_inputs):
    """Holds the inputs' gradients back until all the others are done."""
    others = [values_of(g) for g in found[n_inputs:] if g is not None]
    with tf.control_dependencies(others):
        first = [
            None
            if g is None
            else tf.nest.map_structure(tf.identity, g, expand_composites=True)
            for g in found[:n_inputs]
        ]
    return first + found[n_inputs:]


def copies_of(tensors):
    return tf.nest.map_structure(tf.identity, tensors, expand_composites=True)


def is_differentiable(x):
    return x.dtype.is_floating or x.dtype.is_complex


def values_of(gradient):
    return getattr(gradient, "values", gradient)
