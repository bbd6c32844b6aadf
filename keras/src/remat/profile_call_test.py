import numpy as np
import pytest

from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.backend import KerasTensor
from keras.src.remat import profile_call
from keras.src.remat.profile_test import FLOAT


class Residual(layers.Layer):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.up = layers.Dense(2 * width, activation="exponential")
        self.down = layers.Dense(width)

    def build(self, shape):
        self.up.build(shape)
        self.down.build((*shape[:-1], self.up.units))

    def call(self, x):
        return x + self.down(self.up(x))


class Stack(models.Model):
    def __init__(self, depth, width):
        super().__init__()
        self.parts = [Residual(width) for _ in range(depth)]
        self.drop = layers.Dropout(0.5, seed=1)

    def call(self, x, training=None):
        for part in self.parts:
            x = part(x)
        return self.drop(x, training=training)


class ProfileByCallTest(testing.TestCase):
    def stack(self):
        model = Stack(3, 16)
        model(np.ones((2, 16), "float32"))
        return model

    @pytest.mark.requires_trainable_backend
    def test_children_are_costed_each(self):
        model = self.stack()
        before = [np.array(v) for v in model.variables]
        rows = profile_call.model_costs_by_call(model, KerasTensor((8, 16)))
        self.assertEqual([r.layer for r in rows], [*model.parts, model.drop])
        # The first one's input is data, and each one's inner value is kept.
        self.assertEqual(rows[0].cost.saved_internal, 8 * 32 * FLOAT)
        self.assertEqual(rows[1].saved, rows[1].cost.saved_internal + 512)
        for v, old in zip(model.variables, before):
            self.assertAllEqual(np.array(v), old)

    def test_layers_are_as_before_after_an_error(self):
        original = layers.Layer.__call__
        model = self.stack()

        def fail(*args, **kwargs):
            raise RuntimeError("stop")

        model.drop.call = fail
        with self.assertRaisesRegex(RuntimeError, "stop"):
            profile_call.model_costs_by_call(model, KerasTensor((8, 16)))
        self.assertIs(layers.Layer.__call__, original)
