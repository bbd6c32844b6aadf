"""What an operation keeps for its backward pass on TensorFlow, from shapes.

The operation and its gradient are traced into a scratch graph that never
runs. What operations of the gradient read from the forward part is kept.
Operations that only rename or reshape a tensor share its buffer. Loops keep
lists of tensors, one per iteration.
"""

import tensorflow as tf

from keras.src.backend.common import standardize_dtype
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.tensorflow import remat_keep
from keras.src.backend.tensorflow import remat_ops
from keras.src.backend.tensorflow.remat_flops import arithmetic
from keras.src.backend.tensorflow.remat_flops import flops
from keras.src.backend.tensorflow.remat_peak import peak
from keras.src.backend.tensorflow.remat_tapes import recording
from keras.src.backend.tensorflow.remat_updates import needed_for
from keras.src.backend.tensorflow.remat_values import SAME_BUFFER
from keras.src.backend.tensorflow.remat_values import SHAPE_ONLY
from keras.src.backend.tensorflow.remat_values import root
from keras.src.backend.tensorflow.remat_values import size

# In a graph a weight is updated as soon as its gradient is there, so gradients
# do not pile up.
UPDATES_AT_ONCE = True
# Whether one trace of a recurrent layer in parts tells what a share costs.
STEPS_ALIKE = False
KEPT_STAYS = False
# What a loss and its gradient take at once, over the size of the results.
LOSS_COPIES = 4


def trace(call, inputs, variables):
    """Traces `call` and its gradient, as in training.

    Args:
        call: Takes a list of tensors, returns a flat list of tensors.
        inputs: List of `(shape, dtype, differentiable)`.
        variables: The Keras variables that `call` reads or writes.

    Returns:
        Dict, see `keras/src/backend/jax/remat_profile.py`.
    """
    graph = tf.__internal__.FuncGraph("remat_profile")
    # `tf.init_scope` stops tapes, and then no region would be made.
    with tf.init_scope(), graph.as_default(), recording():
        given = [placeholder(s, d) for s, d, _ in inputs]
        values = [placeholder(v.shape, v.dtype) for v in variables]
        with StatelessScope(state_mapping=list(zip(variables, values))):
            with remat_keep.named() as names:
                outputs = [tf.convert_to_tensor(y) for y in call(list(given))]
        forward = graph.get_operations()
        grads = take_gradient(
            outputs,
            [x for x, (_, _, w) in zip(given, inputs) if w],
            [x for x, v in zip(values, variables) if v.trainable],
        )
        needed = needed_by(grads)
        backward = graph.get_operations()[len(forward) :]
        backward = [op for op in backward if op in needed]
        kept = read_by(backward, set(forward))
        for x in values:
            kept.pop(x.name, None)
        found = describe(kept, given, outputs) | arithmetic(forward)
        found["made"] = made(forward, kept.values(), outputs, names)
        found["scratch"] = max(
            peak(forward, [*outputs, *kept.values()]) - own_residuals(found),
            peak(backward, grads[0] + grads[1]),
        )
        return found


def needed_by(tensors):
    """The operations that these results are made by.

    `tf.gradients` also makes gradients of constants, which are pruned.
    """
    known = tf.nest.flatten(tensors, expand_composites=True)
    return needed_for([x.op for x in known], controls=False)


def placeholder(shape, dtype):
    return tf.compat.v1.placeholder(dtype, shape)


def take_gradient(outputs, *wanted):
    """Lists of gradients, one for each list of tensors."""
    targets = [y for y in outputs if y.dtype.is_floating]
    wanted = [[x for x in w if x.dtype.is_floating] for w in wanted]
    if not targets or not any(wanted):
        return [], []
    arriving = [placeholder(y.shape, y.dtype) for y in targets]
    grads = tf.gradients(targets, sum(wanted, []), grad_ys=arriving)
    first = len(wanted[0])
    return tuple(
        [
            g.values if isinstance(g, tf.IndexedSlices) else g
            for g in part
            if g is not None
        ]
        for part in (grads[:first], grads[first:])
    )


def own_residuals(found):
    sizes = [size for _, _, size in found["outputs"]]
    return found["internal"] + sum(sizes[i] for i in found["saved_outputs"])


def read_by(backward, forward):
    """Tensors by name that `backward` reads from `forward`."""
    kept = {}
    for op in backward:
        if op.type in SHAPE_ONLY:
            continue
        for x in op.inputs:
            if x.op in forward:
                x = root(x)
                if x.op.type != "Const":
                    kept[x.name] = x
    return kept


def describe(kept, inputs, outputs):
    came_in = {x.name: i for i, x in enumerate(inputs)}
    roots = [root(y).name for y in outputs]
    outside = {*came_in, *roots}
    return {
        "outputs": [
            (tuple(y.shape), standardize_dtype(y.dtype), size(y))
            for y in outputs
        ],
        "aliases": [came_in.get(name) for name in roots],
        "saved_inputs": sorted(came_in[n] for n in came_in if n in kept),
        "saved_outputs": [i for i, name in enumerate(roots) if name in kept],
        "internal": sum(size(x) for n, x in kept.items() if n not in outside),
    }


def made(ops, residuals, outputs, names):
    """What policies choose from, see `Made`; nothing inside of a loop.

    Args:
        ops: List of operations.
        residuals: Tensors that the backward pass reads.
        outputs: Tensors that are returned.
        names: List of pairs of a tensor and a name that it was given.
    """
    values, place = [], {}

    def number(x):
        return place.get(root(x).op.name, -1)

    for op in ops:
        if op.type in SAME_BUFFER or op.type in OUTSIDE or not op.outputs:
            continue
        reads = () if op.type in SHAPE_ONLY else map(number, op.inputs)
        place[op.name] = len(values)
        kind = remat_ops.kind_of(op.type, op.inputs)
        if not remat_ops.can_keep(op.type, op.outputs):
            kind = (None, False)
        count = sum(map(size, op.outputs))
        spec = remat_ops.spec_of(op.outputs[0])
        values.append([*kind, (), *spec, count, flops(op), tuple(reads)])
    for x, name in names:
        if number(x) >= 0:
            values[number(x)][2] += (name,)
    return values, map(number, residuals), map(number, outputs)


OUTSIDE = ("Const", "Placeholder", "ReadVariableOp")


def free_memory():
    """Bytes free on the default device, or `None` if it cannot be told."""
    return None
