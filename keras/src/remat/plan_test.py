from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat import budget
from keras.src.remat import plan as remat_plan
from keras.src.remat.budget import free_memory
from keras.src.remat.budget import show
from keras.src.remat.planned import Plan
from keras.src.remat.report_test import printed
from keras.src.remat.specs import UNKNOWN
from keras.src.utils import set_random_seed

BATCH = 256


def residual_model(blocks=4, width=8):
    inputs = x = layers.Input((width,))
    for _ in range(blocks):
        y = layers.Dense(4 * width, activation="gelu")(x)
        y = layers.Dropout(0.1, seed=1)(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
        x = layers.BatchNormalization()(x)
    return models.Model(inputs, layers.Dense(2)(x))


@pytest.mark.requires_trainable_backend
class RematPlanTest(testing.TestCase):
    @parameterized.named_parameters(
        ("bytes", "int"), ("string", "text"), ("share", 0.6)
    )
    def test_prediction_stays_within_the_budget(self, budget):
        model = residual_model()
        plain = model.remat_plan(BATCH).plain_bytes
        expected = int(0.6 * plain)
        if budget == "int":
            budget = expected
        elif budget == "text":
            budget = f"{expected / 1024}KiB"
        plan = model.remat_plan(BATCH, memory_budget=budget)
        self.assertLessEqual(abs(plan.budget - expected), 1)
        self.assertLessEqual(plan.predicted_bytes, plan.budget)
        self.assertEqual(plan.plain_bytes, plain)
        self.assertGreater(plan.predicted_extra_flops, 0)
        self.assertLess(3 * plan.predicted_extra_flops, 2 * plan.plain_flops)

    def test_reads_units(self):
        plan = residual_model().remat_plan(BATCH, memory_budget="2MiB")
        self.assertEqual(plan.budget, 2 * 2**20)

    def test_budget_above_the_plain_peak_costs_nothing(self):
        model = residual_model()
        plain = model.remat_plan(BATCH).plain_bytes
        plan = model.remat_plan(BATCH, memory_budget=plain)
        self.assertEqual(plan.predicted_extra_flops, 0)
        self.assertLessEqual(plan.predicted_bytes, plain)

    def test_smaller_budgets_cost_more_arithmetic(self):
        model = residual_model()
        plans = [
            model.remat_plan(BATCH, memory_budget=share)
            for share in (0.6, 0.75, 0.9)
        ]
        peaks = [p.predicted_bytes for p in plans]
        costs = [p.predicted_extra_flops for p in plans]
        self.assertEqual(peaks, sorted(peaks))
        self.assertEqual(costs, sorted(costs, reverse=True))

    def test_auto_asks_the_device(self):
        model = residual_model()
        free = free_memory()
        plan = model.remat_plan(BATCH, memory_budget="auto")
        self.assertEqual(plan.budget is None, free is None)

    def test_budget_below_the_floor_names_floor_and_batch(self):
        model = residual_model()
        floor = model.remat_plan(BATCH).floor(BATCH)
        budget = floor - 1024
        with self.assertRaises(ValueError) as caught:
            model.remat_plan(BATCH, memory_budget=budget)
        message = str(caught.exception)
        self.assertIn(show(floor), message)
        self.assertIn(f"a batch of {BATCH}", message)
        self.assertIn("would fit", message)

    def test_max_batch_size_is_the_last_that_fits(self):
        model = residual_model(1)
        plan = model.remat_plan(8)
        budget = plan.floor(10)
        found = plan.max_batch_size(budget)
        self.assertGreaterEqual(found, 10)
        self.assertLessEqual(plan.floor(found), budget)
        self.assertGreater(plan.floor(found + 1), budget)
        model.remat_plan(found, memory_budget=budget)
        with self.assertRaises(ValueError):
            model.remat_plan(found + 1, memory_budget=budget)

    @parameterized.parameters(0.5, None, "1zz", -1)
    def test_max_batch_size_needs_bytes(self, budget):
        plan = residual_model(1).remat_plan(8)
        with self.assertRaisesRegex(ValueError, "`memory_budget` must be"):
            plan.max_batch_size(budget)

    def test_max_batch_size_of_what_is_free(self):
        plan = residual_model(1).remat_plan(8)
        engine = mock.Mock(free_memory=lambda: plan.floor(10))
        with mock.patch.object(budget, "engine", lambda: engine):
            self.assertEqual(
                plan.max_batch_size("auto"),
                plan.max_batch_size(plan.floor(10)),
            )
        engine.free_memory = lambda: None
        with mock.patch.object(budget, "engine", lambda: engine):
            with self.assertRaisesRegex(ValueError, "does not tell"):
                plan.max_batch_size("auto")

    @parameterized.parameters(0, "8", 8.0, None, True)
    def test_batch_size_must_be_a_positive_integer(self, batch_size):
        with self.assertRaisesRegex(ValueError, "`batch_size` must be"):
            residual_model(1).remat_plan(batch_size)

    def test_batch_size_may_be_of_numpy(self):
        plan = residual_model(1).remat_plan(np.int64(8))
        self.assertEqual(plan.batch_size, 8)

    @parameterized.parameters(None, 7)
    def test_unknown_dimensions_are_said_to_be_guessed(self, length):
        inputs = layers.Input((length, 8))
        model = models.Model(inputs, layers.Dense(4)(inputs))
        plan = model.remat_plan(8)
        words = ("Unknown dimensions were taken", f"dimensions as {UNKNOWN}")
        for word, text in zip(words, (printed(plan.summary), plan.line())):
            self.assertEqual(word in text, length is None)
        spec = backend.KerasTensor((None, 7, 8))
        self.assertFalse(model.remat_plan(8, input_spec=spec).guessed)

    def test_a_plan_above_plain_says_so(self):
        plan = residual_model(1).remat_plan(8)
        for peak in (plan.plain_bytes, plan.plain_bytes + 1):
            plan.planned = plan.planned._replace(peak=peak)
            for text in (plan.line(), printed(plan.summary)):
                more = peak > plan.plain_bytes
                self.assertEqual("more than" in text, more)

    def test_no_batch_fits_into_one_byte(self):
        plan = residual_model(1).remat_plan(8)
        self.assertEqual(plan.max_batch_size(1), 0)

    def test_plan_goes_through_its_config(self):
        plan = residual_model().remat_plan(BATCH, memory_budget=0.7)
        config = plan.get_config()
        self.assertEqual(Plan.from_config(config["plan"]), plan.planned)
        self.assertEqual(RematPolicy.from_config(config["policy"]), plan.policy)
        self.assertEqual(config["input_shapes"], [[BATCH, 8]])

    def test_apply_sets_the_policy(self):
        model = residual_model()
        plan = model.remat_plan(BATCH, memory_budget=0.7)
        self.assertIsNone(model.remat)
        self.assertIs(plan.apply(), model)
        self.assertEqual(model.remat, RematPolicy(memory_budget=0.7))
        self.assertEqual(model.remat_plan(BATCH).budget, plan.budget)

    def test_plan_needs_a_graph(self):
        class Own(models.Model):
            def call(self, x):
                return x

        with self.assertRaisesRegex(ValueError, "needs a graph"):
            Own().remat_plan(4)

    def test_the_line_says_what_it_costs(self):
        plan = residual_model().remat_plan(BATCH, memory_budget=0.7)
        line = plan.line()
        self.assertIn(line, repr(plan))
        self.assertRegex(line, r"\d+ regions?.*, peak .* of .*more arithmetic")

    def test_training_under_a_budget_equals_plain_training(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2 * BATCH, 8)).astype("float32")
        y = rng.normal(size=(2 * BATCH, 2)).astype("float32")

        def trained(setting):
            set_random_seed(1)
            model = residual_model(3)
            model.remat = setting
            model.compile("sgd", "mse")
            history = model.fit(x, y, BATCH, epochs=2, verbose=0, shuffle=False)
            return history.history["loss"], model

        losses, plain = trained(None)
        ours, model = trained(RematPolicy(memory_budget=0.75))
        self.assertAllClose(ours, losses, rtol=1e-5, atol=1e-6)
        for a, b in zip(model.variables, plain.variables):
            self.assertAllClose(
                backend.convert_to_numpy(a),
                backend.convert_to_numpy(b),
                rtol=1e-4,
                atol=1e-5,
            )
        cuts = vars(model)["_remat_cuts"].values()
        self.assertTrue(any(s.remat for cut in cuts for s in cut))


class BatchOfFitTest(testing.TestCase):
    @pytest.mark.requires_trainable_backend
    def test_a_plan_made_by_fit_is_for_its_batch(self):
        inputs = layers.Input((8,))
        x = inputs
        for _ in range(6):
            x = layers.Dense(32, activation="relu")(x)
        model = models.Model(inputs, layers.Dense(1)(x))
        model.compile("sgd", "mse")
        model.remat = RematPolicy(memory_budget=0.98)
        x, y = np.ones((250, 8)), np.ones((250, 1))
        with mock.patch.object(remat_plan, "log") as log:
            model.fit(x, y, batch_size=100, epochs=1, verbose=0)
        batches = [c.args[0].specs[0].shape[0] for c in log.call_args_list]
        self.assertEqual(batches[0], 100)
        self.assertNotIn(UNKNOWN, batches)
