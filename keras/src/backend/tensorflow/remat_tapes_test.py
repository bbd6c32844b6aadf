"""Gradients that are taken inside of a region."""

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.backend.common.remat_op import remat

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="is about TensorFlow"
)

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")
W = np.linspace(-1, 2, 36).reshape((6, 6)).astype("float32")


def energy(x, w):
    return tf.reduce_sum(tf.tanh(x @ w) ** 3)


def by_tape(x, w):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = energy(x, w)
    return tape.gradient(value, x)


def by_persistent_tape(x, w):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, w])
        value = energy(x, w)
    return tape.gradient(value, x) + tape.gradient(value, w)[:4]


def by_two_tapes(x, w):
    with tf.GradientTape() as outer:
        outer.watch(x)
        inner = tf.reduce_sum(by_tape(x, w) ** 2)
    return outer.gradient(inner, x)


def by_tape_over_region(x, w):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = remat(energy)(x, w)
    return tape.gradient(value, x)


def by_paused_tape(x, w):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = energy(x, w)
        with tape.stop_recording():
            factor = tf.reduce_sum(x)
        value = value * factor
    return tape.gradient(value, x)


def by_accumulator(x, w):
    with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
        value = tf.tanh(x @ w)
    return accumulator.jvp(value)


def after_an_error(x, w):
    try:
        with tf.GradientTape() as tape:
            tape.watch(x)
            raise KeyError
    except KeyError:
        return tf.sin(x @ w) * by_tape(x, w)


FUNCTIONS = [
    by_tape,
    by_persistent_tape,
    by_two_tapes,
    by_tape_over_region,
    by_paused_tape,
    by_accumulator,
    after_an_error,
]
CASES = [
    (f"{f.__name__}_{'graph' if compiled else 'eager'}", f, compiled)
    for f in FUNCTIONS
    for compiled in (False, True)
]


def gradients(f, compiled):
    """Value and gradients of `f`, with what follows recorded as well."""

    def run():
        x, w = tf.constant(X), tf.constant(W)
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            value = tf.reduce_sum(tf.sin(f(x * 2.0, w)) * x)
        return value, *tape.gradient(value, [x, w])

    return [x.numpy() for x in (tf.function(run) if compiled else run)()]


class TapeInRegionTest(testing.TestCase):
    @parameterized.named_parameters(*CASES)
    def test_equal_to_the_plain_run(self, f, compiled):
        for a, b in zip(gradients(f, compiled), gradients(remat(f), compiled)):
            self.assertAllClose(a, b)

    @parameterized.named_parameters(("eager", True), ("graph", False))
    def test_layer_that_takes_gradients_trains(self, eager):
        def trained(setting):
            dense = layers.Dense(6)
            model = models.Sequential([dense, Force(W, remat=setting)])
            model.build((4, 6))
            dense.kernel.assign(W)
            model.compile("sgd", "mse", run_eagerly=eager)
            model.fit(X, X, epochs=2, verbose=0)
            return model.get_weights()

        for a, b in zip(trained(None), trained(True)):
            self.assertAllClose(a, b)


class Force(layers.Layer):
    def __init__(self, start, **kwargs):
        super().__init__(**kwargs)
        self.w = self.add_weight(shape=start.shape, initializer="ones")
        self.w.assign(start)

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = energy(x, tf.convert_to_tensor(self.w))
        return tape.gradient(value, tf.convert_to_tensor(x))


class TapeAroundRegionTest(testing.TestCase):
    def test_records_as_before_after_an_error(self):
        x = tf.constant(X)

        @remat
        def f(x):
            with tf.GradientTape():
                raise KeyError

        with tf.GradientTape() as outer:
            outer.watch(x)
            with self.assertRaises(KeyError):
                f(x)
            y = tf.sin(x)
        self.assertAllClose(outer.gradient(y, x), tf.cos(x))
