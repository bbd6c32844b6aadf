import itertools

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
from keras.src.remat.measure import remat_report
from keras.src.remat.structure import graph_of
from keras.src.remat.units import Borders
from keras.src.remat.units import Units

BATCH, WIDTH = 512, 16
X = np.linspace(-1, 1, BATCH * WIDTH).reshape((BATCH, WIDTH))
X = X.astype("float32")


class Noted(layers.Layer):
    """Does nothing, but says when it runs."""

    def call(self, x):
        return counted(x, self.name)


def block(x):
    y = layers.Dense(4 * WIDTH, activation="gelu")(x)
    y = Noted()(layers.Dropout(0.1, seed=3)(y))
    x = layers.Add()([x, layers.Dense(WIDTH)(y)])
    return layers.BatchNormalization()(x)


def backbone(blocks=6):
    inputs = x = layers.Input((WIDTH,))
    for _ in range(blocks):
        x = block(x)
    return models.Model(inputs, x)


def around(*parts, width=2):
    inputs = layers.Input((WIDTH,))
    x = layers.Dense(WIDTH)(inputs)
    for part in parts:
        x = part(x)
    return models.Model(inputs, layers.Dense(width)(x))


def flat():
    inputs = layers.Input((WIDTH,))
    x = layers.Dense(WIDTH)(inputs)
    for _ in range(6):
        x = block(x)
    return models.Model(inputs, layers.Dense(2)(x))


def shared():
    part = backbone(3)
    return around(part, part)


def two_results():
    inputs = x = layers.Input((WIDTH,))
    for _ in range(4):
        x = block(x)
    part = models.Model(inputs, {"last": x, "same": inputs})
    outer = layers.Input((WIDTH,))
    found = part(layers.Dense(WIDTH)(outer))
    x = layers.Concatenate()([found["last"], found["same"]])
    return models.Model(outer, layers.Dense(2)(x))


KINDS = {
    "functional": lambda: around(backbone()),
    "twice": lambda: around(
        around(backbone(2), backbone(2), width=WIDTH), backbone(2)
    ),
    "shared": shared,
    "sequential": lambda: models.Sequential(
        [layers.Input((WIDTH,)), backbone(3), backbone(3), layers.Dense(2)]
    ),
    "two_results": two_results,
}
BUDGETS = (0.6, 0.55)
CASES = [
    (f"{kind}_{b}", kind, b) for kind, b in zip(KINDS, itertools.cycle(BUDGETS))
]


def trained(make, setting=None):
    """Loss, gradients and variables after a step; and what ran."""
    utils.set_random_seed(0)
    model = make()
    model.remat = setting

    def loss(x):
        return ops.mean(ops.square(model(x, training=True)))

    with runs() as found:
        results = step(loss, [X], model.variables)
    return results, found


class BordersTest(testing.TestCase):
    def test_no_region_ends_beyond_the_model_it_begins_in(self):
        borders = Borders(10)
        borders.add_call(2, 8)
        borders.add_call(4, 6)
        allowed = [
            (a, b)
            for a in range(10)
            for b in range(a + 1, 11)
            if borders.allow(a, np.array([b]))[0]
        ]
        whole = [(2, 8), (4, 6)]
        expected = [
            (a, b)
            for a in range(10)
            for b in range(a + 1, 11)
            if all(
                b <= s or a >= e or (s <= a and b <= e) or (a <= s and e <= b)
                for s, e in whole
            )
        ]
        self.assertEqual(allowed, expected)
        self.assertEqual(borders.divided(0, 10), [(0, 10)])
        self.assertEqual(borders.divided(1, 5), [(1, 2), (2, 4), (4, 5)])

    def test_what_is_left_out_is_in_no_region(self):
        borders = Borders(6)
        borders.leave_out(3)
        for a in range(6):
            for b in range(a + 1, 7):
                allowed = borders.allow(a, np.array([b]))[0]
                self.assertEqual(allowed, not a <= 3 < b)

    def test_a_part_of_a_model(self):
        model = around(backbone(2))
        units = Units(model)
        borders = units.borders(4, len(units.nodes))
        outer = len(units.nodes) - 1 - 4
        self.assertTrue(borders.allow(0, np.array([outer]))[0])
        self.assertFalse(borders.allow(0, np.array([outer + 1]))[0])


