"""What a training step keeps on torch, measured while it runs."""

import contextlib
import gc

import torch
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode

from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.torch import remat_keep
from keras.src.backend.torch.core import get_device
from keras.src.backend.torch.remat_profile import Saved
from keras.src.backend.torch.remat_profile import key_of


@torch._dynamo.disable
def kept_values(forward, data, variables):
    """Runs a step's forward part and lists what it keeps for the backward.

    Args:
        forward: Takes a list of tensors, returns the loss.
        data: List of tensors.
        variables: The Keras variables of the model.

    Returns:
        List of `(path, bytes, label)`: the name scope that made each value,
        and what a policy kept it as or `None`.
    """
    saved, makers, labels = Saved(), Makers(), {}

    def see(x, label):
        saved.add(x)
        labels[key_of(x)] = label

    kept = remat_keep.observed(see)
    with untouched(), saved.hooks(), makers, kept:
        loss = forward(list(data))
    sizes = saved.sizes()
    outside = {key_of(v.value) for v in variables} | {key_of(x) for x in data}
    del loss
    return [
        (makers.paths.get(key, ""), size, labels.get(key))
        for key, size in sizes.items()
        if key not in outside
    ]


class Makers(TorchDispatchMode):
    """Notes in which name scope each storage was made."""

    def __init__(self):
        super().__init__()
        self.paths = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {key_of(x) for x in tensors_in((args, kwargs))}
        for x in tensors_in(out):
            if key_of(x) not in given:
                self.paths[key_of(x)] = current_path()
        return out


def tensors_in(nest):
    leaves = torch.utils._pytree.tree_leaves(nest)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


@contextlib.contextmanager
def untouched():
    """Lets no variable, seed or gradient of the model move."""
    devices = [] if get_device() in ("cpu", "meta") else None
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        with StatelessScope(collect_losses=True):
            yield


@torch._dynamo.disable
def peak_bytes(forward, data, variables):
    """Most bytes at once in a step, beyond weights and batch.

    Args:
        forward: Takes a list of tensors, returns the loss.
        data: List of tensors.
        variables: The Keras variables of the model.

    Returns:
        An integer, or `None` if the device does not tell.
    """
    if not get_device().startswith(("cpu", "cuda")):
        return None
    weights = [v.value for v in variables if v.value.requires_grad]

    def step():
        with untouched():
            loss = forward(list(data))
        torch.autograd.grad(loss, weights, allow_unused=True)

    step()  # Caches that the first use of an operation fills.
    gc.collect()
    activities = [ProfilerActivity.CPU]
    if get_device().startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=activities, profile_memory=True
    ) as prof:
        step()
    return highest(prof.profiler.kineto_results.events())


def highest(events):
    device = get_device().split(":")[0].upper()
    moments = [
        (e.start_ns(), e.nbytes())
        for e in events
        if e.name() == "[memory]" and e.device_type().name == device
    ]
    live = most = 0
    for _, change in sorted(moments, key=lambda m: m[0]):
        live += change
        most = max(most, live)
    return most
