import pytest

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import optimizers
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.tensorflow.remat_order_test import waits_for

pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="about graphs of TensorFlow"
)


def chain(n=8):
    x = inputs = layers.Input((4,))
    for _ in range(n):
        x = layers.Dense(4, activation="tanh")(x)
    return models.Model(inputs, x)


def gradients_in(model):
    """The operations that make the gradients of the kernels in a step."""
    import tensorflow as tf

    found = []

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        kernels = [layer.kernel.value for layer in model.layers[1:]]
        found[:] = [g.op for g in tape.gradient(loss, kernels)]
        return [op.outputs[0] for op in found]

    step(tf.ones((3, 4)))
    return found


def graph_of_step(model, optimizer, x):
    """The graph of a training step, which has run once."""
    import tensorflow as tf

    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        values = [v.value for v in model.trainable_variables]
        optimizer.apply(tape.gradient(loss, values), model.trainable_variables)
        return loss

    step(x)
    return step.get_concrete_function(x).graph


def updates_of(graph, variable):
    """Operations that change a variable."""
    from keras.src.backend.tensorflow.remat_updates import UPDATES

    (handle,) = (
        inner
        for outer, inner in graph.captures
        if outer is variable.value.handle
    )
    return [op for op in handle.consumers() if op.type.startswith(UPDATES)]


def readers_of(handle):
    """What reads the value of a variable, under whatever name."""
    reads = [op for op in handle.consumers() if op.type == "ReadVariableOp"]
    found, todo = set(), [op.outputs[0] for op in reads]
    while todo:
        x = todo.pop()
        for op in x.consumers():
            pairs = zip(op.inputs, op.outputs)
            if op.type in ("Identity", "IdentityN"):
                todo += [out for given, out in pairs if given is x]
            else:
                found.add(op)
    return found


def needed_in(graph):
    ends = [*(x.op for x in graph.outputs), *graph.control_outputs]
    return set(ends).union(*map(waits_for, ends))


def gates_in(graph):
    """Those that something needed waits for, in order."""
    needed = needed_in(graph)
    return [
        op
        for op in graph.get_operations()
        if op.name.startswith("remat_gate") and op in needed
    ]


