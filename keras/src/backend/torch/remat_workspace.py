"""Memory that an operation of torch itself uses while it runs.

On CPUs the gradient of a convolution is made by oneDNN, in blocks of channels.
What it takes was measured, see the test: a contiguous copy of the kernel, its
gradient in blocks and once more in the order of torch. A group of a grouped
convolution is filled up to whole blocks, so that a depthwise kernel grows by
the square of a block; where the depthwise code of oneDNN can run, it does not.
"""

import math

import torch

from keras.src.backend.torch.core import get_device

aten = torch.ops.aten
BLOCKS = {"AVX512": 16, "AVX2": 8}


def workspace(func, args):
    """Bytes that an operation uses beside its inputs and results.

    Args:
        func: The operation, as `__torch_dispatch__` is given it.
        args: Its positional arguments.

    Returns:
        An integer.
    """
    if func._overloadpacket is not aten.convolution_backward:
        return 0
    gradient, x, kernel = args[:3]
    wants_kernel = args[-1][1]
    if not wants_kernel or get_device() != "cpu":
        return 0
    size = dense_bytes(kernel)
    copied = 0 if kernel.is_contiguous() else size
    if channels_are_last(x):
        return copied + size + in_blocks(kernel, x, args)
    # Here the input and the gradient are laid out anew too.
    moved = dense_bytes(x) + dense_bytes(gradient)
    return copied + size + max(size, moved - size)


def in_blocks(kernel, x, args):
    """Bytes of the gradient of a kernel whose channels come in blocks."""
    if is_direct(kernel, x, args):
        return dense_bytes(kernel)
    groups, block = args[9], BLOCKS.get(torch.backends.cpu.get_cpu_capability())
    out, into, *sizes = kernel.shape
    channels = [
        c if block is None else c + -c % block for c in (out // groups, into)
    ]
    return groups * math.prod([*channels, *sizes]) * kernel.element_size()


def is_direct(kernel, x, args):
    """Whether oneDNN has code of its own for this depthwise convolution."""
    strides, paddings, groups = args[4], args[5], args[9]
    out, into, *sizes = kernel.shape
    if into != 1 or out != groups or sizes[-1] > 3:
        return False
    return all(
        length >= size + -padding % stride
        for length, size, padding, stride in zip(
            x.shape[2:], sizes, paddings, strides
        )
    )


def channels_are_last(x):
    return x.ndim > 2 and x.stride(1) == 1


def dense_bytes(x):
    return math.prod(x.shape) * x.element_size()
