"""The moments of a training step under a plan, node by node.

`chain.py` states the memory model and finds the worst moment in closed form;
this writes the moments out one by one, for plots and as a check on it.
"""

import numpy as np

from keras.src.remat import ways


def timeline(chain, segments):
    """List of `(label, bytes)` over forward and backward."""
    forward = _forward(chain, segments)
    return forward + _loss(chain, segments) + _backward(chain, segments, 0)


def _loss(chain, segments):
    if not chain.loss or not segments:
        return []
    last, kept = list(chain.kept_before(segments))[-1]
    start = last.start
    if last.remat:
        kept += chain.span(last)["keep"]
    elif ways.chosen(chain, last):
        kept += chain.span(last)["keep_plain"]
    else:
        kept += chain.held_from(start, chain.unsaved_size)[-1]
        kept += chain.held_before[-1] - chain.held_before[start]
    return [("loss", int(kept + chain.loss))]


def _forward(chain, segments):
    moments = []
    for segment, kept in chain.kept_before(segments):
        start = segment.start
        place = start if segment.remat else slice(start, segment.stop)
        constants = chain.constants[-1] - chain.constants[place]
        held = kept + _held_forward(chain, segment) + constants
        moments += _labelled("forward", segment, held)
    return moments


def _again(chain, region, base):
    moments = []
    for part, kept in chain.kept_before(region.parts):
        held = base + kept + _held_forward(chain, part)
        held = held + chain.arriving_in(part.start, region.stop)
        moments += _labelled("again", part, held)
    return moments


def _labelled(label, segment, held):
    nodes = range(segment.start, segment.stop)
    return [(f"{label} {i}", int(h)) for i, h in zip(nodes, held)]


def _held_forward(chain, segment):
    way = ways.chosen(chain, segment)
    if way:
        return np.array([way.saved + way.scratch])
    start, nodes = segment.start, slice(segment.start, segment.stop)
    if segment.remat:
        held = chain.held_from(start, chain.size)
        kept = chain.kept[segment.keep].before
        held[:-1] += kept[start + 1 :] - kept[start]
    else:
        held = chain.held_from(start, chain.unsaved_size)
    held = held[: segment.stop - start] + chain.scratch[nodes]
    return held if segment.remat else held + _saved(chain, segment)


def _saved(chain, segment):
    upto = chain.held_before[segment.start + 1 : segment.stop + 1]
    return upto - chain.held_before[segment.start]


def _backward(chain, segments, base, in_region=False):
    moments = []
    for segment, kept in reversed(list(chain.kept_before(segments))):
        if segment.remat:
            moments += _region(chain, segment, base + kept)
            continue
        held = base + kept + _held_backward(chain, segment, in_region)
        nodes = range(segment.start, segment.stop)
        pairs = zip(reversed(nodes), reversed(held))
        moments += [(f"backward {i}", int(h)) for i, h in pairs]
    return moments


def _region(chain, segment, base):
    again = _again(chain, segment, base)
    if not segment.inner:  # Kept values are there until they are given back.
        kept = chain.kept[segment.keep]
        before = kept.before[segment.start : segment.stop]
        rest = np.maximum(0, kept.at_end[segment.stop] - before)
        rest = np.maximum(rest, _stays(chain, segment))
        again = [(x, held + int(r)) for (x, held), r in zip(again, rest)]
    return again + _backward(chain, segment.parts, base, in_region=True)


def _stays(chain, segment):
    kept = chain.kept[segment.keep].in_region(segment.start, segment.stop)
    return int(kept) * chain.kept_stays


def _held_backward(chain, segment, in_region):
    start, stop = segment.start, segment.stop
    nodes = slice(start, stop)
    held = chain.passing[nodes] + chain.grads_after[nodes]
    way = ways.chosen(chain, segment)
    if way:
        return held + way.saved + way.scratch
    saved = _saved(chain, segment)
    held = held + saved
    if in_region:  # In one piece: nothing is freed before its end.
        end = chain.grads_after[start] + chain.crossing[stop]
        held = np.maximum(held, saved[-1] + end) + _stays(chain, segment)
        held = held + chain.constants[stop] - chain.constants[start]
    return held + chain.scratch[nodes]
