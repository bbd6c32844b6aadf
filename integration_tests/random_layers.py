"""The layers of random models, each with something that may go wrong."""

import keras
from keras import layers
from keras import ops


class Own(layers.Layer):
    """Sublayers, random draws, a loss, a counter; flags by keyword."""

    def __init__(self, seed, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(8, activation="swish")
        self.dropout = layers.Dropout(0.3, seed=seed)
        self.norm = layers.BatchNormalization()

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build(shape)
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="calls"
        )

    def call(self, x, training=False):
        h = self.norm(self.dense(x), training=training)
        self.add_loss(0.01 * ops.mean(ops.square(h)))
        self.calls.assign(self.calls + 1.0)
        return x + self.dropout(h, training=training)


class Function(layers.Layer):
    """A function wrapped by `keras.remat` inside a layer."""

    def __init__(self, remat_it, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(8)
        self.remat_it = remat_it

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        def f(x, scale=None, flag="gelu"):
            return getattr(keras.activations, flag)(self.inner(x)) * scale

        f = keras.remat(f) if self.remat_it else f
        return f(x, scale=0.5)


class Attention(layers.Layer):
    def __init__(self, seed, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.MultiHeadAttention(2, 4, dropout=0.2, seed=seed)

    def build(self, shape):
        self.inner.build(shape, shape)

    def call(self, x, training=False):
        return self.inner(x, x, use_causal_mask=True, training=training)


LAYERS = {
    "dense": lambda seed: layers.Dense(8, activation="gelu"),
    "regular": lambda seed: layers.Dense(
        8, activity_regularizer="l2", kernel_regularizer="l2"
    ),
    "half": lambda seed: layers.Dense(8, dtype="mixed_bfloat16"),
    "einsum": lambda seed: layers.EinsumDense("abc,cd->abd", (4, 8)),
    "conv": lambda seed: layers.Conv1D(8, 3, padding="same"),
    "separable": lambda seed: layers.SeparableConv1D(
        8, 3, padding="same", activation="relu"
    ),
    "layer_norm": lambda seed: layers.LayerNormalization(),
    "batch_norm": lambda seed: layers.BatchNormalization(),
    "group_norm": lambda seed: layers.GroupNormalization(2),
    "dropout": lambda seed: layers.Dropout(0.3, seed=seed),
    "noise": lambda seed: layers.GaussianNoise(0.1, seed=seed),
    "spatial": lambda seed: layers.SpatialDropout1D(0.2, seed=seed),
    "activation": lambda seed: layers.Activation("swish"),
    "masking": lambda seed: layers.Masking(),
    "lstm": lambda seed: layers.LSTM(8, return_sequences=True),
    "gru": lambda seed: layers.GRU(
        8, return_sequences=True, dropout=0.2, seed=seed
    ),
    "bidirectional": lambda seed: layers.Bidirectional(
        layers.SimpleRNN(4, return_sequences=True)
    ),
    "distributed": lambda seed: layers.TimeDistributed(
        layers.Dense(8, activation="tanh")
    ),
    "attention": lambda seed: Attention(seed),
    "own": lambda seed: Own(seed),
}
