"""What regions keep beside their inputs, as sums over the nodes of a chain.

A plan has one policy, but under a memory budget the planner may choose for
each region what it keeps: nothing, or the words of `CHOICES`. More bytes then
stand against less arithmetic.
"""

import collections

import numpy as np

CHOICES = ("matmuls", "matmuls_no_batch")

Keeping = collections.namedtuple("Keeping", ["bytes", "flops", "last"])
Keeping.__doc__ = """What each node of a chain keeps where it runs again.

Args:
    bytes: Size of the results that it keeps.
    flops: Arithmetic that these spare.
    last: Share of `bytes` that counts if the second run ends in this node: it
        ends where the last residual is made, and results that come after
        that are not held. `None` for a node that makes no residuals.
"""


class KeptSums:
    """What one policy keeps.

    Args:
        flops: Array of the arithmetic of each node.
        keeping: A `Keeping`, or `None` if nothing is kept.

    Attributes:
        again_before: Arithmetic of a second run of the nodes before each
            position.
        before: Bytes kept of the nodes before each position.
        at_end: The same where a region ends at each position.
    """

    def __init__(self, flops, keeping):
        zeros = np.zeros(len(flops), np.int64)
        kept, spared, last = keeping or (zeros, zeros, zeros)
        self.bytes = np.asarray(kept, np.int64)
        self.again_before = prefix(np.asarray(flops, np.int64) - spared)
        self.before = before = prefix(self.bytes)
        ends = np.array(
            [0 if k is None else before[i] + k for i, k in enumerate(last)],
            np.int64,
        )
        self.at_end = np.concatenate([[0], np.maximum.accumulate(ends)])

    def in_region(self, start, stops):
        """Bytes that regions from `start` to each of `stops` keep."""
        return np.maximum(0, self.at_end[stops] - self.before[start])

    def by_node(self, start, stop):
        """Bytes that each node of a region keeps."""
        room = self.at_end[stop] - self.before[start:stop]
        return np.clip(room, 0, self.bytes[start:stop])


def prefix(numbers):
    """Sums before each position, one longer than `numbers`."""
    return np.concatenate([[0], np.cumsum(numbers, dtype=np.int64)])
