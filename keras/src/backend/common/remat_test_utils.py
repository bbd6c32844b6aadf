"""What tests of rematerialization share: a step, a count of runs, layers."""

import contextlib
import warnings

import numpy as np

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.stateless_scope import StatelessScope

RUNS = []


def warned_of(word, run):
    """What warnings that have a word in them end with, while `run` runs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    texts = [str(w.message) for w in caught]
    return [t.split(": ")[-1] for t in texts if word in t]


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(ops.sum(x * x))
        return x


class Counter(layers.Layer):
    def build(self, input_shape):
        self.count = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, x):
        self.count.assign(self.count + 1)
        return x * ops.cast(self.count, x.dtype)


class Inferring(layers.Layer):
    """Asks its parts to infer `training`, in a region of its own."""

    def __init__(self, rematerialize):
        super().__init__()
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.5, seed=3)
        self.run = remat(self.block) if rematerialize else self.block

    def block(self, x):
        return self.drop(self.norm(x))

    def call(self, x, training=None):
        return self.run(x)


class Wave(layers.Layer):
    """Counts how often it runs."""

    def call(self, x):
        return ops.tanh(counted(ops.sin(x), self.name))


class ChainModel(models.Model):
    """Calls its parts in order."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def counted(x, name="f"):
    """`x` itself; notes in `RUNS` each time that it is really computed."""
    shape_only = getattr(x, "is_meta", False) or hasattr(x, "fake_mode")
    if backend.is_keras_tensor(x) or shape_only:
        return x
    if backend.backend() == "jax":
        import jax

        jax.debug.callback(lambda: RUNS.append(name))
        return x
    if backend.backend() == "tensorflow":
        import tensorflow as tf

        if not tf.executing_eagerly():
            note = lambda: RUNS.append(name) or np.int32(0)
            zero = tf.numpy_function(note, [], tf.int32)
            zero.set_shape([])
            return x + tf.cast(zero, x.dtype)
    RUNS.append(name)
    return x


@contextlib.contextmanager
def runs():
    """Gives a list; after the block it holds the names that were counted."""
    wait_for_callbacks()
    RUNS.clear()
    found = []
    yield found
    wait_for_callbacks()
    found += RUNS


def wait_for_callbacks():
    if backend.backend() == "jax":
        import jax

        jax.effects_barrier()


def products(f, inputs, variables):
    """How many matrix products, convolutions and attentions a step runs."""
    inputs = [ops.convert_to_tensor(x) for x in inputs]
    count = globals()[f"products_{backend.backend()}"]
    return count(f, inputs, list(variables))


def products_jax(f, inputs, variables):
    import jax

    trained = [v for v in variables if v.trainable]

    def loss(inputs, weights):
        with StatelessScope(zip(trained, weights)):
            return f(*inputs)

    def count(jaxpr):
        found = 0
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            found += name in ("dot_general", "conv_general_dilated")
            for inner in jax.core.jaxprs_in_params(eqn.params):
                found += count(inner)
        return found

    gradient = jax.grad(loss, argnums=(0, 1))
    return count(
        jax.make_jaxpr(gradient)(inputs, [v.value for v in trained]).jaxpr
    )


def products_tensorflow(f, inputs, variables):
    import tensorflow as tf

    from keras.src.backend.tensorflow import remat_ops

    @tf.function(autograph=False)
    def run(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = f(*inputs)
        weights = [v.value for v in variables if v.trainable]
        return loss, tape.gradient(loss, inputs + weights)

    graph = run.get_concrete_function(inputs).graph
    # What nothing needs is pruned before the graph runs.
    waiting = [x.op for x in graph.outputs]
    seen = set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting += [x.op for x in op.inputs] + op.control_inputs
    kinds = remat_ops.PRODUCTS.keys() | remat_ops.CONVOLUTIONS
    return sum(op.type in kinds for op in seen)


def products_torch(f, inputs, variables):
    from torch.utils._python_dispatch import TorchDispatchMode

    from keras.src.backend.torch.remat_ops import kind_of

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kind, _ = kind_of(func)
            self.count += kind in ("matmul", "conv", "attention")
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        step_torch(f, inputs, variables, False)
    return counter.count


def step(f, inputs=(), variables=(), compiled=False):
    """One loss with its gradients, on any backend; variables are updated.

    Args:
        f: Function of the inputs that returns a scalar.
        inputs: List of arrays.
        variables: All `Variable`s that `f` reads or writes.
        compiled: Whether to run in `jax.jit` or `tf.function`; `"xla"` for one
            that XLA compiles.

    Returns:
        The loss, the gradients of the inputs, and those of the trainable
        variables, as arrays (`None` where there is none).
    """
    inputs = [ops.convert_to_tensor(x) for x in inputs]
    one_step = globals()[f"step_{backend.backend()}"]
    loss, gradients = one_step(f, inputs, list(variables), compiled)
    numpy = backend.convert_to_numpy
    gradients = [None if g is None else numpy(g) for g in gradients]
    return numpy(loss), gradients[: len(inputs)], gradients[len(inputs) :]


def step_jax(f, inputs, variables, compiled):
    import jax

    trained = [v for v in variables if v.trainable]
    state = [v for v in variables if not v.trainable]

    def pure(values, state_values):
        values, weights = values[: len(inputs)], values[len(inputs) :]
        pairs = [*zip(trained, weights), *zip(state, state_values)]
        with StatelessScope(pairs, collect_losses=True) as scope:
            loss = f(*values)
        return loss, [scope.get_current_value(v) for v in state]

    gradient = jax.value_and_grad(pure, has_aux=True)
    gradient = jax.jit(gradient) if compiled else gradient
    weights = [v.value for v in trained]
    (loss, new), found = gradient(inputs + weights, [v.value for v in state])
    for v, value in zip(state, new):
        v.assign(value)
    return loss, found


def step_tensorflow(f, inputs, variables, compiled):
    import tensorflow as tf

    trained = [v.value for v in variables if v.trainable]

    def run(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = f(*inputs)
        return loss, tape.gradient(loss, inputs + trained)

    if not compiled:
        return run(inputs)
    return tf.function(run, jit_compile=compiled == "xla")(inputs)


def step_torch(f, inputs, variables, compiled):
    import torch

    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    loss = f(*inputs)
    sources = inputs + [v.value for v in variables if v.trainable]
    found = torch.autograd.grad(loss, sources, allow_unused=True)
    return loss, list(found)


def with_input_gradient(f, x):
    """`f(x)`, and its gradient in a form that has gradients itself."""
    if backend.backend() == "jax":
        import jax

        return jax.value_and_grad(f)(x)
    if backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return y, tape.gradient(y, x)
    import torch

    y = f(x)
    return y, torch.autograd.grad(y, x, create_graph=True)[0]
