"""The order in which regions run again in a graph of TensorFlow.

An executor starts any operation whose inputs are there, in no fixed order.
Control edges make the regions run again one at a time: one starts when the
gradient of its results is there, and all gradients made before are done; it
hands its own gradient on when those of its weights are done.
"""

import functools

import tensorflow as tf

from keras.src import tree
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_attributes import AGAIN
from keras.src.backend.tensorflow import remat_keep
from keras.src.backend.tensorflow import remat_xla
from keras.src.backend.tensorflow.remat_updates import gate

SEEN = "_remat_operations_seen"


@remat_keep.unwatched()
def after(gradients, inputs, reads):
    """Copies of the tensors that exist only once the gradients are there."""
    gradients = [values_of(g) for g in gradients]
    if remat_xla.compiles():
        return remat_xla.after(gradients, inputs, reads)
    with tf.control_dependencies([gate(gradients)]):
        again = copies_of(inputs)
        reads = [tf.identity(x) for x in reads]
    return again, reads


def unread_gradients(beside):
    """Gradients made in this graph since the last call that nothing reads yet.

    Those of weights in plain parts: nothing else would keep an executor from
    starting the next region while they wait, with all that they need.

    Args:
        beside: List of gradients. Devices do not wait for each other, so only
            gradients on theirs are found.
    """
    devices = {values_of(g).device for g in beside}
    graph = tf.compat.v1.get_default_graph()
    operations = graph.get_operations()
    since = getattr(graph, SEEN, 0)
    setattr(graph, SEEN, len(operations))
    return [
        x
        for op in operations[since:]
        if "gradient" in op.name and op.type != "Placeholder"
        if op.device in devices
        for x in op.outputs[:1]
        if is_differentiable(x) and not any(y.consumers() for y in op.outputs)
    ]


def in_order(fn):
    """A call whose backward run ends before that of those before it begins.

    Else the gradients of all weights of a plain part may be left for last,
    with all that they are made of.
    """

    @functools.wraps(fn)
    def call(*args, **kwargs):
        seen = {}  # One that is given twice stays one.

        def once(x):
            return seen.setdefault(id(x), (x, waiting_input(x)))[1]

        args, kwargs = tree.map_structure(once, (args, kwargs))
        return fn(*args, **kwargs)

    return call


def waiting_input(x):
    """`x`, whose gradient waits for others made before."""
    is_symbolic = isinstance(x, tf.Tensor) and tf.is_symbolic_tensor(x)
    if not is_symbolic or not is_differentiable(x) or remat_xla.compiles():
        return x

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), after_others

    mask = get_keras_mask(x)
    with remat_keep.unwatched():
        x = identity(x)
    if mask is not None:
        set_keras_mask(x, mask)
    return x


def ordered(fn):
    """A layer's `call`; in a second run its backward run ends before others."""
    return in_order(fn) if global_state.get_global_attribute(AGAIN) else fn


@remat_keep.unwatched()
def after_others(gradient):
    if tf.executing_eagerly() or not isinstance(gradient, tf.Tensor):
        return gradient
    others = unread_gradients([gradient])
    if not others:
        return gradient
    with tf.control_dependencies([gate(others)]):
        return tf.identity(gradient)


@remat_keep.unwatched()
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
