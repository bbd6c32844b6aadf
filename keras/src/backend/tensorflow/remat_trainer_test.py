import contextlib
from unittest import mock

import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.backend.common import remat_region
from keras.src.backend.common.remat_scope import RematScope
from keras.src.utils import rng_utils

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="is about TensorFlow"
)

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


class StrategyTest(testing.TestCase):
    def fit(self, *scopes):
        """Weights after a fit in these scopes, and how many regions it had."""
        rng_utils.set_random_seed(1)
        with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
            parts = [layers.Dense(6, activation="gelu") for _ in range(4)]
            model = models.Sequential(
                [layers.Input((6,)), *parts, layers.Dropout(0.2)]
            )
            model.compile("sgd", "mse", jit_compile=False)
        seen = mock.patch.object(remat_region, "Run", wraps=remat_region.Run)
        with contextlib.ExitStack() as stack, seen as run:
            for scope in scopes:
                stack.enter_context(scope)
            model.fit(X, X, epochs=2, verbose=0)
        values = [v.numpy() for v in model.variables]  # seeds too
        return values, run.call_count

    def test_replicas_follow_the_scope_around_fit(self):
        expected, regions = self.fit()
        self.assertEqual(regions, 0)
        found, regions = self.fit(RematScope())
        self.assertGreater(regions, 0)
        for a, b in zip(found, expected):
            self.assertAllClose(a, b)

    def test_the_innermost_scope_wins_there_too(self):
        self.assertEqual(self.fit(RematScope(), RematScope(None))[1], 0)

    def test_a_wrong_name_still_warns(self):
        with pytest.warns(UserWarning, match="No layer matched"):
            self.fit(RematScope("list_of_layers", layer_names=["nothing"]))
