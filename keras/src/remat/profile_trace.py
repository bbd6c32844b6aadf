"""The cost of one operation, as the engine's abstract trace tells it."""

import collections
import contextlib
import importlib
import math

from keras.src import backend
from keras.src import tree
from keras.src.backend import KerasTensor
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_surroundings import NoContext
from keras.src.backend.common.symbolic_scope import SymbolicScope
from keras.src.remat.name_op import NAMED
from keras.src.remat.profile_policy import Made
from keras.src.remat.profile_policy import Trace

NodeCost = collections.namedtuple(
    "NodeCost",
    [
        "saved_internal",
        "saves_inputs",
        "saves_outputs",
        "aliases",
        "output_bytes",
        "flops",
        "grads",
        "scratch",
        "kept_by_matmuls",
        "profiled",
        "beyond",
        "constants",
        "sums_inputs",
        "products",
        "remade",
        "made",
        "divided",
    ],
    defaults=[0, 0, (), {}, {}, (), None],
)
NodeCost.__doc__ = """What one operation costs in training, in bytes.

Args:
    saved_internal: Residuals that are neither its inputs, nor its outputs,
        nor variables.
    saves_inputs: Indices of input tensors that its backward pass reads.
    saves_outputs: Indices of outputs that its backward pass reads.
    aliases: For each output, the index of the input tensor whose memory it
        shares, or `None`.
    output_bytes: Size of each output.
    flops: Arithmetic of the forward run; a number of operations, not bytes.
    grads: Size of the gradients of its trainable weights.
    scratch: Estimate of what is there only while it, or its backward, runs.
    kept_by_matmuls: Size of the results of matrix products and convolutions.
    profiled: Whether the engine traced it; if not, all is an estimate.
    beyond: What the engine holds with its residuals, such as copies of its
        weights; negative where it makes some of them again by itself.
    constants: Size of what the engine makes before all else, which is there
        until it has run, and if in a region until its backward pass.
    sums_inputs: Indices of inputs that it reads in sums over rows.
    products: Dict from the index of an output that is a matrix product or
        convolution to whether a bias was added. One that is, and is read in
        sums, is kept twice.
    remade: Dict from the index of an input to the bytes of residuals that the
        engine makes of it again if it is a product, which it keeps then.
    made: Tuple of `Trace`: what a policy may keep.
    divided: Dict from the share of its own parts that are regions to the
        `NodeCost` that it then has, or `None`.
"""

Spec = collections.namedtuple(
    "Spec", ["shape", "dtype", "differentiable", "mask"], defaults=[None]
)
Spec.__doc__ = """A value of the graph.

Args:
    shape: Tuple of integers.
    dtype: String.
    differentiable: Whether a gradient flows back through it.
    mask: `(shape, dtype)` of its mask, or `None`.
"""


class Position:
    """Stands for a tensor among the arguments of a call."""

    def __init__(self, index):
        self.index = index


def engine():
    name = f"keras.src.backend.{backend.backend()}.remat_profile"
    return importlib.import_module(name)


def spec_of(x):
    """The `Spec` of a graph input."""
    if x is None or isinstance(x, Spec):
        return x
    if None in x.shape:
        raise ValueError(
            "A profile needs the size of every dimension. Received: an input "
            f"of shape {x.shape}. Fill in the batch size and all the rest."
        )
    return Spec(tuple(x.shape), backend.standardize_dtype(x.dtype), False)


@contextlib.contextmanager
def without_regions():
    """No layer is a new one, and makes a region; but values have names."""
    with SymbolicScope(), attributes(**{NAMED: True}):
        yield


def traced(operation, fill_in, specs, context, surroundings=without_regions):
    """Traces one call of an operation.

    Args:
        operation: An `Operation` or layer, built.
        fill_in: Takes the list of input tensors, returns `(args, kwargs)`.
        specs: List of `Spec` of those tensors.
        context: Keyword arguments which the operation gets in addition.
        surroundings: Makes the context manager in which it is called. Defaults
            to one in which there are no regions.

    Returns:
        Tuple of a `NodeCost` and the list of `Spec` of the outputs.
    """
    # A layer tells those after it what `training` is: not in the real call.
    with attributes(current_call_ctx=NoContext()):
        call = Call(operation, fill_in, specs, context, surroundings)
        return traced_apart(operation, call, specs)


def traced_apart(operation, call, specs):
    variables = list(getattr(operation, "variables", ()))
    inputs = [tuple(s[:3]) for s in specs]
    inputs += [(*s.mask, False) for s in specs if s.mask]
    try:
        found = engine().trace(call, inputs, variables)
    except Exception:  # Whatever user code raises on abstract tensors.
        return estimated(operation, call, specs)
    grads = sum(size_of(v) for v in variables if v.trainable)
    flows = grads > 0 or any(s.differentiable for s in specs)
    cost = cost_of(found, specs, call.outputs, grads)
    return cost, call.specs(found["outputs"], flows)


