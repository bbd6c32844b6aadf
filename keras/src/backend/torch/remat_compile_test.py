import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_test_utils import Counter
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs

X = np.linspace(-1, 1, 384).reshape((64, 6)).astype("float32")


class Noted(layers.Layer):
    def call(self, x):
        return counted(ops.sin(x))


def chain():
    utils.set_random_seed(7)
    parts = []
    for seed in range(3):
        parts.append(layers.Dense(6, activation="gelu"))
        parts.append(layers.BatchNormalization())
        parts.append(layers.Dropout(0.5, seed=seed))
    return [Noted(), *parts, Counter()]


def by_function():
    parts = chain()

    def run(x):
        for layer in parts:
            training = (
                {"training": True} if layer._call_has_training_arg else {}
            )
            x = layer(x, **training)
        return x

    run(ops.convert_to_tensor(X))
    return run, remat(run), [v for layer in parts for v in layer.variables]


def by_model():
    model = models.Sequential([layers.Input((6,)), *chain()])

    def plain(x):
        return model(x, training=True)

    def ours(x):
        model.remat = True
        return model(x, training=True)

    return plain, ours, model.variables


def held_by(f, variables):
    """The loss, and how many bytes are kept for its gradient."""
    import torch

    storages = {}
    weights = {v.value.untyped_storage().data_ptr() for v in variables}

    def note(x):
        storage = x.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        loss = torch.sum(torch.sin(f(torch.tensor(X))))
    return loss, sum(n for p, n in storages.items() if p not in weights)


def steps(f, variables):
    """Two steps: losses, gradients, and the bytes kept in the second one."""
    import torch

    found = []
    for _ in range(2):
        loss, held = held_by(f, variables)
        trained = [v.value for v in variables if v.trainable]
        found += [loss, *torch.autograd.grad(loss, trained)]
    return [backend.convert_to_numpy(x) for x in found], held


@pytest.mark.skipif(backend.backend() != "torch", reason="is about torch")
class CompiledTest(testing.TestCase):
    def compiled(self, f):
        import torch

        torch._dynamo.reset()
        self.addCleanup(torch._dynamo.reset)
        return torch.compile(f, backend="eager")

    @parameterized.named_parameters(
        ("function", by_function), ("model", by_model)
    )
    def test_regions_are_as_without_a_compiler(self, make):
        f, _, expected_variables = make()
        expected, plain_bytes = steps(f, expected_variables)
        _, f, variables = make()
        _, region_bytes = steps(f, variables)
        _, f, variables = make()
        with runs() as count:
            found, found_bytes = steps(self.compiled(f), variables)
        self.assertLen(count, 4)
        for a, b in zip(found, expected, strict=True):
            self.assertAllClose(a, b, rtol=1e-5, atol=1e-6)
        for a, b in zip(variables, expected_variables):
            self.assertAllClose(a, b, rtol=1e-5, atol=1e-6, msg=b.path)
        self.assertEqual(found_bytes, region_bytes)
        self.assertLess(found_bytes, plain_bytes / 2)

    def test_inference_runs_once(self):
        import torch

        f = self.compiled(remat(lambda x: counted(torch.sin(x))))
        with torch.no_grad(), runs() as count:
            f(torch.tensor(X))
        self.assertLen(count, 1)

    def test_a_transform_takes_no_region(self):
        import torch

        @remat
        def f(x):
            return torch.sum(ops.sin(x) ** 2)

        x = torch.tensor(X)
        found = self.compiled(torch.func.grad(f))(x)
        self.assertAllClose(found, torch.sin(2 * x), rtol=1e-5, atol=1e-6)
