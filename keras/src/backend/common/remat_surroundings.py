"""What surrounds a region: the thread-local state that its layers read.

A region's second run may happen long after the scopes around the first one
were left, and in another thread: so the state is captured, and entered again.
"""

import copy
import functools

from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes

# Thread-local settings that change what a layer computes.
SURROUNDINGS = (
    "autocast_scope",
    "current_call_ctx",
    "distribution",
    "dtype_policy",
    "flash_attention",
    "name_scope_stack",
    "remat_depth",
    "remat_inherited",
    "remat_marks",
    "remat_units",
    "remat_scope_stack",
    "remat_share",
    "remat_time",
    "torch_device",
)


def capture_surroundings():
    """A copy of the thread-local settings, safe against later changes."""
    captured = {}
    for name in SURROUNDINGS:
        value = global_state.get_global_attribute(name)
        if isinstance(value, list):
            value = list(value)
        captured[name] = value
    context = captured["current_call_ctx"]
    # Layers write into the context as they go, so take a copy; and have one
    # always, or a layer would think that it is the outermost and clear losses.
    captured["current_call_ctx"] = (
        NoContext() if context is None else copy.copy(context)
    )
    return captured


class NoContext:
    """Stands for "no layer is being called" in a second run."""

    entry_layer = None

    def get_value(self, arg_name, default=None):
        return getattr(self, arg_name, default)

    def set_value(self, arg_name, value):
        setattr(self, arg_name, value)


def enter_surroundings(captured):
    values = dict(captured)
    for name, value in captured.items():
        if isinstance(value, list):
            values[name] = list(value)
        elif name == "current_call_ctx":
            values[name] = copy.copy(value)
    # torch ends a second run early by an exception. The traceback filter
    # would rebuild it, and with it keep the frames and their tensors alive.
    return attributes(**values, traceback_filtering=False)


def following_scopes(step):
    """Makes `step` follow the scopes that are open now in other threads too.

    A strategy of TensorFlow traces each replica in a thread of its own.
    """
    name = "remat_scope_stack"
    scopes = list(global_state.get_global_attribute(name) or ())

    @functools.wraps(step)
    def wrapper(*args, **kwargs):
        if global_state.get_global_attribute(name) is not None:
            return step(*args, **kwargs)
        with attributes(**{name: list(scopes)}):
            return step(*args, **kwargs)

    return wrapper
