"""Keeps chosen values of a region on torch, by watching its operations.

The first run counts the operations below autograd and keeps the results that
the policy wants, by number. The second run counts again, and where a result
was kept it is given back instead of being computed.
"""

import contextlib
import threading

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from keras.src.backend.common.remat_policy import warn_not_offloaded
from keras.src.backend.torch.remat_ops import first_of
from keras.src.backend.torch.remat_ops import has_tensor
from keras.src.backend.torch.remat_ops import kind_of
from keras.src.backend.torch.remat_ops import map_tensors
from keras.src.backend.torch.remat_ops import shares_memory
from keras.src.backend.torch.remat_ops import spec_of
from keras.src.backend.torch.remat_ops import written
from keras.src.backend.torch.remat_watch import Met
from keras.src.backend.torch.remat_watch import Watcher

_open = threading.local()


@contextlib.contextmanager
def observed(see):
    """Calls `see` for each tensor that a region of this thread keeps.

    It gets the tensor and what tables call it, see `RematPolicy.label`.
    """
    _open.observers = [*getattr(_open, "observers", ()), see]
    try:
        yield
    finally:
        _open.observers = _open.observers[:-1]


class Keeper(Watcher):
    """Runs operations, and keeps the results that the policy wants."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy
        self.kept = {}
        # The state that drawing a result left torch's own generator in.
        self.drawn = {}
        # Kept values that are changed in place later: never given away.
        self.changed = set()
        self.names = []
        # What made a kept value, and the names that were given to it.
        self.ops, self.given = {}, {}
        self.met, self.last = Met(), None
        self.made = {}

    def __enter__(self):
        self.hooks = self.counting_hooks()
        self.hooks.__enter__()
        return super().__enter__()

    def __exit__(self, *args):
        self.hooks.__exit__(*args)
        self.made = self.hooks = None
        # The second run stops where the last tensor is saved.
        for number in [n for n in self.kept if not self.met.is_needed(n)]:
            del self.kept[number]
        self.met.settle(self.kept)
        for number in self.drawn.keys() - self.kept.keys():
            del self.drawn[number]
        for see in getattr(_open, "observers", ()):
            self.show(see)
        self.ops = self.given = None
        return super().__exit__(*args)

    def show(self, see):
        for number, value in self.kept.items():
            names = self.given.get(number, ())
            label = self.policy.label(self.ops.get(number, "name"), names)
            map_tensors(lambda x: see(x, label), value)

    def counting_hooks(self):
        """The hooks of the checkpoint, noting how far they are called."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        pack, unpack = hooks

        def counting_pack(x):
            self.met.needed = len(self.met.place)
            return pack(x)

        return torch.autograd.graph.saved_tensors_hooks(counting_pack, unpack)

    def run(self, number, args, kwargs):
        func, self.last = number[0], number
        self.met.add(number, args)
        for x in written(func, args, kwargs):
            self.before_change(x)
        out = func(*args, **kwargs)
        if has_tensor(out) and not shares_memory(func):
            whole = isinstance(out, torch.Tensor)
            map_tensors(lambda x: self.note(x, number, whole), out)
            op, has_batch = kind_of(func)
            if op == "attention":  # kept by name with what its gradient needs
                self.note(out[0], number, True, out[1:])
            if self.policy.keeps(op, has_batch, None, lambda: spec_of(out)):
                self.keep(number, out, None)
                self.ops[number] = op
            if torch.Tag.nondeterministic_seeded in func.tags:
                self.drawn[number] = random_state(out)
        return out

    def note(self, x, number, whole, rest=()):
        """Remembers which operation made the memory of `x`."""
        if x.layout != torch.strided:
            return
        made = self.made.get(address(x))
        if made is None or not made.fills(x) or made.number == number:
            self.made[address(x)] = Made(x, number, whole, rest)

    def before_change(self, x):
        made = self.made.get(address(x))
        if made is None:
            return
        made.is_intact = False
        for number in made.kept_as:
            self.changed.add(number)
            self.kept[number] = map_tensors(torch.clone, self.kept[number])
        made.kept_as = set()

    def keep(self, number, value, name):
        on_host = self.policy.offloads(name)

        def kept(x):
            if address(x) in self.made:
                self.made[address(x)].kept_as.add(number)
            return to_host(x) if on_host else x.detach()

        self.kept[number] = map_tensors(kept, value)

    def name(self, x, name):
        """Keeps the result that `x` is a view of, or else a copy of `x`."""
        wanted = self.policy.keeps("name", False, name, lambda: spec_of(x))
        inner = unwrapped(x)
        made = self.made.get(address(inner))
        if made is not None and made.describes(inner):
            self.given.setdefault(made.number, []).append(name)
        made = made if wanted else None
        if made is not None and made.describes(inner):
            with _disable_current_modes():
                self.keep(made.number, made.whole(inner), name)
            made = None
        self.names.append(made is not None)
        if made is not None:
            x = x.clone()
            self.keep(self.last, unwrapped(x), name)
            self.given[self.last] = [name]
        return x

    def giver(self):
        return Giver(self)


