"""Layers that draw their weights from torch's own generator, built inside."""

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import testing
from keras.src.backend.common.remat_op import remat

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    backend.backend() != "torch", reason="is about torch"
)

X = np.linspace(-1, 1, 24).reshape((3, 8)).astype("float32")


class Drawn(layers.Layer):
    def build(self, input_shape):
        draw = lambda shape, dtype=None: torch.rand(*shape)
        self.w = self.add_weight(shape=(8, 8), initializer=draw)

    def call(self, x):
        return torch.nn.functional.dropout(torch.sin(x @ self.w.value), 0.5)


class DrawsOfBuildingTest(testing.TestCase):
    @parameterized.product(policy=(None, "matmuls"), nested=(False, True))
    def test_masks_are_those_of_the_first_run(self, policy, nested):
        def run(rematerialize):
            torch.manual_seed(0)
            parts = [Drawn(), Drawn()]
            inner = lambda x: parts[1](x)
            inner = rematerialize(inner) if nested else inner

            def f(x):
                x = torch.nn.functional.dropout(torch.sin(x), 0.5)
                return inner(parts[0](x))

            x = torch.tensor(X, requires_grad=True)
            rematerialize(f)(x).square().sum().backward()
            return x.grad, *(p.w.value.grad for p in parts)

        expected = run(lambda f: f)
        found = run(lambda f: remat(lambda x: f(x), policy=policy))
        for a, b in zip(expected, found):
            self.assertAllClose(a, b, rtol=1e-5, atol=1e-6)
