"""All trade-offs of peak against arithmetic that a chain offers, at once.

Runs from the end of the chain to its start. A label at a cut says: the rest
can run with this worst moment over what was kept before, at this cost. Going
one segment back,

    worst' = max(need of the segment, what it keeps + worst)
    cost'  = cost of the segment + cost

and of these only those that no other beats in both are worth keeping. The
labels that reach node 0 are the whole curve, for every budget; so what is
chosen from it is monotone in the budget by construction.

Exact over the given cuts and kinds of segments while no cut has more than
`limit` labels. Beyond, labels are thinned out evenly over the range of
`worst`; the one of least worst moment, and the plain one, always stay.
"""

import collections

import numpy as np

from keras.src.remat import ways
from keras.src.remat.planned import Segment

# Greater than any bytes or cost, and small enough to be added up.
FAR = 1 << 60

# One way to run the nodes between two cuts: matrices over pairs of cuts, and
# a function from a pair to a `Segment`.
Kind = collections.namedtuple("Kind", ["need", "keep", "cost", "segment"])


def cost_per_flop(chain):
    """More than all regions of a plan can cost by their number."""
    return 4 * (chain.n + 1)


class Spans:
    """What `Chain.spans` says, for all pairs of candidate cuts.

    Args:
        chain: A `Chain`.
        cuts: Increasing array of positions from 0 to `n`.
    """

    def __init__(self, chain, cuts):
        self.cuts = np.asarray(cuts)
        between = chain.constants[self.cuts]
        between = between[None, :] - between[:, None]
        # At each cut of a region, what arrived at each end that it may have.
        self.arriving = chain.arriving[self.cuts] + between
        rows = [
            chain.spans(c, self.cuts[i + 1 :])
            for i, c in enumerate(self.cuts[:-1])
        ]
        self.table = {name: self._square(rows, name) for name in rows[0]}
        self.allowed = np.stack(
            [allowed(chain, c, self.cuts) for c in self.cuts]
        )
        self.cost = self._cost(chain)
        self.free = np.zeros_like(self.cost)
        self.choices = [
            self._choice(chain, word) for word in chain.kept if word is not None
        ]

    def _choice(self, chain, word):
        """Regions that keep what `word` says."""
        rows = [
            chain.spans(c, self.cuts[i + 1 :], word)
            for i, c in enumerate(self.cuts[:-1])
        ]
        return self._regions(
            self._square(rows, "region"),
            self._square(rows, "keep"),
            self._cost(chain, word),
            word,
        )

    def _cost(self, chain, word=None):
        # A region adds one to its flops, so that fewer of them win a tie.
        per_flop = cost_per_flop(chain)
        most = int(chain.flops_before[-1]) * per_flop
        # Above 1, flops are rounded.
        self.unit = unit = 1 + most // (FAR >> 3)
        before = chain.kept[word].again_before[self.cuts]
        flops = (before[None, :] - before[:, None]) // unit
        upper = np.triu(np.ones(flops.shape, bool), 1)
        return np.where(upper, flops * per_flop + 1, FAR)

    def _square(self, rows, name):
        m = len(self.cuts)
        table = np.full((m, m), FAR, np.int64)
        for i, row in enumerate(rows):
            table[i, i + 1 :] = row[name]
        return table

    def plain(self):
        table = self.table

        def segment(a, b):
            return Segment(int(self.cuts[a]), int(self.cuts[b]), False)

        return Kind(table["plain"], table["keep_plain"], self.free, segment)

    def region(self):
        table = self.table
        return self._regions(table["region"], table["keep"], self.cost)

    def _regions(self, need, keep, cost, word=None):
        def segment(a, b):
            start, stop = int(self.cuts[a]), int(self.cuts[b])
            return Segment(start, stop, True, keep=word)

        return Kind(np.where(self.allowed, need, FAR), keep, cost, segment)

    def divided(self, chain, share):
        """Single nodes of whose own parts a share runs again."""
        need, keep, cost = (np.full_like(self.cost, FAR) for _ in range(3))
        for a, (node, stop) in enumerate(zip(self.cuts, self.cuts[1:])):
            if share in chain.ways.get(node, ()) and stop == node + 1:
                way = chain.ways[node][share]
                span = ways.span_of(chain, int(node), way)
                flops = way.flops // self.unit
                need[a, a + 1] = span["plain"]
                keep[a, a + 1] = span["keep_plain"]
                cost[a, a + 1] = flops * cost_per_flop(chain) + 1

        def segment(a, b):
            start = int(self.cuts[a])
            return Segment(start, start + 1, False, (), share)

        return Kind(need, keep, cost, segment)


