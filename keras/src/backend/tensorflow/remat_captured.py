"""The tensors that a function closes over on TensorFlow, seen as it runs."""

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks

from keras.src.backend.tensorflow.remat_order import is_differentiable


def sight():
    """What sees the tensors that the code to run next closes over."""
    if tf.executing_eagerly():
        return EagerSight()
    return GraphSight(tf.compat.v1.get_default_graph())


class EagerSight:
    """Sees the tensors that a function closes over, by watching its ops."""

    graph = None

    def __enter__(self):
        self.made, self.used = set(), {}
        op_callbacks.add_op_callback(self.see)

    def __exit__(self, *args):
        op_callbacks.remove_op_callback(self.see)

    def see(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
        if graph is not None:  # a `tf.function` that is being traced
            return outputs
        for x in inputs:
            if id(x) not in self.made:
                self.used[id(x)] = x
        self.made.update(id(x) for x in outputs)
        return outputs  # what the next callback is given

    def captured(self, known):
        known = {id(x) for x in known}
        return [
            x
            for key, x in self.used.items()
            if key not in known
            and is_differentiable(x)
            and record.should_record_backprop([x])
        ]


class GraphSight:
    """Sees the tensors that a function closes over, by the graph's new ops."""

    def __init__(self, graph):
        self.graph = graph

    def __enter__(self):
        self.before = len(self.graph.get_operations())

    def __exit__(self, *args):
        self.new = self.graph.get_operations()[self.before :]

    def captured(self, known):
        known = {id(x) for x in known}
        new = {op for op in self.new if op.type != "Placeholder"}
        used = {}
        for op in new:
            for x in op.inputs:
                if x.op not in new and is_differentiable(x):
                    used.setdefault(id(x), x)
        return [x for key, x in used.items() if key not in known]
