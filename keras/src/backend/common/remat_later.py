"""Warnings that wait until all has run that could make them needless."""

import functools

from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes

PENDING = "_remat_pending"
STEP = "remat_step"


def warn_later(warn):
    """Calls `warn` once the outermost scope or layer that is open has ended.

    A name that a policy or scope asks for may come later in the same step.

    Args:
        warn: Bound method without arguments.
    """
    holder = open_holder()
    if holder is None:
        return warn()
    pending = vars(holder).setdefault(PENDING, [])
    if warn not in pending:
        pending.append(warn)


def open_holder():
    """What will end when all has run, or `None`."""
    step = global_state.get_global_attribute(STEP)
    scopes = global_state.get_global_attribute("remat_scope_stack")
    context = global_state.get_global_attribute("current_call_ctx")
    if step is not None:
        return step
    if scopes:
        return scopes[0]
    if getattr(context, "entry_layer", None) is not None:
        return context
    return None


def ended(holder):
    """Warns of what is still amiss as a scope or an outermost layer ends."""
    if holder is not None:
        for warn in vars(holder).pop(PENDING, ()):
            warn()


class Step:
    """The outermost call of a model that goes around its `__call__`."""


def outermost(method):
    """Makes warnings wait until `method` ends, if nothing else is open.

    JAX's trainer runs `Model.call` by `stateless_call`, so that each layer
    of the model takes itself for the outermost one.
    """

    @functools.wraps(method)
    def call(*args, **kwargs):
        if open_holder() is not None:
            return method(*args, **kwargs)
        step = Step()
        with attributes(**{STEP: step}):
            outputs = method(*args, **kwargs)
        ended(step)
        return outputs

    return call
