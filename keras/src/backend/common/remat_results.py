"""What leaves a region: a flat list of tensors, and the nest they belong in.

An engine's checkpoint passes tensors only. So the outputs of a region, the
new values of variables, the losses and the masks leave it as one flat list;
what is no tensor, and the shape of the nest, stay here.
"""

from keras.src import tree
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_fields import Held
from keras.src.backend.common.remat_fields import gathered
from keras.src.backend.common.remat_fields import spread


def engine():
    from keras.src import backend

    return backend.core.remat_engine


def is_variable(x):
    from keras.src.backend.common.variables import Variable

    return isinstance(x, Variable)


class Results:
    """The results of one run of a region.

    Args:
        outputs: What the callable returned, any nest.
        scope: The `RecordingScope` it ran in.
    """

    def __init__(self, outputs, scope):
        outputs = spread(outputs, is_leaving)
        self.leaves = tree.flatten(outputs)
        self.places = [i for i, x in enumerate(self.leaves) if is_leaving(x)]
        tensors = [self.leaves[i] for i in self.places]
        masks = [get_keras_mask(x) for x in tensors]
        self.masked = [i for i, m in enumerate(masks) if m is not None]
        updates, losses = scope.new_values(), list(scope.losses)
        self.sizes = (len(tensors), len(updates), len(losses))
        self.tensors = tensors + updates + losses
        self.tensors += [masks[i] for i in self.masked]
        self.specs = [spec_of(x) for x in self.tensors]
        for i in self.places:
            self.leaves[i] = None
        self.structure = tree.map_structure(lambda x: None, outputs)

    def release(self):
        """The flat list of tensors, which is held here no longer."""
        tensors, self.tensors = self.tensors, None
        return tensors

    def divided(self, tensors):
        """The flat list as outputs, updates and losses; puts masks back."""
        n_out, n_update, n_loss = self.sizes
        tensors = list(tensors)
        outputs, tensors = tensors[:n_out], tensors[n_out:]
        updates, tensors = tensors[:n_update], tensors[n_update:]
        losses, masks = tensors[:n_loss], tensors[n_loss:]
        for i, mask in zip(self.masked, masks):
            set_keras_mask(outputs[i], mask)
        outputs = gathered(self.packed(outputs))
        # A dataclass holds the tensors that it came with.
        self.leaves = [
            repr(x) if isinstance(x, Held) else type(x).__name__
            for x in self.leaves
        ]
        return outputs, updates, losses

    def packed(self, outputs):
        """The nest that the callable returned, of other tensors."""
        leaves = list(self.leaves)
        for i, x in zip(self.places, outputs):
            leaves[i] = x
        return tree.pack_sequence_as(self.structure, leaves)

    def equals(self, other):
        if self.specs != other.specs or self.sizes != other.sizes:
            return False
        try:
            tree.assert_same_structure(self.structure, other.structure)
        except (TypeError, ValueError):
            return False
        return self.places == other.places

    def describe(self):
        """The nest with shape and dtype for each tensor, as text."""
        specs = [describe(spec) for spec in self.specs]
        n_out, n_update, n_loss = self.sizes
        text = str(self.packed(specs[:n_out]))
        if n_update:
            text += f", new variables {specs[n_out:][:n_update]}"
        if n_loss:
            text += f", losses {specs[n_out + n_update :][:n_loss]}"
        return text


def is_leaving(x):
    """Whether `x` leaves a region as a tensor."""
    return engine().is_output(x) and not is_variable(x)


def spec_of(x):
    from keras.src.backend import standardize_dtype

    try:
        shape = tuple(x.shape)
    except (AttributeError, ValueError):
        shape = None  # of unknown rank, or a nest that only the engine knows
    dtype = getattr(x, "dtype", type(x).__name__)
    try:
        return shape, standardize_dtype(dtype)
    except ValueError:  # of a kind that Keras does not have
        return shape, str(dtype)


def describe(spec):
    shape, dtype = spec
    return f"{dtype}{'[...]' if shape is None else list(shape)}"
