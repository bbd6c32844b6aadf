import collections
import dataclasses

import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_test_utils import step

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


@dataclasses.dataclass(frozen=True)
class Point:
    x: object
    y: object
    name: str = "point"


Pair = collections.namedtuple("Pair", ["a", "b"])


@pytest.mark.requires_trainable_backend
class StructureTest(testing.TestCase):
    def test_arguments_that_are_not_tensors(self):
        seen = []

        @remat
        def f(x, flag, *, nest, name, none=None, shape=(), dtype="float32"):
            seen.append((flag, name, none, shape, nest["n"], nest["p"].b))
            self.assertIs(type(nest["p"]), Pair)
            y = ops.reshape(ops.cast(x, dtype), shape)
            return ops.sum(ops.sin(y) * nest["p"].a) if flag else None

        def loss(x):
            nest = {"p": Pair(x * 1.0, "b"), "n": 3}
            return f(x, True, nest=nest, name="n", shape=(4, 6))

        _, (gradient,), _ = step(loss, [X])
        self.assertAllClose(gradient, np.sin(X) + X * np.cos(X), atol=1e-5)
        self.assertEqual(set(seen), {(True, "n", None, (4, 6), 3, "b")})

    def test_results_that_are_not_tensors(self):
        def f(x):
            y = ops.sin(x)
            return {"p": Pair(y, [None, "text"]), "n": 3, "t": (True, 2 * y)}

        def loss(x):
            results = remat(f)(x)
            self.assertEqual(results["p"].b, [None, "text"])
            self.assertEqual((results["n"], results["t"][0]), (3, True))
            return ops.sum(results["p"].a * results["t"][1])

        _, (gradient,), _ = step(loss, [X])
        self.assertAllClose(gradient, 4 * np.sin(X) * np.cos(X), atol=1e-5)

    def test_dataclasses_enter_and_leave(self):
        @remat
        def f(point):
            y = ops.sin(point.x)
            return Point(y, [Point(y * point.x, None, "inner"), 3], "outer")

        def loss(x):
            result = f(Point(x, None))
            inner, number = result.y
            self.assertEqual(
                (result.name, inner.name, number), ("outer", "inner", 3)
            )
            return ops.sum(result.x + inner.x)

        _, (gradient,), _ = step(loss, [X])
        expected = np.cos(X) + np.sin(X) + X * np.cos(X)
        self.assertAllClose(gradient, expected, atol=1e-5)

    def test_keyword_tensors_get_gradients(self):
        f = remat(lambda x, y: ops.sum(ops.sin(x) * y))
        _, (gx, gy), _ = step(lambda x, y: f(x, y=y), [X, 2 * X])
        self.assertAllClose(gx, 2 * X * np.cos(X), atol=1e-5)
        self.assertAllClose(gy, np.sin(X), atol=1e-5)

    def test_the_same_tensor_twice(self):
        f = remat(lambda x, y: ops.sum(ops.sin(x) * y))
        _, (gradient,), _ = step(lambda x: f(x, x), [X])
        self.assertAllClose(gradient, np.sin(X) + X * np.cos(X), atol=1e-5)

    def test_an_input_that_is_also_the_result(self):
        f = remat(lambda x, y: (x, ops.sin(y), x))

        def loss(x):
            a, b, c = f(x, x)
            return ops.sum(a * b + c)

        _, (gradient,), _ = step(loss, [X])
        expected = np.sin(X) + X * np.cos(X) + 1
        self.assertAllClose(gradient, expected, atol=1e-5)

    def test_integers_and_bools_beside_floats(self):
        rows = ops.convert_to_tensor(np.array([2, 0], "int32"))
        keep = ops.convert_to_tensor(np.array([[True], [False]]))

        @remat
        def f(x, rows, keep):
            y = ops.where(keep, ops.sin(ops.take(x, rows, axis=0)), 0.0)
            return y, rows + 1, ops.logical_not(keep)

        def loss(x):
            y, after, flipped = f(x, rows, keep)
            self.assertIn("int32", backend.standardize_dtype(after.dtype))
            self.assertEqual(backend.standardize_dtype(flipped.dtype), "bool")
            return ops.sum(y)

        _, (gradient,), _ = step(loss, [X])
        expected = np.zeros_like(X)
        expected[2] = np.cos(X[2])
        self.assertAllClose(gradient, expected, atol=1e-5)

    def test_no_tensor_at_all(self):
        v = backend.Variable(X)
        f = remat(lambda: ops.sum(ops.sin(v)))
        loss, _, (gradient,) = step(f, [], [v])
        self.assertAllClose(loss, np.sum(np.sin(X)), atol=1e-5)
        self.assertAllClose(gradient, np.cos(X), atol=1e-5)

    def test_a_batch_of_zero(self):
        dense = layers.Dense(3)
        dense.build((None, 6))
        f = remat(lambda x: ops.sum(ops.sin(dense(x))))
        _, (gx,), gw = step(f, [X[:0]], dense.variables)
        self.assertEqual(gx.shape, (0, 6))
        self.assertAllClose(gw[0], np.zeros((6, 3)))

    def test_masks_enter_and_leave(self):
        mask = np.array([[True, True, False, True, False, True]] * 4)

        def f(x):
            entered.append(get_keras_mask(x) is not None)
            y = ops.sin(x)
            set_keras_mask(y, ops.logical_not(get_keras_mask(x)))
            return y

        def loss(x):
            set_keras_mask(x, ops.convert_to_tensor(mask))
            y = remat(f)(x)
            weights = ops.cast(get_keras_mask(y), "float32")
            return ops.sum(y * weights)

        entered = []
        _, (gradient,), _ = step(loss, [X])
        self.assertTrue(all(entered))
        self.assertAllClose(gradient, np.cos(X) * ~mask, atol=1e-5)
