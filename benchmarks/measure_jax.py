"""Memory and arithmetic of a training step, from XLA's own assignment."""

import math
import re

from measure import Usage
from measure import thinned

BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
FAST = {"xla_backend_optimization_level": 0}  # of machine code, not buffers


def prepare():
    """Nothing to set up."""


def of_step(model, x, y):
    return usage(compile_step(model, x, y), model, x, y)


def usage(compiled, model, x, y):
    memory = compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    cost = compiled.cost_analysis() or {}
    return Usage(
        memory.temp_size_in_bytes + max(0, results),
        held(model, x, y),
        cost.get("flops"),
        *thinned(*timeline(compiled.as_text())),
    )


def lower_step(model, x, y):
    """The trainer's step, traced."""
    import jax

    model._symbolic_build(data_batch=(x, y))
    state = [[v.value for v in part] for part in parts(model)]
    step = jax.jit(model.train_step, donate_argnums=0)
    return step.lower(tuple(state), (x, y))


def parts(model):
    """The variables of a model, as the trainer's step takes them."""
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )


def compile_step(model, x, y, options=FAST):
    return lower_step(model, x, y).compile(compiler_options=BARRIERS | options)


class Step:
    """The compiled step: the program that is run is the one that is measured.

    As the trainer does between batches, it leaves the variables alone, until
    `settle` is called.
    """

    def __init__(self, model, x, y):
        self.model, self.x, self.y = model, x, y
        self.compiled = compile_step(model, x, y, options={})
        self.state = None

    def __call__(self):
        import jax
        import numpy as np

        if self.state is None:  # copies, as the step writes over them
            state = [[v.value for v in part] for part in parts(self.model)]
            self.state = jax.tree.map(lambda x: x.copy(), state)
        kept, metrics = self.state[:3], self.state[3]
        fresh = [np.zeros(x.shape, x.dtype) for x in metrics]
        data = (self.x, self.y)
        logs, self.state = self.compiled((*kept, fresh), data)
        return float(logs["loss"])

    def settle(self):
        if self.state is not None:
            for variables, values in zip(parts(self.model), self.state):
                for v, value in zip(variables, values):
                    v.assign(value)
        self.state = None

    def usage(self):
        self.settle()
        return usage(self.compiled, self.model, self.x, self.y)


def held(model, x, y):
    """Bytes that the linearized loss keeps besides weights and batch."""
    import jax

    state = [v.value for v in model.non_trainable_variables]
    optimizer = [v.value for v in model.optimizer.variables]

    def loss_of(weights):
        loss, _ = model.compute_loss_and_updates(
            weights, state, [], x, y, None, True, optimizer
        )
        return loss

    weights = [v.value for v in model.trainable_variables]
    linearized = jax.make_jaxpr(lambda w: jax.vjp(loss_of, w))(weights)
    jaxpr, same = linearized.jaxpr, {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "optimization_barrier":  # The same buffers.
            pairs = zip(eqn.outvars, eqn.invars)
            same |= {v: same.get(u, u) for v, u in pairs if is_variable(u)}
    kept = {same.get(v, v) for v in jaxpr.outvars[1:] if is_variable(v)}
    kept -= {*jaxpr.invars, *jaxpr.constvars}
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in kept)


def is_variable(v):
    return not hasattr(v, "val")  # as a literal has


# ------------------------------------------------ memory over the step
#
# The text of the compiled program lists its instructions in the order in which
# they run. A value is alive from its instruction to the last one that reads it
# or a view of it.

INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\((.*)$")
ARRAY = re.compile(r"\b(pred|bf16|[fsuc]\d+)\w*\[([\d,]*)\]")
VIEWS = {"bitcast", "get-tuple-element", "tuple", "while", "conditional"}
GRADIENT = re.compile(r"transpose\(jvp.*/dot_general")
NO_BUFFER = VIEWS | {"parameter", "constant", "after-all"}


def timeline(text):
    """List of bytes alive per instruction, and where the backward begins."""
    entry = text[text.index("\nENTRY ") :]
    rows = [m for m in map(INSTRUCTION.match, entry.split("\n")) if m]
    size, last, source, operators = {}, {}, {}, []
    backward = None
    for k, row in enumerate(rows):
        root, name, shape, op, rest = row.groups()
        operands = re.findall(r"%([\w.-]+)", rest.split("metadata=")[0])
        sources = set().union(*(source.get(o, ()) for o in operands))
        size[name] = 0 if op in NO_BUFFER else bytes_of(shape)
        last.update((s, k) for s in sources)
        if root:  # results lie in the buffers of the weights
            size.update((s, 0) for s in sources if last[s] == k)
        source[name] = sources if op in VIEWS else {name}
        last[name] = k
        if backward is None and GRADIENT.search(rest):
            backward = k
        operators.append((name, op, sources))
    in_place(operators, size, last)
    return sums(rows, size, last), backward


def in_place(operators, size, last):
    """Lets a fused operation write over an operand that dies there."""
    for k, (name, op, sources) in enumerate(operators):
        if op not in ("fusion", "call") or not size[name]:
            continue
        for s in sources:
            if last[s] == k and size[s] == size[name] and s != name:
                last[s] = k - 1
                break


def bytes_of(shape):
    total = 0
    for dtype, dims in ARRAY.findall(shape):
        bits = re.search(r"\d+", dtype)
        count = math.prod(int(d) for d in dims.split(",") if d)
        total += count * (int(bits.group()) if bits else 8) // 8
    return total


def sums(rows, size, last):
    change = [0] * (len(rows) + 1)
    for k, row in enumerate(rows):
        name = row.group(2)
        change[k] += size[name]
        change[last[name] + 1] -= size[name]
    alive, total = [], 0
    for c in change[:-1]:
        total += c
        alive.append(total)
    return alive
