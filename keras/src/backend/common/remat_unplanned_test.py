import warnings

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_test_utils import ChainModel
from keras.src.backend.common.remat_test_utils import Wave
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")
BUDGET = RematPolicy(memory_budget="1MiB")


class Block(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(4, activation="gelu")

    def call(self, x):
        return self.dense(x)


class Row(layers.Layer):
    """A row of blocks, which a plan may divide."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [Block() for _ in range(8)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class RefusedTest(testing.TestCase):
    """A budget for what is no model is an error at once."""

    @parameterized.named_parameters(
        ("argument", lambda: layers.Dense(4, remat=BUDGET)),
        ("own_class", lambda: Block(remat=BUDGET)),
        ("attribute", lambda: setattr(layers.Dense(4), "remat", BUDGET)),
        ("layer", lambda: remat(layers.Dense(4), policy=BUDGET)),
        ("recurrent", lambda: layers.LSTM(4, remat=BUDGET)),
        ("function", lambda: remat(ops.sin, policy=BUDGET)),
        ("decorator", lambda: remat(policy=BUDGET)(ops.sin)),
    )
    def test_error(self, make):
        message = "Functional or Sequential model.*memory_budget='1MiB'"
        with self.assertRaisesRegex(ValueError, message):
            make()

    def test_other_policies_and_models_are_taken(self):
        policy = RematPolicy(keep="matmuls")
        self.assertIs(layers.Dense(4, remat=policy).remat, policy)
        model = models.Sequential([layers.Dense(4)])
        self.assertIs(remat(model, policy=BUDGET).remat, BUDGET)


@pytest.mark.requires_trainable_backend
class WarnedOfTest(testing.TestCase):
    """A budget that turns out to have no graph gives one warning."""

    def warnings_of(self, run):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        texts = [str(w.message) for w in caught]
        return [t for t in texts if "`memory_budget` has no effect" in t]

    def steps(self, model):
        for _ in range(2):
            step(lambda x: ops.sum(ops.sin(model(x))), [X])

    def test_a_subclassed_model(self):
        model = ChainModel(Wave(), Wave(name="last"))
        model.remat = RematPolicy(memory_budget="1MiB")
        with runs() as found:
            texts = self.warnings_of(lambda: self.steps(model))
        self.assertLen(texts, 1)
        self.assertIn(repr(model.name), texts[0])
        self.assertLen(found, 2 * 2 * 2)  # each layer is a region

    def test_once_in_fit(self):
        model = ChainModel(layers.Dense(4), layers.Dense(4))
        model.remat = RematPolicy(memory_budget="1MiB")
        model.compile("sgd", "mse")
        run = lambda: model.fit(X, X, batch_size=2, epochs=2, verbose=0)
        self.assertLen(self.warnings_of(run), 1)

    @parameterized.parameters(True, False)
    def test_a_call_of_its_own_beside_the_graph(self, runs_graph):
        first, last = Wave(), Wave()

        class Own(models.Model):
            def call(self, x):
                if runs_graph:
                    return super().call(x) * 2
                return last(first(x)) * 2

        inputs = layers.Input((4,))
        model = Own(inputs, last(first(inputs)))
        for setting, expected in ((True, 0), (BUDGET, not runs_graph)):
            model.remat = setting
            with runs() as found:
                texts = self.warnings_of(lambda: self.steps(model))
            self.assertLen(texts, expected)
            plain = runs_graph and setting is BUDGET
            self.assertLen(found, 2 * (2 if plain else 4))

    @parameterized.parameters("created", "called")
    def test_a_scope(self, how):
        scope = RematScope(memory_budget="1MiB")
        if how == "created":
            with scope:
                model = ChainModel(Wave(), Wave())
            run = lambda: self.steps(model)
        else:
            model = ChainModel(Wave(), Wave())

            def run():
                with scope:
                    self.steps(model)

        self.assertLen(self.warnings_of(run), 1)

    @parameterized.parameters("policy", "created", "called")
    def test_not_for_what_a_plan_divides(self, how):
        scope = RematScope(memory_budget=0.8)

        def build():
            inputs = layers.Input((4,))
            return models.Model(inputs, Row()(inputs))

        if how == "created":
            with scope:
                model = build()
        else:
            model = build()
        if how == "policy":
            model.remat = RematPolicy(memory_budget=0.8)

        plan = model.remat_plan(len(X), memory_budget=0.8)
        self.assertTrue(any(s.divided for s in plan.segments))

        def run():
            if how == "called":
                with scope:
                    return self.steps(model)
            self.steps(model)

        self.assertEqual(self.warnings_of(run), [])
