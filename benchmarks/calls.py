"""Measures what Python does for a call of a region; see `run.py`.

    python calls.py BACKEND calls OUT.json [--stock]

The region is one Dense(8) on two rows, run eagerly, so that hardly anything
but Python is measured: the fastest of many calls, in microseconds, forward and
with its gradient. On JAX each gradient is traced anew, as eager JAX does.
"""

import argparse
import os
import time
import warnings

parser = argparse.ArgumentParser()
parser.add_argument("backend")
parser.add_argument("model")
parser.add_argument("out")
parser.add_argument("--stock", action="store_true")
OPTIONS = parser.parse_args()
os.environ["KERAS_BACKEND"] = OPTIONS.backend
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import by_hand  # noqa: E402
import numpy as np  # noqa: E402
import results  # noqa: E402
import strategies  # noqa: E402

import keras  # noqa: E402

SECONDS = 2


class Layer:
    """One layer, with what `by_hand` asks of a section."""

    def __init__(self, scope=None):
        if scope is None:
            self.layer = keras.layers.Dense(8, activation="relu")
        else:
            with scope:
                self.layer = keras.layers.Dense(8, activation="relu")
        self.layer.build((2, 8))

    def __call__(self, x):
        return (self.layer(x),)

    def variables(self):
        return self.layer.variables


def ways():
    """Functions of `(section, inputs)` by name."""
    plain = lambda section, given: section(*given)
    if OPTIONS.stock:
        return {strategies.PLAIN: plain, strategies.STOCK: plain}
    return {
        strategies.PLAIN: plain,
        strategies.BLOCK: by_hand.region,
        "layer.remat": plain,
        **by_hand.WAYS[OPTIONS.backend],
    }


def section(name):
    stock = name == strategies.STOCK
    made = Layer(keras.RematScope("full") if stock else None)
    if name == "layer.remat":
        made.layer.remat = True
    return made


def torch_calls(way, made, x):
    def both():
        way(made, [x])[0].sum().backward()

    return (lambda: way(made, [x])), both


def tensorflow_calls(way, made, x):
    import tensorflow as tf

    weights = [v.value for v in made.variables()]

    def forward():
        with tf.GradientTape():
            way(made, [x])

    def both():
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(way(made, [x])[0])
        tape.gradient(y, weights)

    return forward, both


def jax_calls(way, made, x):
    import jax

    variables = made.variables()
    weights = [v.value for v in variables]

    def loss(weights):
        mapping = list(zip(variables, weights))
        with keras.StatelessScope(state_mapping=mapping):
            return way(made, [x])[0].sum()

    return (lambda: loss(weights)), (lambda: jax.grad(loss)(weights))


def fastest(call):
    """Microseconds; short calls fall between other work on the machine."""
    call(), call()
    best, end = float("inf"), time.process_time() + SECONDS
    while time.process_time() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best


def main():
    warnings.filterwarnings("ignore")
    output = results.Output(OPTIONS)
    calls = globals()[f"{OPTIONS.backend}_calls"]
    x = keras.ops.convert_to_tensor(np.ones((2, 8), "float32"))
    for name, way in ways().items():
        try:
            forward, both = calls(way, section(name), x)
            row = {"forward": fastest(forward), "both": fastest(both)}
        except Exception as e:
            row = results.failure(e)
        output.add(name, row)
    output.done()


main()
