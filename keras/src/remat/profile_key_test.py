import contextlib
import sys

import pytest

from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.remat import profile
from keras.src.remat.profile_test import costs_of
from keras.src.remat.profile_test import mlp


@contextlib.contextmanager
def counted_traces(counts):
    """Counts how often the engine traces."""
    engine = profile.engine()
    original = engine.trace

    def trace(*args):
        counts.append(args)
        return original(*args)

    engine.trace = trace
    try:
        yield
    finally:
        engine.trace = original


class ProfileKeyTest(testing.TestCase):
    def setUp(self):
        super().setUp()
        profile.CACHE.clear()

    @pytest.mark.requires_trainable_backend
    def test_equal_layers_are_traced_once(self):
        counts = []
        with counted_traces(counts):
            costs_of(mlp(12), (8, 16))
            # The first input gets no gradient; all others are equal.
            self.assertLen(counts, 2)
            costs_of(mlp(12), (8, 16))
            self.assertLen(counts, 2)
            costs_of(mlp(12), (9, 16))
            self.assertLen(counts, 4)

    @pytest.mark.requires_trainable_backend
    def test_seeds_and_names_make_no_difference(self):
        x = inputs = layers.Input((16,))
        for i in range(4):
            x = layers.Dense(16, name=f"dense_of_{i}")(x)
            x = layers.Dropout(0.5, seed=i)(x)
        counts = []
        with counted_traces(counts):
            costs_of(models.Model(inputs, x), (8, 16))
        self.assertLen(counts, 3)

    @pytest.mark.requires_trainable_backend
    def test_freezing_a_layer_is_not_taken_from_the_cache(self):
        model = mlp(2)
        self.assertGreater(costs_of(model, (8, 16))[1].grads, 0)
        model.layers[2].trainable = False
        self.assertEqual(costs_of(model, (8, 16))[1].grads, 0)

    def test_tensorflow_is_not_imported_for_a_key(self):
        from keras.src.saving import serialization_lib

        before = set(sys.modules), serialization_lib.tf
        costs_of(mlp(1), (2, 16))
        self.assertIs(serialization_lib.tf, before[1])
        if "tensorflow" not in before[0]:
            self.assertNotIn("tensorflow", sys.modules)
