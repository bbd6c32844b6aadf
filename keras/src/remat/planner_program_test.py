"""The planner beside integer programs, which `scipy` solves.

`SegmentProgram` is the planner's own problem: consecutive segments, in the
memory model of `chain.py`. `NodeProgram` is a wider one, in the manner of
Checkmate (Jain et al. 2020, arXiv 1910.02653): for each node and each moment of
the backward run it chooses what is kept and what runs again.
"""

import itertools
import random

import numpy as np
import pytest
from absl.testing import parameterized
from scipy import optimize

from keras.src import backend
from keras.src import testing
from keras.src.remat import planner
from keras.src.remat.chain import Chain
from keras.src.remat.chain import Value
from keras.src.remat.planned import Segment
from keras.src.remat.planner_test_utils import random_chain

pytestmark = pytest.mark.skipif(
    backend.backend() != "numpy",
    reason="The planner knows no backend, so one run of these says all.",
)


class SegmentProgram:
    """The same choice as an integer program, solved by `scipy`.

    One binary per segment and kind; the chosen ones are a path from 0 to n.
    For each: what all chosen segments before it keep, plus its need, is
    within the peak. (Where it is not chosen this says no more than what the
    segment that covers its place says.) It shares with the planner the
    numbers of single segments, and nothing of the search.
    """

    def __init__(self, chain):
        self.n = chain.n
        self.arcs, self.need, self.keep, self.cost = [], [], [], []
        for a, b in itertools.combinations(range(chain.n + 1), 2):
            regions = [(True, word) for word in chain.kept]
            for remat, word in [(False, None), *regions]:
                segment = Segment(a, b, remat, keep=word)
                span = chain.spans(a, np.array([b]), word)
                self.arcs.append((a, b))
                self.need.append(chain.peak((segment,)))
                self.keep.append(span["keep" if remat else "keep_plain"].item())
                self.cost.append(chain.extra_flops((segment,)))

    def solve(self, budget=None):
        """Least cost within a budget, or the least peak."""
        k, n = len(self.arcs), self.n
        path = np.zeros((n + 1, k + 1))
        peak = np.zeros((k, k + 1))
        peak[:, k] = -1
        for j, (a, b) in enumerate(self.arcs):
            path[a, j], path[b, j] = 1, -1
            before = [i for i, (_, d) in enumerate(self.arcs) if d <= a]
            peak[j, before] = [self.keep[i] for i in before]
            peak[j, j] = self.need[j]
        ends = np.zeros(n + 1)
        ends[0], ends[n] = 1, -1
        most = np.inf if budget is None else budget
        goal = [0] * k + [1] if budget is None else [*self.cost, 0]
        result = optimize.milp(
            goal,
            integrality=[1] * k + [0],
            bounds=optimize.Bounds(0, [1] * k + [most]),
            constraints=[
                optimize.LinearConstraint(path, ends, ends),
                optimize.LinearConstraint(peak, -np.inf, 0),
            ],
        )
        return result.fun


class SkipGraph:
    """A random graph with skips, of one value for each node.

    Attributes:
        values: List of `Value`.
        internal: Bytes of residuals of each node that are not its value.
        chain: The `Chain`.
    """

    def __init__(self, n, rng):
        self.values = [self.value(i, n, rng) for i in range(n)]
        self.internal = [rng.randint(0, 9) for _ in range(n)]
        flops = [rng.randint(1, 9) for _ in range(n)]
        scratch = [v.bytes + rng.randint(0, 4) for v in self.values]
        saved = [
            internal + v.bytes * v.is_saved
            for internal, v in zip(self.internal, self.values)
        ]
        self.chain = Chain(saved, self.values, flops, scratch=scratch)

    def value(self, i, n, rng):
        uses = {i + 1}
        if rng.random() < 0.5:
            uses.add(rng.randint(i + 1, n))
        is_saved = rng.random() < 0.6
        return Value(i, rng.randint(1, 9), sorted(uses), is_saved)

    def inputs(self, i):
        return [v.producer for v in self.values if i in v.consumers]


