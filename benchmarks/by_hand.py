"""A Keras graph with the engine's own checkpoint around each block."""

import re

import keras


class ByHand(keras.Model):
    """Runs the layers of a case; each block is one checkpoint.

    Args:
        case: A `models.Case`.
        checkpoint: A function of a `Section` and its inputs.
    """

    def __init__(self, case, checkpoint):
        super().__init__()
        self.inner = case.model
        self.checkpoint = checkpoint
        self.sections = sections_of(case)

    def call(self, x, training=None):
        values = dict(zip(map(id, self.inner.inputs), keras.tree.flatten(x)))
        for section in self.sections:
            given = [values[k] for k in section.takes]
            section.training = training
            if section.is_block:
                results = self.checkpoint(section, given)
            else:
                results = section(*given)
            values.update(zip(section.gives, results))
        return values[id(self.inner.outputs[0])]


class Section:
    """Neighbouring nodes of a graph, as a function of tensors."""

    def __init__(self, nodes, is_block, read_outside):
        self.nodes = nodes
        self.is_block = is_block
        self.training = None  # said anew, as the second run is out of context
        inside = ids(t for n in nodes for t in n.output_tensors)
        read = ids(t for n in nodes for t in n.input_tensors)
        self.takes = [k for k in read if k not in inside]
        self.gives = [k for k in inside if k in read_outside]

    def __call__(self, *given):
        values = dict(zip(self.takes, given))
        for node in self.nodes:
            args, kwargs = node.arguments.fill_in(values)
            if getattr(node.operation, "_call_has_training_arg", False):
                kwargs["training"] = self.training
            results = keras.tree.flatten(node.operation(*args, **kwargs))
            values.update(zip(ids(node.output_tensors), results))
        return tuple(values[k] for k in self.gives)

    def variables(self):
        owners = [n.operation for n in self.nodes]
        found = [v for o in owners for v in getattr(o, "variables", ())]
        return list({id(v): v for v in found}.values())


def ids(tensors):
    return list(dict.fromkeys(map(id, tensors)))


def sections_of(case):
    depths = case.model._nodes_by_depth
    nodes = [n for d in sorted(depths, reverse=True) for n in depths[d]]
    groups = []
    for node in nodes:
        if node.is_input:
            continue
        match = re.match(case.block, node.operation.name)
        key = match and match.group(0)
        if not groups or groups[-1][0] != key:
            groups.append((key, []))
        groups[-1][1].append(node)
    return [
        Section(group, key is not None, read_outside(nodes, group, case.model))
        for key, group in groups
    ]


def read_outside(nodes, group, model):
    others = [n for n in nodes if n not in group]
    read = [t for n in others for t in n.input_tensors]
    return set(ids([*read, *model.outputs]))


def jax_checkpoint(section, given, policy=None):
    """State enters and leaves as values: JAX has no side effects."""
    import jax

    variables = section.variables()

    def pure(state, *given):
        mapping = list(zip(variables, state))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            results = section(*given)
        return results, [scope.get_current_value(v) for v in variables]

    before = [v.value for v in variables]
    results, after = jax.checkpoint(pure, policy=policy)(before, *given)
    for v, value in zip(variables, after):
        if not v.trainable:
            v.assign(value)
    return results


def torch_checkpoint(section, given, **options):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(section, *given, use_reentrant=False, **options)


def torch_to_the_end(section, given, **options):
    """Without the early stop, an exception that Keras's filter keeps alive."""
    from torch.utils.checkpoint import set_checkpoint_early_stop

    with set_checkpoint_early_stop(False):
        return torch_checkpoint(section, given, **options)


def tensorflow_checkpoint(section, given):
    import tensorflow as tf

    return tf.recompute_grad(section)(*given)


def tensorflow_ordered(section, given):
    """The second run waits for the gradient, and the next one for this one."""
    import tensorflow as tf

    @tf.custom_gradient
    def run(*given):
        def gradient(*incoming, variables=()):
            with tf.control_dependencies(incoming):
                again = [tf.identity(x) for x in given]
            with tf.GradientTape() as tape:
                tape.watch(again)
                results = section(*again)
            sources = [*again, *variables]
            found = tape.gradient(results, sources, output_gradients=incoming)
            inner, outer = found[: len(again)], found[len(again) :]
            with tf.control_dependencies([g for g in outer if g is not None]):
                inner = [g if g is None else tf.identity(g) for g in inner]
            return inner, outer

        return section(*given), gradient

    return run(*given)


def region(section, given):
    """The same section as a region of ours."""
    return keras.remat(section)(*given)


WAYS = {
    "jax": {"by hand": jax_checkpoint},
    "torch": {
        "by hand": torch_checkpoint,
        "by hand, no early stop": torch_to_the_end,
    },
    "tensorflow": {
        "by hand": tensorflow_checkpoint,
        "by hand, ordered": tensorflow_ordered,
    },
}


def strategy(way):
    def apply(case):
        return ByHand(case, way)

    return apply


def strategies(backend):
    return {name: strategy(way) for name, way in WAYS[backend].items()}
