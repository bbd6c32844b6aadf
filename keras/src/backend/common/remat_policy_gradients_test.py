"""Gradients of gradients, and mixed precision, with each kind of policy."""

import functools

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import optimizers
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import step
from keras.src.backend.common.remat_test_utils import with_input_gradient
from keras.src.remat.name_op import remat_name

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")


def square(op_name, value_name, shape, dtype):
    return len(shape) > 1 and shape[-1] == shape[-2]


POLICIES = {
    "nothing": RematPolicy("nothing"),
    "matmuls": RematPolicy("matmuls"),
    "no_batch": RematPolicy("matmuls_no_batch"),
    "names": RematPolicy(["scores", "dense/linear"]),
    "function": RematPolicy(square),
    "offload": RematPolicy("matmuls", offload=True),
    "either": RematPolicy("matmuls_no_batch") | RematPolicy(["scores"]),
}
MODES = {"jax": (True,), "tensorflow": (False, True, "xla"), "torch": (False,)}
MODES = MODES.get(backend.backend(), (False,))


@pytest.mark.requires_trainable_backend
class GradientPenaltyTest(testing.TestCase):
    """A loss that holds the gradient of a region, as a critic's has."""

    @staticmethod
    @functools.cache
    def results(policy, compiled):
        utils.set_random_seed(0)
        dense = [layers.Dense(4, activation="gelu") for _ in range(2)]
        for layer in dense:
            layer.build(X.shape)

        def block(x):
            x = dense[0](x)
            scores = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
            scores = ops.softmax(remat_name(scores, "scores"))
            return dense[1](ops.tanh(ops.matmul(scores, x)))

        f = block if policy is None else remat(block, policy=policy)

        def loss(x):
            y, gradient = with_input_gradient(lambda x: ops.sum(f(x) ** 2), x)
            return y + ops.sum(ops.square(gradient))

        variables = [v for layer in dense for v in layer.variables]
        value, *gradients = step(loss, [X], variables, compiled)
        return [value, *sum(gradients, [])]

    @parameterized.product(policy=sorted(POLICIES), compiled=MODES)
    def test_equal_to_plain(self, policy, compiled):
        plain = self.results(None, compiled)
        found = self.results(POLICIES[policy], compiled)
        for a, b in zip(found, plain, strict=True):
            self.assertAllClose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.requires_trainable_backend
class MixedPrecisionTest(testing.TestCase):
    @staticmethod
    @functools.cache
    def results(policy, dtype):
        utils.set_random_seed(0)
        parts = [
            layers.Dense(8, activation="gelu", dtype=dtype),
            layers.Dropout(0.3, seed=1, dtype=dtype),
            layers.LayerNormalization(dtype=dtype),
            layers.Dense(4, dtype=dtype),
        ]
        model = models.Sequential([layers.Input(X.shape[1:]), *parts])
        model.remat = policy
        optimizer = optimizers.SGD(0.1)
        if dtype == "mixed_float16":
            optimizer = optimizers.LossScaleOptimizer(
                optimizer, initial_scale=2.0**10, dynamic_growth_steps=2
            )
        model.compile(optimizer, "mse")
        losses = [model.train_on_batch(X, X) for _ in range(3)]
        variables = model.variables + optimizer.variables
        state = [backend.convert_to_numpy(v) for v in variables]
        return [*losses, *(x.astype("float32") for x in state)]

    @parameterized.product(
        policy=sorted(POLICIES), dtype=("mixed_float16", "mixed_bfloat16")
    )
    def test_equal_to_plain(self, policy, dtype):
        if backend.backend() == "jax" and dtype == "mixed_float16":
            self.skipTest("JAX on CPU compiles no product of float16")
        plain = self.results(None, dtype)
        found = self.results(POLICIES[policy], dtype)
        for a, b in zip(found, plain, strict=True):
            self.assertAllClose(a, b, rtol=1e-2, atol=1e-3)
