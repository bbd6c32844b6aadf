"""Buffers of torch modules in regions: read as they were, written once.

Keras knows nothing of the statistics that a `torch.nn.BatchNorm1d` moves, so
hooks note the buffers of each module that runs in a region.
"""

import contextlib
import threading

from torch.nn.modules import module as torch_module

SMALL = 2**16  # Elements; statistics are.


class Buffers:
    """The buffers that the first run of a region met, as they were then."""

    def __init__(self):
        # By module and name: what the region changed, as a copy from before;
        # what it did not, with its version.
        self.changed, self.steady = {}, {}

    @contextlib.contextmanager
    def noted(self):
        """Notes the buffers of the modules that run in this context."""
        self.thread, self.open = threading.get_ident(), {}
        before = torch_module.register_module_forward_pre_hook(self.enter)
        after = torch_module.register_module_forward_hook(self.leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self.open = None

    def enter(self, module, args):
        if threading.get_ident() != self.thread:
            return
        for name, x in module._buffers.items():
            key = module, name
            if x is not None and key not in self.changed:
                if key not in self.open and not x.is_inference():
                    self.open[key] = x, x._version, x.detach().clone()

    def leave(self, module, args, result):
        if threading.get_ident() != self.thread:
            return
        for name, now in module._buffers.items():
            key = module, name
            if key not in self.open:
                continue
            x, version, copy = self.open.pop(key)
            if now is x and x._version == version and not may_move(module, x):
                self.steady.setdefault(key, (x, version))
            else:
                self.steady.pop(key, None)
                self.changed[key] = copy

    @contextlib.contextmanager
    def as_noted(self, region):
        """Gives modules their buffers as they were, and then those of now."""
        then = {key: x.clone() for key, x in self.changed.items()}
        for (module, name), (x, version) in self.steady.items():
            if x._version != version:
                raise RuntimeError(
                    "A buffer that a rematerialized function reads must not "
                    "be changed in place between the forward and the backward "
                    f"pass. Received: buffer '{name}' of {module}, read by "
                    f"'{region}', changed."
                )
            then[module, name] = x
        now = {(module, name): module._buffers[name] for module, name in then}
        try:
            put(then)
            yield
        finally:
            put(now)


@contextlib.contextmanager
def copied():
    """Gives the modules that run in this context copies of their buffers."""
    thread, held = threading.get_ident(), {}

    def enter(module, args):
        for name, x in module._buffers.items():
            if threading.get_ident() == thread and x is not None:
                held.setdefault((module, name), x)
                module._buffers[name] = x.detach().clone()

    hook = torch_module.register_module_forward_pre_hook(enter)
    try:
        yield
    finally:
        hook.remove()
        put(held)


def may_move(module, x):
    """Whether a buffer may have changed although its version has not.

    Batch normalization of torch moves its statistics without saying so.
    """
    return module.training and x.numel() <= SMALL


def put(buffers):
    for (module, name), x in buffers.items():
        module._buffers[name] = x
