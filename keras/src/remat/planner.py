"""Chooses regions: least memory, or least arithmetic within a budget."""

import numpy as np

from keras.src.remat.chain import Chain  # noqa: F401
from keras.src.remat.chain import Plan  # noqa: F401
from keras.src.remat.chain import Segment
from keras.src.remat.chain import Value  # noqa: F401


def least_peak(chain, levels=1):
    """The plan of least peak. First version: every cut is a candidate."""
    n = chain.n
    best = np.zeros(n + 1, np.int64)
    choice = [None] * n
    for a in reversed(range(n)):
        s = chain.spans(a)
        after = best[a + 1 :]
        region = np.maximum(s["forward"], s["again"])
        region = np.maximum(region, s["keep"] + after)
        plain = np.maximum(s["plain"], s["keep_plain"] + after)
        both = np.minimum(region, plain)
        k = int(both.argmin())
        best[a] = both[k]
        choice[a] = Segment(a, a + 1 + k, bool(region[k] < plain[k]))
    segments, at = [], 0
    while at < n:
        segments.append(choice[at])
        at = segments[-1].stop
    return chain.plan(segments)
