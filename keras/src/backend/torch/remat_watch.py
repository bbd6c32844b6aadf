"""Numbers the operations of a region on torch, in both of its runs alike.

The number of an operation is its kind and how often that kind ran before, so
that an operation more or less of another kind does no harm.
"""

import collections
import contextlib
import threading

import torch
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from keras.src.backend.common.remat_checks import raise_other
from keras.src.backend.torch.remat_ops import UNCOUNTED
from keras.src.backend.torch.remat_ops import flat_tensors

_open = threading.local()


def open_modes():
    if not hasattr(_open, "modes"):
        _open.modes = []
    return _open.modes


def is_unwatched():
    return getattr(_open, "unwatched", 0) > 0


@contextlib.contextmanager
def unwatched():
    """Hides operations that only one of the two runs makes."""
    _open.unwatched = getattr(_open, "unwatched", 0) + 1
    try:
        yield
    finally:
        _open.unwatched -= 1


@contextlib.contextmanager
def watched_by(watcher):
    """Tells `watcher` of the names that values are given."""
    open_modes().append(watcher)
    try:
        yield
    finally:
        open_modes().remove(watcher)


def name_value(x, name):
    modes = open_modes()
    return modes[-1].name(x, name) if modes and not is_unwatched() else x


class Watcher(TorchDispatchMode):
    """Calls `self.run` with each operation and its number."""

    def __enter__(self):
        self.counts = collections.Counter()
        open_modes().append(self)
        self.in_autocast = torch._C._is_any_autocast_enabled()
        return super().__enter__()

    def __exit__(self, *args):
        open_modes().remove(self)
        return super().__exit__(*args)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.leaves_out(func.overloadpacket):
            return func(*args, **kwargs)
        self.counts[func] += 1
        return self.run((func, self.counts[func]), args, kwargs)

    def leaves_out(self, packet):
        # Autocast caches casts of weights, so one run may have more of them.
        is_cast = packet == torch.ops.aten._to_copy
        if is_cast and self.in_autocast:
            return True
        return packet in UNCOUNTED or is_unwatched()


class Met:
    """The operations that the first run met, to tell if others come again.

    Attributes:
        needed: How many came before the last tensor was saved, where the
            second run stops.
    """

    def __init__(self):
        self.place, self.shapes = {}, {}
        self.needed = 0

    def add(self, number, args):
        self.place[number] = len(self.place)
        self.shapes[number] = shapes_of(args)

    def is_needed(self, number):
        return self.place[number] < self.needed

    def settle(self, numbers):
        """Forgets all but what checks of kept results need."""
        kinds = {func for func, _ in numbers}
        met = [number for number in self.place if number[0] in kinds]
        needed = [number for number in met if self.is_needed(number)]
        self.total = collections.Counter(func for func, _ in met)
        self.until_stop = collections.Counter(func for func, _ in needed)
        self.shapes = {number: self.shapes[number] for number in numbers}
        self.place = None

    def check_given(self, number, args):
        func, count = number
        before, now = self.shapes[number], shapes_of(args)
        if now != before:
            raise_other(f"{func} number {count} of shapes {before}", now)

    def check_all(self, counts, error):
        """Compares all counts at the end of the second run."""
        stopped = error is torch_checkpoint._StopRecomputationError
        expected = self.until_stop if stopped else self.total
        for func, count in expected.items():
            if counts[func] != count and (stopped or error is None):
                raise_other(f"{count} times {func}", f"{counts[func]} times")


def shapes_of(args):
    return [tuple(x.shape) for x in flat_tensors(args)]
