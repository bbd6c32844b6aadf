"""Within a budget the planner chooses what each region keeps."""

import functools
import json
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import products
from keras.src.remat import profile
from keras.src.remat import segments
from keras.src.remat.planned import Plan
from keras.src.remat.report_test import printed
from keras.src.remat.structure import graph_of
from keras.src.utils import set_random_seed

BATCH, LENGTH, WIDTH = 8, 32, 32


def model_of(policy=None, blocks=4):
    set_random_seed(0)
    inputs = x = layers.Input((LENGTH, WIDTH))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 16, dropout=0.1)(y, y)
        y = layers.Dense(4 * WIDTH, activation="gelu")(
            layers.LayerNormalization()(x)
        )
        x = layers.BatchNormalization()(x + layers.Dense(WIDTH)(y))
    model = models.Model(inputs, layers.Dense(2)(x))
    model.remat = policy
    return model


def batch():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    return x, x[..., :2]


def budget(share=0.6):
    return RematPolicy(memory_budget=share)


@functools.cache
def planned(share=0.6):
    return model_of().remat_plan(BATCH, memory_budget=share)


def words(plan):
    return {s.keep for s in plan.planned.segments if s.remat}


@pytest.mark.requires_trainable_backend
class ChoiceTest(testing.TestCase):
    def test_regions_keep_products_where_there_is_room(self):
        self.assertTrue(words(planned()) & {"matmuls", "matmuls_no_batch"})

    @parameterized.parameters(0.6, 0.7, 0.8)
    def test_costs_less_than_without_a_choice(self, share):
        plan = planned(share)
        with mock.patch.object(profile, "choices", lambda costs: {}):
            without = model_of().remat_plan(BATCH, memory_budget=share)
        self.assertEqual(words(without), {None})
        self.assertLessEqual(plan.predicted_bytes, plan.budget)
        self.assertLess(
            plan.predicted_extra_flops, 0.7 * without.predicted_extra_flops
        )

    def test_a_greater_budget_never_costs_more(self):
        floor = planned().floor(BATCH)
        plans = [
            model_of().remat_plan(BATCH, memory_budget=int(b))
            for b in np.linspace(floor, planned().plain_bytes, 5)
        ]
        costs = [p.predicted_extra_flops for p in plans]
        peaks = [p.predicted_bytes for p in plans]
        self.assertEqual(costs, sorted(costs, reverse=True))
        self.assertEqual(peaks, sorted(peaks))

    @parameterized.parameters(False, True)
    def test_numbers_are_those_of_the_plain_run(self, eager):
        found = []
        for policy in (None, budget()):
            model = model_of(policy, blocks=2)
            model.compile("sgd", "mse", run_eagerly=eager)
            size, epochs = (BATCH, 1) if eager else (BATCH // 2, 2)
            fitted = model.fit(*batch(), size, epochs, verbose=0)
            losses = fitted.history["loss"]
            values = [backend.convert_to_numpy(v) for v in model.variables]
            found.append([np.array(losses), *values])
        for plain, remat in zip(*found):
            self.assertAllClose(remat, plain, atol=1e-5)

    def test_what_is_chosen_is_what_runs(self):
        def loss(x):
            return ops.mean(ops.square(model(x, training=True)))

        model = model_of()
        plain = products(loss, batch()[:1], model.variables)
        counts, chosen = [], self.only("matmuls")
        for choices in (lambda costs: {}, chosen):
            model = model_of(budget(0.8))
            with mock.patch.object(profile, "choices", choices):
                counts.append(products(loss, batch()[:1], model.variables))
        self.assertGreater(counts[0], plain)
        self.assertEqual(counts[1], plain)  # No product runs a second time.

    def only(self, word):
        original = profile.choices
        return lambda costs: {word: original(costs)[word]}

    def test_products_are_chosen_for_a_call_that_is_not_compiled(self):
        model, x = model_of(budget()), backend.convert_to_tensor(batch()[0])
        chosen = segments.segments_for(graph_of(model), [x], model.remat)
        self.assertTrue(any(s.keep for s in chosen))

    @parameterized.parameters(("matmuls_no_batch",), (["dense/linear"],))
    def test_a_policy_that_keeps_is_followed(self, keep):
        model = model_of(RematPolicy(keep=keep, memory_budget=0.8))
        plan = model.remat_plan(BATCH)
        self.assertEqual(words(plan), {None})
        kept = plan.policy_of(plan.planned.segments[-1]).keep
        self.assertEqual(kept, model.remat.keep)

    def test_without_a_budget_nothing_is_chosen(self):
        plan = model_of().remat_plan(BATCH)
        self.assertEqual(words(plan), {None})

    def test_it_is_shown(self):
        plan = planned()
        text = printed(plan.summary)
        self.assertIn("Keeps", text)
        self.assertIn("matmuls", text)
        self.assertIn("keep products", plan.line())

    def test_it_is_in_the_config(self):
        plan = planned()
        config = json.loads(json.dumps(plan.get_config()))
        self.assertEqual(Plan.from_config(config["plan"]), plan.planned)


class OldConfigTest(testing.TestCase):
    def test_config_without_a_choice(self):
        config = {
            "segments": [[0, 2, True, []]],
            "peak": 1,
            "extra_flops": 1,
            "levels": 1,
        }
        (segment,) = Plan.from_config(config).segments
        self.assertIsNone(segment.keep)
