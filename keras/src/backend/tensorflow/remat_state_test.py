"""State that is TensorFlow's own, read, drawn and written in regions."""

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import testing
from keras.src.backend.common.remat_op import remat

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="is about TensorFlow"
)

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")
W = np.linspace(-1, 2, 36).reshape((6, 6)).astype("float32")


def plain(f):
    return f


def count_first(count):
    def f(x):
        count.assign_add(1.0)
        return tf.sin(x * count)

    return f


def count_last(count):
    def f(x):
        y = tf.sin(x * count)
        count.assign(count * 2.0 + 1.0)
        return y * tf.cos(x * count)

    return f


def draw(generator):
    return lambda x: tf.sin(x * generator.normal(x.shape))


def counter():
    return tf.Variable(1.0, trainable=False)


def generator():
    return tf.random.Generator.from_seed(3)


def value(state):
    return getattr(state, "state", state).numpy()


def gradient(f, weights, compiled):
    def run():
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            # The second region runs again before the first one.
            loss = tf.reduce_sum(f(f(x)))
        return [loss, *tape.gradient(loss, [x, *weights])]

    return (tf.function(run) if compiled else run)()


class StateTest(testing.TestCase):
    @parameterized.product(
        case=[
            (count_first, counter),
            (count_last, counter),
            (draw, generator),
        ],
        compiled=[False, True],
    )
    def test_numbers_and_state_are_those_of_plain(self, case, compiled):
        make, make_state = case
        found = []
        for wrap in (plain, remat):
            state = make_state()
            f = wrap(make(state))
            found.append([*gradient(f, [], compiled), value(state)])
        for expected, received in zip(*found, strict=True):
            self.assertAllClose(expected, received, atol=1e-5)

    def test_a_variable_that_is_written_in_the_same_step(self):
        @tf.function
        def run(f, count):
            x = tf.constant(X)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(f(x))
                count.assign(5.0)
            return tape.gradient(loss, x)

        found = []
        for wrap in (plain, remat):
            count = counter()
            f = wrap(lambda x: tf.sin(tf.cos(x) * count))
            found.append(run(f, count))
        self.assertAllClose(*found, atol=1e-5)

    def test_draws_that_cannot_be_repeated_are_refused(self):
        def raw(shape):  # TensorFlow calls this one by another path
            return tf.raw_ops.RandomStandardNormal(shape=shape, dtype="float32")

        def mapped(shape):
            draw = lambda x: x * tf.random.normal(shape[1:])
            return tf.vectorized_map(draw, tf.ones(shape))

        for draw, compiled in (
            (tf.random.normal, False),
            (raw, False),
            (mapped, True),
        ):
            f = remat(lambda x: tf.sin(x * draw(list(x.shape))))
            with self.assertRaisesRegex(RuntimeError, "must draw the same"):
                gradient(f, [], compiled)

    def test_draws_of_a_graph_are_given_back(self):
        def f(x):
            return tf.nn.dropout(tf.sin(x), 0.5) * 1.0

        @tf.function
        def run():
            x = tf.constant(X)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = remat(f)(x)
            return y, tape.gradient(y, x)

        y, found = run()
        self.assertAllClose(np.where(y == 0, 0, 2 * np.cos(X)), found)

    def test_a_function_that_was_traced_before(self):
        found = []
        for wrap in (plain, remat):
            weight = tf.Variable(W)
            inner = tf.function(lambda x: tf.tanh(tf.matmul(x, weight)))
            f = wrap(lambda x: tf.sin(inner(x)))
            found.append(gradient(f, [weight], False))
        for expected, received in zip(*found, strict=True):
            self.assertAllClose(expected, received, atol=1e-5)
