"""The tensors of a TensorFlow graph: buffers, bytes, lists of loops."""

import math

import tensorflow as tf

SAME_BUFFER = frozenset(
    "CheckNumerics EnsureShape ExpandDims Identity IdentityN PreventGradient "
    "Reshape Squeeze StopGradient TensorListFromTensor".split()
)
LOOPS = ("While", "StatelessWhile")
LIST_ITEMS = {"TensorListPushBack": 1, "TensorListSetItem": 2}


def root(x):
    """The tensor whose buffer `x` is."""
    while x.op.type in SAME_BUFFER:
        x = x.op.inputs[x.value_index if x.op.type == "IdentityN" else 0]
    return x


def size(x):
    if x.dtype == tf.variant:
        return list_size(x)
    if x.dtype == tf.resource:
        return 0
    return elements(x) * x.dtype.size


def elements(x):
    if x.shape.rank is None:
        return 1
    return math.prod(1 if d is None else d for d in x.shape)


def list_size(x):
    """Bytes of a list that a loop adds one tensor per iteration to."""
    if x.op.type not in LOOPS:
        return 0
    pushed = body_of(x.op).outputs[x.value_index]
    while pushed.op.type in SAME_BUFFER:
        pushed = pushed.op.inputs[0]
    item = LIST_ITEMS.get(pushed.op.type)
    return iterations(x.op) * size(pushed.op.inputs[item]) if item else 0


def body_of(op):
    return op.graph._get_function(op.get_attr("body").name).graph


def iterations(op):
    """How often a loop runs, by the lists that it reads and fills."""
    lengths = [1]
    for x in op.inputs:
        if x.op.type == "TensorListReserve":
            lengths.append(int(tf.get_static_value(x.op.inputs[1]) or 1))
        elif x.op.type == "TensorListFromTensor":
            lengths.append(x.op.inputs[0].shape[0] or 1)
    return max(lengths)


# What reads no more than a shape, which is known.
SHAPE_ONLY = frozenset(
    "OnesLike Rank Shape ShapeN Size TensorListElementShape TensorListLength "
    "ZerosLike".split()
)
