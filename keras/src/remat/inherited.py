"""Settings that a model or layer hands on to what it calls."""

import functools

from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_later import warn_later
from keras.src.backend.common.remat_scope import RematScope


def decides_itself(op):
    """Whether an operation inherits nothing: it says if it runs again."""
    own, scope = vars(op).get("_remat_setting"), vars(op).get("_remat_scope")
    return own is not None or (scope is not None and scope.mode is None)


def scope_for(policy, explicit=False, depth=0):
    """The scope by which the parts of a model follow its policy.

    Args:
        policy: The `RematPolicy`.
        explicit: Whether a model asks for that itself, and no scope.
            Defaults to `False`.
        depth: How many regions are open around it. Defaults to `0`.

    Returns:
        A `RematScope`.
    """
    levels = depth + policy.levels
    scope = RematScope("full", every=policy.every, levels=levels, policy=policy)
    scope.explicit = explicit
    return scope


def dividing(scope, depth=0, share=1):
    """Makes regions of the parts of what is called, or of a share of them."""
    return attributes(
        remat_share=share,
        remat_inherited=scope,
        remat_depth=depth,
        remat_units=[0],
    )


def inheriting(fn, scope):
    """Lets the layers that `fn` calls follow `scope`."""

    @functools.wraps(fn)
    def call(*args, **kwargs):
        with attributes(remat_inherited=scope, remat_units=[0]):
            outputs = fn(*args, **kwargs)
        warn_later(scope.warn_unmatched)
        return outputs

    return call


def open_regions():
    """How many regions are open that a scope or model setting asked for."""
    return global_state.get_global_attribute("remat_depth") or 0
