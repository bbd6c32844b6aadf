"""What policies know of TensorFlow's operations."""

import tensorflow as tf

PRODUCTS = {"MatMul": False, "BatchMatMul": True, "BatchMatMulV2": True}
PRODUCTS.update({"BatchMatMulV3": True, "Einsum": True})
CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}
CONVOLUTIONS |= {"Conv2DBackpropInput", "Conv3DBackpropInputV2"}

# Made when a value from outside is met for the first time, not the next time.
UNCOUNTED = ("Placeholder", "ReadVariableOp")

CALLS = {"If", "StatelessIf", "Case", "StatelessCase", "While"}
CALLS |= {"StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"}
HANDLES = {tf.variant, tf.resource}


def kind_of(op_type, inputs):
    if op_type in PRODUCTS:
        has_batch = PRODUCTS[op_type] and all(
            x.shape.rank is None or x.shape.rank > 2 for x in inputs
        )
        return "matmul", has_batch
    return ("conv" if op_type in CONVOLUTIONS else op_type), False


def can_keep(op_type, outputs):
    """Whether results of an operation can be given back in a second run."""
    if not outputs or any(x.dtype in HANDLES for x in outputs):
        return False
    # Gradients of calls need more than results. In eager mode those of a
    # `tf.function` go by its own name, such as `__inference_f_73`.
    return op_type not in CALLS and not op_type.startswith("__")


def fits(x, y):
    return x.dtype == y.dtype and x.shape.is_compatible_with(y.shape)


def spec_of(x):
    shape = x.shape.as_list() if x.shape.rank is not None else ()
    return tuple(shape), x.dtype.name
