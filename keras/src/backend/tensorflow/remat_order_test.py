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

        dense = [layers.Dense(4, activation="tanh") for _ in range(2)]
        for layer in dense:
            layer.build((3, 4))
        blocks = [remat(layer) for layer in dense]
        found = {}

        @tf.function
        def step(x):
            for block, layer, kind in zip(blocks, dense, ("CPU", "GPU")):
                with tf.device(f"/device:{kind}:0"):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(block(tf.identity(x)))
                    kernel = layer.kernel.value
                    found[kind] = tape.gradient(loss, kernel)
            return list(found.values())

        step.get_concrete_function(tf.ones((3, 4)))
        self.assertNotIn(found["CPU"].op, waits_for(found["GPU"].op))
