"""State of TensorFlow that Keras does not know of, in regions.

What a region draws from TensorFlow's own generators, or reads from a
`tf.Variable` that is not of Keras, is kept and given back when the region
runs again. What its second run writes to such variables is taken back.
"""

import contextlib

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import ops as tf_ops

from keras.src.backend.tensorflow import remat_keep
from keras.src.backend.tensorflow import remat_ops

DRAWS = frozenset(
    "Multinomial NonDeterministicInts ParameterizedTruncatedNormal RandomGamma "
    "RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform "
    "RandomUniformInt RngReadAndSkip StatefulRandomBinomial "
    "StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform "
    "StatefulUniformFullInt StatefulUniformInt TruncatedNormal".split()
)
READS = frozenset(["ReadVariableOp"])
WRITES = frozenset(
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp RngReadAndSkip "
    "ResourceScatterAdd ResourceScatterNdUpdate ResourceScatterSub "
    "ResourceScatterUpdate".split()
)
MADE = frozenset(["VarHandleOp"])
SEEN = DRAWS | READS | WRITES | MADE


class Callback:
    """Calls `self.see` for operations on state in the graph of now."""

    def __enter__(self):
        self.graph = remat_keep.graph_of_now()
        self.where = remat_keep.place_of(self.graph)
        op_callbacks.add_op_callback(self.call)
        return self

    def __exit__(self, *args):
        op_callbacks.remove_op_callback(self.call)

    def call(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
        watchers = remat_keep.open_watchers()
        hidden = bool(watchers) and watchers[-1] is None
        op_type = tf.compat.as_str(op_type)  # bytes for some in eager mode
        if op_type not in SEEN or graph is not self.graph or hidden:
            return outputs
        if op_type in DRAWS and remat_keep.place_of(graph) != self.where:
            raise RuntimeError(
                "A rematerialized function must draw the same each time that "
                "it runs, which TensorFlow's own generators cannot in "
                f"`tf.vectorized_map`. Received: {op_type}. Use `keras.random`."
            )
        return self.see(op_type, inputs, outputs)


class State(Callback):
    """Notes what the first run of a region draws, reads and writes."""

    def __init__(self):
        self.kept, self.made, self.written = [], {}, {}
        self.before = {}  # In eager mode: each handle, its first value.

    def see(self, op_type, inputs, outputs):
        if op_type in MADE:
            self.made.update((id(x), x) for x in outputs)
            return outputs
        if op_type in DRAWS or op_type in READS:
            self.kept.append((op_type, list(outputs)))
        if inputs and inputs[0].dtype == tf.resource:
            self.note(op_type, inputs, outputs)
        return outputs

    def note(self, op_type, inputs, outputs):
        handle = inputs[0]
        if id(handle) in self.made:
            return
        if op_type in WRITES:
            dtype = (*inputs[1:], *outputs)[-1].dtype
            self.written[id(handle)] = handle, dtype
        if self.graph is None and id(handle) not in self.before:
            before = value_before(op_type, inputs, outputs)
            self.before[id(handle)] = handle, before

    @contextlib.contextmanager
    def again(self, name, tensors):
        """Enters the state as it was; leaves it as it is.

        Args:
            name: What an error calls the region.
            tensors: List; nothing is read before they are there.
        """
        if not self.kept and not self.written:
            yield
        elif self.graph is None:
            with self.as_before(name):
                yield
        else:
            with tf.control_dependencies(tensors):
                now = [(h, value_of(*h)) for h in self.written.values()]
            with Giver(self.kept):
                yield
            write((handle, value) for (handle, _), value in now)

    @contextlib.contextmanager
    def as_before(self, name):
        """In eager mode, where no result can be given back."""
        lost = [t for t, _ in self.kept if t in DRAWS and t not in WRITES]
        lost += [h.dtype for h, x in self.before.values() if x is None]
        if lost:
            raise RuntimeError(
                "A rematerialized function must draw the same each time that "
                "it runs, which TensorFlow's own generators cannot in eager "
                f"mode. Received: function '{name}', which runs {lost}. Use "
                "`keras.random` or `tf.random.Generator`, or `tf.function`."
            )
        before = self.before.values()
        now = [(h, value_of(h, x.dtype)) for h, x in before]
        write(before)
        try:
            yield
        finally:
            write(now)


def value_before(op_type, inputs, outputs):
    """What a variable was before an operation; `None` if it is not known."""
    if op_type in READS or op_type in DRAWS:
        return outputs[0]
    if op_type == "AssignVariableOp":
        return inputs[1]  # Nobody has read what it was.
    if op_type == "AssignAddVariableOp":
        return value_of(inputs[0], inputs[1].dtype) - inputs[1]
    if op_type == "AssignSubVariableOp":
        return value_of(inputs[0], inputs[1].dtype) + inputs[1]
    return None


class Giver(Callback):
    """Gives kept draws and reads back, in the order in which they came."""

    def __init__(self, kept):
        self.kept = iter(kept)

    def see(self, op_type, inputs, outputs):
        if op_type not in DRAWS and op_type not in READS:
            return outputs
        kept_type, kept = next(self.kept, (None, []))
        pairs = zip(kept, outputs)
        if kept_type != op_type or not all(remat_ops.fits(*p) for p in pairs):
            raise ValueError(
                "A rematerialized function must read and draw the same each "
                f"time. Received: {op_type} in place of {kept_type}."
            )
        return [remat_keep.same_value(x) for x in kept]


def value_of(handle, dtype):
    with record.stop_recording():
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def write(pairs):
    with record.stop_recording():
        for handle, value in pairs:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


@contextlib.contextmanager
def hearing_functions():
    """Makes functions name their variables although tapes are stopped.

    A `tf.function` that was traced before does so only if a graph listens.
    """
    graph = tf_ops.get_default_graph()
    if not tf.executing_eagerly() or hasattr(graph, "watch_variable"):
        yield
        return
    graph.watch_variable = lambda variable: None
    try:
        yield
    finally:
        del graph.watch_variable
