"""What only the first run of a region does, where a policy keeps values.

Engines tell kept values by number. What one of the two runs does alone (it
builds a layer, makes a seed, casts a weight) must not shift these numbers,
and where a function itself does other work each time it must be said.
"""

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import random
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import step

X = np.linspace(-1, 1, 24).reshape((6, 4)).astype("float32")
SQUARE = np.linspace(-1, 2, 36).reshape((6, 6)).astype("float32")


def anything(op_name, value_name, shape, dtype):
    return True


def large(op_name, value_name, shape, dtype):
    return len(shape) > 1


KEEPS = {
    "matmuls": "matmuls",
    "anything": anything,
    "large": large,
    "names": ["dense/linear"],
}
EACH = [(name, RematPolicy(keep)) for name, keep in KEEPS.items()]
RUNS_TWICE = backend.backend() in ("tensorflow", "torch")


class Unbuilt(layers.Layer):
    """Has no `build`: Keras builds its parts by a call on symbols."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(4, activation="tanh")
        self.last = layers.Dense(4)

    def call(self, x):
        return self.last(ops.tanh(self.first(ops.sin(x))))


def parts():
    return models.Sequential(
        [
            layers.Dense(4, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=3),
            layers.Dense(4),
        ]
    )


def parts_called():
    stack = parts().layers

    def call(x):
        for layer in stack:
            x = layer(x)
        return x

    return call


class FirstBuiltInsideTest(testing.TestCase):
    @parameterized.product(
        keep=tuple(KEEPS), make=(Unbuilt, parts, parts_called)
    )
    @pytest.mark.requires_trainable_backend
    def test_numbers(self, keep, make):
        def run(rematerialize):
            utils.set_random_seed(1)
            f = rematerialize(make())
            loss = lambda x: ops.sum(ops.square(f(x)))
            return step(loss, [X])

        policy = RematPolicy(KEEPS[keep])
        expected = run(lambda f: f)
        found = run(lambda f: remat(lambda x: f(x), policy=policy))
        self.assertAllClose(found[0], expected[0], rtol=1e-5, atol=1e-5)
        self.assertAllClose(found[1][0], expected[1][0], rtol=1e-4, atol=1e-5)


class UnseededTest(testing.TestCase):
    @parameterized.named_parameters(*EACH)
    @pytest.mark.skipif(
        backend.backend() == "jax",
        reason="JAX draws nothing without a seed in a step",
    )
    @pytest.mark.requires_trainable_backend
    def test_the_gradient_is_that_of_the_draw(self, policy):
        y = []

        def f(x):
            y.append(random.dropout(x, 0.5))
            return y[-1]

        region = remat(f, policy=policy)
        loss = lambda x: ops.sum(region(x))
        _, (gradient,), _ = step(loss, [np.ones((8, 8), "float32")])
        self.assertAllClose(gradient, y[0])


class ModelTest(testing.TestCase):
    @parameterized.product(keep=tuple(KEEPS), compiled=(False, True))
    @pytest.mark.requires_trainable_backend
    def test_a_model_of_regions(self, keep, compiled):
        model = models.Sequential(
            [
                layers.Input((4,)),
                layers.Dense(5, activation="tanh"),
                layers.Dense(4, activation="tanh"),
            ]
        )
        loss = lambda x: ops.sum(ops.square(model(x)))
        args = loss, [X], model.trainable_variables, compiled
        expected = step(*args)
        model.remat = RematPolicy(KEEPS[keep])
        found = step(*args)
        for a, b in zip(expected[1] + expected[2], found[1] + found[2]):
            self.assertAllClose(a, b, rtol=1e-4, atol=1e-5)


class CachedByTheFirstRunTest(testing.TestCase):
    @parameterized.product(keep=("matmuls", "anything"), rows=(4, 6))
    @pytest.mark.skipif(
        not RUNS_TWICE, reason="Python code runs once, or nothing does"
    )
    def test_it_is_said(self, keep, rows):
        """A value of the same shape must not be taken for another one."""
        cache = []

        def f(x):
            if not cache:
                cache.append(ops.matmul(SQUARE, SQUARE)[:, :rows])
            return ops.sin(ops.matmul(ops.sin(x), ops.transpose(cache[0])))

        region = remat(f, policy=RematPolicy(KEEPS[keep]))
        x = np.ones((6, rows), "float32")
        with self.assertRaisesRegex(ValueError, "the same operations"):
            step(lambda x: ops.sum(region(x)), [x])


@pytest.mark.skipif(backend.backend() != "torch", reason="is about torch")
class AutocastTest(testing.TestCase):
    @parameterized.named_parameters(*EACH)
    def test_a_cast_that_was_cached_before(self, policy):
        import torch

        def run(rematerialize):
            torch.manual_seed(1)
            a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            f = rematerialize(lambda x: torch.tanh(b(torch.tanh(a(x)))))
            x = torch.tensor(X, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = f(b(x))  # From here on a cast of the weight is there.
            y.float().square().sum().backward()
            return x.grad, a.weight.grad, b.bias.grad

        expected = run(lambda f: f)
        found = run(lambda f: remat(f, policy=policy))
        for a, b in zip(expected, found):
            self.assertAllClose(a, b, rtol=1e-2, atol=1e-2)
