"""Regions in graphs that XLA compiles, which drops control dependencies."""

from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import optimizers
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.utils import set_random_seed

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="is about TensorFlow"
)

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")
W = np.linspace(-1, 2, 36).reshape((6, 6)).astype("float32")
WAYS = ("dependency", "barrier")


def block(x, w, rows=None):
    y = tf.sin(tf.matmul(tf.sin(tf.matmul(x, w)), w))
    return y if rows is None else y + tf.gather(w, rows)


def as_if(way):
    """XLA's way on a CPU, or the one on all other devices."""
    from keras.src.backend.tensorflow import remat_xla

    return mock.patch.object(
        remat_xla, "has_accelerator", lambda: way == "barrier"
    )


def gradients_of(f):
    @tf.function(jit_compile=True)
    def run(x, w, *others):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = f(f(x, w, *others), w, *others)
            loss = tf.reduce_sum(y * y)
        return [loss, *tape.gradient(loss, [x, w])]

    return run


def matmuls(run, *args):
    """How many are left when XLA has merged what it takes to be equal."""
    args = [tf.constant(a) for a in args]
    code = run.experimental_get_compiler_ir(*args)(stage="optimized_hlo")
    return code.count(" dot(")


class XlaTest(testing.TestCase):
    @parameterized.parameters(*WAYS)
    def test_numbers_are_those_of_plain(self, way):
        rows = np.array([0, 2, 1, 5], "int32")
        expected = gradients_of(block)(X, W, rows)
        with as_if(way):
            found = gradients_of(remat(block))(X, W, rows)
        for a, b in zip(found, expected):
            self.assertAllClose(a, b, atol=1e-5)

    @parameterized.product(way=WAYS, size=[None, 0])
    def test_an_empty_batch(self, way, size):
        def run(f):
            gradient = gradients_of(f)
            spec = tf.TensorSpec((size, 6)), tf.TensorSpec((6, 6))
            return gradient.get_concrete_function(*spec)(
                tf.constant(X[:0]), tf.constant(W)
            )

        with as_if(way):
            found = run(remat(block))
        for a, b in zip(found, run(block)):
            self.assertAllClose(a, b)

    def test_the_second_run_is_not_merged_with_the_first(self):
        plain = matmuls(gradients_of(block), X, W)
        found = matmuls(gradients_of(remat(block)), X, W)
        # Of each block, the product within: the last one is not needed.
        self.assertGreaterEqual(found, plain + 2)

    def test_what_is_made_of_kept_values_is_not_merged_either(self):
        def f(x, w):
            for _ in range(3):
                x = tf.exp(tf.sin(tf.exp(tf.matmul(x, w))))
            return x

        def exponentials(f):
            code = gradients_of(f).experimental_get_compiler_ir(
                tf.constant(X), tf.constant(W)
            )(stage="optimized_hlo")
            return code.count(" exponential(")

        kept = remat(f, policy=RematPolicy("matmuls"))
        self.assertGreater(exponentials(kept), exponentials(f))
        self.assertEqual(
            matmuls(gradients_of(kept), X, W), matmuls(gradients_of(f), X, W)
        )

    def test_dropout_masks_are_drawn_again(self):
        def draws(wrap):
            drop = layers.Dropout(0.5, seed=3)
            f = wrap(lambda x, w: tf.matmul(drop(x, training=True), w))
            code = gradients_of(f).experimental_get_compiler_ir(
                tf.constant(X), tf.constant(W)
            )(stage="optimized_hlo")
            return code.count(" xor(")

        self.assertGreater(draws(remat), draws(lambda f: f))

    def test_accelerators_get_a_barrier(self):
        with as_if("barrier"):
            run = gradients_of(remat(block))
            graph = run.get_concrete_function(
                tf.constant(X), tf.constant(W)
            ).graph
        kinds = [op.type for op in graph.get_operations()]
        self.assertEqual(kinds.count("XlaOptimizationBarrier"), 2)

    @parameterized.parameters(*WAYS)
    def test_gradients_that_overflow_change_nothing_else(self, way):
        def f(x):
            return tf.exp(x * 200.0) * x

        def run(f):
            @tf.function(jit_compile=True)
            def gradient(x):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = f(tf.sin(x))
                    loss = tf.reduce_sum(y * y)
                return tape.gradient(loss, x)

            return gradient(tf.constant(X))

        expected = run(f)
        with as_if(way):
            found = run(remat(f))
        self.assertFalse(np.isfinite(expected).all())
        self.assertAllClose(found, expected)

    @parameterized.parameters(*WAYS)
    def test_second_order(self, way):
        def run(f):
            @tf.function(jit_compile=True)
            def penalty(x, w):
                with tf.GradientTape() as outer:
                    outer.watch([x, w])
                    with tf.GradientTape() as tape:
                        tape.watch(x)
                        loss = tf.reduce_sum(f(x, w))
                    slope = tape.gradient(loss, x)
                    loss = loss + tf.reduce_sum(slope * slope)
                return outer.gradient(loss, [x, w])

            return penalty(tf.constant(X), tf.constant(W))

        expected = run(block)
        with as_if(way):
            found = run(remat(block))
        for a, b in zip(found, expected):
            self.assertAllClose(a, b, atol=1e-4)


class FitTest(testing.TestCase):
    """Training that XLA compiles: loss, weights, statistics, seeds."""

    def fit(self, remat):
        set_random_seed(0)
        parts = []
        for i in range(4):
            parts += [
                layers.Dense(6, activation="gelu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3, seed=i),
            ]
        model = models.Sequential([layers.Input((6,)), *parts], name="model")
        model.remat = remat
        optimizer = optimizers.SGD(0.01, momentum=0.9)
        model.compile(optimizer, "mse", jit_compile=True)
        history = model.fit(X, X, batch_size=2, epochs=3, verbose=0)
        state = [v.numpy() for v in model.variables + optimizer.variables]
        return [history.history["loss"], *state]

    @parameterized.parameters(*WAYS)
    def test_equal_to_plain(self, way):
        expected = self.fit(None)
        with as_if(way):
            found = self.fit(True)
        for a, b in zip(found, expected, strict=True):
            self.assertAllClose(a, b, atol=1e-5, rtol=1e-5)
