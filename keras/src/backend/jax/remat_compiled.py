"""What XLA holds in memory when it has compiled an operation.

A jaxpr says what is computed; these are rules for what of it becomes a buffer.
Cheap operations run in the loop of their reader, and what cheap operations
make of other values is made again by each reader, so such a residual is none.
On a CPU, kernels of convolutions are laid out anew, ahead of the step, and a
depthwise convolution takes its kernel's gradient from that of a dense one.
"""

import collections
import math

import jax

from keras.src.backend.jax.remat_values import SAME_BUFFER
from keras.src.backend.jax.remat_values import is_var
from keras.src.backend.jax.remat_values import jaxprs_in
from keras.src.backend.jax.remat_values import size

MATMULS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
REGIONS = ("checkpoint", "remat", "remat2")
# What XLA does not fuse into the operation that reads it.
COSTLY = tuple(
    "arg cum dynamic_update_slice fft gather reduce scatter select_and sort "
    "while".split()
)

# Cheap enough to run in the loop of one reader, but not of each.
DEAR = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv "
    "erfc exp exp2 expm1 integer_pow lgamma log log1p logistic pow rsqrt sin "
    "sinh sqrt tan tanh threefry2x32 random_bits".split()
)
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")

Equation = collections.namedtuple("Equation", ["eqn", "invars", "outvars"])
Equation.__doc__ = """An equation, and what stands for its variables.

Args:
    eqn: The equation; its variables may be those of a called jaxpr.
    invars: List of variables of ours, or literals.
    outvars: List of variables of ours.
"""


class Inner:
    """Stands for a variable of a called jaxpr in one call of it."""

    def __init__(self, v):
        self.aval = v.aval


def shared_buffers(jaxpr):
    """Maps variables to the ones whose buffer they are."""
    roots = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in SAME_BUFFER:
            pairs = zip(eqn.outvars, eqn.invars)
        elif eqn.primitive.name == "convert_element_type":
            same = eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
            pairs = zip(eqn.outvars, eqn.invars) if same else ()
        elif eqn.primitive.name in ("jit", "pjit", "closed_call"):
            pairs = through_call(eqn)
        else:
            continue
        for out, source in pairs:
            if is_var(source):
                roots[out] = roots.get(source, source)
    return roots


def through_call(eqn):
    inner = next(jaxprs_in(eqn.params))
    roots, seen = shared_buffers(inner), dict(zip(inner.invars, eqn.invars))
    pairs = []
    for out, v in zip(eqn.outvars, inner.outvars):
        if is_var(v):
            pairs.append((out, seen.setdefault(roots.get(v, v), out)))
    return pairs


def peak(jaxpr, ignored, again=False):
    """Most bytes at once of what equations make, in order.

    Cheap operations run in the loop of their reader, as XLA fuses them. Where
    a region runs `again`, what its backward pass reads too is there in full.
    """
    roots, last, readers = shared_buffers(jaxpr), {}, {}
    for i, eqn in enumerate(jaxpr.eqns):
        for v in filter(is_var, eqn.invars):
            last[roots.get(v, v)] = i
            readers.setdefault(roots.get(v, v), []).append(eqn)
    ends = {roots.get(v, v) for v in jaxpr.outvars if is_var(v)}
    for eqn in reversed(jaxpr.eqns if again else ()):
        if is_cheap(eqn):  # What it reads is there until it is read itself.
            outs = [roots.get(v, v) for v in eqn.outvars]
            until = max((last.get(v, 0) for v in outs), default=0)
            for v in filter(is_var, eqn.invars):
                last[roots.get(v, v)] = max(last[roots.get(v, v)], until)
    live = most = 0
    dying = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for v in eqn.outvars:
            stays = v in ends
            if (
                v in roots
                or v in ignored
                or (not stays and fused(eqn, readers.get(v, ()), again))
            ):
                continue
            live += size(v)
            until = len(jaxpr.eqns) if stays else last.get(v, i)
            dying.setdefault(until, []).append(size(v))
        inside, region = widened(eqn), again or eqn.primitive.name in REGIONS
        if region or not is_cheap(eqn):
            for j in jaxprs_in(eqn.params):
                inside = max(inside, peak(j, j.outvars, region))
        most = max(most, live + inside)
        live -= sum(dying.pop(i, ()))
    return most


def fused(eqn, readers, again):
    if again and len(readers) > 1:
        return False
    return is_cheap(eqn) and all(
        is_cheap(r) or r.primitive.name.startswith("reduce_") for r in readers
    )


def is_cheap(eqn):
    """Whether an equation computes each element from few others."""
    inner = list(jaxprs_in(eqn.params))
    if inner:
        return eqn.primitive.name != "scan" and all(
            is_cheap(e) for j in inner for e in j.eqns
        )
    name = eqn.primitive.name
    return name not in MATMULS and not name.startswith(COSTLY)


def widened(eqn):
    """Bytes that XLA:CPU takes for the kernel's gradient, if depthwise."""
    groups = eqn.params.get("batch_group_count", 1)
    if groups == 1 or jax.default_backend() != "cpu":
        return 0
    return 2 * groups * size(eqn.outvars[0])


class Row(Inner):
    """The buffer of a value that is one per row, filled over rows."""

    def __init__(self, v, full):
        self.aval = jax.ShapeDtypeStruct(full.aval.shape, v.aval.dtype)


