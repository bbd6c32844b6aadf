"""Random models with random settings are equal to plain.

CI runs the same few examples each time. `REMAT_EXAMPLES=500` runs so many
others, on one backend.
"""

import os

import pytest
import random_models
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings

import keras

TRAINS = keras.backend.backend() not in ("numpy", "openvino")
FEW = {"jax": 3, "tensorflow": 4, "torch": 15}.get(keras.backend.backend(), 10)
EXAMPLES = int(os.environ.get("REMAT_EXAMPLES", 0))
SETTINGS = settings(
    max_examples=EXAMPLES or FEW,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.skipif(not TRAINS, reason="this backend takes no gradients")
@SETTINGS
@given(random_models.descriptions())
def test_training_is_equal_to_plain(description):
    random_models.assert_equal(description, random_models.train)


@pytest.mark.skipif(TRAINS, reason="these take gradients: see above")
@SETTINGS
@given(random_models.descriptions())
def test_results_are_equal_to_plain(description):
    random_models.assert_equal(description, random_models.forward)
