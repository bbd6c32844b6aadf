"""The models of the benchmark.

`build(name)` returns a `Case`: a Functional model without loss, one batch, a
loss, and a pattern that names the block of a layer, so that checkpoints can be
put around each block by hand.
"""

import contextlib
from typing import NamedTuple

import numpy as np

import keras
from keras import layers


class Case(NamedTuple):
    model: keras.Model
    x: np.ndarray
    y: np.ndarray
    loss: object
    block: str  # regular expression for the beginning of a layer's name


def floats(*shape):
    generator = np.random.default_rng(1)
    return generator.standard_normal(shape, dtype="float32")


def labels(count, *shape):
    return np.random.default_rng(2).integers(0, count, shape, dtype="int32")


def classes():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def gpt(blocks=12, width=128, length=128, batch=8, heads=4):
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(256, width)(tokens)
    for k in range(blocks):
        x = decoder_block(x, f"block{k}", width, heads)
    model = keras.Model(tokens, layers.Dense(256, name="head")(x))
    data = labels(256, batch, length + 1)
    return Case(model, data[:, :-1], data[:, 1:], classes(), r"block\d+")


def decoder_block(x, name, width, heads):
    h = layers.LayerNormalization(name=f"{name}_norm1")(x)
    attention = layers.MultiHeadAttention(
        heads, width // heads, name=f"{name}_attention"
    )
    h = attention(h, h, use_causal_mask=True)
    x = layers.Add(name=f"{name}_add1")([x, h])
    h = layers.LayerNormalization(name=f"{name}_norm2")(x)
    h = layers.Dense(4 * width, activation="gelu", name=f"{name}_up")(h)
    h = layers.Dense(width, name=f"{name}_down")(h)
    return layers.Add(name=f"{name}_add2")([x, h])


def mlp(depth=64, width=128, batch=2048):
    """64 layers; a block by hand is eight of them."""
    inputs = x = keras.Input((width,))
    for k in range(depth):
        name = f"block{k // 8}_dense{k % 8}"
        x = layers.Dense(width, activation="relu", name=name)(x)
    model = keras.Model(inputs, x)
    data = floats(batch, width)
    loss = keras.losses.MeanSquaredError()
    return Case(model, data, data, loss, r"block\d+")


def chain(depth=200, width=8, batch=4, blocks=64):
    """Hardly any arithmetic: what is seen is the cost of the blocks."""
    inputs = x = keras.Input((width,))
    for k in range(depth):
        name = f"block{k * blocks // depth}_dense{k}"
        x = layers.Dense(width, activation="relu", name=name)(x)
    data = floats(batch, width)
    loss = keras.losses.MeanSquaredError()
    return Case(keras.Model(inputs, x), data, data, loss, r"block\d+")


def resnet50(size=64, batch=16):
    model = keras.applications.ResNet50(
        weights=None,
        input_shape=(size, size, 3),
        classes=10,
        classifier_activation=None,
    )
    return images(model, size, batch, r"conv\d_block\d+")


def efficientnet(size=64, batch=16):
    model = keras.applications.EfficientNetV2B0(
        weights=None,
        input_shape=(size, size, 3),
        classes=10,
        classifier_activation=None,
    )
    return images(model, size, batch, r"block\d[a-z]")


def images(model, size, batch, block):
    x, y = floats(batch, size, size, 3), labels(10, batch)
    return Case(model, x, y, classes(), block)


def deep_residual(blocks, width, batch, size=16):
    """A block by hand is about sqrt(n) residual blocks."""
    group = round(blocks**0.5)
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(width, 3, padding="same")(inputs)
    conv = dict(filters=width, kernel_size=3, padding="same")
    for k in range(blocks):
        name = f"group{k // group}_{k}"
        h = layers.Conv2D(**conv, activation="relu", name=f"{name}a")(x)
        h = layers.Conv2D(**conv, name=f"{name}b")(h)
        h = layers.Rescaling(blocks**-0.5, name=f"{name}c")(h)
        x = layers.Add(name=f"{name}d")([x, h])
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    return images(model, size, batch, r"group\d+")


def residual1000():
    """500 residual blocks of two convolutions."""
    return deep_residual(500, width=8, batch=4)


def lstm(units=128, steps=128, batch=16, features=32):
    inputs = keras.Input((steps, features))
    x = layers.LSTM(units, return_sequences=True, name="block0")(inputs)
    x = layers.LSTM(units, return_sequences=True, name="block1")(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    x, y = floats(batch, steps, features), floats(batch, steps, 1)
    loss = keras.losses.MeanSquaredError()
    return Case(model, x, y, loss, r"block\d")


def unet(size=64, width=16, depth=3, batch=4):
    inputs = x = keras.Input((size, size, 3))
    skips = []
    for k in range(depth):
        x = two_convolutions(x, f"down{k}", width * 2**k)
        skips.append(x)
        x = layers.MaxPooling2D(name=f"down{k}_pool")(x)
    x = two_convolutions(x, "middle", width * 2**depth)
    for k in reversed(range(depth)):
        x = layers.UpSampling2D(name=f"up{k}_size")(x)
        x = layers.Concatenate(name=f"up{k}_join")([x, skips[k]])
        x = two_convolutions(x, f"up{k}", width * 2**k)
    model = keras.Model(inputs, layers.Conv2D(1, 1, name="head")(x))
    x, y = floats(batch, size, size, 3), floats(batch, size, size, 1)
    loss = keras.losses.MeanSquaredError()
    return Case(model, x, y, loss, r"(down|up)\d+|middle")


def two_convolutions(x, name, width):
    for part in "ab":
        x = layers.Conv2D(
            width, 3, padding="same", activation="relu", name=f"{name}_{part}"
        )(x)
    return x


def kerashub(batch=4, length=64):
    """A small BERT of KerasHub, if it is installed."""
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=256,
        num_layers=6,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=512,
        max_sequence_length=length,
        dropout=0.0,
    )
    names = ("token_ids", "segment_ids", "padding_mask")
    x = {n: np.ones((batch, length), "int32") for n in names}
    x["token_ids"] = labels(256, batch, length)
    x["segment_ids"] *= 0
    hidden = backbone.output["sequence_output"]
    model = keras.Model(backbone.input, layers.Dense(256)(hidden))
    y = labels(256, batch, length)
    return Case(model, x, y, classes(), r"transformer_layer_\d+")


BUILDERS = {
    "gpt": gpt,
    "mlp": mlp,
    "resnet50": resnet50,
    "efficientnet": efficientnet,
    "unet": unet,
    "lstm": lstm,
    "residual1000": residual1000,
    "kerashub": kerashub,
    "chain": chain,
}


def build(name, scope=None):
    """Builds a model from the same seed each time, inside a scope or none."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    with scope or contextlib.nullcontext():
        return BUILDERS[name]()