class UpdatesTest(testing.TestCase):
    def test_a_region_waits_for_updates_of_later_layers(self):
        import tensorflow as tf

        model = chain(4)
        for layer in model.layers[1:]:
            layer.remat = True
        graph = graph_of_step(model, optimizers.SGD(0.1), tf.ones((3, 4)))
        gates = gates_in(graph)
        self.assertLen(gates, 4)
        for i, layer in enumerate(reversed(model.layers[1:])):
            (update,) = updates_of(graph, layer.kernel)
            for j, gate in enumerate(gates):
                self.assertEqual(update in waits_for(gate), i < j)

    def test_an_update_waits_for_who_reads_the_old_value(self):
        import tensorflow as tf

        model = chain(3)
        for layer in model.layers[1:]:
            layer.remat = True
        graph = graph_of_step(model, optimizers.SGD(0.1), tf.ones((3, 4)))
        for layer in model.layers[1:]:
            (update,) = updates_of(graph, layer.kernel)
            before = waits_for(update)
            readers = readers_of(update.inputs[0]) & needed_in(graph)
            # Both runs, and, but for the first layer, the gradient.
            self.assertLen(readers, 2 + (layer is not model.layers[1]))
            for op in readers:
                self.assertIn(op, before)

    def test_an_update_that_needs_all_gradients_comes_last(self):
        import tensorflow as tf

        model = chain(4)
        model.remat = True
        optimizer = optimizers.Adam(0.1, global_clipnorm=1.0)
        graph = graph_of_step(model, optimizer, tf.ones((3, 4)))
        for layer in model.layers[1:]:
            for gate in gates_in(graph):
                (update,) = updates_of(graph, layer.kernel)
                self.assertNotIn(update, waits_for(gate))

    def test_what_nothing_needs_is_not_run_for_an_update(self):
        import tensorflow as tf

        model = chain(3)
        model.remat = RematPolicy(keep="matmuls")
        graph = graph_of_step(model, optimizers.SGD(0.1), tf.ones((3, 4)))
        count = sum(op.type == "MatMul" for op in needed_in(graph))
        # Three forward, three for kernels, two for what is between them.
        self.assertEqual(count, 8)

    def test_loops_run_back_a_step_at_a_time(self):
        import tensorflow as tf

        inputs = layers.Input((6, 4))
        model = models.Model(inputs, layers.LSTM(4)(inputs))
        model.remat = True
        graph = graph_of_step(model, optimizers.SGD(0.1), tf.ones((3, 6, 4)))
        loops = [op for op in graph.get_operations() if "While" in op.type]
        back = [op for op in loops if "gradient" in op.name]
        self.assertNotEmpty(back)
        for op in back:
            self.assertEqual(op.get_attr("parallel_iterations"), 1)

    def test_no_circle_where_gradients_of_kernel_and_bias_are_made_in_one(self):
        import tensorflow as tf

        # oneDNN does so to convolutions; of a shared layer that is added up.
        inputs = layers.Input((8, 8, 2))
        shared = layers.Conv2D(2, 3, padding="same")
        first = layers.Conv2D(2, 3, padding="same", activation="relu")(inputs)
        ends = [shared(first), shared(layers.Conv2D(2, 1)(first))]
        model = models.Model(inputs, layers.Concatenate()(ends))
        for layer in model.layers[1:]:
            layer.remat = True
        graph = graph_of_step(model, optimizers.SGD(0.1), tf.ones((1, 8, 8, 2)))
        (update,) = updates_of(graph, shared.bias)
        self.assertFalse(any(update in waits_for(g) for g in gates_in(graph)))

    def test_a_graph_without_regions_stays_as_it_is(self):
        import tensorflow as tf

        graph = graph_of_step(chain(2), optimizers.SGD(0.1), tf.ones((3, 4)))
        self.assertEmpty(gates_in(graph))
        self.assertIs(type(graph.control_outputs), list)

    def test_a_variable_that_is_set_from_itself(self):
        import tensorflow as tf

        total = tf.Variable(1.0)
        block = remat(lambda x: tf.math.tanh(x) * x)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = block(x)
            total.assign(total + tape.gradient(y, x))
            return total.read_value()

        x = tf.constant(0.5)
        expected = 1 + float(tf.math.tanh(x) + x / tf.math.cosh(x) ** 2)
        self.assertAllClose(step(x), expected)


class InOrderTest(testing.TestCase):
    def test_plain_parts_of_a_plan_run_back_in_order(self):
        model = chain()
        model.remat = RematPolicy(memory_budget="1GiB")
        ops = gradients_in(model)
        for before, op in zip(ops[1:], ops):
            self.assertIn(before, waits_for(op))

    def test_parts_of_a_region_run_back_in_order(self):
        model = chain()
        model.remat = True
        ops = gradients_in(model)
        for before, op in zip(ops[1:], ops):
            self.assertIn(before, waits_for(op))

    def test_layers_in_a_function_of_ones_own_run_back_in_order(self):
        import tensorflow as tf

        model = chain()
        block = remat(lambda x: model(x, training=True))
        found = []

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(block(x))
            kernels = [layer.kernel.value for layer in model.layers[1:]]
            found[:] = [g.op for g in tape.gradient(loss, kernels)]
            return [op.outputs[0] for op in found]

        step(tf.ones((3, 4)))
        for before, op in zip(found[1:], found):
            self.assertIn(before, waits_for(op))

    def test_one_tensor_that_is_given_twice_stays_one(self):
        import tensorflow as tf

        class Same(layers.Layer):
            def call(self, x, y):
                return x * y if x is y else x + y

        layer = Same()
        block = remat(lambda x: layer(x, x))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = block(x)
            return tape.gradient(y, x)

        self.assertAllClose(step(tf.constant([3.0])), [6.0])
