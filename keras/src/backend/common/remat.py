"""Upstream's import path of rematerialization, and what its hooks call."""

from keras.src.backend.common.remat_inference import (
    for_inference as for_inference,
)
from keras.src.backend.common.remat_later import ended as ended
from keras.src.backend.common.remat_later import outermost as outermost
from keras.src.backend.common.remat_op import remat as remat
from keras.src.backend.common.remat_scope import (
    EffectiveSetting as EffectiveSetting,
)
from keras.src.backend.common.remat_scope import RematMode as RematMode
from keras.src.backend.common.remat_scope import RematScope as RematScope
from keras.src.backend.common.remat_scope import (
    get_current_remat_mode as get_current_remat_mode,
)
from keras.src.backend.common.remat_scope import note_scope as note_scope
from keras.src.backend.common.remat_surroundings import (
    following_scopes as following_scopes,
)


def wrap_call(op, fn, args, kwargs):
    """`fn` itself, or `fn` as its layer's setting wants it to run."""
    from keras.src.remat import hooks

    return hooks.wrap_call(op, fn, args, kwargs)


def time_loop(layer):
    """The loop over time of a recurrent layer, in regions if asked for."""
    from keras.src.remat import recurrent

    return recurrent.time_loop(layer)
