"""Whole models, from the installed wheel: switched on after they were built.

Equal to plain after three steps: losses, weights, statistics and seeds.
"""

import numpy as np
import pytest

import keras
from keras import layers
from keras import ops

pytestmark = pytest.mark.skipif(
    keras.backend.backend() in ("numpy", "openvino"),
    reason="this backend takes no gradients",
)


def mobilenet():
    return keras.applications.MobileNetV3Small(
        weights=None,
        input_shape=(32, 32, 3),
        classes=4,
        classifier_activation=None,
        include_preprocessing=False,
    )


def detector():
    """Two levels, shared heads, several outputs, nested backbone."""
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(image)
    fine = layers.BatchNormalization()(x)
    coarse = layers.Conv2D(8, 3, strides=2, padding="same")(fine)
    coarse = layers.Dropout(0.2, seed=1)(ops.silu(coarse))
    backbone = keras.Model(image, [fine, coarse], name="backbone")
    boxes = layers.Conv2D(4, 3, padding="same", name="boxes")
    scores = keras.Sequential(
        [
            keras.Input((None, None, 8)),
            layers.Conv2D(8, 3, padding="same"),
            layers.Conv2D(2, 1),
        ],
        name="scores",
    )
    inputs = keras.Input((32, 32, 3))
    levels = backbone(inputs)
    levels[0] = levels[0] + layers.UpSampling2D()(levels[1])
    pooled = layers.GlobalAveragePooling2D()
    return keras.Model(
        inputs,
        [pooled(boxes(x)) for x in levels]
        + [pooled(scores(x)) for x in levels],
    )


class Block(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=2)
        self.up = layers.Dense(16, activation="gelu")
        self.down = layers.Dense(8)

    def build(self, shape):
        self.norm.build(shape)
        self.attention.build(shape, shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], 16))

    def call(self, x, training=False):
        h = self.norm(x)
        x = x + self.attention(h, h, use_causal_mask=True, training=training)
        return x + self.down(self.up(x))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(16, 8)
        self.blocks = [Block() for _ in range(3)]
        self.head = layers.Dense(4)

    def call(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)[:, -1]


def images(rng):
    return rng.normal(size=(4, 32, 32, 3)).astype("float32")


def tokens(rng):
    return rng.integers(0, 16, size=(4, 6))


CASES = {
    "mobilenet": (mobilenet, images),
    "detector": (detector, images),
    "subclassed": (Subclassed, tokens),
}


def train(build, x, remat):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = build()
    y = model.predict(x, verbose=0)
    model.remat = remat
    model.compile(keras.optimizers.SGD(0.01), "mse")
    y = keras.tree.map_structure(np.ones_like, y)
    losses = [np.ravel(model.train_on_batch(x, y))[0] for _ in range(3)]
    return losses, [ops.convert_to_numpy(v.value) for v in model.variables]


@pytest.mark.parametrize("name", CASES)
def test_equal_to_plain(name):
    build, data = CASES[name]
    x = data(np.random.default_rng(0))
    plain_losses, plain = train(build, x, None)
    losses, variables = train(build, x, True)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-4)
    for a, b in zip(plain, variables):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_is_the_fork():
    assert "+remat" in keras.__version__
