"""Keras Applications, as upstream builds them: switched on after that.

Random weights and small images. Three steps of training must give what the
plain model gives: losses, weights, statistics and seeds.
"""

import os

import judge
import numpy as np
import pytest

import keras

backend = keras.backend.backend()
pytestmark = pytest.mark.skipif(
    backend in ("numpy", "openvino"), reason="this backend takes no gradients"
)

SIZE = 32
SAMPLES = 4
RAW = {"include_preprocessing": False}
# Model: its arguments, and what may be left of the bytes it keeps.
CASES = {
    "EfficientNetV2B0": (RAW, 0.4),
    "ResNet50": ({}, 0.6),
    "DenseNet121": ({}, 0.4),
    "ConvNeXtTiny": (RAW, 0.4),
}
# To compile one of these takes most of a minute, and it is done twice.
SLOW = {
    "jax": tuple(CASES),
    "tensorflow": ("DenseNet121", "ConvNeXtTiny"),
}.get(backend, ())


def build(name):
    return getattr(keras.applications, name)(
        weights=None,
        input_shape=(SIZE, SIZE, 3),
        classes=3,
        classifier_activation=None,
        **CASES[name][0],
    )


@pytest.mark.parametrize("name", CASES)
def test_equal_and_saves(name):
    if name in SLOW and "SLOW_TESTS" not in os.environ:
        pytest.skip("takes minutes on this backend; SLOW_TESTS=1 runs it")
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, SIZE, SIZE, 3)).astype("float32")
    y = random.normal(size=(SAMPLES, 3)).astype("float32")

    def make():
        return build(name)

    def optimizer():
        return keras.optimizers.SGD(1e-4)

    remat = judge.Trained(make, x, y, True, optimizer)
    judge.assert_equal(judge.Trained(make, x, y, None, optimizer), remat)
    judge.assert_saves(remat, CASES[name][1])
