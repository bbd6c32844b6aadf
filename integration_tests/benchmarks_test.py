"""The benchmarks: what their judge calls equal, and what their tables say."""

import pathlib
import sys

import numpy as np
import pytest

import keras
from keras import layers

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import equal  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import tables  # noqa: E402
from trained import Trained  # noqa: E402

BLOCKS = 10


class Scaled(layers.Layer):
    """Multiplies its input, and its gradient by something else."""

    def __init__(self, value=1.0, gradient=1.0):
        super().__init__()
        self.value, self.gradient = value, gradient

    def call(self, x):
        fixed = keras.ops.stop_gradient((self.value - self.gradient) * x)
        return self.gradient * x + fixed


def case(extra=None, momentum=0.99):
    """A deep network with batch normalization that amplifies rounding."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((8, 8, 3))
    for k in range(BLOCKS):
        x = layers.Conv2D(8, 3, padding="same")(x)
        x = layers.BatchNormalization(momentum=momentum)(x)
        x = layers.ReLU()(x)
        if k == BLOCKS // 2 and extra:
            x = extra(x)
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return models.images(keras.Model(inputs, x), 8, 4, "")


def trained(given):
    return Trained(given.model, given)


@pytest.mark.skipif(
    keras.config.backend() in ("numpy", "openvino"), reason="it does not train"
)
class TestJudge:
    def judge(self, **arguments):
        """What is said of a model, beside the gaps to the plain one."""
        plain = trained(case())
        other = trained(case(**arguments))
        courses = plain.course, other.course, plain.nearby()
        gaps = [
            np.max(np.abs(a - b)) / np.max(np.abs(b - c))
            for v, a, b, c in zip(
                plain.variables,
                other.course.end,
                plain.course.end,
                plain.course.start,
            )
            if v.trainable
        ]
        return equal.fault(plain.variables, *courses), gaps

    def test_rounding_is_equal(self):
        said, gaps = self.judge(extra=Scaled(1 + 2e-7, 1 + 2e-7))
        assert max(gaps) > equal.SHARE  # so a fixed share would not do
        assert said == ""

    def test_a_wrong_gradient_is_not(self):
        said, _ = self.judge(extra=Scaled(1, 1.02))
        assert "weights" in said

    def test_nor_are_wrong_statistics(self):
        said, _ = self.judge(momentum=0.99**2)
        assert said.endswith("statistics or seeds")
        assert "weights" not in said


@pytest.mark.parametrize(
    "peak, time, error, expected",
    [
        (1.0, 1.00, 0.02, "yes"),
        (1.0, 1.00, 0.62, "not clear"),
        (1.0, 1.30, 0.10, "NO"),
        (1.2, 1.00, 0.62, "NO"),
    ],
)
def test_an_error_that_is_too_large_is_said(peak, time, error, expected):
    row = {"time to hand": time, "error to hand": error}
    assert tables.within(peak, row, 1.05) == expected


def test_a_backend_that_does_not_train_is_refused():
    with pytest.raises(SystemExit, match="'numpy' does not train"):
        measure.engine("numpy")
