"""Rematerialization on TensorFlow: a recorded operation that runs again.

`tf.recompute_grad` is not built on: it refuses keywords in graphs, loses the
gradient of tensors that a function closes over, and lets the executor start
all second runs at once. Here the first run is hidden from all tapes, and one
operation is recorded for it, whose gradient runs the region again.

In a graph the order is fixed, so that regions run again one at a time: the
second run starts when the incoming gradient is there, and hands its own
gradient on only when the gradients of its weights are done.
"""

import contextlib

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager import tape as eager_tape

from keras.src.backend.common.remat_attributes import AGAIN
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.tensorflow import remat_keep
from keras.src.backend.tensorflow import remat_state
from keras.src.backend.tensorflow.remat_captured import sight
from keras.src.backend.tensorflow.remat_order import after
from keras.src.backend.tensorflow.remat_order import copies_of
from keras.src.backend.tensorflow.remat_order import finished
from keras.src.backend.tensorflow.remat_order import in_order  # noqa: F401
from keras.src.backend.tensorflow.remat_order import is_differentiable
from keras.src.backend.tensorflow.remat_order import ordered  # noqa: F401
from keras.src.backend.tensorflow.remat_order import unread_gradients
from keras.src.backend.tensorflow.remat_order import values_of
from keras.src.backend.tensorflow.remat_tapes import is_stopped
from keras.src.backend.tensorflow.remat_tapes import paused
from keras.src.backend.tensorflow.remat_tapes import recording

autograph = tf.__internal__.autograph


def checkpoint(run, inputs, policy=None):
    """Calls `run.first(*inputs)`, keeping only the inputs for the gradient.

    Args:
        run: A region's `Run`.
        inputs: List of tensors, sparse and ragged ones included.
        policy: A `RematPolicy`, or `None` to keep nothing.

    Returns:
        The flat list of tensors that `run.first` returns.
    """
    context = autograph.control_status_ctx()
    if context.status.name == "ENABLED":  # it does not look in here itself
        run.f = autograph.tf_convert(run.f, context)
    seen, state = sight(), remat_state.State()
    run.graph = seen.graph
    keeper = remat_keep.Keeper(policy) if policy is not None else None
    given, results, variables = first_run(run, inputs, seen, state, keeper)
    reads = [value for _, value in run.reads.values()]
    captured = seen.captured([*flat(given), *reads])
    flat_results = flat(results)
    known = inputs, reads, captured, variables
    gradient = Gradient(run, keeper, state, *known, flat_results)
    handles = [v.handle for v in variables]
    sources = [*flat(inputs), *reads, *captured, *handles]
    if seen.graph is not None:
        with record.stop_recording(), remat_keep.unwatched():
            flat_results = hide_by_identity(flat_results, sources, gradient)
    record.record_operation(
        "RematRegion", flat_results, sources, gradient, gradient.forward
    )
    return tf.nest.pack_sequence_as(
        results, flat_results, expand_composites=True
    )


def flat(nest):
    return tf.nest.flatten(nest, expand_composites=True)


def first_run(run, inputs, seen, state, keeper):
    """Runs a region, hidden from all tapes.

    Returns:
        Tuple of what stood for the inputs, the results, and the variables
        that were read, Keras's own aside.
    """
    # Copies, to tell an argument from the same tensor that is closed over.
    with record.stop_recording(), remat_keep.unwatched():
        given = copies_of(inputs)
    keeping = contextlib.nullcontext() if keeper is None else keeper
    hearing = remat_state.hearing_functions()
    with (
        record.VariableWatcher() as watcher,
        paused(run),
        hearing,
        state,
        seen,
        keeping,
    ):
        results = run.first(*given)
        # One that is an input too must be told apart from it.
        with remat_keep.unwatched():
            results = copies_of(results)
    variables = list(watcher.watched_variables())
    for v in variables:  # those of Keras are read; tapes must hear of others
        eager_tape.variable_accessed(v)
    return given, results, variables


