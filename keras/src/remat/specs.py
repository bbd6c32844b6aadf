"""The shapes of inputs for which plans are made."""

from keras.src import backend
from keras.src.backend import KerasTensor
from keras.src.backend.common import global_state

UNKNOWN = 32  # what an unknown dimension counts as


def with_batch(spec, batch_size):
    """A spec of which the first and all unknown dimensions are filled in."""
    if spec is None:
        return None
    rest = [UNKNOWN if d is None else int(d) for d in spec.shape[1:]]
    shape = (batch_size, *rest) if len(spec.shape) else ()
    return KerasTensor(shape, dtype=spec.dtype, name=spec.name)


def has_unknown(specs):
    """Whether dimensions beside the first are unknown."""
    shapes = [s.shape[1:] for s in specs if s is not None]
    return any(d is None for shape in shapes for d in shape)


def shape_of(x):
    if x is None:
        return None
    return tuple(None if d is None else int(d) for d in x.shape)


def filled_in(x):
    """The `KerasTensor` of a value, with numbers for unknown dimensions."""
    if x is None:
        return None
    shape = shape_of(x)
    if shape[:1] == (None,):
        shape = (batch_size(), *shape[1:])
    known = tuple(UNKNOWN if d is None else d for d in shape)
    return KerasTensor(known, backend.standardize_dtype(x.dtype))


BATCH_SIZE = "remat_batch_size"


def note_batch_size(size):
    """Remembers what an unknown first dimension is: that of the data.

    TensorFlow traces `fit` without it, as the last batch may be smaller.
    """
    global_state.set_global_attribute(BATCH_SIZE, size)


def batch_size():
    return global_state.get_global_attribute(BATCH_SIZE) or UNKNOWN


def as_spec(x):
    """The `KerasTensor` of a tensor; what is none stays what it is."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return x
    return KerasTensor(shape_of(x), backend.standardize_dtype(x.dtype))
