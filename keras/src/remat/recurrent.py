"""Recurrent layers: regions of time.

A region around a whole recurrent layer would make the residuals of all its
steps at once when it runs again. So the loop over time is divided into about
the square root of its steps, and each part is a region: memory over time
falls from n to about 2 sqrt(n) steps, as for a chain of layers.
"""

import functools
import math

from keras.src import ops
from keras.src import tree
from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_region import engine
from keras.src.backend.common.remat_region import run_region

ASKED = "remat_time"


def loops_over_time(layer):
    """Whether a layer can run its loop in parts that give equal numbers."""
    if not hasattr(layer, "inner_loop"):
        return False
    cells = getattr(layer.cell, "cells", [layer.cell])
    # Masks of dropout are made once a call, outside of the loop.
    dropping = ("dropout", "recurrent_dropout")
    return not any(getattr(c, name, 0) for c in cells for name in dropping)


def call_in_parts(layer, fn, policy):
    """`fn`, the layer's `call`, with its loop over time in regions."""

    @functools.wraps(fn)
    def call(*args, **kwargs):
        with attributes(**{ASKED: (layer, policy)}):
            return fn(*args, **kwargs)

    return call


def time_loop(layer):
    """The layer's `inner_loop`, in parts if that was asked for."""
    asked = global_state.get_global_attribute(ASKED)
    if asked is None or asked[0] is not layer:
        return layer.inner_loop
    return functools.partial(run_in_parts, layer, asked[1])


def run_in_parts(layer, policy, sequences, initial_state, mask, training):
    """Like `layer.inner_loop`, each part of the steps being a region.

    Where only a share is asked for, the steps that come last are in none.
    """
    policy = policy if policy.keeps_something() else None
    run = functools.partial(
        run_region, policy=policy, name=f"steps of {layer.name}"
    )
    if getattr(layer, "stateful", False):
        # Its own states are overwritten when the loop is done, maybe in place.
        initial_state = tree.map_structure(ops.copy, initial_state)
    steps = tree.flatten(sequences)[0].shape[1]
    # A masked step repeats the output before it, which a part cannot see.
    count = 1 if mask is not None or steps is None else round(math.sqrt(steps))
    if count < 2:
        return run(layer.inner_loop, (sequences, initial_state, mask, training))
    loop = part_by_part
    # A step keeps several times its state, so more and shorter parts pay.
    even = nearest_divisor(steps, 2 * count)
    if hasattr(engine(), "scan_time") and even > 1 and not layer.unroll:
        loop, count = in_a_scan, even
    share = global_state.get_global_attribute("remat_share") or 1
    chosen = math.ceil(share * count)
    first, rest = divided(layer, sequences, round(chosen * steps / count))
    last, outputs, state = loop(
        layer, run, first, initial_state, chosen, training
    )
    if chosen == count:
        return last, outputs, state
    last, more, state = layer.inner_loop(rest, state, None, training)
    return last, joined(layer, [outputs, more]), state


def divided(layer, sequences, steps):
    """The steps that the layer runs first, and the rest."""
    if layer.go_backwards:
        cut = tree.flatten(sequences)[0].shape[1] - steps
        parts = (lambda x: x[:, cut:]), (lambda x: x[:, :cut])
    else:
        parts = (lambda x: x[:, :steps]), (lambda x: x[:, steps:])
    return [tree.map_structure(part, sequences) for part in parts]


def joined(layer, results):
    """All steps, where the layer returns them; else what the last part gave."""
    if not layer.return_sequences:
        return results[-1]
    return tree.map_structure(lambda *xs: ops.concatenate(xs, axis=1), *results)


def in_a_scan(layer, run, sequences, state, count, training):
    return engine().scan_time(
        run,
        lambda part, state: layer.inner_loop(part, state, None, training),
        state,
        sequences,
        count,
        backwards=layer.go_backwards,
        all_outputs=layer.return_sequences,
    )


def part_by_part(layer, run, sequences, state, count, training):
    steps = tree.flatten(sequences)[0].shape[1]
    borders = [round(i * steps / count) for i in range(count + 1)]
    parts = list(zip(borders, borders[1:]))
    if layer.go_backwards:
        parts.reverse()
    results = []
    for start, stop in parts:
        part = tree.map_structure(lambda x: x[:, start:stop], sequences)
        last, outputs, state = run(
            layer.inner_loop, (part, state, None, training)
        )
        results.append(outputs)
    return last, joined(layer, results), state


MASKS = ("_dropout_mask", "_recurrent_dropout_mask")


def with_dropout_masks(op, fn, wrap):
    """`wrap(fn)`; masks that cells hold between their steps go in and out.

    A cell draws a mask once, and its layer takes it off before the backward
    pass begins: the second run would draw another one.

    Args:
        op: The operation that is being called.
        fn: Its `call`.
        wrap: Makes a region of a function.
    """
    cells = getattr(op, "cells", None)
    cells = cells if isinstance(cells, (list, tuple)) else [op]
    cells = [c for c in cells if hasattr(c, "reset_dropout_mask")]
    if not cells:
        return wrap(fn)

    @functools.wraps(fn)
    def run(masks, args, kwargs):
        before = masks_of(cells)
        set_masks(cells, masks)
        try:
            outputs = fn(*args, **kwargs)
            return outputs, masks_of(cells)
        finally:
            set_masks(cells, before)

    run.__self__ = op

    @functools.wraps(fn)
    def call(*args, **kwargs):
        outputs, masks = wrap(run)(masks_of(cells), args, kwargs)
        set_masks(cells, masks)
        return outputs

    return call


def masks_of(cells):
    return [[getattr(c, name, None) for name in MASKS] for c in cells]


def set_masks(cells, masks):
    for cell, values in zip(cells, masks):
        for name, value in zip(MASKS, values):
            setattr(cell, name, value)


def nearest_divisor(number, wanted):
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    nearest = min(divisors, key=lambda d: abs(d - wanted))
    return nearest if wanted / 2 <= nearest <= wanted * 2 else 1
