"""Plans that divide a unit: a recurrent layer, or a row of blocks."""

import math
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step
from keras.src.remat import cuts
from keras.src.remat import recurrent
from keras.src.remat import report
from keras.src.remat.columns import summary_columns
from keras.src.remat.measure import remat_report
from keras.src.remat.planned import Plan
from keras.src.remat.planned import Segment
from keras.src.remat.recurrent_test import stack


def recurrent_model(kind="lstm"):
    utils.set_random_seed(0)
    inputs = layers.Input((36, 6))
    sequence = {"return_sequences": True}
    layer = {
        "lstm": lambda: layers.LSTM(12, **sequence),
        "gru": lambda: layers.GRU(12, **sequence),
        "both": lambda: layers.Bidirectional(layers.LSTM(6, **sequence)),
    }[kind]()
    return models.Model(inputs, layers.Dense(2)(layer(inputs)))


X = np.linspace(-1, 1, 16 * 36 * 6).reshape((16, 36, 6)).astype("float32")


def trained(model, setting, x):
    """Loss, gradients of a step; calls of the parts of time."""
    model.remat = setting

    def loss(x):
        return ops.mean(ops.square(model(x, training=True)))

    region = recurrent.run_region
    with mock.patch.object(recurrent, "run_region", wraps=region) as calls:
        compiled = backend.backend() == "jax"
        args = [x], model.variables, compiled
        value, of_weights, of_inputs = step(loss, *args)
    return [value, *of_weights, *of_inputs], calls.call_count


@pytest.mark.requires_trainable_backend
class RecurrentTest(testing.TestCase):
    @parameterized.parameters("lstm", "gru", "both")
    def test_a_budget_below_plain_divides_the_layer(self, kind):
        model = recurrent_model(kind)
        plan = model.remat_plan(len(X), memory_budget=0.8)
        self.assertLessEqual(plan.predicted_bytes, plan.budget)
        share = plan.segments[0].divided
        self.assertGreater(share, 0)
        # Of the layer a share runs again, and nothing else.
        again = int(share * plan.chain.flops[0])
        self.assertEqual(plan.predicted_extra_flops, again)

    def test_half_of_plain_is_reached(self):
        model = recurrent_model()
        plan = model.remat_plan(len(X), memory_budget=0.6)
        self.assertLessEqual(plan.predicted_bytes, 0.6 * plan.plain_bytes)

    def test_applies_and_gives_the_same(self):
        model = recurrent_model()
        plain, calls = trained(model, None, X)
        self.assertEqual(calls, 0)
        ours, calls = trained(model, RematPolicy(memory_budget=0.8), X)
        self.assertGreater(calls, 0)
        for a, b in zip(plain, ours, strict=True):
            self.assertAllClose(a, b, atol=1e-6)

    def test_a_budget_above_plain_leaves_it_plain(self):
        model = recurrent_model()
        most = model.remat_plan(len(X)).plain_bytes
        _, calls = trained(model, RematPolicy(memory_budget=most), X)
        self.assertEqual(calls, 0)

    def test_all_of_it_is_predicted_without_a_budget_too(self):
        plan = recurrent_model().remat_plan(len(X))
        self.assertEqual(plan.segments[0].divided, 1)
        self.assertLess(plan.predicted_bytes, 0.8 * plan.plain_bytes)
        self.assertIn("1 layer in parts", plan.line())

    def test_parts_may_keep_products(self):
        model = recurrent_model()
        model.remat = policy = RematPolicy(keep="matmuls")
        plan = model.remat_plan(len(X))
        self.assertEqual(plan.segments[0].divided, 1)
        self.assertIn(0, plan.chain.ways)  # it could be traced
        plain, _ = trained(model, None, X)
        ours, calls = trained(model, policy, X)
        self.assertGreater(calls, 0)
        for a, b in zip(plain, ours, strict=True):
            self.assertAllClose(a, b, atol=1e-6)

    @parameterized.parameters((None, 0.5, 0.1), (0.8, 0.8, 0.2))
    def test_kept_bytes_are_as_measured(self, budget, most, within):
        # Those of a share of the steps are not traced, but an estimate.
        model = recurrent_model()
        model.remat = RematPolicy(memory_budget=budget)
        found = remat_report(model, X)
        layer = found.by_layer[model.layers[1].name]
        self.assertLess(layer.predicted, most * layer.predicted_plain)
        self.assertLess(found.remat_bytes, 0.8 * found.plain_bytes)
        self.assertAllClose(
            found.predicted_bytes, found.remat_bytes, rtol=within
        )

    def test_a_layer_with_a_setting_is_not_divided(self):
        model = recurrent_model()
        model.layers[1].remat = False
        plan = model.remat_plan(len(X))
        self.assertFalse(any(s.divided for s in plan.segments))
        self.assertEqual(plan.chain.ways, {})

    def test_each_second_recurrent_layer(self):
        inputs = x = layers.Input((16, 3))
        for _ in range(3):
            x = layers.SimpleRNN(3, return_sequences=True)(x)
        model = models.Model(inputs, x)
        model.remat = RematPolicy(every=2)
        plan = model.remat_plan(2)
        divided = [s.divided for s in plan.segments]
        self.assertEqual(divided, [1, 0, 1])

    @parameterized.parameters(0.25, 0.5)
    def test_a_share_of_the_steps_gives_the_same(self, share):
        model = stack()
        x = X[:2, :12, :3]
        plain, _ = trained(model, None, x)
        chosen = [Segment(i, i + 1, False, (), share) for i in range(3)]
        with mock.patch.object(cuts, "chosen", return_value=chosen):
            ours, calls = trained(model, True, x)
        # Two directions, two layers; of three parts each where not in a scan.
        scans = backend.backend() == "jax"
        parts = 4 if scans else 4 * math.ceil(3 * share)
        self.assertEqual(calls, parts)
        for a, b in zip(plain, ours, strict=True):
            self.assertAllClose(a, b, atol=1e-6)

    def test_less_memory_costs_more_steps(self):
        model = recurrent_model()
        lowest = model.remat_plan(len(X)).predicted_bytes
        plain = model.remat_plan(len(X)).plain_bytes
        budgets = np.linspace(lowest, plain - 1, 9).astype(int)
        plans = [
            model.remat_plan(len(X), memory_budget=int(b)) for b in budgets
        ]
        shares = [plan.segments[0].divided for plan in plans]
        self.assertEqual(shares, sorted(shares, reverse=True))
        self.assertEqual(shares[0], 1)
        self.assertGreater(len(set(shares)), 2)
        for plan in plans:
            self.assertLessEqual(plan.predicted_bytes, plan.budget)


