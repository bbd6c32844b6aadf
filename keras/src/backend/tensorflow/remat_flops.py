"""Arithmetic of TensorFlow's operations, from the shapes in a graph."""

import math
import re

from keras.src.backend.tensorflow.remat_values import LOOPS
from keras.src.backend.tensorflow.remat_values import SAME_BUFFER
from keras.src.backend.tensorflow.remat_values import SHAPE_ONLY
from keras.src.backend.tensorflow.remat_values import body_of
from keras.src.backend.tensorflow.remat_values import elements
from keras.src.backend.tensorflow.remat_values import iterations
from keras.src.backend.tensorflow.remat_values import size

NO_ARITHMETIC = SHAPE_ONLY.union(
    SAME_BUFFER,
    "BroadcastTo Cast ConcatV2 Const Fill GatherV2 Pack Pad PadV2 Placeholder "
    "Range ReadVariableOp Slice Split SplitV StridedSlice Tile Transpose "
    "Unpack".split(),
)


def arithmetic(ops):
    found = {"flops": 0, "matmuls": 0}
    for op in ops:
        if op.type in LOOPS:
            inner = arithmetic(body_of(op).get_operations())
            times = iterations(op)
            found["flops"] += times * inner["flops"]
            found["matmuls"] += times * inner["matmuls"]
            continue
        made = max((size(x) for x in op.outputs), default=0)
        found["flops"] += flops(op)
        if op.type in MATMULS:
            found["matmuls"] += made
    return found


def flops(op):
    if op.type in NO_ARITHMETIC or not op.outputs:
        return 0
    if op.type in MATMULS:
        return 2 * MATMULS[op.type](op)
    if op.type in ("Sum", "Mean", "Max", "Min", "Prod", "ArgMax"):
        return elements(op.inputs[0])
    return max(elements(x) for x in op.outputs)


def of_product(op):
    transposed = "transpose_a" if op.type == "MatMul" else "adj_x"
    axis = -2 if op.get_attr(transposed) else -1
    return elements(op.outputs[0]) * (op.inputs[0].shape[axis] or 1)


def of_convolution(op):
    return elements(op.outputs[0]) * taps(op, -1)


def of_transposed_convolution(op):
    return elements(op.inputs[2]) * taps(op, -1)


def of_depthwise_convolution(op):
    return elements(op.outputs[0]) * math.prod(op.inputs[1].shape[:2])


def taps(op, stop):
    return math.prod(d or 1 for d in op.inputs[1].shape[:stop])


def of_einsum(op):
    """Every index once, as one product of two operands takes."""
    equation = op.get_attr("equation").decode()
    terms = re.split(",|->", equation)
    sizes = {}
    for term, x in zip(terms, [*op.inputs, op.outputs[0]]):
        shape = list(x.shape)
        extra = len(shape) - len(term.replace("...", ""))
        term = term.replace("...", "_" * extra)
        letters = [c if c != "_" else len(term) - i for i, c in enumerate(term)]
        sizes.update({c: d or 1 for c, d in zip(letters, shape)})
    return math.prod(sizes.values())


MATMULS = {
    "BatchMatMul": of_product,
    "BatchMatMulV2": of_product,
    "BatchMatMulV3": of_product,
    "Conv2D": of_convolution,
    "Conv2DBackpropInput": of_transposed_convolution,
    "Conv3D": of_convolution,
    "Conv3DBackpropInputV2": of_transposed_convolution,
    "DepthwiseConv2dNative": of_depthwise_convolution,
    "Einsum": of_einsum,
    "MatMul": of_product,
}
