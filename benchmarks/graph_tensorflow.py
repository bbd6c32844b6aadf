"""What TensorFlow's graph of a training step tells, without running it.

Kept bytes: what operations of the backward pass read of the forward pass,
weights and batch apart. Arithmetic: of matrix products and convolutions, as
torch's counter has it, second runs too. A loop hides both.
"""

import math

SAME_BUFFER = {
    "EnsureShape",
    "ExpandDims",
    "Identity",
    "IdentityN",
    "PreventGradient",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
SHAPE_ONLY = {"OnesLike", "Shape", "ShapeN", "Size", "Rank", "ZerosLike"}
NO_VALUE = {"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"}


def of_step(model, x, y):
    """Traces one step of a compiled model.

    Returns:
        Kept bytes and arithmetic; `None` for both if there is a loop.
    """
    import tensorflow as tf

    ends = []
    compute_loss = model._compute_loss

    def noted(*args, **kwargs):
        loss = compute_loss(*args, **kwargs)
        ends.append(len(tf.compat.v1.get_default_graph().get_operations()))
        return loss

    model._compute_loss = noted
    try:
        step = tf.function(lambda x, y: model.train_step((x, y)))
        data = tf.nest.map_structure(tf.constant, (x, y))
        graph = step.get_concrete_function(*data).graph
    finally:
        del model._compute_loss
    ops = graph.get_operations()
    if any("While" in op.type for op in ops):
        return None, None
    needed = reached(graph)
    forward, backward = (
        [op for op in part if op in needed]
        for part in (ops[: ends[0]], ops[ends[0] :])
    )
    return kept(forward, backward), sum(map(arithmetic, needed))


def reached(graph):
    """The operations that TensorFlow does not prune."""
    todo = [x.op for x in graph.outputs] + list(graph.control_outputs)
    found = set(todo)
    while todo:
        op = todo.pop()
        before = {x.op for x in op.inputs} | set(op.control_inputs)
        todo += before - found
        found |= before
    return found


def kept(forward, backward):
    made = {x.ref() for op in forward for x in op.outputs}
    read = {}
    for op in backward:
        if op.type in SHAPE_ONLY:
            continue
        for x in op.inputs:
            if x.ref() in made:
                source = root(x)
                if source.op.type not in NO_VALUE:
                    read[source.ref()] = size(source)
    return sum(read.values())


def root(x):
    """The tensor whose buffer `x` shares."""
    while x.op.type in SAME_BUFFER:
        x = x.op.inputs[x.value_index if x.op.type == "IdentityN" else 0]
    return x


def size(x):
    if x.shape.rank is None or None in x.shape.as_list():
        return 0
    return x.shape.num_elements() * x.dtype.size


def arithmetic(op):
    """Two operations for each product that is added up."""
    if op.type in ("MatMul", "BatchMatMulV2"):
        turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        inner = op.inputs[0].shape[-2 if turned else -1]
        return 2 * op.outputs[0].shape.num_elements() * inner
    if op.type in ("Einsum", "XlaEinsum"):
        return einsum(op)
    if op.type in CONVOLUTIONS:
        kernel, out = CONVOLUTIONS[op.type]
        wide = op.outputs[0] if kernel is None else op.inputs[kernel]
        pixels = op.outputs[0] if out is None else op.inputs[out]
        depthwise = "Depthwise" in op.type
        sizes = wide.shape.as_list()
        per_pixel = math.prod(sizes[:2]) * (1 if depthwise else sizes[2])
        return 2 * pixels.shape.num_elements() * per_pixel
    return 0


# Where the kernel and the result of the forward convolution are among the
# inputs; `None` says that it is the result.
CONVOLUTIONS = {
    "Conv2D": (1, None),
    "Conv2DBackpropInput": (1, 2),
    "Conv2DBackpropFilter": (None, 2),
    "DepthwiseConv2dNative": (1, None),
    "DepthwiseConv2dNativeBackpropInput": (1, 2),
    "DepthwiseConv2dNativeBackpropFilter": (None, 2),
}


def einsum(op):
    text = op.get_attr("equation").decode()
    inputs, _ = text.split("->")
    sizes = {}
    for term, x in zip(inputs.split(","), op.inputs):
        sizes.update(zip(term, x.shape.as_list()))
    return 2 * math.prod(sizes.values())
