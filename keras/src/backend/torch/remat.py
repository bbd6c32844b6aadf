"""Rematerialization on torch: the non-reentrant `torch.utils.checkpoint`.

torch runs the region again in the backward pass and stops it by an exception
as soon as it has all that it needs. That exception must reach torch untouched
(see `enter_surroundings`), or whole blocks stay alive.
"""

import contextlib
import threading
import weakref

import torch
from torch.utils import checkpoint as torch_checkpoint

from keras.src.backend.torch import remat_draws
from keras.src.backend.torch import remat_keep
from keras.src.backend.torch import remat_watch
from keras.src.backend.torch.remat_buffers import Buffers
from keras.src.backend.torch.remat_draws import Draws

# torch compares what the second run saves with what the first one saved, and
# says what differs. This is its own check, with the region's name added.
CHECK = "keras_region"


class Regions(threading.local):
    """The names of the regions that are in their first run."""

    def __init__(self):
        self.names = []


regions = Regions()


class Saved(dict):
    """What torch compares of a saved tensor, and the region that saved it."""

    def __repr__(self):
        return f"{super().__repr__()} in '{self.region}'"


def saved_spec(x):
    spec = Saved(shape=tuple(x.shape), dtype=x.dtype, device=x.device)
    spec.region = regions.names[-1] if regions.names else "the second run"
    return spec


torch_checkpoint._allowed_determinism_checks_to_fns[CHECK] = saved_spec


@torch._dynamo.disable(reason="A region runs as it is written.")
def untraced(f, *args):
    """`f(*args)`, which `torch.compile` leaves alone, with all that it calls.

    A region holds its writes back and has to run twice in the same way. Traced
    frame by frame it would take minutes, and two traces may differ.
    """
    return f(*args)


def checkpoint(run, inputs, policy=None):
    """Calls `run.first(*inputs)`, keeping only the inputs for the gradient.

    Args:
        run: A region's `Run`.
        inputs: List of tensors.
        policy: A `RematPolicy`, or `None` to keep nothing.

    Returns:
        The flat list of tensors that `run.first` returns.
    """
    buffers, draws = Buffers(), Draws()
    turn = iter([run.first])

    def first_or_again(*inputs):
        f = next(turn, None)
        if f is not None:
            with buffers.noted(), draws.noted():
                return f(*inputs)
        with buffers.as_noted(run.name), draws.as_noted():
            return run.again(*inputs)

    settings = {"use_reentrant": False, "determinism_check": CHECK}
    if policy is not None:
        keeper = remat_keep.Keeper(policy)
        settings["context_fn"] = lambda: (keeper, keeper.giver())
    regions.names.append(run.name)
    try:
        return torch_checkpoint.checkpoint(first_or_again, *inputs, **settings)
    finally:
        regions.names.pop()


def name_value(x, name):
    return remat_watch.name_value(x, name)


def gradient_is_off():
    """Whether the user has switched gradients off."""
    return not torch.is_grad_enabled()


def records_gradient():
    """Whether a gradient may be taken of what runs now."""
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return False
    return torch.is_grad_enabled() and not in_transform()


def in_transform():
    """Whether a `torch.func` transform is open: it allows no checkpoint."""
    if torch.compiler.is_dynamo_compiling():
        return False  # the stack is dynamo's own there; `untraced` asks again
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_input(x):
    """Whether `x` enters a region as a tensor."""
    return isinstance(x, torch.Tensor)


is_output = is_input


def read(variable, run):
    """The variable's own tensor; `before_write` and its version guard it."""
    value = variable._value
    if value is not None:
        if not hasattr(value, "_remat_runs"):
            value._remat_runs = weakref.WeakKeyDictionary()
        value._remat_runs[run] = value._version
    return value


def waiting(value, run):
    """A value that is not there before the inputs of the region are."""
    return value


def assigned(value, before):
    """The value that a variable has once `value` was copied into it."""
    value = value.detach()
    if not before.requires_grad:
        return value
    return value + (before - before.detach())


def in_order(x):
    """An input of a plain part, whose gradient is made in order anyway."""
    return x


def ordered(fn):
    """A layer's `call`, whose gradients are made in order anyway."""
    return fn


def before_write(variable):
    """Copies a value that is about to be overwritten for runs that read it.

    Only what is really written is copied: big frozen weights never are.
    """
    value = variable._value
    runs = getattr(value, "_remat_runs", None)
    if not runs:
        return
    old = value.detach().clone().requires_grad_(value.requires_grad)
    for run in list(runs):
        run.replace_read(variable, old)
    runs.clear()


def check_reads(run):
    """Refuses to run again from values that were changed in place."""
    for variable, value in run.reads.values():
        runs = getattr(value, "_remat_runs", None) or {}
        if runs.get(run, value._version) != value._version:
            raise RuntimeError(
                "A value that a rematerialized function reads must not be "
                "changed in place between the forward and the backward pass. "
                f"Received: variable '{variable.path}', read by '{run.name}', "
                "changed. Use `variable.assign(...)`, or make the change after "
                "the backward pass."
            )


def is_early_stop(error):
    return isinstance(error, torch_checkpoint._StopRecomputationError)


@contextlib.contextmanager
def building(is_built=False):
    """Hides what only the first run does: it makes variables."""
    with remat_watch.unwatched(), remat_draws.building(is_built):
        yield
