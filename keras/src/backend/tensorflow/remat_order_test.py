import pytest

from keras.src import backend
from keras.src import layers
from keras.src import testing
from keras.src.backend.common.remat_op import remat

pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="about graphs of TensorFlow"
)


def waits_for(op):
    """All operations that run before `op`."""
    found, todo = set(), [op]
    while todo:
        op = todo.pop()
        before = [x.op for x in op.inputs] + list(op.control_inputs)
        todo += [o for o in before if o not in found]
        found.update(before)
    return found


class OrderTest(testing.TestCase):
    def test_a_region_waits_for_weight_gradients_of_plain_parts(self):
        import tensorflow as tf

        dense = [layers.Dense(4, activation="tanh") for _ in range(6)]
        for layer in dense:
            layer.build((3, 4))
        first = remat(lambda x: dense[1](dense[0](x)))
        second = remat(lambda x: dense[3](dense[2](x)))
        found = {}

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                y = dense[4](second(first(x)))
                loss = tf.reduce_sum(dense[5](y))
            kernels = [layer.kernel.value for layer in dense]
            found["ops"] = [g.op for g in tape.gradient(loss, kernels)]
            return [tf.convert_to_tensor(op.outputs[0]) for op in found["ops"]]

        self.assertLen(step(tf.ones((3, 4))), 6)
        ops = found["ops"]
        for op in (ops[4], ops[5]):
            self.assertIn(op, waits_for(ops[2]))
            self.assertIn(op, waits_for(ops[3]))
        for op in ops[2:]:
            self.assertIn(op, waits_for(ops[0]))
        self.assertNotIn(ops[0], waits_for(ops[2]))

    def test_devices_do_not_wait_for_each_other(self):
        import tensorflow as tf

        made = {}

        @tf.function
        def step(x):
            for kind in ("CPU", "GPU"):
                with tf.device(f"/device:{kind}:0"):
                    made[kind] = list(trained(layers_on[kind], x))
            return x

        layers_on = {kind: built_layers(2) for kind in ("CPU", "GPU")}
        graph = step.get_concrete_function(tf.ones((3, 4))).graph
        gates = [op for op in graph.get_operations() if "gate" in op.name]
        gates = [op for op in gates if "GPU" in op.device]
        self.assertNotEmpty(gates)
        self.assertNotEmpty(made["CPU"])
        for op in made["CPU"]:
            self.assertFalse(any(op in waits_for(gate) for gate in gates))


def built_layers(n):
    found = [layers.Dense(4, activation="tanh") for _ in range(n)]
    for layer in found:
        layer.build((3, 4))
    return found


def trained(dense, x):
    """The operations that make and use gradients of a plain layer and a region.

    The gradient of the plain layer is the last one that is made.
    """
    import tensorflow as tf

    first, second = dense
    block = remat(lambda x: second(x))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(first(tf.identity(x))))
    kernels = [layer.kernel.value for layer in dense]
    graph = tf.compat.v1.get_default_graph()
    for kernel, g in zip(kernels, tape.gradient(loss, kernels)):
        before = len(graph.get_operations())
        kernel.assign_sub(g)
        yield g.op
        yield from graph.get_operations()[before:]
