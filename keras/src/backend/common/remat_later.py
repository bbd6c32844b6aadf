"""Warnings that wait until all has run that could make them needless."""

from keras.src.backend.common import global_state

PENDING = "_remat_pending"


def warn_later(warn):
    """Calls `warn` once the outermost scope or layer that is open has ended.

    A name that a policy or scope asks for may come later in the same step.

    Args:
        warn: Bound method without arguments.
    """
    scopes = global_state.get_global_attribute("remat_scope_stack")
    context = global_state.get_global_attribute("current_call_ctx")
    if scopes:
        holder = scopes[0]
    elif getattr(context, "entry_layer", None) is not None:
        holder = context
    else:
        return warn()
    pending = vars(holder).setdefault(PENDING, [])
    if warn not in pending:
        pending.append(warn)


def ended(holder):
    """Warns of what is still amiss as a scope or an outermost layer ends."""
    if holder is not None:
        for warn in vars(holder).pop(PENDING, ()):
            warn()
