"""Regions inside regions: less memory for one more run per level.

The second run of a region `[a, b)` may itself be cut: a sequence of inner
regions, the last of them plain, as its backward follows at once. Let
`second[c, d]` be the need of one inner region's own second run. The least
need of the part from c to b is, over the first inner cut d,

    rest[c, b] = min(unit[c, b],
                     max(forward[c, d] + arriving[b], second[c, d],
                         keep[c, d] + rest[d, b]))

which is exact for such sequences over the given cuts, without any search
over budgets: cubic in the number of cuts, as whole-array operations. More
levels take `rest` as the next `second`.

Heuristic is the choice of what to offer to the planner: for each pair of
cuts, the inner cuts of least need, and the best single inner cut. Inner
plain parts other than the last are not tried, nor are the inner cuts
that would just do for a given budget.
"""

import numpy as np

from keras.src.remat.frontier import FAR
from keras.src.remat.frontier import Kind
from keras.src.remat.planned import Segment


class Second:
    """How the second run of each pair of cuts goes best.

    Args:
        spans: A `Spans`.
        inside: A `Second` for the inner regions. Defaults to `None`: these
            run again in one piece.
        once: Whether to cut but once.
    """

    def __init__(self, spans, inside=None, once=False):
        self.spans, self.inside = spans, inside
        table, m = spans.table, len(spans.cuts)
        second = table["again"] if inside is None else inside.need
        self.second = np.where(spans.allowed, second, FAR)
        self.flops = spans.cost if inside is None else inside.total
        self.whole = table["again"]
        self.need = self.whole.copy()
        self.cost = np.where(self.whole < FAR, 0, FAR)
        self.cut = np.tile(np.arange(m), (m, 1))
        for c in reversed(range(m - 2)):
            self._first_cut(c, self.whole if once else self.need)
        # Of the region as a whole: once for itself, once for its inner ones.
        self.total = np.minimum(spans.cost + self.cost, FAR)

    def _first_cut(self, c, rest):
        table = self.spans.table
        block = (slice(c + 1, -1), slice(c + 2, None))
        first = slice(c + 1, -1)
        need = np.maximum(
            np.maximum(
                table["forward"][c, first, None]
                + self.spans.arriving[first, c + 2 :],
                self.second[c, first, None],
            ),
            table["keep"][c, first, None] + rest[block],
        )
        best = need.argmin(axis=0)
        stops = np.arange(len(best))
        better = need[best, stops] < self.need[c, c + 2 :]
        at, to = best[better] + c + 1, stops[better] + c + 2
        self.need[c, to] = need[best, stops][better]
        more = 0 if rest is self.whole else self.cost[at, to]
        self.cost[c, to] = self.flops[c, at] + more
        self.cut[c, to] = at

    def segments(self, a, b, once):
        found, cuts = [], self.spans.cuts
        while self.cut[a, b] != b and not (once and found):
            d = self.cut[a, b]
            inner = ()
            if self.inside is not None:
                inner = self.inside.segments(a, d, False)
            found.append(Segment(int(cuts[a]), int(cuts[d]), True, inner))
            a = d
        if not found:
            return ()
        return (*found, Segment(int(cuts[a]), int(cuts[b]), False))


def nested_kinds(spans, levels):
    """Kinds of regions with `levels` runs, inner ones at all lower levels."""
    kinds, inside = [], None
    if levels > 1:
        kinds.append(_kind(spans, Second(spans, once=True), True))
    for _ in range(levels - 1):
        inside = Second(spans, inside)
        kinds.append(_kind(spans, inside, False))
    return kinds


def _kind(spans, second, once):
    def segment(a, b):
        start, stop = int(spans.cuts[a]), int(spans.cuts[b])
        return Segment(start, stop, True, second.segments(a, b, once))

    need = np.maximum(spans.table["first"], second.need)
    need = np.where(spans.allowed, need, FAR)
    return Kind(need, spans.table["keep"], second.total, segment)