class Gradient:
    """Maps gradients of a region's results to those of its sources."""

    def __init__(
        self, run, keeper, state, inputs, reads, captured, variables, results
    ):
        self.run = run
        self.keeper = keeper
        self.state = state
        self.inputs = inputs
        self.reads = reads
        self.captured = captured
        self.variables = variables
        self.trains = [is_differentiable(x) for x in results]

    def __call__(self, *gradients):
        # Forward-mode calls this with recording stopped.
        with recording():
            return self.run_again(gradients)

    def run_again(self, gradients):
        in_graph = not tf.executing_eagerly()
        incoming = [g for g, t in zip(gradients, self.trains) if t]
        known = [g for g in incoming if g is not None]
        if in_graph:
            known_before = [*known, *unread_gradients(known)]
            inputs, reads = after(known_before, self.inputs, self.reads)
        else:
            inputs, reads = copies_of(self.inputs), self.reads
        sources = [*flat(inputs), *reads, *self.captured]
        at = [i for i, x in enumerate(sources) if is_differentiable(x)]
        wanted = [sources[i] for i in at] + self.variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for x in wanted:
                tape.watch(x)
            earlier = known if in_graph else []
            state = self.state.again(self.run.name, earlier)
            with state, self.giving(earlier), attributes(**{AGAIN: in_graph}):
                results = self.run.again(*inputs, values=reads)
        targets = [x for x, t in zip(flat(results), self.trains) if t]
        targets = [x for x, g in zip(targets, incoming) if g is not None]
        found = tape.gradient(targets, wanted, output_gradients=known)
        result = [None] * len(sources) + list(found[len(at) :])
        for i, g in zip(at, found):
            result[i] = g
        if not in_graph:
            return result
        result = finished(result, len(flat(inputs)))
        unread_gradients([])  # Those of this region are held back already.
        return result

    def giving(self, known):
        if self.keeper is None:
            return contextlib.nullcontext()
        # Kept values too are there from then on only, or what is made of
        # nothing but them would be made at once, in all regions.
        return self.keeper.giver([values_of(g) for g in known])

    def forward(self, *tangents):
        """Tangents of the results, for `tf.autodiff.ForwardAccumulator`.

        No tape records here, so this is the gradient, taken in a graph, of
        the gradient with respect to what comes in.
        """
        if self.captured or self.variables:
            raise NotImplementedError(
                "Forward-mode differentiation of a rematerialized function "
                "needs all its tensors as arguments. Received: function "
                f"'{self.run.name}', which closes over tensors. Pass them as "
                "arguments."
            )
        known = flat([self.inputs, self.reads])
        at = [i for i, x in enumerate(known) if is_differentiable(x)]

        @tf.function(autograph=False)
        def tangents_of(inputs, reads, tangents):
            given = flat([inputs, reads])
            results = self.run.again(*inputs, values=reads)
            results = flat(results)
            incoming = [tf.ones_like(x) for x in results]
            back = tf.gradients(results, [given[i] for i in at], incoming)
            pairs = [(b, t) for b, t in zip(back, tangents) if b is not None]
            return tf.gradients(
                [b for b, _ in pairs],
                incoming,
                [t for _, t in pairs],
                unconnected_gradients="zero",
            )

        return tangents_of(self.inputs, self.reads, [tangents[i] for i in at])


def name_value(x, name):
    return remat_keep.name_value(x, name)


def hide_by_identity(results, sources, gradient):
    """Hides the first run from gradients that are taken by walking the graph.

    Loops and functions are differentiated so, later and without a tape.
    """

    def gradient_of_op(op, *gradients):
        found = gradient(*gradients[: len(results)])
        return [None] * len(results) + found

    graph = tf.compat.v1.get_default_graph()
    with graph._override_gradient_function({"IdentityN": gradient_of_op}):
        return tf.identity_n([*results, *sources])[: len(results)]


def read(variable, run):
    """The value of a variable as a tensor that the open tapes have seen."""
    value = variable._value
    graph = getattr(run, "graph", None)
    if value is None or (graph is None and not tf.executing_eagerly()):
        return None  # inside of a `tf.function` that may be kept
    where = graph.as_default() if graph else contextlib.nullcontext()
    seen = recording(getattr(run, "paused", False))
    with seen, where, remat_keep.unwatched():
        return tf.convert_to_tensor(value)


def waiting(value, run):
    """A value that is not there before the inputs of the region are."""
    return value


def assigned(value, before):
    """The value that a variable has once `value` was assigned to it."""
    with remat_keep.unwatched():
        value = tf.stop_gradient(value)
        if not is_differentiable(value):
            return value
        return value + (before - tf.stop_gradient(before))


def gradient_is_off():
    """Whether the user has switched gradients off."""
    return is_stopped()


def records_gradient():
    """Whether a gradient may be taken of what runs now."""
    if gradient_is_off():
        return False
    return not tf.executing_eagerly() or record.could_possibly_record()


def is_input(x):
    """Whether `x` enters a region as a tensor."""
    return tf.is_tensor(x) and not isinstance(x, tf.Variable)


def is_output(x):
    return tf.is_tensor(x) and not hasattr(x, "_initializer")


def check_reads(run):
    """Nothing to do: what is noted are tensors, which never change."""


def is_early_stop(error):
    return False


def building(is_built=False):
    """Hides what only the first run does: it makes variables."""
    return remat_keep.unwatched()


def untraced(f, *args):
    return f(*args)