class UnitsTest(testing.TestCase):
    @parameterized.named_parameters((k, k) for k in KINDS)
    def test_all_layers_are_units(self, kind):
        units = Units(graph_of(KINDS[kind]())).nodes
        names = [type(unit.operation).__name__ for unit in units]
        self.assertNotIn("Functional", names)
        self.assertEqual(names.count("Add"), names.count("Dropout"))
        made = {id(x) for unit in units for x in unit.outputs}
        read = {id(x) for unit in units for x in unit.input_tensors}
        self.assertLen(read - made, 1)  # the input

    def test_calls_of_one_model_have_their_own_tensors(self):
        units = Units(shared()).nodes
        adds = [u for u in units if isinstance(u.operation, layers.Add)]
        self.assertLen(adds, 6)
        self.assertLen({id(u.outputs[0]) for u in adds}, 6)
        self.assertLen({id(u.operation) for u in adds}, 3)

    def test_a_model_with_a_setting_stays_closed(self):
        part = backbone(2)
        part.remat = False
        names = [u.operation.name for u in Units(around(part)).nodes]
        self.assertIn(part.name, names)
        part.remat = None
        names = [u.operation.name for u in Units(around(part)).nodes]
        self.assertNotIn(part.name, names)

    @pytest.mark.requires_trainable_backend
    def test_a_layer_that_is_switched_off_is_in_no_region(self):
        part = backbone(4)
        dense = [x for x in part.layers if isinstance(x, layers.Dense)][3]
        dense.remat = False
        model = around(part)
        plan = model.remat_plan(BATCH, memory_budget=0.6)
        self.assertLessEqual(plan.predicted_bytes, plan.budget)
        for s in plan.planned.segments:
            inside = [u.operation for u in plan.nodes[s.start : s.stop]]
            self.assertFalse(s.remat and dense in inside)


@pytest.mark.skipif(
    backend.backend() in ("numpy", "openvino"),
    reason="this backend takes no gradients",
)
class NestedModelsTest(testing.TestCase):
    @parameterized.named_parameters((k, k) for k in KINDS)
    def test_costs_what_the_flat_model_costs(self, kind):
        if kind == "two_results":
            self.skipTest("has no flat model of equal layers")
        plan = KINDS[kind]().remat_plan(BATCH, memory_budget=0.5)
        best = flat().remat_plan(BATCH, memory_budget=0.5)
        ratio = plan.plain_bytes / best.plain_bytes
        self.assertBetween(ratio, 0.95, 1.1)
        self.assertLessEqual(plan.predicted_bytes, plan.budget)
        self.assertLess(
            plan.predicted_extra_flops, 1.25 * best.predicted_extra_flops
        )

    @parameterized.named_parameters((k, k) for k in KINDS)
    def test_gives_the_same_and_runs_layers_again(self, kind):
        (loss, *plain), once = trained(KINDS[kind])
        policy = RematPolicy(memory_budget=0.55)
        again, twice = trained(KINDS[kind], policy)
        self.assertAllClose(loss, again[0], rtol=1e-5)
        for a, b in zip(plain, again[1:]):
            for p, q in zip(a, b):
                self.assertAllClose(p, q, rtol=1e-4, atol=1e-5)
        self.assertGreater(len(twice), len(once))
        self.assertLessEqual(len(twice), 3 * len(once))

    @parameterized.named_parameters(("twice", "twice"), ("shared", "shared"))
    def test_without_a_budget_layers_run_twice(self, kind):
        (loss, *_), once = trained(KINDS[kind])
        again, twice = trained(KINDS[kind], True)
        self.assertAllClose(loss, again[0], rtol=1e-5)
        self.assertGreater(len(twice), 1.5 * len(once))
        self.assertLessEqual(len(twice), 2 * len(once))

    @parameterized.named_parameters(CASES)
    @pytest.mark.skipif(
        backend.backend() == "tensorflow",
        reason="this backend does not tell its peak",
    )
    def test_stays_within_the_budget(self, kind, budget):
        model = KINDS[kind]()
        model.remat = RematPolicy(memory_budget=budget)
        plan = model.remat_plan(BATCH)
        report = remat_report(model, X)
        self.assertLess(report.remat_peak, 1.05 * plan.budget)
        self.assertLess(report.remat_peak, 1.1 * plan.predicted_bytes)
        self.assertGreater(report.remat_peak, 0.8 * plan.predicted_bytes)

    @pytest.mark.skipif(
        backend.backend() == "tensorflow",
        reason="this backend does not tell its peak",
    )
    def test_takes_the_memory_of_the_flat_model(self):
        policy = RematPolicy(memory_budget=0.5)
        peaks = []
        for make in (flat, KINDS["functional"]):
            model = make()
            model.remat = policy
            report = remat_report(model, X)
            peaks.append((report.plain_peak, report.remat_peak))
        for ours, best in zip(peaks[1], peaks[0]):
            self.assertBetween(ours / best, 0.98, 1.02)

    def test_summary_shows_the_layers_inside(self):
        model = KINDS["functional"]()
        model.remat = True
        lines = []
        model.summary(
            show_remat=True, expand_nested=True, print_fn=lines.append
        )
        rows = [r for r in "".join(lines).splitlines() if "dropout" in r]
        regions = [row.split("│")[-2].strip() for row in rows]
        self.assertLen(regions, 6)
        numbers = [int(r) for r in regions if r != "-"]
        self.assertEqual(numbers, sorted(numbers))
        self.assertGreater(len(numbers), 3)

    def test_trains_with_mixed_precision(self):
        def losses(setting):
            utils.set_random_seed(0)
            model = around(backbone(2))
            for layer in model._flatten_layers():
                layer.dtype_policy = "mixed_bfloat16"
            model.remat = setting
            model.compile("sgd", "mse", jit_compile=False)
            history = model.fit(
                X, X[:, :2], BATCH // 2, epochs=1, verbose=0, shuffle=False
            )
            return history.history["loss"]

        ours = losses(RematPolicy(memory_budget=0.7))
        self.assertAllClose(ours, losses(None), rtol=1e-2)
