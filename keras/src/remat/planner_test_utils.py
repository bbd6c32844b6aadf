"""Chains for tests of the planner, and all plans of small ones."""

import itertools

from keras.src.remat.chain import Chain
from keras.src.remat.chain import Value
from keras.src.remat.kept import Keeping
from keras.src.remat.planned import Segment


def random_chain(n, rng):
    """A graph with skips, dead values, inputs, outputs; sizes at random."""
    saved = [rng.randint(0, 5) for _ in range(n)]
    values = []
    for i in range(-1, n):
        for _ in range(rng.choice([1, 1, 2])):
            uses = rng.randint(0, min(3, n - i))
            uses = sorted(rng.sample(range(i + 1, n + 1), uses))
            is_saved = i >= 0 and rng.random() < 0.6
            size = rng.randint(0, 9)
            if is_saved:
                saved[i] += size
            values.append((i, size, uses, is_saved))
    numbers = [[rng.randint(0, 6) for _ in range(n)] for _ in range(4)]
    constants = [rng.choice([0, 0, rng.randint(1, 6)]) for _ in range(n)]
    loss = rng.randint(0, 9)
    keeping = random_keeping(numbers[0], rng) if rng.random() < 0.5 else None
    # The more ways a region has, the shorter the chains brute force can do.
    words = ("some", "more")[: rng.randint(0, max(0, min(2, 6 - n)))]
    choices = {word: random_keeping(numbers[0], rng) for word in words}
    return Chain(
        saved,
        values,
        *numbers[:3],
        constants,
        beyond=numbers[3],
        loss=loss,
        keeping=keeping,
        choices=choices,
        kept_stays=rng.choice([False, True]),
    )


def random_keeping(flops, rng):
    """A policy's kept bytes; a node may make none, or none after residuals."""
    kept = [rng.choice([0, 0, rng.randint(1, 9)]) for _ in flops]
    spared = [rng.randint(0, f) if k else 0 for k, f in zip(kept, flops)]
    return Keeping(kept, spared, [rng.choice([None, 0, k]) for k in kept])


def splits(start, stop):
    """All ways to cut `[start, stop)`, as lists of pairs."""
    inside = range(start + 1, stop)
    for k in range(stop - start):
        for cuts in itertools.combinations(inside, k):
            cuts = [start, *cuts, stop]
            yield list(zip(cuts, cuts[1:]))


def regions(start, stop, levels, words=(None,)):
    """All regions over `[start, stop)`: inner ones, the last part plain."""
    for word in words:
        yield Segment(start, stop, True, keep=word)
    if levels > 1:
        for pairs in splits(start, stop):
            if len(pairs) > 1:
                last = Segment(*pairs[-1], False)
                inner = [list(regions(*p, levels - 1)) for p in pairs[:-1]]
                for parts in itertools.product(*inner):
                    yield Segment(start, stop, True, (*parts, last))


def all_plans(chain, levels=1):
    words = list(chain.kept)
    for pairs in splits(0, chain.n):
        ways = [
            [Segment(*p, False), *regions(*p, levels, words)] for p in pairs
        ]
        yield from itertools.product(*ways)


def measured(chain, segments):
    count = sum(s.remat for s in getattr(segments, "segments", segments))
    return chain.extra_flops(segments), chain.peak(segments), count


def uniform(n, size=10):
    values = [Value(i, size, [i + 1]) for i in range(n)]
    return Chain([size] * n, values, [1] * n)


def residual(blocks, width=5):
    """Blocks of `width` nodes; a skip goes around each."""
    n = blocks * width
    values = []
    for i in range(n):
        uses = [i + 1]
        if i % width == 0 and i + width < n:
            uses.append(i + width)
        values.append(Value(i, 100, uses))
    flops = [50 if i % 2 else 2 for i in range(n)]
    return Chain([100] * n, values, flops, [3] * n, [100] * n)


def blocks_of_products(blocks, choices=("dear",)):
    """Blocks of a dear product, and three cheap nodes that keep as much."""
    n = 4 * blocks
    values = [Value(i, 100, [i + 1]) for i in range(n)]
    flops = [1000 if i % 4 == 0 else 5 for i in range(n)]
    kept = [100 if i % 4 == 0 else 0 for i in range(n)]
    spared = [1000 if k else 0 for k in kept]
    keeping = Keeping(kept, spared, kept)
    return Chain(
        [100] * n, values, flops, choices=choices and {"dear": keeping}
    )


def dense(n):
    """Every node uses all earlier ones: no cut is narrow."""
    values = [Value(i, 10, list(range(i + 1, n + 1))) for i in range(n)]
    return Chain([10 + i for i in range(n)], values, [1 + i for i in range(n)])
