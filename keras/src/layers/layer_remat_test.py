import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import layers
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import Counter
from keras.src.backend.common.remat_test_utils import Penalty
from keras.src.backend.common.remat_test_utils import step
from keras.src.models import Sequential

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


class Chain:
    """Calls layers one after the other, as a region or not."""

    def __init__(self, make, rematerialize):
        utils.set_random_seed(7)
        self.layers = make()
        self.run(ops.convert_to_tensor(X))
        self.f = remat(self.run) if rematerialize else self.run

    def run(self, x):
        for layer in self.layers:
            if layer._call_has_training_arg:
                x = layer(x, training=True)
            else:
                x = layer(x)
        return x

    def loss(self, x):
        for layer in self.layers:
            # Stock Keras clears losses by ids of the last step, which new
            # ones may have: a loss would be lost now and then.
            layer._loss_ids.clear()
        y = ops.cast(self.f(x), "float32")
        extra = [loss for layer in self.layers for loss in layer.losses]
        return ops.sum(ops.sin(y)) + sum(ops.cast(z, "float32") for z in extra)

    @property
    def variables(self):
        return [v for layer in self.layers for v in layer.variables]


def frozen():
    layer = layers.Dense(6)
    layer.trainable = False
    return layer


def expanded():
    return layers.Reshape((6, 1))


CASES = {
    "dropout": lambda: [layers.Dense(6), layers.Dropout(0.5, seed=3)],
    "gaussian_noise": lambda: [layers.GaussianNoise(0.5, seed=3)],
    "batch_normalization": lambda: [
        layers.Dense(6),
        layers.BatchNormalization(),
    ],
    "spectral_normalization": lambda: [
        layers.SpectralNormalization(layers.Dense(6))
    ],
    "add_loss": lambda: [layers.Dense(6), Penalty()],
    "activity_regularizer": lambda: [
        layers.Dense(6, activity_regularizer="l2")
    ],
    "mask_inside": lambda: [
        expanded(),
        layers.Masking(X[0, 0]),
        layers.GlobalAveragePooling1D(),
    ],
    "mixed_bfloat16": lambda: [
        layers.Dense(6, activation="gelu", dtype="mixed_bfloat16"),
        layers.Dropout(0.5, seed=3, dtype="mixed_bfloat16"),
        layers.BatchNormalization(dtype="mixed_bfloat16"),
    ],
    "frozen": lambda: [layers.Dense(6), frozen(), layers.Dense(6)],
    "state": lambda: [layers.Dense(6), Counter()],
    "everything": lambda: [
        layers.Dense(6, activity_regularizer="l2"),
        layers.BatchNormalization(),
        layers.Dropout(0.5, seed=3),
        Counter(),
        Penalty(),
    ],
}


@pytest.mark.requires_trainable_backend
class LayersInRegionsTest(testing.TestCase):
    def assert_equal_steps(self, make, steps=2, compiled=False):
        plain, ours = Chain(make, False), Chain(make, True)
        for _ in range(steps):
            expected = step(plain.loss, [X], plain.variables, compiled)
            found = step(ours.loss, [X], ours.variables, compiled)
            self.assertAllClose(found[0], expected[0], rtol=1e-5)
            for a, b in zip(found[1] + found[2], expected[1] + expected[2]):
                if b is None:
                    self.assertIsNone(a)
                else:
                    self.assertAllClose(a, b, atol=1e-5, rtol=1e-5)
            for a, b in zip(ours.variables, plain.variables):
                self.assertAllClose(a, b, atol=1e-5, rtol=1e-5, msg=b.path)

    @parameterized.named_parameters(*((name, name) for name in CASES))
    def test_loss_gradients_and_state(self, name):
        self.assert_equal_steps(CASES[name])

    def test_in_a_compiled_step(self):
        self.assert_equal_steps(CASES["everything"], steps=1, compiled=True)


class LayerSettingTest(testing.TestCase):
    @parameterized.named_parameters(
        ("layer", lambda: layers.Dense(2)),
        ("sequential", lambda: Sequential([layers.Dense(2)])),
    )
    def test_a_layer_gets_its_setting_and_is_returned(self, make):
        layer = make()
        self.assertIs(remat(layer), layer)
        self.assertIs(layer.remat, True)
        policy = RematPolicy(keep="matmuls")
        self.assertIs(remat(layer, policy=policy), layer)
        self.assertEqual(layer.remat, policy)
