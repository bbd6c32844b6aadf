"""Models some of whose inputs may be left out."""

import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_policy import RematPolicy

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


class Sum(layers.Layer):
    def call(self, x, y=None):
        return x if y is None else x + y


def model():
    utils.set_random_seed(0)
    a = layers.Input((6,), name="a")
    b = layers.Input((6,), name="b", optional=True)
    x = Sum()(layers.Dense(6, activation="gelu")(a), b)
    x = layers.Dense(6, activation="gelu")(x)
    return models.Model({"a": a, "b": b}, layers.Dense(6)(Sum()(x, b)))


@pytest.mark.requires_trainable_backend
class OptionalInputsTest(testing.TestCase):
    def test_with_and_without(self):
        settings = [True, RematPolicy("matmuls")]
        for b in (None, X):
            weights = []
            for setting in (None, *settings):
                made = model()
                made.remat = setting
                made.compile("sgd", "mse", jit_compile=False)
                for _ in range(2):
                    made.train_on_batch({"a": X, "b": b}, X)
                weights.append(
                    [backend.convert_to_numpy(v.value) for v in made.variables]
                )
            for received in weights[1:]:
                for value, plain in zip(received, weights[0], strict=True):
                    self.assertAllClose(value, plain, atol=1e-6)
