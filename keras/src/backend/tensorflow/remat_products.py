"""Products that do not run again in eager mode, where nothing is pruned.

No operation of TensorFlow can be stopped once it is called. So the functions
of Keras that make products note the operations that they run. In the second
run these run again one by one, but for those whose results were kept: of them
only the gradient is recorded, as TensorFlow does for each operation.
"""

import collections
import functools
import weakref

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import op_def_registry

from keras.src.backend.common import KerasVariable
from keras.src.backend.tensorflow import remat_keep
from keras.src.backend.tensorflow import remat_ops
from keras.src.backend.tensorflow.remat_order import is_differentiable
from keras.src.backend.tensorflow.remat_values import SAME_BUFFER

LAYOUT = SAME_BUFFER | {"Transpose"}


def not_again(f):
    """Marks a function of Keras whose products can be given back."""

    @functools.wraps(f)
    def call(*args, **kwargs):
        watchers = remat_keep.eager_watchers()
        if not watchers:
            return f(*args, **kwargs)
        args, kwargs = tf.nest.map_structure(value_of, (args, kwargs))
        leaves = tf.nest.flatten((args, kwargs))
        numbers = [w.next_call(f.__name__) for w in watchers]
        known = [w.program_of(n, leaves) for w, n in zip(watchers, numbers)]
        programs = [Program(leaves) for _ in watchers]
        for watcher, program in zip(watchers, programs):
            watcher.program = program
        try:
            run = next((p for p in known if p is not None), f)
            result = run(*args, **kwargs)
        finally:
            for watcher in watchers:
                watcher.program = None
        for watcher, *call in zip(watchers, numbers, programs):
            watcher.learn(*call, result)
        return result

    return call


def value_of(x):
    """Variables are read before, as reading one is no operation to repeat."""
    is_variable = isinstance(x, (KerasVariable, tf.Variable))
    return tf.convert_to_tensor(x) if is_variable else x


Step = collections.namedtuple("Step", "number attrs inputs count")
Product = collections.namedtuple("Product", "result number value")


class Program:
    """The operations that a call of a function ran, without their results.

    Args:
        leaves: List of what the function was called with.
    """

    def __init__(self, leaves):
        self.signature = signature_of(leaves)
        self.steps, self.places, self.product = [], {}, None
        self.is_sound = True
        self.put(leaves, -1)

    def fits(self, leaves):
        return self.signature == signature_of(leaves)

    def put(self, values, step):
        for i, x in enumerate(values):
            if isinstance(x, tf.Tensor):
                self.places[id(x)] = weakref.ref(x), (step, i)

    def find(self, x):
        """Where a tensor comes from; itself if it is always the same."""
        ref, place = self.places.get(id(x), (None, None))
        if ref is not None and ref() is x:
            return place
        if x.dtype in remat_ops.HANDLES:
            self.is_sound = False
        elif is_differentiable(x) and x.shape.rank != 0:
            self.is_sound = False  # What it was made of is not known.
        return x

    def note(self, number, inputs, attrs, outputs):
        op_type, _ = number
        self.is_sound &= is_pure(op_type)
        places = [self.find(x) for x in inputs]
        if op_type in remat_ops.PRODUCTS or op_type in remat_ops.CONVOLUTIONS:
            self.product = len(self.steps), outputs[0]
        self.put(outputs, len(self.steps))
        self.steps.append(Step(number, attrs, places, len(outputs)))

    def end(self, result):
        """Notes the result of the call; returns the `Product` that it is."""
        self.result = place = self.find(result)
        self.is_sound &= isinstance(place, tuple)
        last, value = self.product or (None, None)
        self.places = self.product = None
        while isinstance(place, tuple) and place[0] >= 0:
            step = self.steps[place[0]]
            if place[0] == last:
                return Product(weakref.ref(result), step.number, value)
            if step.number[0] not in LAYOUT:
                break
            place = step.inputs[0]
        return None

    def run(self, leaves, given):
        """Runs the operations again.

        Args:
            leaves: List of what the function is called with.
            given: Function of the number of an operation that returns its
                results, or `None` if it must run.

        Returns:
            What the function would return.
        """
        made = []

        def at(place):
            if not isinstance(place, tuple):
                return place
            step, i = place
            return leaves[i] if step < 0 else made[step][i]

        for step in self.steps:
            op_type, _ = step.number
            inputs = [at(place) for place in step.inputs]
            outputs = given(step.number) or executed(step, inputs)
            known = op_type, inputs, step.attrs, outputs
            tf.__internal__.record_gradient(*known)
            op_callbacks.invoke_op_callbacks(*known)
            made.append(outputs)
        return at(self.result)


def executed(step, inputs):
    op_type, _ = step.number
    pairs = zip(step.attrs[::2], step.attrs[1::2])
    attrs = [x for pair in pairs if pair[1] is not None for x in pair]
    return execute.quick_execute(
        op_type, step.count, inputs, tuple(attrs), context.context()
    )


def is_pure(op_type):
    """Whether an operation gives the same from the same, and a gradient."""
    definition = op_def_registry.get(op_type)
    if definition is None or definition.is_stateful:
        return False
    return op_type not in remat_ops.CALLS


def signature_of(leaves):
    """What must be the same for the same operations to run."""
    first, found = {}, []
    for i, x in enumerate(leaves):
        if isinstance(x, tf.Tensor):
            same = first.setdefault(id(x), i)
            found.append((same, *remat_ops.spec_of(x)))
        else:
            plain = x is None or isinstance(x, (str, int, float))
            found.append(x if plain else type(x))
    return found
