"""Keeps chosen values of a region on TensorFlow, by watching its operations.

The first run counts the operations of each type and keeps the results that
the policy wants, by number. The second run counts again, and where a result
was kept it takes the place of the new one. In a graph the new one is then not
needed by anyone, and is pruned before the graph runs. In eager mode only what
need not run again is kept, see `remat_products`.
"""

import collections
import contextlib
import re
import threading

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks

from keras.src.backend.common.remat_checks import raise_other
from keras.src.backend.common.remat_policy import warn_not_offloaded
from keras.src.backend.tensorflow import remat_xla
from keras.src.backend.tensorflow.remat_ops import UNCOUNTED
from keras.src.backend.tensorflow.remat_ops import can_keep
from keras.src.backend.tensorflow.remat_ops import fits
from keras.src.backend.tensorflow.remat_ops import kind_of
from keras.src.backend.tensorflow.remat_ops import spec_of

LOOP_BODY = re.compile(r"\bloop_body(_\d+)?(?=/|$)")

_open = threading.local()


def open_watchers():
    if not hasattr(_open, "watchers"):
        _open.watchers = []
    return _open.watchers


def eager_watchers():
    """Those that watch what runs now, if it is in eager mode."""
    watchers = open_watchers()
    if not watchers or watchers[-1] is None or not tf.executing_eagerly():
        return []
    found = [w for w in watchers if isinstance(w, Watcher) and not w.in_graph()]
    return [w for w in found if w.program is None]


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
        self.calls = collections.Counter()
        self.names = 0
        self.program = None  # What notes operations, see `remat_products`.
        self.where = place_of(graph_of_now())
        open_watchers().append(self)
        op_callbacks.add_op_callback(self.call)
        return self

    def __exit__(self, *args):
        op_callbacks.remove_op_callback(self.call)
        open_watchers().remove(self)

    def in_graph(self):
        return self.where[0] is not None

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
        if self.program is not None:
            self.program.note(number, inputs, attrs, outputs)
        return outputs if given is None else given

    def next_call(self, name):
        """The number of a call of a function of Keras that makes products."""
        self.calls[name] += 1
        return name, self.calls[name]

    def program_of(self, number, leaves):
        """What runs in place of this call; `None` for the function itself."""

    def learn(self, number, program, result):
        """Notes what a call ran."""


class Keeper(Watcher):
    """Keeps the results that the policy wants."""

    def __init__(self, policy):
        self.policy = policy
        self.kept, self.kept_names = {}, {}
        # In eager mode: what the calls of functions ran, and products by `id`.
        self.programs, self.products = {}, {}

    def __exit__(self, *args):
        super().__exit__(*args)
        self.products = {}
        for number, program in list(self.programs.items()):
            if not any(s.number in self.kept for s in program.steps):
                del self.programs[number]

    def see(self, number, op_type, inputs, outputs):
        op, has_batch = kind_of(op_type, inputs)
        if not can_keep(op_type, outputs):
            return
        spec = lambda: spec_of(outputs[0])
        wanted = self.policy.keeps(op, has_batch, None, spec)
        if wanted and (self.in_graph() or self.program is not None):
            self.kept[number] = [self.place(x, None) for x in outputs]
            self.show(outputs, op, None)

    def name(self, x, name):
        self.names += 1
        if self.policy.keeps("name", False, name, lambda: spec_of(x)):
            self.keep_named(x, name)
            self.show([x], "name", None)
        self.show([x], None, name)
        return x

    def keep_named(self, x, name):
        if self.in_graph():
            self.kept_names[self.names] = self.place(x, name)
            return
        product = self.products.get(id(x))
        if product is not None and product.result() is x:
            self.kept[product.number] = [self.place(product.value, name)]

    def learn(self, number, program, result):
        product = program.end(result)
        if not program.is_sound:
            for step in program.steps:
                self.kept.pop(step.number, None)
            return
        self.programs[number] = program
        alive = {
            k: p for k, p in self.products.items() if p.result() is not None
        }
        self.products = alive
        if product is not None:
            alive[id(result)] = product

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
        return Giver(self, after)


class Giver(Watcher):
    """Gives kept results back in the place of those made again.

    Args:
        keeper: The `Keeper` of the first run.
        after: List of tensors; nothing is given before they are there.
    """

    def __init__(self, keeper, after):
        self.kept, self.kept_names = keeper.kept, keeper.kept_names
        self.programs, self.expected = keeper.programs, keeper.counts
        self.after = after

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
        if not self.in_graph():
            return None  # TensorFlow ignores what is returned.
        return [same_value(x, self.after) for x in kept]

    def program_of(self, number, leaves):
        program = self.programs.get(number)
        if program is None or not program.fits(leaves):
            return None
        return lambda *args, **kwargs: program.run(leaves, self.given)

    def given(self, number):
        """The results of the operation of this number, if it runs next."""
        op_type, count = number
        if number not in self.kept or self.counts[op_type] + 1 != count:
            return None
        return [same_value(x) for x in self.kept[number]]

    def name(self, x, name):
        self.names += 1
        if self.names not in self.kept_names:
            return x
        given = same_value(self.kept_names[self.names], self.after)
        record.record_operation("RematName", [given], [x], lambda g: [g])
        return given


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


def name_value(x, name):
    place = place_of(graph_of_now())
    for watcher in list(open_watchers()):
        if watcher is not None and watcher.where == place:
            x = watcher.name(tf.convert_to_tensor(x), name)
    return x
