"""What a plan of regions costs in memory and arithmetic, from numbers alone.

A training step runs nodes 0 to n - 1, then their backward runs in reverse.
The model of memory, in bytes, at every moment:

- *kept*: a region keeps its live-outs (values it makes that something after
  it uses); a plain segment keeps its residuals, and those live-outs which
  are not among them. What comes from before is kept by who made it.
- *forward* at node i: kept before the segment, what the segment holds so
  far, scratch of i.
- *backward of a plain segment* at node i: kept before the segment, its
  residuals up to i (later ones are freed), cotangents that pass by i, the
  weight gradients made so far, scratch of i.
- *backward of a region*: kept before it, then, while it runs again, what a
  plain forward run of it holds, and the gradients and cotangents that
  arrived at its end. While it goes back it is one unit, as engines may
  treat it: all its residuals and all its gradients at once. That errs on the
  high side, by at most the gradients of one region.
- *loss*: kept at the end, and what the loss needs.
- *a region in regions*: its second run keeps as a forward run of its
  inner segments does, on top of what arrived at its end.

Weights, optimizer slots and graph inputs are there whatever the plan is, so
they are not counted: take them off the budget. A gradient stays from the
backward run of its node to the end, unless the engine updates the weight at
once. What a compiled step holds beyond residuals (copies of weights in another
layout, less what it makes again by itself: `beyond`) is there as they are.
What it makes before all else (*constants*) is there until the node that reads
it has run, and in a region until that has run back.

Every moment of a segment is "kept before it" plus a number that depends on
the segment alone (`need`). All algorithms of `planner.py` rest on that.
"""

import collections

import numpy as np

from keras.src.remat import ways
from keras.src.remat.kept import KeptSums
from keras.src.remat.kept import prefix as _prefix
from keras.src.remat.planned import Plan
from keras.src.remat.planned import Segment
from keras.src.remat.planned import depth
from keras.src.remat.spans import spans_of
from keras.src.remat.timeline import timeline

Value = collections.namedtuple(
    "Value", ["producer", "bytes", "consumers", "is_saved"], defaults=[True]
)
Value.__doc__ = """A value of the graph.

Args:
    producer: Node that makes it, or -1 for a graph input.
    bytes: Its size.
    consumers: Sorted nodes that use it; `n` stands for a graph output.
    is_saved: Whether `saved[producer]` contains it.
"""


def _check_lengths(n, **fields):
    for name, numbers in fields.items():
        if numbers is not None and len(numbers) != n:
            raise ValueError(
                f"`{name}` must have one number per node, as `saved`. "
                f"Received: len({name})={len(numbers)}, len(saved)={n}"
            )


