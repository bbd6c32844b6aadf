"""Keeps chosen values of a region on TensorFlow, by watching its operations.

The first run counts the operations of each type and keeps the results that
the policy wants, by number. The second run counts again, and where a result
was kept it takes the place of the new one. In a graph the new one is then not
needed by anyone, and is pruned before the graph runs.
"""

import collections
import contextlib
import re
import threading

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks

from keras.src.backend.common.remat_policy import warn_not_offloaded
from keras.src.backend.tensorflow import remat_xla

PRODUCTS = {"MatMul": False, "BatchMatMul": True, "BatchMatMulV2": True}
PRODUCTS.update({"BatchMatMulV3": True, "Einsum": True})
CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}
CONVOLUTIONS |= {"Conv2DBackpropInput", "Conv3DBackpropInputV2"}

# Made when a value from outside is met for the first time, not the next time.
UNCOUNTED = ("Placeholder", "ReadVariableOp")

CALLS = {"If", "StatelessIf", "Case", "StatelessCase", "While"}
CALLS |= {"StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"}
HANDLES = {tf.variant, tf.resource}
LOOP_BODY = re.compile(r"\bloop_body(_\d+)?(?=/|$)")

_open = threading.local()


def open_watchers():
    if not hasattr(_open, "watchers"):
        _open.watchers = []
    return _open.watchers


@contextlib.contextmanager
def observed(see):
    """Calls `see` for what regions of this thread keep or give names to.

    It gets the policy, the tensors, what made them where they are kept, and
    the name where they get one.
    """
    _open.observers = [*getattr(_open, "observers", ()), see]
    try:
        yield
    finally:
        _open.observers = _open.observers[:-1]