class NodeProgram:
    """What is kept and what runs again, node by node and moment by moment.

    Binaries: `again[i, j]`, node i runs again just before the backward run of
    node j; `value[i, j]` and `rest[i, j]`, its value or its other residuals
    are there then; with j = n, they are kept by the forward run. Each node runs
    again at most once. It is a relaxation: a value that is made again and not
    kept on costs no memory, and what a run of several nodes makes is freed
    node by node.

    Args:
        graph: A `SkipGraph`.
        consecutive: Whether what runs again at one moment are consecutive
            nodes up to the present one, as the regions of a plan are.
    """

    def __init__(self, graph, consecutive):
        self.graph, self.n = graph, graph.chain.n
        self.names, self.rows = {}, []
        for i, j in itertools.product(range(self.n), range(self.n)):
            self.what_is_there(i, j)
            if i < j and consecutive:
                self.at_most({("again", i, j): 1, ("again", i + 1, j): -1}, 0)
        for i in range(self.n):
            once = {("again", i, j): 1 for j in range(self.n)}
            self.at_most(once, 1)
            self.backward_needs(i)

    def at_most(self, terms, limit):
        for key in terms:
            self.names.setdefault(key, len(self.names))
        self.rows.append((terms, limit))

    def what_is_there(self, i, j):
        again = ("again", i, j)
        for kind in ("value", "rest"):
            there, before = (kind, i, j), (kind, i, j + 1)
            self.at_most({there: 1, before: -1, again: -1}, 0)
        for k in self.graph.inputs(i):
            needs = {again: 1, ("value", k, j): -1, ("again", k, j): -1}
            self.at_most(needs, 0)
        if i > j:
            self.at_most({again: 1}, 0)

    def backward_needs(self, j):
        self.at_most({("rest", j, j): -1}, -1)
        for v in self.graph.values:
            if v.is_saved and j in (v.producer, *v.consumers):
                self.at_most({("value", v.producer, j): -1}, -1)

    def forward_moment(self, i):
        """Bytes while node i runs first: a number, and those of variables."""
        known, terms = int(self.graph.chain.scratch[i]), {}
        for v in self.graph.values[: i + 1]:
            k = v.producer
            terms["rest", k, self.n] = self.graph.internal[k]
            if k < i <= v.consumers[-1]:
                known += v.bytes
            elif k < i or v.is_saved:
                terms["value", k, self.n] = v.bytes
        return known, terms

    def backward_moments(self, j):
        """The same while j goes back, and while nodes run again before it."""
        chain, terms = self.graph.chain, {}
        for i, v in enumerate(self.graph.values):
            terms["value", i, j] = v.bytes
            terms["rest", i, j] = self.graph.internal[i]
        waiting = int(chain.passing[j])
        yield waiting + int(chain.scratch[j]), terms
        for i in range(j + 1):
            yield waiting, {**terms, ("again", i, j): int(chain.scratch[i])}

    def solve(self, budget):
        """Least arithmetic of all further runs."""
        moments = [self.forward_moment(i) for i in range(self.n)]
        for j in range(self.n):
            moments += self.backward_moments(j)
        rows = self.rows + [(terms, budget - known) for known, terms in moments]
        table = np.zeros((len(rows), len(self.names)))
        for row, (terms, _) in zip(table, rows):
            for key, factor in terms.items():
                row[self.names[key]] = factor
        goal = np.zeros(len(self.names))
        for i, j in itertools.product(range(self.n), range(self.n)):
            goal[self.names["again", i, j]] = self.graph.chain.flops[i]
        result = optimize.milp(
            goal,
            integrality=np.ones(len(goal)),
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(
                table, -np.inf, [limit for _, limit in rows]
            ),
        )
        return round(result.fun)


class PlannerBesideProgramsTest(testing.TestCase):
    @parameterized.parameters(range(4))
    def test_within_5_percent_of_an_integer_program(self, seed):
        rng = random.Random(100 + seed)
        chain = random_chain(rng.randint(10, 13), rng)
        program = SegmentProgram(chain)
        peak = planner.least_peak(chain).peak
        self.assertLessEqual(peak, 1.05 * program.solve() + 1e-6)
        plain = chain.plain_peak()
        for budget in (peak, (2 * peak + plain) // 3):
            plan = planner.cheapest(chain, budget, max_levels=1)
            self.assertLessEqual(plan.peak, budget)
            least = program.solve(budget)
            self.assertLessEqual(plan.extra_flops, 1.05 * least + 1e-6)

    @parameterized.named_parameters(
        # Beside consecutive nodes: a plan's memory model counts a region as a
        # unit, the program frees it node by node.
        ("consecutive", True, 1.05, 1.2),
        # Beside any schedule: the program may run the ends of a skip again
        # and keep what is between, which no consecutive region does.
        ("any", False, 1.08, 1.25),
    )
    def test_arithmetic_of_a_step_beside_a_program_of_nodes(
        self, consecutive, mean, most
    ):
        rng, ratios = random.Random(1), []
        for n in (6, 6, 7, 7, 8):
            graph = SkipGraph(n, rng)
            program = NodeProgram(graph, consecutive)
            chain, step = graph.chain, 3 * graph.chain.flops.sum()
            floor = planner.least_peak(chain).peak
            for budget in np.linspace(floor, chain.plain_peak(), 4).astype(int):
                ours = planner.cheapest(chain, budget, max_levels=1)
                least = program.solve(budget)
                self.assertGreaterEqual(ours.extra_flops, least)
                ratios.append((step + ours.extra_flops) / (step + least))
        self.assertLess(np.mean(ratios), mean)
        self.assertLess(max(ratios), most)
        self.assertEqual(min(ratios), 1)
