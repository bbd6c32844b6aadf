"""Work of which no gradient is taken: it runs without regions.

A TensorFlow graph does not tell while it is traced whether a gradient will be
taken of it, and exporters trace as training does.
"""

import functools

from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_results import engine

ATTRIBUTE = "remat_inference"


def for_inference(f):
    """Makes `f` run, and trace, without regions."""

    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        with attributes(**{ATTRIBUTE: True}):
            return f(*args, **kwargs)

    return wrapper


def said_to_be_inference():
    """Whether Keras or the user has switched gradients off."""
    if global_state.get_global_attribute(ATTRIBUTE):
        return True
    return engine().gradient_is_off()


def in_inference():
    """Whether no gradient can be taken of what runs now."""
    return said_to_be_inference() or not engine().records_gradient()
