from unittest import mock

import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing


def step_bytes(model, x, y):
    """What the compiled step of `fit` itself needs beside its arguments."""
    from keras.src.backend.jax import trainer

    found = []
    jit = trainer.jit

    def measuring_jit(f, **options):
        compiled = jit(f, **options)

        def call(*args):
            analysis = compiled.lower(*args).compile().memory_analysis()
            found.append(analysis.temp_size_in_bytes)
            return compiled(*args)

        return call

    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    with mock.patch.object(trainer, "jit", measuring_jit):
        model.fit(x, y, batch_size=len(x), epochs=1, verbose=0)
    return found[0]


def temporary_bytes(remat):
    parts = [layers.Dense(64, activation="gelu") for _ in range(16)]
    model = models.Sequential([layers.Input((64,)), *parts])
    model.remat = remat
    data = np.zeros((2048, 64), "float32")
    return step_bytes(model, data, data)


@pytest.mark.skipif(
    backend.backend() != "jax",
    reason="asks XLA for the memory of the step that JAX's trainer compiles",
)
class StepOfFitTest(testing.TestCase):
    def test_the_step_of_fit_saves_memory(self):
        plain, found = temporary_bytes(None), temporary_bytes(True)
        self.assertLess(found, 0.5 * plain)

    def test_without_the_options_a_cpu_undoes_it(self):
        import jax

        from keras.src.backend.jax import remat

        if jax.default_backend() != "cpu":
            self.skipTest("only XLA:CPU deletes optimization barriers")
        saved = temporary_bytes(True)
        with mock.patch.object(remat, "jit_options", dict):
            found = temporary_bytes(True)
        self.assertGreater(found, 1.5 * saved)


@pytest.mark.skipif(backend.backend() != "jax", reason="steps of JAX")
class DrawsTest(testing.TestCase):
    def test_draws_of_later_regions_do_not_begin_with_the_step(self):
        import jax

        if jax.default_backend() != "cpu":
            self.skipTest("other compilers order draws by memory")
        x = y = np.ones((512, 256), "float32")

        def peak(rate):
            model = models.Sequential([layers.Input((256,))])
            for _ in range(10):
                model.add(layers.Dense(256, activation="relu"))
                model.add(layers.Dropout(rate))
            model.remat = True
            return step_bytes(model, x, y)

        # One draw at a time takes a few values of this size.
        self.assertLess(peak(0.1), peak(0.0) + 6 * x.nbytes)
