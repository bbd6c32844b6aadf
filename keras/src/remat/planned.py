"""The result of planning: segments of a chain, and what they will cost."""

import collections


class Segment(
    collections.namedtuple(
        "Segment", ["start", "stop", "remat", "inner"], defaults=[()]
    )
):
    """Nodes `start` to `stop - 1`, run as one.

    Args:
        start: First node.
        stop: Node after the last.
        remat: `True` for a region, `False` for a plain part.
        inner: The segments its second run is made of; empty for all at once.
    """

    __slots__ = ()

    @property
    def parts(self):
        """What the second run of a region is made of."""
        return self.inner or (self._replace(remat=False),)

    def get_config(self):
        inner = [s.get_config() for s in self.inner]
        return [self.start, self.stop, self.remat, inner]

    @classmethod
    def from_config(cls, config):
        start, stop, remat, inner = config
        inner = tuple(cls.from_config(c) for c in inner)
        return cls(int(start), int(stop), bool(remat), inner)


def depth(segments):
    """How often a node runs again at most: the depth of nesting."""
    return max(
        (1 + depth(s.inner) if s.remat else 0 for s in segments), default=0
    )


class Plan(
    collections.namedtuple(
        "Plan", ["segments", "peak", "extra_flops", "levels"]
    )
):
    """The regions chosen for one chain, and what they are predicted to cost.

    Args:
        segments: Tuple of `Segment`, which together cover all nodes.
        peak: Bytes at the worst moment.
        extra_flops: Arithmetic of all second runs.
        levels: Depth of nesting; 0 for a plain run.
    """

    __slots__ = ()

    def get_config(self):
        return {
            "segments": [s.get_config() for s in self.segments],
            "peak": self.peak,
            "extra_flops": self.extra_flops,
            "levels": self.levels,
        }

    @classmethod
    def from_config(cls, config):
        segments = tuple(Segment.from_config(c) for c in config["segments"])
        return cls(**{**config, "segments": segments})