def graph_of_now():
    """The graph that operations go into; `None` in eager mode."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def place_of(graph):
    """A graph, with the innermost template of a map that is traced into it.

    Values in the body of a loop cannot be given back outside of it, nor can
    those in what `tf.vectorized_map` will convert once it is traced.
    """
    scope = "" if graph is None else graph.get_name_scope()
    bodies = [scope[: m.end()] for m in LOOP_BODY.finditer(scope)]
    counters = [f"{body}/PlaceholderWithDefault" for body in bodies]
    found = [name for name in counters if name in graph._nodes_by_name]
    return graph, found[-1:]


class Watcher:
    """Calls `self.see` for each operation of the graph it was opened in."""

    def __enter__(self):
        self.counts = collections.Counter()
        self.names = 0
        self.where = place_of(graph_of_now())
        open_watchers().append(self)
        op_callbacks.add_op_callback(self.call)
        return self

    def __exit__(self, *args):
        op_callbacks.remove_op_callback(self.call)
        open_watchers().remove(self)

    def call(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
        # What is returned is what the next watcher is given.
        if open_watchers()[-1] is None or place_of(graph) != self.where:
            return outputs
        op_type = tf.compat.as_str(op_type)  # bytes for some in eager mode
        if op_type in UNCOUNTED:
            return outputs
        self.counts[op_type] += 1
        number = (op_type, self.counts[op_type])
        given = self.see(number, op_type, inputs, outputs)
        return outputs if given is None else given


class Keeper(Watcher):
    """Keeps the results that the policy wants."""

    def __init__(self, policy):
        self.policy = policy
        self.kept, self.kept_names = {}, {}

    def see(self, number, op_type, inputs, outputs):
        op, has_batch = kind_of(op_type, inputs)
        if not can_keep(op_type, outputs):
            return
        if self.policy.keeps(op, has_batch, None, lambda: spec_of(outputs[0])):
            self.kept[number] = [self.place(x, None) for x in outputs]
            self.show(outputs, op, None)

    def name(self, x, name):
        self.names += 1
        if self.policy.keeps("name", False, name, lambda: spec_of(x)):
            self.kept_names[self.names] = self.place(x, name)
            self.show([x], "name", None)
        self.show([x], None, name)
        return x

    def show(self, tensors, op, name):
        for see in getattr(_open, "observers", ()):
            see(self.policy, tensors, op, name)

    def place(self, x, name):
        if not self.policy.offloads(name):
            return x
        if not remat_xla.has_accelerator():
            warn_not_offloaded("CPU")
            return x
        with tf.device("CPU:0"):
            return same_value(x)

    def giver(self, after):
        return Giver(self.kept, self.kept_names, self.counts, after)


class Giver(Watcher):
    """Gives kept results back in the place of those made again.

    Args:
        kept: Dict from the number of an operation to its results.
        kept_names: Dict from the number of a name to its value.
        expected: Counter of the operations that the first run made.
        after: List of tensors; nothing is given before they are there.
    """

    def __init__(self, kept, kept_names, expected, after):
        self.kept, self.kept_names = kept, kept_names
        self.expected, self.after = expected, after

    def __exit__(self, error=None, *args):
        super().__exit__(error, *args)
        for op_type in {op_type for op_type, _ in self.kept}:
            before, now = self.expected[op_type], self.counts[op_type]
            if before != now and error is None:
                raise_other(f"{before} times {op_type}", f"{now} times")

    def see(self, number, op_type, inputs, outputs):
        if number not in self.kept:
            return None
        kept = self.kept[number]
        if any(not fits(*pair) for pair in zip(kept, outputs, strict=True)):
            before, now = ([spec_of(x) for x in xs] for xs in (kept, outputs))
            raise_other(f"{op_type} number {number[1]} gave {before}", now)
        return [same_value(x, self.after) for x in kept]

    def name(self, x, name):
        self.names += 1
        if self.names not in self.kept_names:
            return x
        given = same_value(self.kept_names[self.names], self.after)
        record.record_operation("RematName", [given], [x], lambda g: [g])
        return given


def raise_other(before, now):
    raise ValueError(
        "A rematerialized function must run the same operations each time "
        f"that it runs. Received: {before} in the forward pass, and {now} "
        "when it ran again for the backward pass. Take out what changes "
        "between the runs (a value that is cached by the first, a Python "
        "counter), or let its policy keep nothing."
    )


def same_value(x, after=()):
    """A new tensor, so that tapes tell it apart; not an operation to count."""
    with unwatched(), record.stop_recording():
        if after and remat_xla.compiles():
            return remat_xla.after(after, [x], [])[0][0]
        with tf.control_dependencies(after):
            return tf.identity(x)


@contextlib.contextmanager
def unwatched():
    """Hides operations that only one of the two runs makes."""
    watchers = open_watchers()
    watchers.append(None)
    try:
        yield
    finally:
        watchers.pop()


def can_keep(op_type, outputs):
    """Whether results of an operation can be given back in a second run."""
    if not outputs or any(x.dtype in HANDLES for x in outputs):
        return False
    # Gradients of calls need more than results. In eager mode those of a
    # `tf.function` go by its own name, such as `__inference_f_73`.
    return op_type not in CALLS and not op_type.startswith("__")


class Names(list):
    """Notes which tensors are given a name, as pairs."""

    def __init__(self):
        self.where = place_of(graph_of_now())

    def name(self, x, name):
        self.append((x, name))
        return x


@contextlib.contextmanager
def named():
    """Gives a list of the tensors that are named in it, by no one else seen."""
    before, names = open_watchers(), Names()
    _open.watchers = [names]
    try:
        yield names
    finally:
        _open.watchers = before


def fits(x, y):
    return x.dtype == y.dtype and x.shape.is_compatible_with(y.shape)


def name_value(x, name):
    place = place_of(graph_of_now())
    for watcher in list(open_watchers()):
        if watcher is not None and watcher.where == place:
            x = watcher.name(tf.convert_to_tensor(x), name)
    return x


def kind_of(op_type, inputs):
    if op_type in PRODUCTS:
        has_batch = PRODUCTS[op_type] and all(
            x.shape.rank is None or x.shape.rank > 2 for x in inputs
        )
        return "matmul", has_batch
    return ("conv" if op_type in CONVOLUTIONS else op_type), False


def spec_of(x):
    shape = x.shape.as_list() if x.shape.rank is not None else ()
    return tuple(shape), x.dtype.name
