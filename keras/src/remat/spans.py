"""What segments of a chain need, over what was kept before them.

The memory model is that of `chain.py`; here it is arrays over all ends that
segments from one node may have.
"""

import numpy as np


def spans_of(chain, start, stops, keep):
    """See `Chain.spans`."""
    saved = chain.held_before[start:] - chain.held_before[start]
    held = chain.held_from(start, chain.size)
    held_unsaved = chain.held_from(start, chain.unsaved_size)
    by_policy = chain.kept[keep]
    so_far = by_policy.before[start + 1 :] - by_policy.before[start]
    kept = by_policy.in_region(start, stops)
    stays = kept * chain.kept_stays

    scratch, ends = chain.scratch[start:], stops - start
    constants = chain.constants[stops] - chain.constants[start]
    held_so_far = saved[1:] + held_unsaved[:-1] + scratch
    run = worst(held_so_far, ends)
    giving = held_while_giving(held_so_far, by_policy, start, stops)
    giving = np.maximum(np.maximum(run, giving), run + stays)
    back, at_once = backward(chain, start, stops, saved)
    unit = np.maximum(back, at_once) + stays + constants
    giving = giving + constants
    again = np.maximum(unit, giving + chain.arriving[stops])

    held_in_region = held[:-1] + so_far + scratch
    keep = held[ends] + kept + constants
    keep_plain = saved[ends] + held_unsaved[ends]
    constant = chain.constants[-1] - chain.constants
    first = worst(held_in_region + constant[start], ends)
    first = np.maximum(first, with_loss(chain, stops, keep))
    plain = worst(held_so_far + constant[start:-1], ends)
    plain = np.maximum(plain, with_loss(chain, stops, keep_plain))
    plain = np.maximum(plain, back)
    return {
        "keep": keep,
        "giving": giving,
        "keep_plain": keep_plain,
        "forward": worst(held_in_region, ends) + constants,
        "again_run": run + constants,
        "plain": plain,
        "unit": unit,
        "again": again,
        "first": first,
        "region": np.maximum(first, again),
    }


def worst(per_node, ends):
    """The most of what each node needs, up to each end."""
    return np.maximum.accumulate(per_node)[ends - 1]


def held_while_giving(held_so_far, by_policy, start, stops):
    """A second run: what was kept is there until it is given back."""
    before = by_policy.before[start:-1]
    return worst(held_so_far - before, stops - start) + by_policy.at_end[stops]


def backward(chain, start, stops, saved):
    """The worst moments of a backward that frees as it goes, and of one unit.

    Args:
        chain: A `Chain`.
        start: First node.
        stops: Array of ends.
        saved: Array of the residuals from `start` to each position.

    Returns:
        Pair of arrays.
    """
    ends, scratch = stops - start, chain.scratch[start:]
    made = chain.grads_after[start:-1]
    back = worst(saved[1:] + chain.passing[start:] + made + scratch, ends)
    at_once = saved[ends] + chain.grads_after[start] + worst(scratch, ends)
    return back, at_once + chain.crossing[stops]


def with_loss(chain, stops, kept):
    """What is there with the loss, of a segment that is the last one."""
    is_last = (stops == chain.n) & (chain.loss > 0)
    return np.where(is_last, kept + chain.loss, 0)
