"""Products that XLA:CPU keeps twice: as they are, and before their bias.

The sums of a batch normalization run in code of their own, which reads its
input from memory. All else that reads the input adds the bias in its own loop,
to the result of the matrix product or convolution, which so stays there too.
"""

import math

import jax

from keras.src.backend.jax.remat_compiled import MATMULS
from keras.src.backend.jax.remat_compiled import is_cheap
from keras.src.backend.jax.remat_fused import inlined
from keras.src.backend.jax.remat_values import SAME_BUFFER
from keras.src.backend.jax.remat_values import is_var


def sums_inputs(jaxpr, count):
    """Indices of those of the first `count` inputs that are summed by column.

    These are sums over the first dimension of more than one.
    """
    if jax.default_backend() != "cpu":
        return ()
    equations, _ = inlined(jaxpr)
    made_by = maker_of(equations)
    summed = set()
    for equation in equations:
        if is_column_sum(equation.eqn):
            summed |= sources(equation.invars[0], made_by)
    return tuple(i for i, v in enumerate(jaxpr.invars[:count]) if v in summed)


def product_outputs(jaxpr, count):
    """Those of the first `count` results that are products.

    Returns:
        Dict from the index of a result to whether cheap operations follow the
        product, such as the addition of a bias.
    """
    equations, ours = inlined(jaxpr)
    made_by = maker_of(equations)
    found = {}
    for i, v in enumerate(jaxpr.outvars[:count]):
        v = itself(ours.get(v, v), made_by) if is_var(v) else v
        if v in made_by:
            made = [made_by[x] for x in sources(v, made_by) if x in made_by]
            if any(is_product(e.eqn, v) for e in made):
                found[i] = is_cheap(made_by[v].eqn)
    return found


def itself(v, made_by):
    """The variable whose buffer `v` is."""
    while v in made_by and made_by[v].eqn.primitive.name in SAME_BUFFER:
        v = made_by[v].invars[0]
    return v


def is_product(eqn, v):
    if eqn.primitive.name not in MATMULS:
        return False
    return math.prod(eqn.outvars[0].aval.shape) == math.prod(v.aval.shape)


def is_column_sum(eqn):
    if eqn.primitive.name != "reduce_sum":
        return False
    return eqn.invars[0].aval.ndim > 1 and 0 in eqn.params["axes"]


def maker_of(equations):
    return {v: e for e in equations for v in e.outvars}


def sources(v, made_by):
    """What `v` is made of by cheap operations."""
    found, open_ = set(), [v]
    while open_:
        v = open_.pop()
        if not is_var(v) or v in found:
            continue
        found.add(v)
        if v in made_by and is_cheap(made_by[v].eqn):
            open_ += made_by[v].invars
    return found
