"""What regions keep by a policy, and what then need not run again.

Each engine's trace lists the values that an operation makes, with what each of
them is made of. From that follows, for any policy, which of them a region
would hold: those that the policy keeps and that the second run gets to, going
back from what it must make, and not beyond a kept value.

A node is looked at by itself. That its result is not needed, because nothing
after it reads it, is not seen.
"""

import collections

from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat.kept import CHOICES
from keras.src.remat.kept import Keeping

Made = collections.namedtuple(
    "Made",
    ["op", "has_batch", "names", "shape", "dtype", "bytes", "flops", "reads"],
)
Made.__doc__ = """A value that an operation makes.

Args:
    op: What made it, as `RematPolicy.keeps` takes it; `None` for what can
        be kept by its names only.
    has_batch: As `RematPolicy.keeps` takes it.
    names: Tuple of the names that it has.
    shape: Tuple of integers.
    dtype: String.
    bytes: Its size.
    flops: Arithmetic that makes it.
    reads: Tuple of the numbers of the values it is made of; -1 for others.
"""

Trace = collections.namedtuple("Trace", ["values", "residuals", "outputs"])
Trace.__doc__ = """The values of one operation.

Args:
    values: List of `Made`.
    residuals: Numbers of those that its backward pass reads.
    outputs: Numbers of those that it returns.
"""


def keeping(costs, policy):
    """What each node keeps in a region with this policy.

    Args:
        costs: List of `NodeCost`.
        policy: A `RematPolicy`.

    Returns:
        A `Keeping`, or `None` if nothing is kept.
    """
    if not policy.keeps_something():
        return None
    found = [kept_by_node(cost, policy) for cost in costs]
    sizes, flops, last = zip(*found) if found else ((), (), ())
    return Keeping(sizes, flops, last) if any(sizes) else None


def choices(costs):
    """What the planner may let each region keep.

    Args:
        costs: List of `NodeCost`.

    Returns:
        Dict from words of `RematPolicy(keep=...)` to `Keeping`; without those
        that keep nothing, or the same as one before.
    """
    found = {}
    for word in CHOICES:
        kept = keeping(costs, RematPolicy(keep=word))
        if kept is not None and kept not in found.values():
            found[word] = kept
    return found


def kept_by_node(cost, policy):
    """One node's part of a `Keeping`."""
    size = flops = last = 0
    keeps = cached_rule(policy)
    for trace in cost.made:
        kept, again = reached(trace, trace.residuals + trace.outputs, keeps)
        if kept:
            size += sum(v.bytes for v in kept)
            flops += sum(v.flops for v in trace.values) - again
        kept, _ = reached(trace, trace.residuals, keeps)
        last += sum(v.bytes for v in kept)
    return size, flops, last if makes_residuals(cost) else None


def makes_residuals(cost):
    found = cost.saved_internal, cost.saves_outputs, cost.saves_inputs
    return any(found)


def cached_rule(policy):
    known = {}

    def keeps(value):
        key = value[:5]
        if key not in known:
            spec = lambda: (value.shape, value.dtype)
            known[key] = policy.keeps_value(*value[:3], spec)
        return known[key]

    return keeps


def reached(trace, ends, keeps):
    """The kept values that some results need, and what else runs again.

    Args:
        trace: A `Trace`.
        ends: Numbers of the results.
        keeps: Says of a `Made` whether it is kept.

    Returns:
        Tuple of a list of `Made` and a number of arithmetic operations.
    """
    waiting, seen = list(ends), {-1}
    kept, again = [], 0
    while waiting:
        i = waiting.pop()
        if i in seen:
            continue
        seen.add(i)
        value = trace.values[i]
        if keeps(value):
            kept.append(value)
        else:
            again += value.flops
            waiting += value.reads
    return kept, again


def kept_by_label(costs, policy):
    """What a region keeps by its policy.

    Args:
        costs: List of `NodeCost` of its nodes, in order.
        policy: Its `RematPolicy`.

    Returns:
        Dict from what tables call a value, see `RematPolicy.label`, to bytes.
    """
    before, found = collections.Counter(), collections.Counter()
    for cost in costs:
        whole, needed = collections.Counter(), collections.Counter()
        for trace in cost.made:
            add_labels(whole, trace, trace.residuals + trace.outputs, policy)
            add_labels(needed, trace, trace.residuals, policy)
        if makes_residuals(cost):
            found = before + needed
        before += whole
    return dict(found)


def add_labels(found, trace, ends, policy):
    for value in reached(trace, ends, cached_rule(policy))[0]:
        found[policy.label(value.op, value.names)] += value.bytes
