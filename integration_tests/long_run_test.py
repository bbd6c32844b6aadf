"""500 steps with all that moves: equal to plain in the end, memory flat."""

import gc
import os

import numpy as np
import pytest

import keras
from keras import layers
from keras import ops
from keras.src.backend.common.remat_region import Run

BACKEND = keras.backend.backend()
pytestmark = [
    pytest.mark.skipif(
        BACKEND in ("numpy", "openvino"),
        reason="this backend takes no gradients",
    ),
    pytest.mark.skipif(
        BACKEND == "jax" and "SLOW_TESTS" not in os.environ,
        reason="takes minutes on this backend; SLOW_TESTS=1 runs it",
    ),
    pytest.mark.filterwarnings("ignore"),  # pytest would hold each one
]
SETTINGS = {
    "model": True,
    "levels": keras.RematPolicy(levels=2),
    "matmuls": keras.RematPolicy(keep="matmuls"),
}


def make(setting, dtype="float32", eager=False):
    """Dropout, batch normalization, accumulation of gradients."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8,))
    for i in range(3):
        h = layers.Dense(16, activation="gelu", dtype=dtype)(x)
        h = layers.BatchNormalization(dtype=dtype)(h)
        h = layers.Dropout(0.2, seed=i, dtype=dtype)(h)
        x = x + layers.Dense(8, dtype=dtype)(h)
    outputs = layers.Dense(2, dtype="float32")(x)
    model = keras.Model(inputs, outputs, remat=setting)
    optimizer = keras.optimizers.Adam(1e-3, gradient_accumulation_steps=4)
    model.compile(optimizer, "mse", run_eagerly=eager)
    return model


def batches(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.normal(size=(8, 8)).astype("float32")
        yield x, np.stack([x.sum(1), x.prod(1)], 1)


def train(model, count, seen=None, at=()):
    losses = []
    for i, (x, y) in enumerate(batches(count)):
        losses.append(float(model.train_on_batch(x, y)))
        if i in at:
            seen.append(alive())
    return losses


def alive():
    """How many tensors, regions and Python objects there are."""
    gc.collect()
    objects = gc.get_objects()
    return {
        "tensors": tensors_alive(objects),
        "regions": sum(type(x) is Run for x in objects),
        "objects": len(objects),
    }


def tensors_alive(objects):
    if BACKEND == "jax":
        import jax

        return len(jax.live_arrays())
    if BACKEND == "torch":
        import torch

        return sum(isinstance(x, torch.Tensor) for x in objects)
    import tensorflow as tf

    return sum(type(x).__name__ in ("EagerTensor",) for x in objects) + len(
        [x for x in objects if isinstance(x, tf.Graph)]
    )


def numbers(model):
    values = model.variables + model.optimizer.variables
    return [ops.convert_to_numpy(v.value) for v in values]


def test_500_steps():
    seen, dtype = [], "mixed_bfloat16"
    plain, ours = make(None, dtype), make(True, dtype)
    expected = train(plain, 500)
    losses = train(ours, 500, seen, at=(100, 499))
    close = {"torch": 1e-6}.get(BACKEND, 5e-2)  # torch is deterministic
    np.testing.assert_allclose(losses, expected, rtol=close, atol=close)
    assert np.mean(losses[-50:]) < 0.8 * np.mean(losses[:50])  # it learned
    for a, b in zip(numbers(plain), numbers(ours)):
        exact = not np.issubdtype(a.dtype, np.floating)
        np.testing.assert_allclose(b, a, rtol=close, atol=0 if exact else close)
    before, after = seen
    assert after["tensors"] <= before["tensors"]
    assert after["regions"] <= before["regions"]
    assert after["objects"] <= before["objects"] + 100  # after 400 steps


@pytest.mark.parametrize("name", SETTINGS)
def test_no_region_stays_after_a_step(name):
    """None is in a cycle: they go without the garbage collector."""
    model = make(SETTINGS[name], eager=True)
    train(model, 2)
    gc.collect()
    before = sum(type(x) is Run for x in gc.get_objects())
    gc.disable()
    try:
        train(model, 3)
        left = sum(type(x) is Run for x in gc.get_objects())
    finally:
        gc.enable()
    assert left <= before


@pytest.mark.skipif(
    BACKEND == "tensorflow",
    reason="TensorFlow keeps each graph that `fit` traced, plain ones too",
)
def test_no_trace_stays_when_the_setting_changes():
    model = make(True)
    counts = []
    for i in range(6):
        model.remat = None if i % 2 else SETTINGS["levels"]
        train(model, 1)
        counts.append(alive())
    assert counts[5]["regions"] <= counts[1]["regions"]
    assert counts[5]["tensors"] <= counts[1]["tensors"]
    # Engines keep some of each trace; a leak of ours would be a graph each.
    grown = counts[5]["objects"] - counts[3]["objects"]
    assert grown <= counts[3]["objects"] - counts[1]["objects"] + 2000