class Chain:
    """A graph in a fixed order, as the planner sees it.

    Args:
        saved: Bytes of residuals which each node adds in a plain run.
        values: List of `Value`, or tuples of the same fields.
        flops: Forward arithmetic of each node.
        grads: Bytes of weight gradients of each node. Defaults to zeros.
        scratch: Bytes each node needs only while it, or its backward, runs,
            its outputs and their cotangents included. Defaults to zeros.
        constants: Bytes for each node that are there from the begin of a
            step. Defaults to zeros.
        beyond: Bytes that the engine holds with the residuals of each node;
            negative where it holds less. Defaults to zeros.
        loss: Bytes that the loss and its gradient need between the forward
            and the backward run. Defaults to `0`.
        keeping: A `Keeping`: what a policy keeps. Defaults to `None`.
        choices: Dict from words to `Keeping`: what a region may keep instead.
            Defaults to `None`, no choice.
        kept_stays: Whether what a region kept is there until its backward run
            ends, and not only until the second run has used it. Defaults to
            `False`.
    """

    def __init__(
        self,
        saved,
        values,
        flops,
        grads=None,
        scratch=None,
        constants=None,
        beyond=None,
        loss=0,
        keeping=None,
        choices=None,
        kept_stays=False,
    ):
        n = self.n = len(saved)
        given = {"grads": grads, "scratch": scratch, "beyond": beyond}
        _check_lengths(n, flops=flops, constants=constants, **given)
        zeros = np.zeros(n, np.int64)
        self.flops = np.asarray(flops, np.int64)
        self.scratch = np.asarray(zeros if scratch is None else scratch)
        self.scratch = self.scratch.astype(np.int64)
        self.saved_before = _prefix(saved)
        self.held_before = self.saved_before
        if beyond is not None:
            self.held_before = self.saved_before + _prefix(beyond)
        self.flops_before = _prefix(self.flops)
        self.constants = _prefix(zeros if constants is None else constants)
        made = _prefix(zeros if grads is None else grads)
        self.grads_after = made[-1] - made  # Made once the backward is at i.
        self.loss = int(loss)
        self.kept_stays = kept_stays
        # By what the segments of a plan say that they keep.
        self.kept = {
            word: KeptSums(self.flops, k)
            for word, k in [(None, keeping), *(choices or {}).items()]
        }
        self.borders = None  # The `Borders` of `units.py`, if there are any.
        self.ways = {}  # Of nodes that can be divided, see `ways.py`.
        self._set_values([Value(*v) for v in values])

    def _set_values(self, values):
        kept = [v for v in values if v.producer >= 0 and len(v.consumers)]
        kept.sort(key=lambda v: v.producer)
        self.producer = np.array([v.producer for v in kept], np.int64)
        self.last = np.array([v.consumers[-1] for v in kept], np.int64)
        self.size = np.array([v.bytes for v in kept], np.int64)
        unsaved = np.array([not v.is_saved for v in kept], bool)
        self.unsaved_size = np.where(unsaved, self.size, 0)
        bad = (self.last <= self.producer) | (self.last > self.n)
        if bad.any():
            raise ValueError(
                "Every value must be used after it is made, and not after "
                f"the end. Received: {kept[int(bad.argmax())]}"
            )
        self.crossing = self.held_from(0, self.size)
        ending = np.zeros(self.n + 1, np.int64)
        np.add.at(ending, self.last, self.size)
        # Cotangents that wait while the backward of i runs; those of its
        # own outputs are scratch.
        self.passing = (self.crossing - ending)[: self.n]
        # What is there when the backward arrives at a cut.
        self.arriving = self.grads_after + self.crossing

    def held_from(self, start, size):
        """Bytes of values made in `[start, i)`, used at `i` or later.

        Returns:
            Array for `i` from `start` to `n`. Also what a region
            `[start, i)` keeps.
        """
        first = np.searchsorted(self.producer, start)
        change = np.zeros(self.n + 2 - start, np.int64)
        np.add.at(change, self.producer[first:] + 1 - start, size[first:])
        np.subtract.at(change, self.last[first:] + 1 - start, size[first:])
        return np.cumsum(change)[:-1]

    def spans(self, start, stops=None, keep=None):
        """Everything about segments that begin at `start`.

        Args:
            start: First node.
            stops: Array of increasing ends. Defaults to all.
            keep: What regions keep, a key of `kept`. Defaults to `None`.

        Returns:
            Dict of arrays over `stops`. Bytes that stay: `keep` of a region,
            `keep_plain`. Worst moments: `forward` of a run whose residuals
            are dropped, `run` of one that keeps them; `plain` of a plain
            segment; `unit` of a backward in one piece, `again` of that and
            the second run before it; `first` of a region's first run with the
            loss where it is the last, `region` of all of a region.
        """
        start = int(start)
        if stops is None:
            stops = np.arange(start + 1, self.n + 1)
        return spans_of(self, start, stops, keep)

    def span(self, segment):
        way = ways.chosen(self, segment)
        if way is not None:
            return ways.span_of(self, segment.start, way)
        stops = np.array([segment.stop])
        spans = self.spans(segment.start, stops, segment.keep)
        return {k: int(v[0]) for k, v in spans.items()}

    def _need(self, segment):
        """Worst moment of a segment, over what was kept before it."""
        span = self.span(segment)
        if not segment.remat:
            return span["plain"]
        return max(span["first"], self._second_run(segment))

    def _second_run(self, segment):
        worst = 0
        for part, kept in self.kept_before(segment.parts):
            span = self.span(part)
            whole = "again_run" if segment.inner else "giving"
            run = span["forward" if part.remat else whole]
            run += self.arriving_in(part.stop, segment.stop)
            back = self._second_run(part) if part.remat else span["unit"]
            worst = max(worst, kept + max(back, run))
        return worst

    def arriving_in(self, place, stop):
        """Bytes that arrived at the end of a region, while `place` is reached.

        Constants of what comes between are there too.
        """
        between = self.constants[stop] - self.constants[place]
        return int(self.arriving[stop] + between)

    def kept_before(self, segments):
        """Pairs of a segment and the bytes kept before it."""
        kept = 0
        for segment in segments:
            yield segment, kept
            span = self.span(segment)
            kept += span["keep" if segment.remat else "keep_plain"]

    def peak(self, segments):
        """Bytes at the worst moment of a plan, or of a tuple of segments."""
        segments = getattr(segments, "segments", segments)
        before = self.kept_before(segments)
        return max((k + self._need(s) for s, k in before), default=0)

    def plain_peak(self):
        """Bytes at the worst moment without any region."""
        return self.peak((Segment(0, self.n, False),))

    def extra_flops(self, segments):
        """Arithmetic of all second (and third...) runs."""
        segments, extra = getattr(segments, "segments", segments), 0
        for s in segments:
            again = self.kept[s.keep].again_before
            if s.remat:
                extra += int(again[s.stop] - again[s.start])
                extra += self.extra_flops(s.inner)
            elif ways.chosen(self, s):
                extra += ways.chosen(self, s).flops
        return extra

    def plan(self, segments):
        """Completes segments to a `Plan` with its predictions."""
        segments = tuple(segments)
        costs = self.peak(segments), self.extra_flops(segments)
        return Plan(segments, *costs, depth(segments))

    def timeline(self, segments):
        """Bytes in memory, moment by moment, for a plot.

        Args:
            segments: A `Plan`, or a tuple of segments.

        Returns:
            List of `(label, bytes)`, labels being `"forward i"`, `"loss"`,
            `"again i"` (a second run) and `"backward i"`. Its maximum is the
            peak.
        """
        return timeline(self, getattr(segments, "segments", segments))