class Made:
    """What is known of a piece of memory: the operation that filled it."""

    def __init__(self, x, number, is_whole, rest):
        self.number = number
        self.rest = rest
        self.kept_as = set()  # numbers of kept results that share it
        # Whether it still holds all that the operation gave.
        self.is_intact = is_whole
        self.memory = StorageWeakRef(x.untyped_storage())
        self.layout = (x.shape, x.stride(), x.storage_offset())
        self.dtype = x.dtype

    def fills(self, x):
        """Whether `x` is a view of it; not all views are declared as such."""
        return self.memory.cdata == x.untyped_storage()._cdata

    def describes(self, x):
        return self.is_intact and x.dtype == self.dtype and self.fills(x)

    def whole(self, x):
        first = x.detach().as_strided(*self.layout)
        return (first, *self.rest) if self.rest else first


class Giver(Watcher):
    """Runs operations again, but gives kept results back."""

    def __init__(self, keeper):
        super().__init__()
        self.kept, self.changed = keeper.kept, keeper.changed
        self.names, self.drawn = keeper.names, keeper.drawn
        self.met = keeper.met

    def __enter__(self):
        self.copies = iter(self.names)
        return super().__enter__()

    def __exit__(self, *args):
        super().__exit__(*args)
        self.met.check_all(self.counts, args[0])

    def run(self, number, args, kwargs):
        if number not in self.kept:
            return number[0](*args, **kwargs)
        self.met.check_given(number, args)
        # As torch itself does, let go of what no other backward pass needs.
        take = self.kept.get if keeps_graph() else self.kept.pop
        value = map_tensors(from_host, take(number))
        if number in self.changed:
            value = map_tensors(torch.clone, value)
        if number in self.drawn:
            set_random_state(value, self.drawn[number])
        return value

    def name(self, x, name):
        return x.clone() if next(self.copies) else x


def random_state(x):
    """The state of torch's own generator of the device that `x` is on."""
    device = first_of(x).device
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def set_random_state(x, state):
    device = first_of(x).device
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def keeps_graph():
    """Whether the graph of the backward pass that runs now may run again."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def unwrapped(x):
    """What operations see of `x` when a `torch.func` transform is open."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def address(x):
    if x.layout != torch.strided:
        return None
    return x.untyped_storage().data_ptr() or id(x)


def to_host(x):
    """A copy in pinned memory of the host, made beside the computation."""
    if x.device.type == "cpu":
        warn_not_offloaded(x.device)
        return x.detach()
    copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    copy.copy_(x.detach(), non_blocking=True)
    copy._remat_device = x.device
    return copy


def from_host(x):
    device = getattr(x, "_remat_device", None)
    return x.detach() if device is None else x.to(device, non_blocking=True)
