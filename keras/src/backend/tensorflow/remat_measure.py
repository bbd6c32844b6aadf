"""What a training step keeps on TensorFlow, from the traced step."""

import tensorflow as tf

from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.tensorflow import remat_keep
from keras.src.backend.tensorflow.remat_profile import needed_by
from keras.src.backend.tensorflow.remat_profile import placeholder
from keras.src.backend.tensorflow.remat_profile import read_by
from keras.src.backend.tensorflow.remat_values import root
from keras.src.backend.tensorflow.remat_values import size


def kept_values(forward, data, variables):
    """Traces a step and lists what its backward reads from its forward part.

    Args:
        forward: Takes a list of tensors, returns the loss.
        data: List of tensors.
        variables: The Keras variables of the model.

    Returns:
        List of `(path, bytes, label)`: the name scope that made each value,
        and what a policy kept it as or `None`.
    """
    graph, labels = Graph("remat_report"), Labels()
    with graph.as_default():
        given = [placeholder(x.shape, x.dtype) for x in data]
        values = [placeholder(v.shape, v.dtype) for v in variables]
        mapping = list(zip(variables, values))
        with StatelessScope(state_mapping=mapping, collect_losses=True):
            with remat_keep.observed(labels.note):
                loss = forward(list(given))
        before = graph.get_operations()
        trained = [x for x, v in zip(values, variables) if v.trainable]
        gradients = [g for g in tf.gradients(loss, trained) if g is not None]
        backward = graph.get_operations()[len(before) :]
        needed = needed_by(gradients)
        backward = [op for op in backward if op in needed]
        kept = read_by(backward, set(before))
    return [
        (graph.paths.get(x.op.name, ""), size(x), labels.of(x))
        for x in kept.values()
        if x.op.type != "Placeholder"
    ]


class Labels:
    """What each kept value was kept as."""

    def __init__(self):
        self.policies, self.ops, self.names = {}, {}, {}

    def note(self, policy, tensors, op, name):
        for x in tensors:
            key = root(x).name
            if op is not None:
                self.policies[key] = policy
                self.ops.setdefault(key, op)
            if name is not None:
                self.names.setdefault(key, []).append(name)

    def of(self, x):
        policy = self.policies.get(x.name)
        if policy is None:
            return None
        return policy.label(self.ops[x.name], self.names.get(x.name, ()))


class Graph(tf.__internal__.FuncGraph):
    """Notes in which name scope of Keras each operation was made."""

    def __init__(self, name):
        super().__init__(name)
        self.paths = {}

    def _create_op_internal(self, *args, **kwargs):
        op = super()._create_op_internal(*args, **kwargs)
        self.paths[op.name] = current_path()
        return op


def peak_bytes(forward, data, variables):
    """`None`: TensorFlow does not tell the peak of a step on every device."""
    return None
