"""Chooses regions: least memory, or least arithmetic within a memory budget.

The graph is taken as a chain of segments in a fixed order, as Chen et al.
2016 (arXiv 1604.06174) do, whose square-root rule this replaces by the best
cuts for the sizes at hand. Like rotor (Beaumont et al. 2019, arXiv
1911.13214) it is a dynamic program over steps which differ in size and time.
Unlike rotor's, labels carry a worst moment relative to what is kept before
(see `frontier.py`), which needs no grid of memory sizes and gives all budgets
in one pass.

Exact, over segments of consecutive nodes in the memory model of `chain.py`:

- the least peak at one level, up to `FLOOR_CUTS` nodes;
- the least arithmetic at one level for every budget, up to `CUTS` nodes and
  while no cut has more labels than it may (4096 for short chains, `LABELS`
  for long ones).

What is not optimal:

- Longer chains are cut at the narrowest places only, then once more around
  the cuts that this chose.
- Labels above the limit are thinned out. With both, one level cost up to
  14 % more on a ResNet152-like chain (8 % on a GPT-like one) than a search
  over all cuts with 512 labels, itself thinned out.
- Nesting is best for the least peak of each region, not for its cost.
- Segments are consecutive in the given order. A general schedule (Checkmate,
  arXiv 1910.02653) may recompute one branch and keep its neighbour, order
  nodes otherwise, or run a node again for each of its uses. In the memory
  model a region's backward is one unit. On random graphs of 6 to 8 nodes with
  skips a step took 1.04 times the arithmetic of the best schedule of
  consecutive nodes that frees memory node by node, and 1.06 times that of any
  schedule (means of 90 cases, at worst 1.18; see `planner_program_test.py`).
- What a region keeps is chosen from a few words (`kept.CHOICES`), the same
  for all of its nodes; regions in regions keep nothing. More ways for a region
  leave fewer labels to each cut of a long chain.
- A region lies within one graph: it does not go on beyond the end of a nested
  model that it began in.
- A layer that is a row of blocks, or recurrent, is one node. It runs plain, in
  a region, or divided as a rule of its own says (see `ways.py`), but not
  divided within a region.
"""

import bisect
import functools

import numpy as np

from keras.src.remat import ways
from keras.src.remat.chain import Chain
from keras.src.remat.chain import Value
from keras.src.remat.frontier import FAR
from keras.src.remat.frontier import Frontier
from keras.src.remat.frontier import Spans
from keras.src.remat.frontier import allowed
from keras.src.remat.frontier import cost_per_flop
from keras.src.remat.nested import nested_kinds
from keras.src.remat.planned import Plan
from keras.src.remat.planned import Segment

__all__ = [
    "BudgetError",
    "Chain",
    "Plan",
    "Segment",
    "Value",
    "cheapest",
    "least_peak",
    "narrow_cuts",
    "tradeoff",
]

FLOOR_CUTS = 1024
CUTS = 192
LABELS = 192


class BudgetError(ValueError):
    """No plan fits the budget.

    Attributes:
        floor: Bytes of the lowest peak that can be reached.
    """

    def __init__(self, budget, floor):
        self.floor = floor
        super().__init__(
            "`budget` must be at least the lowest peak that recomputation "
            f"can reach, {floor} bytes. Received: budget={budget}. Use a "
            "smaller batch, or allow more levels."
        )


