"""`keras.ops.remat_name`, also as a node of a graph."""

from keras.src.api_export import keras_export
from keras.src.backend import KerasTensor
from keras.src.backend.common import global_state
from keras.src.backend.common import remat_region
from keras.src.backend.common.keras_tensor import any_symbolic_tensors
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_checks import KEEP_WORDS
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.ops.operation import Operation

# Whether engines are told of names where no region is open: in profiles.
NAMED = "remat_named"


@keras_export("keras.ops.remat_name")
def remat_name(x, name):
    """Names a value, so that a `keras.RematPolicy` can keep it.

    Layers name their dear values by themselves: `"dense/linear"`,
    `"einsum_dense/linear"`, `"conv/linear"` (before bias and activation),
    `"attention/scores"` and `"attention/context"`.

    Args:
        x: A tensor. For a symbolic one the name becomes part of the graph.
        name: String.

    Returns:
        `x`.

    Raises:
        ValueError: If `name` is not a string, or a word of
            `keras.RematPolicy(keep=...)`.

    Example:

    ```python
    @functools.partial(keras.remat, policy=keras.RematPolicy(keep=["scores"]))
    def attend(q, k, v):
        scores = keras.ops.matmul(q, keras.ops.transpose(k))
        scores = keras.ops.remat_name(scores, "scores")
        return keras.ops.matmul(keras.ops.softmax(scores), v)
    ```

    Reference: the names of `jax.ad_checkpoint.checkpoint_name`.
    """
    if not isinstance(name, str) or name in KEEP_WORDS:
        raise ValueError(
            "`name` must be a string that is no word of `RematPolicy` "
            f"({', '.join(map(repr, KEEP_WORDS))}). Received: name={name!r}"
        )
    if any_symbolic_tensors((x,)):
        return with_mask_of(x, RematName(name).symbolic_call(x))
    if not global_state.get_global_attribute(NAMED):
        policies = remat_region.open_policies()
        if not policies or in_symbolic_scope():
            return x
        for policy in policies:
            policy.seen.add(name)
    return with_mask_of(x, remat_region.engine().name_value(x, name))


def with_mask_of(x, y):
    mask = get_keras_mask(x)
    if y is not x and mask is not None:
        set_keras_mask(y, mask)
    return y


class RematName(Operation):
    def __init__(self, value_name, *, name=None):
        super().__init__(name=name)
        self.value_name = value_name

    def call(self, x):
        return remat_name(x, self.value_name)

    def compute_output_spec(self, x):
        return KerasTensor(x.shape, dtype=x.dtype, sparse=x.sparse)
