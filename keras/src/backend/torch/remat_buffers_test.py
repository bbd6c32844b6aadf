"""Modules of torch with buffers, in regions."""

import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_op import remat
from keras.src.utils.torch_utils import TorchModuleWrapper

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    backend.backend() != "torch", reason="is about torch"
)

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


class Average(torch.nn.Module):
    """Reads what it wrote in the run before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(6))

    def forward(self, x):
        y = torch.sin(x * self.mean)
        self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
        return torch.cos(y * self.mean)


def module():
    torch.manual_seed(0)
    parts = [torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), Average()]
    return torch.nn.Sequential(*parts, torch.nn.Dropout(0.3))


def plain(f):
    return f


def nested(f):
    return remat(lambda x: remat(f)(torch.sin(x)))


def around(f):
    return lambda x: f(torch.sin(x))


class BuffersTest(testing.TestCase):
    def compare(self, run, wraps):
        found = []
        for wrap in wraps:
            block, x = module(), torch.tensor(X, requires_grad=True)
            torch.manual_seed(1)
            run(wrap(block), x)
            gradients = [p.grad for p in block.parameters()]
            found.append([x.grad, *gradients, *block.buffers()])
        for expected, received in zip(*found, strict=True):
            self.assertAllClose(expected, received, atol=1e-6)

    def test_equal_to_plain(self):
        def run(f, x):
            for _ in range(2):
                f(f(x)).sum().backward()

        self.compare(run, (plain, remat))
        self.compare(run, (around, nested))

    def test_two_backward_passes(self):
        def run(f, x):
            y = f(f(x)).sum()
            y.backward(retain_graph=True)
            y.backward()

        self.compare(run, (plain, remat))

    def test_a_buffer_that_was_changed_is_refused(self):
        norm = torch.nn.BatchNorm1d(6).eval()
        x = torch.tensor(X, requires_grad=True)
        y = remat(lambda x: torch.sin(norm(x)))(x)
        norm.running_mean.add_(1.0)
        with self.assertRaisesRegex(RuntimeError, "running_mean"):
            y.sum().backward()

    def test_a_layer_around_a_module(self):
        found = []
        for setting in (None, True):
            utils.set_random_seed(0)
            inputs = layers.Input((6,))
            wrapped = TorchModuleWrapper(module(), output_shape=(None, 6))
            outputs = layers.Dense(6)(wrapped(inputs))
            model = models.Model(inputs, outputs)
            model.remat = setting
            model.compile("sgd", "mse")
            torch.manual_seed(1)
            for _ in range(3):
                model.train_on_batch(X, X)
            found.append([*wrapped.module.buffers(), *model.weights])
        for expected, received in zip(*found, strict=True):
            self.assertAllClose(expected, received, atol=1e-6)
