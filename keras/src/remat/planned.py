"""The result of planning: segments of a chain, and what they will cost."""

import collections


class Segment(
    collections.namedtuple(
        "Segment",
        ["start", "stop", "remat", "inner", "divided", "keep"],
        defaults=[(), 0, None],
    )
):
    """Nodes `start` to `stop - 1`, run as one.

    Args:
        start: First node.
        stop: Node after the last.
        remat: `True` for a region, `False` for a plain part.
        inner: The segments its second run is made of; empty for all at once.
        divided: If it is one node whose own parts are regions, the share of
            them that are, see `ways.py`; else 0.
        keep: Word for what a region keeps, if the planner chose that; `None`
            for what the policy of the plan says.
    """

    __slots__ = ()

    @property
    def parts(self):
        """What the second run of a region is made of."""
        return self.inner or (self._replace(remat=False),)

    def get_config(self):
        inner = [s.get_config() for s in self.inner]
        rest = [self.divided, self.keep]
        return [self.start, self.stop, self.remat, inner, *rest]

    @classmethod
    def from_config(cls, config):
        start, stop, remat, inner, *rest = config
        inner = tuple(cls.from_config(c) for c in inner)
        return cls(int(start), int(stop), bool(remat), inner, *rest)


def depth(segments):
    """How often a node runs again at most: the depth of nesting."""
    return max(
        (1 + depth(s.inner) if s.remat else bool(s.divided) for s in segments),
        default=0,
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


def runs_of(items, key):
    """Groups neighbours of equal key."""
    groups = []
    for item in items:
        k = key(item)
        if not groups or groups[-1][0] != k:
            groups.append((k, []))
        groups[-1][1].append(item)
    return groups


def shifted(s, by):
    inner = tuple(shifted(i, by) for i in s.inner)
    return s._replace(start=s.start + by, stop=s.stop + by, inner=inner)


def thin_out(planned, every):
    """Leaves only each `every`-th region one."""
    regions = [s for s in planned if s.remat]
    plain = {id(s) for i, s in enumerate(regions) if i % every}
    return [
        s._replace(remat=False, inner=(), keep=None) if id(s) in plain else s
        for s in planned
    ]
