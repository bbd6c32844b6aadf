"""Residuals that a step compiled by XLA does not keep, or keeps otherwise.

What cheap operations make of other values is made again in the loop of each
reader, so such a residual is none, and its sources are kept in its place. A
value that is one per row, a mean or a sum, is filled over rows and kept so.
"""

import collections

import jax

from keras.src.backend.jax.remat_compiled import is_cheap
from keras.src.backend.jax.remat_compiled import runs_in_loop
from keras.src.backend.jax.remat_compiled import shared_buffers
from keras.src.backend.jax.remat_values import called
from keras.src.backend.jax.remat_values import is_var
from keras.src.backend.jax.remat_values import size

# Cheap enough to run in the loop of one reader, but not of each.
DEAR = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv "
    "erfc exp exp2 expm1 integer_pow lgamma log log1p logistic pow rsqrt sin "
    "sinh sqrt tan tanh threefry2x32 random_bits".split()
)

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
        Pair of an integer, and of a dict from an input to the bytes of
        residuals that are made of it again if it is there in memory. Whether
        it is, or is made again itself, cannot be seen from here.
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
    given, of_input = {*forward.invars} - kept, {}
    for v in (v for v, looped in fits.items() if looped):
        found = sources(v, made_by, rows, kept - {v})
        gain = size(v) - sum(map(size, found - kept - new))
        if v in found:
            continue
        # It is done whether it pays or not.
        if gain > 0 or not found & given:
            new |= found - kept
            kept.remove(v)
            new.discard(v)
        elif len(found - kept) == 1:
            (x,) = found & given
            of_input[x] = of_input.get(x, 0) + size(v)
    before = {ours.get(v, v) for v in internal}
    dropped = sum(size(v) for v in before - kept)
    return sum(map(size, new)) - dropped, of_input


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
    is_called, equations = ours is not None, []
    ours = {} if ours is None else ours
    for eqn in jaxpr.eqns:
        given = [ours.get(v, v) if is_var(v) else v for v in eqn.invars]
        inner = called(eqn)
        if inner is not None:
            env = dict(zip(inner.invars, given))
            equations += inlined(inner, env)[0]
            made = [env.get(v, v) if is_var(v) else v for v in inner.outvars]
            # A call may return a number as it stands, which has no name.
            made = [v if is_var(v) else Inner(v) for v in made]
        else:
            outvars = eqn.outvars
            made = [Inner(v) for v in outvars] if is_called else outvars
            equations.append(Equation(eqn, given, made))
        ours.update(zip(eqn.outvars, made))
    return equations, ours