def narrow_cuts(chain, limit, always=(), weight=None):
    """Positions worth a cut: the narrowest one of each stretch.

    Args:
        chain: A `Chain`.
        limit: How many stretches. Shorter chains get every position.
        always: Positions to have in any case.
        weight: How densely to look at each node. Defaults to an even mix of
            node count and residual bytes.

    Returns:
        Increasing array, from 0 to `n`.
    """
    n = chain.n
    if n <= limit:
        return np.arange(n + 1)
    if weight is None:
        saved = np.diff(chain.saved_before)
        weight = 1 / n + saved / max(1, saved.sum())
    so_far = np.cumsum(weight)[:-1]
    stretch = (so_far * (limit / (so_far[-1] * (1 + 1e-9)))).astype(int)
    depth, ends = np.zeros(n - 1), []
    if chain.borders is not None:
        # A region from within a model can end only where that ends.
        depth, calls = chain.borders.depth[1:n], chain.borders.calls
        ends = [end for call in calls[-limit // 8 :] for end in call]
    order = np.lexsort((chain.crossing[1:n], depth, stretch))
    first = np.unique(stretch[order], return_index=True)[1]
    fixed = np.asarray([0, n, *always, *ends], int)
    return np.unique(np.concatenate([fixed, order[first] + 1]))


def _lowest(chain):
    """Cuts of least peak at one level, over many cuts."""
    cuts = narrow_cuts(chain, FLOOR_CUTS, ways.positions(chain))
    worst = np.full(len(cuts), -FAR, np.int64)
    first = [None] * len(cuts)
    for i in reversed(range(len(cuts) - 1)):
        span, rest = chain.spans(cuts[i], cuts[i + 1 :]), worst[i + 1 :]
        region = np.maximum(span["region"], span["keep"] + rest)
        region[~allowed(chain, cuts[i], cuts[i + 1 :])] = FAR
        plain = np.maximum(span["plain"], span["keep_plain"] + rest)
        both = np.minimum(region, plain)
        if cuts[i] in chain.ways and cuts[i + 1] == cuts[i] + 1:
            for way in chain.ways[cuts[i]].values():
                span = ways.span_of(chain, int(cuts[i]), way)
                divided = max(span["plain"], span["keep_plain"] + rest[0])
                both[0] = min(both[0], divided)
        k = int(both.argmin())
        worst[i], first[i] = both[k], i + 1 + k
    found = [0]
    while found[-1] < len(cuts) - 1:
        found.append(first[found[-1]])
    return np.union1d(cuts[found], ways.positions(chain)).astype(int)


def _frontier(chain, cuts, levels, share=1):
    spans = Spans(chain, cuts)
    kinds = [spans.plain()]
    if levels > 0:
        kinds += [spans.region(), *nested_kinds(spans, levels)]
        kinds += [spans.divided(chain, s) for s in ways.shares(chain)]
        kinds += spans.choices
    labels = LABELS * CUTS**2 // len(cuts) ** 2
    labels = min(max(labels, LABELS), 4096) * 2 // max(2, len(kinds))
    return Frontier(kinds, labels // share)


def _borders(segments):
    found = set()
    for segment in segments:
        found |= {segment.start, segment.stop} | _borders(segment.inner)
    return found


def _closer_cuts(chain, cuts, frontier):
    """Other places, around those where points of the curve have cuts."""
    points = np.linspace(0, len(frontier.peaks) - 1, 5).astype(int)
    lowest = _borders(frontier.segments(0)).union(ways.positions(chain))
    used = set().union(*(_borders(frontier.segments(p)) for p in points))
    weight = np.full(chain.n, 1e-9)
    for i in np.searchsorted(cuts, sorted(used)):
        weight[cuts[max(0, i - 1)] : cuts[min(len(cuts) - 1, i + 1)]] = 1
    room = max(CUTS - len(lowest), CUTS // 2)
    return narrow_cuts(chain, room, sorted(lowest), weight)


@functools.lru_cache(maxsize=4)
def _frontiers(chain, levels):
    if chain.n < CUTS:
        found = [_frontier(chain, np.arange(chain.n + 1), levels)]
    else:
        always = _lowest(chain) if levels == 1 else ways.positions(chain)
        room = max(CUTS - len(always), CUTS // 2)
        cuts = narrow_cuts(chain, room, always)
        found = [_frontier(chain, cuts, levels, share=4)]
        cuts = _closer_cuts(chain, cuts, found[0])
        found.append(_frontier(chain, cuts, levels))
    # What fewer levels can do, so that more are never worse.
    return found + (_frontiers(chain, levels - 1) if levels > 1 else [])


@functools.lru_cache(maxsize=4)
def _curve(chain, levels):
    """Lists of peaks, rising, and of functions that make their segments.

    Costs fall. Of plans with the same arithmetic only the lowest is there.
    """
    frontiers = _frontiers(chain, levels)
    points = sorted(
        (int(peak), int(cost), i, label)
        for i, f in enumerate(frontiers)
        for label, (peak, cost) in enumerate(zip(f.peaks, f.costs))
    )
    per_flop = cost_per_flop(chain)
    peaks, makers, least = [], [], None
    for peak, cost, i, label in points:
        if least is None or cost // per_flop < least:
            least = cost // per_flop
            peaks.append(peak)
            makers.append(functools.partial(frontiers[i].segments, label))
    return peaks, makers


def _check_levels(levels, name):
    if isinstance(levels, bool) or not isinstance(levels, int) or levels < 0:
        raise ValueError(
            f"`{name}` must be an integer, at least 0. Received: {levels}"
        )


def least_peak(chain, levels=1):
    """The plan of least peak; of those, the one of least extra arithmetic.

    Args:
        chain: A `Chain`.
        levels: How often a node may run again. With more than 1, regions are
            cut inside again: exact for the peak over the cuts looked at,
            except that inner parts are never plain but for the last one.
            Defaults to 1.

    Returns:
        A `Plan`.
    """
    _check_levels(levels, "levels")
    _, makers = _curve(chain, levels)
    return chain.plan(makers[0]())


def cheapest(chain, budget, max_levels=2):
    """The plan of least extra arithmetic whose peak is within the budget.

    Of several, the one of lowest peak, then of fewest regions. A greater
    budget never costs more. Nested regions are in it where they make the
    plan cheaper, or possible.

    Args:
        chain: A `Chain`.
        budget: Bytes; a number.
        max_levels: How often a node may run again. Defaults to 2.

    Returns:
        A `Plan`.

    Raises:
        BudgetError: If no plan fits; it tells the lowest reachable peak.
    """
    _check_levels(max_levels, "max_levels")
    peaks, makers = _curve(chain, max_levels)
    at = bisect.bisect_right(peaks, budget) - 1
    if at < 0:
        raise BudgetError(budget, peaks[0])
    return chain.plan(makers[at]())


def tradeoff(chain, points=12, max_levels=2):
    """Plans from the least peak to the plain run, for a plot.

    Args:
        chain: A `Chain`.
        points: How many budgets to try, evenly spaced. Defaults to 12.
        max_levels: As in `cheapest`.

    Returns:
        List of `(peak, extra_flops, plan)`, peaks rising, flops falling.
    """
    _check_levels(max_levels, "max_levels")
    peaks, makers = _curve(chain, max_levels)
    budgets = np.linspace(peaks[0], peaks[-1], points)
    at = {bisect.bisect_right(peaks, b) - 1 for b in budgets}
    at |= {0, len(peaks) - 1}
    plans = [chain.plan(makers[i]()) for i in sorted(at - {-1})]
    return [(p.peak, p.extra_flops, p) for p in plans]
