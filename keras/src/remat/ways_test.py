"""The planner with nodes that can be divided."""

import random

import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import testing
from keras.src.remat import planner
from keras.src.remat.planned import Plan
from keras.src.remat.planned import Segment
from keras.src.remat.planner_test_utils import all_plans
from keras.src.remat.planner_test_utils import measured
from keras.src.remat.planner_test_utils import random_chain
from keras.src.remat.planner_test_utils import uniform
from keras.src.remat.ways import Way


def random_ways(chain, rng):
    """A chain some of whose nodes can be divided."""
    for i in range(chain.n):
        if rng.random() < 0.5:
            chain.ways[i] = {
                share: Way(*(rng.randint(0, 6) for _ in range(3)))
                for share in rng.choice([[1.0], [1.0, 0.5]])
            }
    return chain


def plans_with_ways(chain):
    for plan in all_plans(chain):
        choices = [()]
        for s in plan:
            kinds = [s]
            if not s.remat and s.stop == s.start + 1 and s.start in chain.ways:
                kinds += [s._replace(divided=w) for w in chain.ways[s.start]]
            choices = [(*c, k) for c in choices for k in kinds]
        yield from choices


@pytest.mark.skipif(
    backend.backend() != "numpy",
    reason="The planner knows no backend, so one run of these says all.",
)
class PlannerWithWaysTest(testing.TestCase):
    @parameterized.parameters(range(6))
    def test_equals_brute_force(self, seed):
        rng, divided = random.Random(seed), 0
        for size in [1, 2, 3, 4] * 4 + [5]:
            chain = random_ways(random_chain(size, rng), rng)
            plans = [measured(chain, p)[:2] for p in plans_with_ways(chain)]
            lowest = planner.least_peak(chain)
            self.assertEqual(lowest.peak, min(peak for _, peak in plans))
            top = max(lowest.peak, chain.plain_peak())
            budgets = [rng.randint(lowest.peak, top) for _ in range(3)]
            for budget in [lowest.peak, top, *budgets]:
                plan = planner.cheapest(chain, budget, max_levels=1)
                best = min(p for p in plans if p[1] <= budget)
                self.assertEqual(measured(chain, plan)[:2], best)
                divided += any(s.divided for s in plan.segments)
        self.assertGreater(divided, 0)

    def test_timeline_peaks_at_the_peak(self):
        rng = random.Random(0)
        for _ in range(20):
            chain = random_ways(random_chain(rng.randint(1, 4), rng), rng)
            for plan in plans_with_ways(chain):
                moments = [held for _, held in chain.timeline(plan)]
                self.assertEqual(max(moments), chain.peak(plan))

    def test_a_greater_budget_never_costs_more(self):
        chain = random_ways(
            random_chain(12, random.Random(3)), random.Random(4)
        )
        points = planner.tradeoff(chain, points=30)
        peaks, costs = [p[0] for p in points], [p[1] for p in points]
        self.assertEqual(peaks, sorted(peaks))
        self.assertEqual(costs, sorted(costs, reverse=True))

    def test_a_long_chain_has_cuts_around_what_can_be_divided(self):
        chain = uniform(1500)
        chain.saved_before[702:] += 1_000_000
        chain.ways[701] = {1.0: Way(10, 10, 5)}
        for levels in (1, 2):
            plan = planner.least_peak(chain, levels)
            self.assertLess(plan.peak, 10_000)
            self.assertIn(Segment(701, 702, False, (), 1.0), plan.segments)

    def test_config(self):
        segments = Segment(0, 3, True), Segment(3, 4, False, (), 1.0)
        plan = Plan(segments, 5, 6, 1)
        self.assertEqual(Plan.from_config(plan.get_config()), plan)
        # As written before there were divided units.
        self.assertEqual(
            Segment.from_config([0, 3, True, []]), Segment(0, 3, True)
        )
