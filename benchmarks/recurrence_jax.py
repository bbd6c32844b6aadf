"""An LSTM on JAX: its regions of time beside a cell and scans by hand.

Run `python benchmarks/recurrence_jax.py`. Prints peaks of one training step
of the same model, by XLA's own assignment of buffers. By hand, a scan over
parts of the steps has a checkpointed scan as its body.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import measure_jax
import numpy as np
from rich.console import Console
from rich.table import Table

import keras

STEPS, BATCH, FEATURES, UNITS = 256, 16, 64, 128
PARTS = (8, 16, 32, 64)
RATE = 1e-4


def build(remat):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((STEPS, FEATURES))
    x = keras.layers.LSTM(UNITS, return_sequences=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.remat = remat
    return model


def cell(weights, carry, x):
    kernel, recurrent, bias = weights
    h, c = carry
    gates = jnp.split(x @ kernel + h @ recurrent + bias, 4, -1)
    i, f, o = (jax.nn.sigmoid(gates[k]) for k in (0, 1, 3))
    c = f * c + i * jnp.tanh(gates[2])
    h = o * jnp.tanh(c)
    return (h, c), h


def by_hand(parts):
    """The model as a function of its weights."""

    def scanned(weights, carry, xs):
        return jax.lax.scan(lambda s, x: cell(weights, s, x), carry, xs)

    def forward(weights, x):
        def part(carry, xs):
            return scanned(weights[:3], carry, xs)

        xs = x.transpose(1, 0, 2)
        xs = xs.reshape(parts, STEPS // parts, *xs.shape[1:])
        start = (jnp.zeros((BATCH, UNITS)),) * 2
        part = jax.checkpoint(part, prevent_cse=False)
        outputs = jax.lax.scan(part, start, xs)[1]
        outputs = outputs.reshape(STEPS, BATCH, UNITS).transpose(1, 0, 2)
        return outputs @ weights[3] + weights[4]

    return forward


def by_keras(model):
    def forward(weights, x):
        state = [v.value for v in model.non_trainable_variables]
        return model.stateless_call(weights, state, x, training=True)[0]

    return forward


def step_of(forward, weights, x, y):
    """A compiled step of plain SGD, and the loss that it starts from."""

    def loss(weights, x, y):
        return jnp.mean(jnp.square(forward(weights, x) - y))

    def step(weights, x, y):
        value, slopes = jax.value_and_grad(loss)(weights, x, y)
        return [w - RATE * s for w, s in zip(weights, slopes)], value

    lowered = jax.jit(step, donate_argnums=0).lower(weights, x, y)
    options = measure_jax.BARRIERS | measure_jax.FAST
    compiled = lowered.compile(compiler_options=options)
    memory = compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = memory.temp_size_in_bytes + max(0, results)
    return peak, float(compiled(weights, x, y)[1])


def main():
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH, STEPS, FEATURES)).astype("float32")
    y = random.standard_normal((BATCH, STEPS, 1)).astype("float32")
    ways = {"plain": by_keras(build(None))}
    ways["model.remat = True"] = by_keras(build(True))
    for parts in PARTS:
        ways[f"by hand, {parts} parts"] = by_hand(parts)
    start = [np.array(v.value) for v in build(None).trainable_variables]
    table = Table("LSTM, 256 steps", "peak MiB", "ratio", "loss")
    plain = None
    for name, forward in ways.items():
        weights = [jnp.array(w) for w in start]
        peak, loss = step_of(forward, weights, x, y)
        plain = plain or peak
        ratio = f"{peak / plain:.3f}"
        table.add_row(name, f"{peak / 2**20:.2f}", ratio, f"{loss:.6f}")
    Console().print(table)


if __name__ == "__main__":
    main()
