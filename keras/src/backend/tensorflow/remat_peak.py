"""Most bytes at once that the operations of a TensorFlow graph take."""

import math
import os

import tensorflow as tf

from keras.src.backend.tensorflow.remat_values import LOOPS
from keras.src.backend.tensorflow.remat_values import body_of
from keras.src.backend.tensorflow.remat_values import elements
from keras.src.backend.tensorflow.remat_values import root
from keras.src.backend.tensorflow.remat_values import size


def peak(ops, ends):
    """Most bytes at once of what `ops` make, in order; `ends` stay."""
    last = {root(x).name: len(ops) for x in ends}
    for i, op in enumerate(ops):
        for x in op.inputs:
            last[root(x).name] = max(i, last.get(root(x).name, 0))
    live = most = 0
    dying = {}
    for i, op in enumerate(ops):
        made = {root(x).name: size(x) for x in op.outputs if root(x) is x}
        inside = 0
        if op.type in LOOPS:
            body = body_of(op)
            inside = peak(body.get_operations(), body.outputs)
        elif op.type in WORKSPACES:
            inside = workspace(op)
        live += sum(made.values()) if op.type != "Const" else 0
        most = max(most, live + inside)
        for name, count in made.items():
            if op.type != "Const":
                dying.setdefault(last.get(name, i), []).append(count)
        live -= sum(dying.pop(i, ()))
    return most


WORKSPACES = ("Conv2DBackpropFilter", "Conv2DBackpropInput")


WORKING_SET = (30 << 20) // 4  # Elements; a constant of TensorFlow's kernels.


def workspace(op):
    """Bytes of patches that TensorFlow's own CPU kernels lay out for a product.

    The gradient of a kernel takes as many images at once as a fixed working
    set holds, that of an image one. Other devices and oneDNN are not known.
    """
    plain = os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"
    if not plain or tf.config.list_physical_devices("GPU"):
        return 0
    filters = op.type == "Conv2DBackpropFilter"
    kernel = op.outputs[0] if filters else op.inputs[1]
    _, *pixels, channels = op.inputs[2].shape
    taps = elements(kernel) // channels
    patches = math.prod(pixels) * taps
    unit = patches + math.prod(pixels) * channels + elements(kernel)
    images = -(-WORKING_SET // unit) if filters else 1
    added = elements(kernel) if filters else 0  # The sum over images.
    return (images * patches + added) * op.inputs[2].dtype.size
