"""What the workers of `distribution_test.py` share: a model and its numbers."""

import json
import sys

import numpy as np

import keras
from keras import layers
from keras import ops

BATCH, WIDTH, BLOCKS, STEPS = 8, 32, 3, 3
RUNS = []  # Names of blocks, each time that one runs (or is traced).


class Block(layers.Layer):
    """What a user puts in a region: state, random draws and two products."""

    def __init__(self, index, norm, rate=0.2, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.BatchNormalization() if norm == "batch" else None
        self.norm = self.norm or layers.LayerNormalization()
        self.up = layers.Dense(2 * WIDTH, activation="gelu", name="up")
        self.dropout = layers.Dropout(rate, seed=index)
        self.down = layers.Dense(WIDTH, name="down")

    def build(self, shape):
        self.norm.build(shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], 2 * WIDTH))

    def call(self, x, training=False):
        RUNS.append(self.name)
        h = self.up(self.norm(x, training=training))
        return x + self.down(self.dropout(h, training=training))


def graph(norm="batch", rate=0.2):
    inputs = keras.Input((WIDTH,))
    x = inputs
    for i in range(BLOCKS):
        x = Block(i, norm, rate, name=f"block_{i}")(x)
    return keras.Model(inputs, layers.Dense(4, name="head")(x))


def shared(norm="batch", rate=0.2):
    """The same weights in all blocks, each of which is a region."""
    inputs = keras.Input((WIDTH,))
    block = Block(0, norm, rate, name="block")
    x = inputs
    for _ in range(BLOCKS):
        x = block(x)
    return keras.Model(inputs, layers.Dense(4, name="head")(x))


class Subclassed(keras.Model):
    def __init__(self, norm="batch", rate=0.2):
        super().__init__()
        self.blocks = [Block(i, norm, rate) for i in range(BLOCKS)]
        self.head = layers.Dense(4)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)


def make(build, remat, **kwargs):
    """The model, compiled, from the same seed each time."""
    keras.utils.set_random_seed(0)
    model = build(**kwargs)
    model(ops.zeros((1, WIDTH)))
    model.remat = remat
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def data(rows=BATCH):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, WIDTH)).astype("float32")
    return x, rng.normal(size=(rows, 4)).astype("float32")


def numbers(model):
    return [ops.convert_to_numpy(v.value) for v in model.variables]


def distance(these, those):
    """The largest difference, relative to what is usual in each array."""
    return max(
        float(np.max(np.abs(a - b)) / (1e-3 + np.mean(np.abs(b))))
        for a, b in zip(these, those, strict=True)
    )


def report(**found):
    """Gives the test its numbers, on a line of their own."""
    print("RESULT " + json.dumps(found), flush=True)


def argument(i=1):
    return sys.argv[i]
