import numpy as np
import pytest

import keras
from keras.src import backend
from keras.src import layers
from keras.src import testing


def chain_model():
    inputs = hidden = keras.Input((16,))
    for _ in range(12):
        hidden = layers.Dense(16, activation="gelu")(hidden)
    model = keras.Model(inputs, hidden)
    model.compile("sgd", "mse")
    return model


def with_budget(batch):
    """A model whose budget is enough for this batch only."""
    model = chain_model()
    plan = model.remat_plan(batch, memory_budget=0.6)
    model.remat = keras.RematPolicy(memory_budget=plan.predicted_bytes)
    return model


trains = pytest.mark.skipif(
    backend.backend() in ("numpy", "openvino"),
    reason="these backends do not train",
)


@trains
class BudgetInInferenceTest(testing.TestCase):
    """A budget is for training: no larger batch is refused without it."""

    def setUp(self):
        super().setUp()
        self.x = np.ones((512, 16), "float32")

    def test_evaluation_and_prediction_of_larger_batches(self):
        model = with_budget(64)
        model.fit(self.x, self.x, batch_size=64, verbose=0)
        plain = chain_model()
        plain.set_weights(model.get_weights())
        for f in (
            lambda m: m.evaluate(self.x, self.x, 512, verbose=0),
            lambda m: m.predict(self.x, 512, verbose=0),
        ):
            self.assertAllClose(f(model), f(plain))

    def test_validation_of_larger_batches(self):
        model = with_budget(64)
        history = model.fit(
            self.x,
            self.x,
            batch_size=64,
            validation_data=(self.x, self.x),
            validation_batch_size=512,
            verbose=0,
        )
        self.assertIn("val_loss", history.history)

    def test_evaluation_in_a_scope(self):
        with keras.RematScope(memory_budget=100):
            chain_model().evaluate(self.x, self.x, 512, verbose=0)

    def test_a_call_that_is_no_training_runs_in_the_least_memory(self):
        model = with_budget(64)
        self.assertAllClose(model(self.x[:64]), model(self.x)[:64])

    def test_training_beyond_the_budget_is_an_error_that_loses_nothing(self):
        model = with_budget(64)
        weights = model.get_weights()
        with self.assertRaisesRegex(ValueError, "memory_budget"):
            model.fit(self.x, self.x, batch_size=512, verbose=0)
        for before, after in zip(weights, model.get_weights()):
            self.assertAllEqual(before, after)
        model.evaluate(self.x, self.x, verbose=0)
        model.fit(self.x, self.x, batch_size=64, verbose=0)


@trains
class LastBatchTest(testing.TestCase):
    """Weights rule the peak of a small batch: no share of it is enough."""

    def setUp(self):
        super().setUp()
        self.x = np.ones((513, 16), "float32")
        self.model = chain_model()
        self.model.remat = keras.RematPolicy(memory_budget=0.3)

    def test_it_takes_as_much_as_a_larger_one_may(self):
        plain = chain_model()
        plain.set_weights(self.model.get_weights())
        for model in (plain, self.model):
            model.fit(self.x, self.x, 256, epochs=2, shuffle=False, verbose=0)
        for a, b in zip(self.model.get_weights(), plain.get_weights()):
            self.assertAllClose(a, b)

    def test_alone_it_is_refused(self):
        with self.assertRaisesRegex(ValueError, "for a batch of 1"):
            self.model.train_on_batch(self.x[:1], self.x[:1])
        self.model.train_on_batch(self.x[:256], self.x[:256])
        self.model.train_on_batch(self.x[:1], self.x[:1])
        with self.assertRaisesRegex(ValueError, "for a batch of 1"):
            self.model.remat = keras.RematPolicy(memory_budget=0.2)
            self.model.train_on_batch(self.x[:1], self.x[:1])


@trains
class FailingStepTest(testing.TestCase):
    def test_an_error_in_any_step_leaves_the_variables(self):
        x = np.ones((8, 16), "float32")

        class Failing(layers.Layer):
            fails = False

            def call(self, x):
                if self.fails:
                    raise RuntimeError("as asked")
                return x

        inputs = keras.Input((16,))
        failing = Failing()
        model = keras.Model(inputs, failing(layers.Dense(16)(inputs)))
        model.compile("sgd", "mse")
        weights = model.get_weights()
        failing.fails = True
        for step in (
            lambda: model.fit(x, x, verbose=0),
            lambda: model.evaluate(x, x, verbose=0),
            lambda: model.predict(x, verbose=0),
        ):
            with self.assertRaisesRegex(RuntimeError, "as asked"):
                step()
            for before, after in zip(weights, model.get_weights()):
                self.assertAllEqual(before, after)
        failing.fails = False
        model.compile("sgd", "mse")  # steps are traced anew
        model.fit(x, x, verbose=0)