class Block(layers.Layer):
    """A composite layer, counted where `counts`."""

    def __init__(self, width, counts=False, **kwargs):
        super().__init__(**kwargs)
        self.counts = counts
        self.up = layers.Dense(4 * width, activation="gelu")
        self.down = layers.Dense(width)

    def build(self, shape):
        self.up.build(shape)
        self.down.build((*shape[:-1], self.up.units))

    def call(self, x):
        y = self.up(x)
        return x + self.down(counted(y, self.name) if self.counts else y)


class Row(layers.Layer):
    def __init__(self, width, n, counts=False, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [
            Block(width, counts, name=f"{self.name}_{i}") for i in range(n)
        ]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def rows(counts=False):
    """A long row, a short one."""
    utils.set_random_seed(0)
    inputs = layers.Input((8,))
    x = Row(8, 8, counts, name="long")(inputs)
    x = Row(8, 3, counts, name="short")(layers.Dense(8)(x))
    return models.Model(inputs, layers.Dense(1)(x))


DATA = np.linspace(-1, 1, 512 * 8).reshape((512, 8)).astype("float32")


@pytest.mark.requires_trainable_backend
class RowOfBlocksTest(testing.TestCase):
    def test_a_budget_below_plain_divides_what_it_must(self):
        model = rows()
        plans = [
            model.remat_plan(512, memory_budget=share)
            for share in (0.75, 0.6, 0.45)
        ]
        for plan in plans:
            self.assertLessEqual(plan.predicted_bytes, plan.budget)
        costs = [plan.predicted_extra_flops for plan in plans]
        self.assertEqual(costs, sorted(costs))
        divided = [[s.start for s in p.segments if s.divided] for p in plans]
        self.assertIn(0, divided[1])
        self.assertLess(costs[0], int(plans[0].chain.flops.sum()))

    def test_kept_bytes_are_as_measured(self):
        model = rows()
        model.remat = RematPolicy(memory_budget=0.5)
        found = remat_report(model, DATA)
        self.assertLess(found.remat_bytes, 0.5 * found.plain_bytes)
        self.assertAllClose(found.predicted_bytes, found.remat_bytes, rtol=0.1)
        if found.remat_peak is not None:
            ratio = found.remat_peak / found.predicted_peak
            self.assertLess(ratio, 1.05)

    @pytest.mark.skipif(
        backend.backend() == "jax",
        reason="JAX cannot trace abstractly what counts its runs.",
    )
    def test_what_is_planned_plain_runs_once(self):
        shares, found = planned_and_run()
        self.assertEqual(list(shares), ["long"])
        again = round(8 * shares["long"])
        self.assertBetween(again, 1, 7)
        self.assertEqual(sum("long" in name for name in found), 8 + again)
        self.assertEqual(sum("short" in name for name in found), 3)

    def test_shown_and_saved(self):
        model = rows()
        plan = model.remat_plan(512, memory_budget=0.6)
        share = plan.segments[0].divided
        shown = report.region_label(plan.segments[0], 1)
        self.assertIn(f"{share:.0%}", shown)
        config = plan.get_config()
        self.assertEqual(Plan.from_config(config["plan"]), plan.planned)
        self.assertTrue(any(s.divided for s in plan.planned.segments))
        row = report.plan_rows(plan)[0]
        self.assertEqual(row[:2], (shown, "long"))
        self.assertNotEqual(row[-1], "-")
        moments = [held for _, held in plan.chain.timeline(plan.planned)]
        self.assertEqual(max(moments), plan.predicted_bytes)
        model.remat = plan.policy
        columns = summary_columns(model, 512).rows
        self.assertEqual(columns["long"][1], shown)
        copy = models.Model.from_config(
            model.get_config(), {"Row": Row, "Block": Block}
        )
        self.assertEqual(copy.remat, plan.policy)


def planned_and_run():
    """The share of each row that a plan divides; what ran in a step by it."""
    model = rows(counts=True)
    plan = model.remat_plan(512, memory_budget=0.75)
    divided = [s for s in plan.segments if s.divided]
    shares = {plan.nodes[s.start].operation.name: s.divided for s in divided}
    plan.apply()

    def loss(x):
        return ops.mean(ops.square(model(x, training=True)))

    with runs() as found:
        step(loss, [DATA], model.variables)
    return shares, found
