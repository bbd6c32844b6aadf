"""A stand-in: nothing is ever differentiated here.

So that plans can be looked at on this backend too, an operation counts as
keeping its outputs.
"""

import math

from keras.src import backend
from keras.src.backend import KerasTensor
from keras.src.utils.dtype_utils import dtype_size

UPDATES_AT_ONCE = False
STEPS_ALIKE = True
KEPT_STAYS = False
# What a loss and its gradient take at once, over the size of the results.
LOSS_COPIES = 1


def trace(call, inputs, variables):
    """Infers what `call` returns, and takes its results as kept.

    Args:
        call: Takes a list of tensors, returns a flat list of tensors.
        inputs: List of `(shape, dtype, differentiable)`.
        variables: The Keras variables that `call` reads or writes.

    Returns:
        Dict, see `keras/src/backend/jax/remat_profile.py`.
    """
    specs = [KerasTensor(shape, dtype) for shape, dtype, _ in inputs]
    outputs = backend.compute_output_spec(lambda *x: call(list(x)), *specs)
    sizes = [
        (y.shape, y.dtype, math.prod(y.shape) * dtype_size(y.dtype) // 8)
        for y in outputs
    ]
    return {
        "outputs": sizes,
        "aliases": [None] * len(outputs),
        "saved_inputs": [],
        "saved_outputs": list(range(len(outputs))),
        "internal": 0,
        "flops": sum(math.prod(y.shape) for y in outputs),
        "matmuls": 0,
        "scratch": sum(size for _, _, size in sizes),
    }


def free_memory():
    """Bytes free on the default device, or `None` if it cannot be told."""
    return None