class Call:
    """An operation as a function of a flat list of tensors, masks last.

    Its result is flat too, with the masks of the outputs at the end.
    """

    def __init__(self, operation, fill_in, specs, context, surroundings):
        self.operation = operation
        self.fill_in = fill_in
        self.masked = [i for i, s in enumerate(specs) if s.mask]
        self.inputs = len(specs)
        self.context = context
        self.surroundings = surroundings

    def __call__(self, tensors):
        given = list(tensors[: self.inputs])
        for i, mask in zip(self.masked, tensors[self.inputs :]):
            set_keras_mask(given[i], mask)
        args, kwargs = self.fill_in(given)
        with self.surroundings():
            outputs = self.operation(*args, **{**kwargs, **self.context})
        outputs = tree.flatten(outputs)
        masks = [get_keras_mask(y) for y in outputs]
        self.outputs = len(outputs)
        self.masks = [i for i, m in enumerate(masks) if m is not None]
        return outputs + [masks[i] for i in self.masks]

    def specs(self, outputs, flows):
        """`Spec`s of what the last call returned."""
        masks = {
            i: (shape, dtype)
            for i, (shape, dtype, _) in zip(self.masks, outputs[self.outputs :])
        }
        return [
            Spec(shape, dtype, flows and "float" in dtype, masks.get(i))
            for i, (shape, dtype, _) in enumerate(outputs[: self.outputs])
        ]


def cost_of(found, specs, n_outputs, grads):
    sizes = [size for _, _, size in found["outputs"]]
    mask_bytes = sum(sizes[i] for i in found["saved_outputs"] if i >= n_outputs)
    n_inputs = len(specs)
    aliases = [
        a if a is None or a < n_inputs else None for a in found["aliases"]
    ]
    return NodeCost(
        saved_internal=found["internal"] + mask_bytes,
        saves_inputs=tuple(i for i in found["saved_inputs"] if i < n_inputs),
        saves_outputs=tuple(i for i in found["saved_outputs"] if i < n_outputs),
        aliases=tuple(aliases[:n_outputs]),
        output_bytes=tuple(sizes[:n_outputs]),
        flops=int(found["flops"]),
        grads=grads,
        scratch=int(found["scratch"]),
        kept_by_matmuls=found["matmuls"],
        profiled=True,
        beyond=found.get("beyond", 0),
        sums_inputs=tuple(found.get("sums_inputs", ())),
        products=found.get("products", {}),
        remade=found.get("remade", {}),
        constants=found.get("constants", 0),
        made=traces_of(found),
    )


def traces_of(found):
    if "made" not in found:
        return ()
    values, residuals, outputs = found["made"]
    values = [Made(*v) for v in values]
    return (Trace(values, tuple(residuals), tuple(outputs)),)


def estimated(operation, call, specs):
    """A cost from shapes only: all inputs and outputs count as kept."""
    tensors = [KerasTensor(s.shape, s.dtype) for s in specs]
    args, kwargs = call.fill_in(tensors)
    outputs = tree.flatten(operation.compute_output_spec(*args, **kwargs))
    outputs = [
        Spec(tuple(y.shape), y.dtype, "float" in y.dtype) for y in outputs
    ]
    sizes = [spec_bytes(s) for s in outputs]
    variables = getattr(operation, "trainable_variables", ())
    leaving = sum(spec_bytes(s) for s in specs if s.differentiable)
    cost = NodeCost(
        saved_internal=0,
        saves_inputs=tuple(
            i for i, s in enumerate(specs) if "float" in s.dtype
        ),
        saves_outputs=tuple(
            i for i, s in enumerate(outputs) if s.differentiable
        ),
        aliases=(None,) * len(outputs),
        output_bytes=tuple(sizes),
        flops=sum(math.prod(s.shape) for s in outputs),
        grads=sum(size_of(v) for v in variables),
        scratch=sum(sizes) + leaving,
        kept_by_matmuls=0,
        profiled=False,
    )
    return cost, outputs


def spec_bytes(spec):
    return math.prod(spec.shape) * dtype_bytes(spec.dtype)


def size_of(variable):
    return math.prod(variable.shape) * dtype_bytes(variable.dtype)


def dtype_bytes(dtype):
    digits = "".join(c for c in dtype.split("_")[0] if c.isdigit())
    return max(1, int(digits or 8) // 8)
