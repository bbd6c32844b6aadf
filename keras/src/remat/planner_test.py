import json
import random

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import testing
from keras.src.remat import planner
from keras.src.remat.chain import Chain
from keras.src.remat.chain import Value
from keras.src.remat.planned import Plan
from keras.src.remat.planned import Segment
from keras.src.remat.planner_test_utils import all_plans
from keras.src.remat.planner_test_utils import blocks_of_products
from keras.src.remat.planner_test_utils import dense
from keras.src.remat.planner_test_utils import measured
from keras.src.remat.planner_test_utils import random_chain
from keras.src.remat.planner_test_utils import residual
from keras.src.remat.planner_test_utils import uniform

pytestmark = pytest.mark.skipif(
    backend.backend() != "numpy",
    reason="The planner knows no backend, so one run of these says all.",
)


class PlannerTest(testing.TestCase):
    @parameterized.parameters(range(10))
    def test_equals_brute_force(self, seed):
        rng = random.Random(seed)
        for size in [1, 2, 3, 4] * 5 + [5, 5, 5, 6]:
            chain = random_chain(size, rng)
            plans = [measured(chain, p) for p in all_plans(chain)]
            plain = chain.plain_peak()
            lowest = min((p, c, r) for c, p, r in plans)
            plan = planner.least_peak(chain)
            cost, peak, count = measured(chain, plan)
            self.assertEqual((peak, cost, count), lowest)
            budgets = [rng.randint(peak, max(peak, plain)) for _ in range(3)]
            for budget in [peak, plain, *budgets]:
                plan = planner.cheapest(chain, budget, max_levels=1)
                self.assertEqual(
                    measured(chain, plan),
                    min(p for p in plans if p[1] <= budget),
                )
                self.assertEqual(plan.peak, chain.peak(plan))

    def test_equals_brute_force_on_eight_nodes(self):
        chain = random_chain(8, random.Random(8))
        plans = [measured(chain, p) for p in all_plans(chain)]
        for budget in range(min(p[1] for p in plans), chain.plain_peak(), 5):
            plan = planner.cheapest(chain, budget, max_levels=1)
            least = min(p for p in plans if p[1] <= budget)
            self.assertEqual(measured(chain, plan), least)

    @parameterized.parameters((2, 5), (3, 4))
    def test_nested_peak_equals_brute_force(self, levels, most):
        rng = random.Random(levels)
        for _ in range(15):
            chain = random_chain(rng.randint(2, most), rng)
            peaks = [chain.peak(p) for p in all_plans(chain, levels)]
            plan = planner.least_peak(chain, levels)
            self.assertEqual(plan.peak, min(peaks))
            self.assertLessEqual(plan.levels, levels)

    def test_timeline_peaks_at_the_peak(self):
        rng = random.Random(0)
        for _ in range(10):
            chain = random_chain(4, rng)
            for segments in all_plans(chain, levels=3):
                moments = chain.timeline(segments)
                self.assertEqual(
                    max(b for _, b in moments), chain.peak(segments)
                )

    def test_timeline_by_hand(self):
        # Three equal nodes; the second one alone is a region.
        chain = Chain(
            [4, 4, 4], [(i, 4, [i + 1]) for i in range(3)], [1] * 3, [1] * 3
        )
        segments = tuple(Segment(i, i + 1, i == 1) for i in range(3))
        self.assertEqual(
            chain.timeline(segments),
            [
                ("forward 0", 4),
                ("forward 1", 4),
                ("forward 2", 12),
                ("backward 2", 8 + 4 + 1),
                ("again 1", 4 + 4 + 1 + 4),
                ("backward 1", 4 + 4 + 2 + 4),
                ("backward 0", 4 + 3),
            ],
        )

    def test_what_an_engine_holds_beyond_residuals_stays_with_them(self):
        chain = Chain([2, 2], [(0, 1, [1], False)], [1, 1], beyond=[4, -1])
        self.assertEqual(
            chain.timeline((Segment(0, 2, False),)),
            [
                ("forward 0", 6),
                ("forward 1", 6 + 1 + 1),
                ("backward 1", 6 + 1),
                ("backward 0", 6),
            ],
        )
        region = chain.timeline((Segment(0, 1, True), Segment(1, 2, False)))
        self.assertEqual(region[0], ("forward 0", 0))
        self.assertEqual(region[-1], ("backward 0", 6 + 1))

    @parameterized.named_parameters(
        ("random", random_chain(40, random.Random(1))),
        ("residual", residual(60)),
        ("dense", dense(50)),
    )
    def test_monotone_in_the_budget_and_never_over_it(self, chain):
        floor = planner.least_peak(chain, levels=2).peak
        budgets = np.linspace(chain.plain_peak() * 1.1, floor, 40)
        peaks, costs = [], []
        for budget in budgets:
            plan = planner.cheapest(chain, budget)
            self.assertLessEqual(chain.peak(plan), budget)
            peaks.append(plan.peak)
            costs.append(plan.extra_flops)
        self.assertEqual(peaks, sorted(peaks, reverse=True))
        self.assertEqual(costs, sorted(costs))
        self.assertEqual(costs[0], 0)
        self.assertGreater(costs[-1], 0)

    def test_more_levels_are_never_worse(self):
        for chain in (residual(60), uniform(100), dense(30)):
            peaks = [planner.least_peak(chain, k).peak for k in range(4)]
            self.assertEqual(peaks, sorted(peaks, reverse=True))
            for budget in range(peaks[1], peaks[0], peaks[0] // 10):
                one = planner.cheapest(chain, budget, max_levels=1)
                two = planner.cheapest(chain, budget, max_levels=2)
                self.assertLessEqual(two.extra_flops, one.extra_flops)

    def test_square_root_of_uniform_chain(self):
        plan = planner.least_peak(uniform(64))
        self.assertLessEqual(plan.peak, 10 * 2 * 8)
        self.assertLessEqual(plan.extra_flops, 64)
        self.assertBetween(sum(s.remat for s in plan.segments), 8, 12)

    def test_cube_root_of_uniform_chain(self):
        plan = planner.least_peak(uniform(125), levels=2)
        self.assertLessEqual(plan.peak, 10 * 3 * 5)
        self.assertLessEqual(plan.extra_flops, 2 * 125)
        self.assertEqual(plan.levels, 2)

    def test_regions_end_at_narrow_places(self):
        # Values inside a block are wide, the one between blocks is not.
        size = [8, 8, 1] * 12
        values = [Value(i, s, [i + 1]) for i, s in enumerate(size)]
        chain = Chain(size, values, [1] * 36)
        plan = planner.least_peak(chain)
        self.assertEqual({s.stop % 3 for s in plan.segments}, {0})

    def test_budget_below_the_floor(self):
        chain = uniform(50)
        floor = planner.least_peak(chain, levels=2).peak
        with self.assertRaisesRegex(planner.BudgetError, f"{floor} bytes") as e:
            planner.cheapest(chain, floor - 1)
        self.assertEqual(e.exception.floor, floor)
        self.assertEqual(planner.cheapest(chain, floor).peak, floor)

    def test_plain_when_it_fits(self):
        chain = residual(10)
        plan = planner.cheapest(chain, chain.plain_peak())
        self.assertEqual(plan.segments, (Segment(0, 50, False),))
        self.assertEqual((plan.extra_flops, plan.levels), (0, 0))

    def test_nested_below_what_one_level_can(self):
        chain = uniform(120)
        one = planner.least_peak(chain)
        plan = planner.cheapest(chain, one.peak - 1)
        self.assertEqual(plan.levels, 2)
        with self.assertRaises(planner.BudgetError):
            planner.cheapest(chain, one.peak - 1, max_levels=1)

    def test_without_narrow_cuts(self):
        chain = dense(80)
        plan = planner.least_peak(chain)
        self.assertLess(plan.peak, 0.6 * chain.plain_peak())

    def test_tradeoff_is_monotone(self):
        chain = residual(40)
        curve = planner.tradeoff(chain, points=8)
        peaks, costs, plans = zip(*curve)
        self.assertEqual(list(peaks), sorted(set(peaks)))
        self.assertEqual(list(costs), sorted(costs, reverse=True))
        self.assertEqual(peaks[0], planner.least_peak(chain, 2).peak)
        self.assertEqual((peaks[-1], costs[-1]), (chain.plain_peak(), 0))
        self.assertEqual([chain.peak(p) for p in plans], list(peaks))

    def test_cells_are_bounded_and_grow_at_most_quadratically(self):
        cells = []
        for blocks in (20, 40, 80, 160, 320):
            chain = residual(blocks)
            frontiers = planner._frontiers(chain, 1)
            cells.append(sum(f.cells for f in frontiers))
            for f in frontiers:
                self.assertLessEqual(len(f.count), 2 * planner.CUTS)
        for few, many in zip(cells[1:], cells[2:]):
            self.assertLessEqual(many, 4 * few)
        most = (1.5 * planner.CUTS) ** 2 * planner.LABELS * 2
        self.assertLessEqual(max(cells), 2 * most)

    def test_narrow_cuts(self):
        chain = residual(300)
        cuts = planner.narrow_cuts(chain, 150, always=[7])
        self.assertEqual((cuts[0], cuts[-1]), (0, chain.n))
        self.assertIn(7, cuts)
        self.assertLessEqual(len(cuts), 153)
        inner = [c for c in cuts[1:-1] if c != 7]
        narrowest = chain.crossing[1:-1].min()
        self.assertTrue(all(chain.crossing[inner] == narrowest))

    def test_exactness_is_known(self):
        small = planner._frontiers(random_chain(8, random.Random(2)), 1)
        self.assertTrue(small[0].is_exact)
        rng = random.Random(3)
        numbers = [[rng.randint(1, 10**6) for _ in range(180)] for _ in "ab"]
        values = [(i, numbers[0][i], [i + 1]) for i in range(180)]
        large = planner._frontiers(Chain(numbers[0], values, numbers[1]), 1)
        self.assertFalse(large[0].is_exact)

    def test_config_round_trip(self):
        plan = planner.least_peak(uniform(60), levels=2)
        config = plan.get_config()
        self.assertEqual(Plan.from_config(config), plan)
        self.assertIsInstance(config["segments"][0], list)
        numbers = [config["peak"], config["extra_flops"], config["levels"]]
        self.assertTrue(all(type(x) is int for x in numbers))

    def test_config_of_a_plan_that_keeps(self):
        chain = blocks_of_products(12)
        plan = planner.cheapest(chain, chain.plain_peak() // 2)
        self.assertIn("dear", {s.keep for s in plan.segments})
        config = json.loads(json.dumps(plan.get_config()))
        self.assertEqual(Plan.from_config(config), plan)

    def test_keeps_what_is_dear_where_there_is_room(self):
        chain = blocks_of_products(24)
        floor = planner.least_peak(chain).peak
        bare = blocks_of_products(24, choices=None)
        kept, costs = [], []
        for budget in np.linspace(chain.plain_peak(), floor, 12):
            plan = planner.cheapest(chain, budget, max_levels=1)
            words = [s.keep for s in plan.segments if s.remat]
            kept.append(words.count("dear") / max(1, len(words)))
            costs.append(plan.extra_flops)
            without = planner.cheapest(bare, budget, max_levels=1)
            self.assertLessEqual(plan.extra_flops, without.extra_flops)
        self.assertEqual(costs, sorted(costs))
        self.assertEqual(kept[1], 1)  # Least arithmetic of all regions.
        self.assertLess(kept[-1], 1)
        # At two fifths of the plain peak no product need run again.
        budget = 2 * chain.plain_peak() // 5
        cheap = planner.cheapest(chain, budget).extra_flops
        self.assertLess(cheap, 0.05 * chain.flops.sum())
        dear = planner.cheapest(bare, budget).extra_flops
        self.assertGreater(dear, 0.2 * chain.flops.sum())

    def test_great_numbers(self):
        chain = Chain(
            [10**12] * 30,
            [(i, 10**12, [i + 1]) for i in range(30)],
            [10**17] * 30,
        )
        plan = planner.cheapest(chain, chain.plain_peak() // 2)
        self.assertLessEqual(plan.peak, chain.plain_peak() // 2)
        self.assertGreater(plan.extra_flops, 10**17)
        self.assertLess(plan.extra_flops, 30 * 10**17)

    @parameterized.parameters(-1, True, 1.0, None)
    def test_wrong_levels(self, levels):
        with self.assertRaisesRegex(ValueError, "must be an integer"):
            planner.least_peak(uniform(3), levels)

    def test_wrong_chain(self):
        with self.assertRaisesRegex(ValueError, "one number per node"):
            Chain([1, 1], [], [1])
        with self.assertRaisesRegex(ValueError, "used after it is made"):
            Chain([1, 1], [(1, 4, [0], True)], [1, 1])