def beyond_residuals(forward, backward, internal, weights, results):
    """Bytes that XLA holds with the residuals; negative if it holds less.

    Args:
        forward: Jaxpr that returns results, then residuals.
        backward: Jaxpr that takes the residuals first, in the same order.
        internal: Set of the residuals that are made inside, as variables of
            `forward`.
        weights: Those of its inputs that are there in any case.
        results: Number of results.

    Returns:
        Integer.
    """
    equations, ours = inlined(forward)
    roots, rows = shared_buffers(forward), rows_of(equations)
    made_by = {v: e for e in equations for v in e.outvars}
    readers = readers_of(backward)
    kept, fits, new = {*weights, *forward.constvars}, {}, set()
    for v, inside in zip(forward.outvars[results:], backward.invars):
        if not is_var(v):
            continue
        v, root = ours.get(v, v), roots.get(v, v)
        kept.add(ours.get(root, root))
        reading = readers.get(inside, ())
        if v in rows and any(row_of(e, inside) for e in reading):
            new.add(rows[v])
        if root in internal:
            looped = all(runs_in_loop(e.eqn) for e in reading)
            root = ours.get(root, root)
            fits[root] = fits.get(root, True) and looped
    given = {*forward.invars} - kept
    for v in (v for v, looped in fits.items() if looped):
        found = sources(v, made_by, rows, kept - {v})
        gain = size(v) - sum(map(size, found - kept - new))
        # It is done whether it pays or not. But what comes in may well be made
        # again too, which cannot be seen from here.
        if v not in found and (gain > 0 or not found & given):
            new |= found - kept
            kept.remove(v)
            new.discard(v)
    before = {ours.get(v, v) for v in internal}
    dropped = sum(size(v) for v in before - kept)
    return sum(map(size, new)) - dropped


def readers_of(jaxpr):
    readers = {}
    for equation in inlined(jaxpr)[0]:
        for v in filter(is_var, equation.invars):
            readers.setdefault(v, []).append(equation)
    return readers


def rows_of(equations):
    """The `Row` of each variable that some equation reads along rows."""
    return {
        v: Row(v, equation.outvars[0])
        for equation in equations
        for v in filter(is_var, equation.invars)
        if row_of(equation, v)
    }


def row_of(equation, v):
    """Whether an equation fills rows with `v`, which has one for each."""
    made = equation.outvars[0].aval.shape
    shape = v.aval.shape
    one = bool(shape) and bool(made) and shape[-1] == 1 < made[-1]
    return one and is_cheap(equation.eqn)


def runs_in_loop(eqn):
    """Whether an equation takes its operands as they are being computed."""
    return is_cheap(eqn) or eqn.primitive.name.startswith("reduce_")


def sources(v, made_by, rows, kept):
    """The variables which `v` is made of by what may run more than once."""
    equation = made_by.get(v)
    if v in kept or equation is None or not is_repeated(equation.eqn):
        return {v}
    found = set()
    for x in filter(is_var, equation.invars):
        if row_of(equation, x):
            found.add(rows[x])
        else:
            found |= sources(x, made_by, rows, kept)
    return found


def is_repeated(eqn):
    return is_cheap(eqn) and eqn.primitive.name not in DEAR


def inlined(jaxpr, ours=None):
    """The equations of a jaxpr and of those that it calls.

    Args:
        jaxpr: The jaxpr.
        ours: What stands for its inputs, if it is called. Defaults to `None`:
            they stand for themselves.

    Returns:
        Pair of a list of `Equation` and of what stands for each variable.
    """
    called, equations = ours is not None, []
    ours = {} if ours is None else ours
    for eqn in jaxpr.eqns:
        given = [ours.get(v, v) if is_var(v) else v for v in eqn.invars]
        inner = list(jaxprs_in(eqn.params))
        if eqn.primitive.name in CALLS and len(inner) == 1:
            env = dict(zip(inner[0].invars, given))
            equations += inlined(inner[0], env)[0]
            made = [env.get(v, v) if is_var(v) else v for v in inner[0].outvars]
        else:
            made = [Inner(v) for v in eqn.outvars] if called else eqn.outvars
            equations.append(Equation(eqn, given, made))
        ours.update(zip(eqn.outvars, made))
    return equations, ours


def layouts(jaxpr, variables):
    """Bytes of kernels that XLA:CPU lays out anew, and of those kernels.

    Returns:
        Pair of integers. One copy of a kernel serves the forward and one
        the backward pass; a new kernel is in that layout, so it is not written
        over the old one before the step ends.
    """
    if jax.default_backend() != "cpu" or not convolves(jaxpr):
        return 0, 0
    kernels = sum(
        math.prod(v.shape) * jax.numpy.dtype(v.dtype).itemsize
        for v in variables
        if v.trainable and len(v.shape) > 2
    )
    return 2 * kernels, kernels


def constants(backward):
    """Bytes of indices that XLA:CPU makes ahead for max pooling.

    Its backward pass finds where each maximum was by them; there is one array
    for each dimension. As they depend on nothing, regions do not delay them.
    """
    if jax.default_backend() != "cpu":
        return 0
    return sum(
        4 * len(eqn.invars[1].aval.shape) * math.prod(eqn.invars[1].aval.shape)
        for eqn, *_ in inlined(backward)[0]
        if eqn.primitive.name == "select_and_scatter_add"
    )


def convolves(jaxpr):
    return any(
        eqn.primitive.name == "conv_general_dilated"
        or any(convolves(j) for j in jaxprs_in(eqn.params))
        for eqn in jaxpr.eqns
    )
