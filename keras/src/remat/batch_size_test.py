import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat.measure import remat_report

WIDTH = 32
# How far the largest batch that fits is from the predicted one, as shares of
# that. XLA runs a region's backward pass with less than counted: it reuses
# the buffer of a result for its cotangent.
LEAST, MOST = (0.95, 1.05) if backend.backend() == "torch" else (0.95, 1.35)


def perceptron():
    inputs = x = layers.Input((WIDTH,))
    for _ in range(12):
        x = layers.Dense(WIDTH, activation="relu")(x)
    return models.Model(inputs, layers.Dense(1)(x))


def residual():
    inputs = layers.Input((WIDTH,))
    x = layers.Dense(WIDTH)(inputs)
    for _ in range(5):
        y = layers.Dense(4 * WIDTH, activation="relu")(x)
        x = layers.Add()([x, layers.Dense(WIDTH)(y)])
        x = layers.LayerNormalization()(x)
    return models.Model(inputs, layers.Dense(1)(x))


@pytest.mark.skipif(
    backend.backend() not in ("jax", "torch"),
    reason="this backend does not tell its peak",
)
class MaxBatchSizeTest(testing.TestCase):
    def check(self, model):
        plan = model.remat_plan(2048)
        budget = plan.floor(2048)
        predicted = plan.max_batch_size(budget)
        self.assertEqual(predicted, 2048)

        def peak(batch):
            """Of the plan of least memory, measured."""
            model.remat = RematPolicy(memory_budget=plan.floor(batch))
            x = np.ones((batch, WIDTH), "float32")
            return remat_report(model, x).remat_peak

        self.assertLessEqual(peak(int(LEAST * predicted)), budget)
        self.assertGreater(peak(int(MOST * predicted)), budget)

    def test_perceptron(self):
        self.check(perceptron())

    def test_residual(self):
        self.check(residual())
