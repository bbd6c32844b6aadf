"""Draws of torch's own generators that only the first run of a region makes.

A layer that is first built in a region may draw its weights. The second run
does not build it, and must go on from where these draws left the generator.
"""

import contextlib
import threading

import torch
from torch.utils._python_dispatch import _disable_current_modes

_open = threading.local()


class Draws:
    """The states that building began with, and what it left.

    Attributes:
        skipped: List of pairs of states, before and after.
    """

    def __init__(self):
        self.skipped = []

    @contextlib.contextmanager
    def noted(self):
        with opened(self, "first"):
            yield

    @contextlib.contextmanager
    def as_noted(self):
        with opened(self, "again"):
            yield

    def skip(self):
        for before, after in self.skipped:
            if equal(before, states()):
                set_states(after)


@contextlib.contextmanager
def opened(draws, run):
    before = getattr(_open, "draws", ())
    _open.draws = (*before, (draws, run))
    try:
        yield
    finally:
        _open.draws = before


@contextlib.contextmanager
def building(is_built):
    """Goes around what may build a layer, in each run of a region."""
    draws = getattr(_open, "draws", ())
    skipping = [d for d, run in draws if run == "again" and d.skipped]
    noting = [d for d, run in draws if run == "first"]
    if not skipping and (is_built or not noting):
        yield
        return
    before = states()
    for d in skipping:
        d.skip()
    yield
    if not equal(before, after := states()):
        for d in noting:
            d.skipped.append((before, after))


def states():
    with _disable_current_modes():
        found = [torch.get_rng_state()]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found.append(torch.cuda.get_rng_state())
        return found


def set_states(found):
    with _disable_current_modes():
        torch.set_rng_state(found[0])
        if len(found) > 1:
            torch.cuda.set_rng_state(found[1])


def equal(a, b):
    with _disable_current_modes():
        return len(a) == len(b) and all(map(torch.equal, a, b))
