import contextlib

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_test_utils import ChainModel
from keras.src.backend.common.remat_test_utils import step
from keras.src.backend.common.remat_test_utils import warned_of

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")


@pytest.mark.requires_trainable_backend
class UnmatchedTest(testing.TestCase):
    """A name or type that matches nothing is reported once, in the end."""

    def nested(self):
        inner = models.Sequential([layers.Dense(4, name="a")])
        return ChainModel(inner, layers.Dense(4, name="b"))

    def created(self, names, steps=2, **kwargs):
        with RematScope("list_of_layers", layer_names=names, **kwargs):
            model = self.nested()
        for _ in range(steps):
            step(lambda x: ops.sum(model(x)), [X])

    def called(self, names, steps=2, **kwargs):
        model = self.nested()
        with RematScope("list_of_layers", layer_names=names, **kwargs):
            for _ in range(steps):
                step(lambda x: ops.sum(model(x)), [X])

    @parameterized.product(
        how=("created", "called"),
        names_and_missing=(
            (["a", "b"], []),
            (["b", "c"], ["['c']"]),
            (["*/a", "b"], []),
        ),
    )
    def test_names(self, how, names_and_missing):
        names, missing = names_and_missing
        run = getattr(self, how)
        self.assertEqual(warned_of("RematScope", lambda: run(names)), missing)

    @parameterized.parameters("created", "called")
    def test_types(self, how):
        run = getattr(self, how)
        types = {"layer_types": ["Dense", "Conv2D"]}
        found = warned_of("RematScope", lambda: run(["a", "b"], **types))
        self.assertEqual(found, ["['Conv2D']"])

    @parameterized.parameters("created", "called")
    def test_models_that_run_one_after_the_other(self, how):
        def run():
            scope = RematScope("list_of_layers", layer_names=["a", "b"])
            if how == "created":
                with scope:
                    first, second = self.nested().parts
            else:
                first, second = self.nested().parts
            second = ChainModel(second)
            with contextlib.nullcontext() if how == "created" else scope:
                step(lambda x: ops.sum(first(x)), [X])
                step(lambda x: ops.sum(second(x)), [X])

        self.assertEqual(warned_of("RematScope", run), [])

    def test_a_layer_that_is_in_no_model(self):
        layer = layers.Dense(2)

        def run():
            with RematScope("list_of_layers", layer_names=["absent"]):
                step(lambda x: ops.sum(layer(x)), [X])

        self.assertEqual(warned_of("RematScope", run), ["['absent']"])

    def test_a_loaded_model(self):
        inputs = layers.Input((4,))
        with RematScope("list_of_layers", layer_names=["b"]):
            inner = models.Sequential([layers.Dense(4, name="b")])
            model = models.Model(inputs, inner(inputs))
        copy = models.Model.from_config(model.get_config())
        run = lambda: step(lambda x: ops.sum(copy(x)), [X])
        self.assertEqual(warned_of("RematScope", run), [])