def allowed(chain, start, stops):
    """Whether there may be a region from `start` to each of `stops`."""
    if chain.borders is None:
        return np.ones(len(stops), bool)
    return chain.borders.allow(start, stops)


def pareto(worst, cost, limit):
    """Indices of the labels no other beats, by rising `worst`.

    Equal ones count once. More than `limit` are thinned out.
    """
    near = _not_far_off(worst, cost, limit)
    order = near[np.lexsort((cost[near], worst[near]))]
    cost = cost[order]
    before = np.minimum.accumulate(cost)
    order = order[np.concatenate([[True], cost[1:] < before[:-1]])]
    if len(order) <= limit:
        return order
    place = _place(worst[order], limit - 1)
    last_of_part = np.flatnonzero(np.append(place[1:] != place[:-1], True))
    return order[np.union1d([0], last_of_part)]


def _place(numbers, count):
    """Which of `count` equal parts of its range each number is in."""
    low, high = int(numbers.min()), int(numbers.max())
    return ((numbers - low) * (count / (high - low + 1))).astype(np.int64)


def _not_far_off(worst, cost, limit):
    """Drops most beaten labels without sorting."""
    if len(worst) < 8 * limit:
        return np.arange(len(worst))
    place = _place(worst, 4 * limit)
    best = np.full(4 * limit + 1, FAR * 4, np.int64)
    np.minimum.at(best, place + 1, cost)
    return np.flatnonzero(cost < np.minimum.accumulate(best)[place])


class Frontier:
    """The curve of peak against cost over the given kinds of segments.

    Args:
        kinds: List of `Kind`, all over the same cuts.
        limit: Labels to keep at each cut.

    Attributes:
        peaks: Increasing array of bytes.
        costs: Decreasing array.
        cells: Number of labels looked at.
        is_exact: Whether no label had to be thinned out.
    """

    def __init__(self, kinds, limit):
        self.kinds, self.limit = kinds, limit
        m = len(kinds[0].need)
        self.worst = np.full((m, limit), FAR, np.int64)
        self.cost = np.full((m, limit), FAR, np.int64)
        self.links = np.zeros((m, limit, 3), np.int32)
        self.count = np.zeros(m, np.int64)
        self.worst[-1, 0], self.cost[-1, 0] = -FAR, 0  # Nothing is left.
        self.count[-1] = 1
        self.cells, self.is_exact = 0, True
        for a in reversed(range(m - 1)):
            self._go_back_to(a)
        self.peaks = self.worst[0, : self.count[0]]
        self.costs = self.cost[0, : self.count[0]]

    def _go_back_to(self, a):
        width = int(self.count[a + 1 :].max())
        # Longest first: of equals the first wins, so plain parts are merged.
        stops = slice(None, a, -1)
        later_worst = self.worst[stops, :width]
        later_cost = self.cost[stops, :width]
        worst = np.stack(
            [
                np.maximum(
                    k.need[a, stops, None],
                    k.keep[a, stops, None] + later_worst,
                )
                for k in self.kinds
            ]
        )
        cost = np.stack(
            [k.cost[a, stops, None] + later_cost for k in self.kinds]
        )
        shape = worst.shape
        # The plain rest costs nothing, so what is worse is beaten.
        there = np.flatnonzero(worst <= self.kinds[0].need[a, -1])
        worst, cost = worst.ravel()[there], cost.ravel()[there]
        best = pareto(worst, cost, self.limit)
        self._keep(a, worst[best], cost[best], there[best], shape)
        self.cells += len(there)

    def _keep(self, a, worst, cost, where, shape):
        count = self.count[a] = len(where)
        self.is_exact &= bool(count < self.limit)
        self.worst[a, :count], self.cost[a, :count] = worst, cost
        kind, stop, label = np.unravel_index(where, shape)
        stop = len(self.count) - 1 - stop
        self.links[a, :count] = np.stack([kind, stop, label], -1)

    def segments(self, label):
        """The segments of one point of the curve."""
        found, a, last = [], 0, len(self.count) - 1
        while a < last:
            kind, b, label = self.links[a, label]
            found.append(self.kinds[kind].segment(a, b))
            a = b
        return tuple(found)
