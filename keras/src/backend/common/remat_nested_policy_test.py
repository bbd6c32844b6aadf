"""Policies that keep values, in compiled steps and in nested regions.

An engine may tell kept values by number, so nothing that only one of the two
runs does (reading a variable, copying an input) may count.
"""

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import step
from keras.src.remat.name_op import remat_name

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")
SQUARE = np.linspace(-1, 2, 16).reshape((4, 4)).astype("float32")


def large(op_name, value_name, shape, dtype):
    return len(shape) > 1


KEEPS = {
    "nothing": "nothing",
    "matmuls": "matmuls",
    "names": ["one", "two", "three"],
    "function": large,
    "matmuls_and_names": ["matmuls", "two"],
}


class Stack:
    """Layers with state, named values, and a region inside a region."""

    def __init__(self, outer=None, inner=None):
        utils.set_random_seed(3)
        self.dense = [layers.Dense(4, activation="gelu") for _ in range(3)]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.5, seed=3)
        for layer in (*self.dense, self.norm):
            layer.build((None, 4))
        self.inside, self.f = self.part, self.whole
        if inner is not None:
            self.inside = remat(self.part, policy=RematPolicy(inner))
        if outer is not None:
            self.f = remat(self.whole, policy=RematPolicy(outer))

    def part(self, x):
        y = remat_name(self.dense[1](x), "two")
        return self.norm(ops.sin(y), training=True) * y

    def whole(self, x):
        y = remat_name(ops.sin(self.dense[0](x)), "one")
        y = self.drop(self.inside(y), training=True)
        z = remat_name(self.dense[2](ops.sin(y)), "three")
        return ops.tanh(z) * ops.matmul(ops.matmul(z, ops.transpose(z)), z)

    def results(self, compiled):
        state = [v for layer in self.layers for v in layer.variables]
        total = lambda x: ops.sum(self.f(x))
        loss, gradients, of_weights = step(total, [X], state, compiled)
        values = [backend.convert_to_numpy(v) for v in state]
        return [loss, *gradients, *of_weights, *values]

    @property
    def layers(self):
        return [*self.dense, self.norm, self.drop]


def branch(x):
    return ops.cond(ops.sum(x) > 0, lambda: ops.sin(x), lambda: ops.cos(x))


def pairwise(x):
    return ops.associative_scan(lambda a, b: a * ops.tanh(b), x, axis=0)


def product(x):
    """Of a row, with values that a policy may keep or not."""
    y = remat_name(ops.matmul(ops.sin(x[None]), SQUARE), "one")
    return ops.relu(remat_name(ops.tanh(y), "two"))[0]


def named_branch(x):
    f = lambda: remat_name(ops.sin(x), "one")
    return ops.tanh(ops.cond(ops.sum(x) > 0, f, lambda: ops.cos(x)))


def vectorized(x):
    return ops.vectorized_map(product, x)


def mapped(x):
    return ops.map(product, x)


def scanned(x):
    f = lambda carry, row: (product(carry) + row, remat_name(carry, "two"))
    return ops.scan(f, ops.zeros_like(x[0]), x)[1]


@pytest.mark.requires_trainable_backend
class ControlFlowTest(testing.TestCase):
    @parameterized.product(
        f=(branch, pairwise), keep=("nothing", "matmuls", "function")
    )
    def test_in_a_compiled_step(self, f, keep):
        self.check(f, keep, True)

    @parameterized.product(
        f=(named_branch, vectorized, mapped, scanned),
        keep=("matmuls_and_names", "function"),
    )
    def test_with_values_that_have_names(self, f, keep):
        self.check(f, keep, True)

    @parameterized.parameters("matmuls", "names")
    def test_a_map_outside_of_a_compiled_step(self, keep):
        self.check(vectorized, keep, False)

    def check(self, f, keep, compiled):
        g = remat(f, policy=RematPolicy(KEEPS[keep]))
        plain, ours = (
            step(lambda x: ops.sum(ops.sin(h(x))), [X + 0.5], (), compiled)
            for h in (f, g)
        )
        self.assertAllClose(ours[0], plain[0], atol=1e-5)
        self.assertAllClose(ours[1][0], plain[1][0], atol=1e-5)


@pytest.mark.requires_trainable_backend
class FunctionTest(testing.TestCase):
    def test_what_a_function_is_asked(self):
        """Also of a layer that makes some of its operations by slow paths."""
        asked = []

        def keep(*args):
            asked.append(args)
            return len(asked) % 2 == 0

        def f(x):
            return ops.sum(ops.relu(ops.reshape(dense(x), (2, 6))))

        dense = layers.Dense(4, activation="gelu")
        dense.build((None, 4))
        g = remat(f, policy=RematPolicy(keep))
        for compiled in (False, True):
            ours, plain = (
                step(h, [X], dense.variables, compiled) for h in (g, f)
            )
            self.assertAllClose(ours[1][0], plain[1][0], atol=1e-5)
        for op_name, value_name, shape, dtype in asked:
            self.assertIsInstance(op_name, str)
            self.assertIn(value_name, (None, "dense/linear"))
            self.assertIsInstance(shape, tuple)
            self.assertIsInstance(dtype, str)


@pytest.mark.requires_trainable_backend
class KeptValuesTest(testing.TestCase):
    def assert_equal(self, compiled, **kwargs):
        expected = Stack().results(compiled)
        found = Stack(**kwargs).results(compiled)
        self.assertLen(found, len(expected))
        for a, b in zip(found, expected):
            self.assertAllClose(a, b, atol=1e-4)

    @parameterized.product(keep=sorted(KEEPS), compiled=(False, True))
    def test_one_region(self, keep, compiled):
        self.assert_equal(compiled, outer=KEEPS[keep])

    @parameterized.product(
        outer=("matmuls_and_names", "function"),
        inner=("nothing", "matmuls", "names"),
    )
    def test_a_region_in_a_region(self, outer, inner):
        self.assert_equal(False, outer=KEEPS[outer], inner=KEEPS[inner])

    @parameterized.parameters(
        ("matmuls", "names"), ("names", "function"), ("matmuls", "nothing")
    )
    def test_a_region_in_a_region_compiled(self, outer, inner):
        self.assert_equal(True, outer=KEEPS[outer], inner=KEEPS[inner])
