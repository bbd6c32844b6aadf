import gc
import threading
import weakref

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common import global_state
from keras.src.backend.common import remat_surroundings
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_test_utils import Counter
from keras.src.backend.common.remat_test_utils import Inferring
from keras.src.backend.common.remat_test_utils import step
from keras.src.backend.common.stateless_scope import get_stateless_scope

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


@pytest.mark.skipif(backend.backend() != "torch", reason="is about torch")
class TorchTest(testing.TestCase):
    def test_no_reference_cycle_holds_an_activation(self):
        import torch

        utils.traceback_utils.enable_traceback_filtering()
        self.addCleanup(utils.traceback_utils.disable_traceback_filtering)
        born = []
        dense, add = layers.Dense(6, activation="gelu"), layers.Add()

        @remat
        def f(x):
            y = dense(x)
            z = add([y, dense(y)])
            born.extend(weakref.ref(t) for t in (y, z))
            return dense(z)

        x = torch.tensor(X, requires_grad=True)
        f(x)
        born.clear()
        gc.collect()
        gc.disable()
        try:
            y = f(x)
            self.assertEqual([r() for r in born], [None, None])
            torch.sum(y).backward()
            self.assertLen(born, 4)
            self.assertEqual([r() for r in born], [None] * 4)
        finally:
            gc.enable()

    def test_the_early_stop_leaves_no_state(self):
        import torch

        count = Counter()
        count.build(None)
        names = (*remat_surroundings.SURROUNDINGS, "traceback_filtering")
        finished = []

        @remat
        def f(x):
            y = ops.sin(count(x))  # the last value that is saved
            y = y + 1
            finished.append(1)
            return y

        before = {n: global_state.get_global_attribute(n) for n in names}
        x = torch.tensor(X, requires_grad=True)
        torch.sum(f(x)).backward()
        after = {n: global_state.get_global_attribute(n) for n in names}
        self.assertLen(finished, 1)
        self.assertEqual(after, before)
        self.assertIsNone(get_stateless_scope())
        self.assertEqual(int(count.count), 1)

    def test_the_backward_pass_may_run_in_another_thread(self):
        import torch

        x = torch.tensor(X, requires_grad=True)
        layer = Inferring(True)
        y = torch.sum(torch.sin(layer(x, training=True)))
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
        plain = Inferring(False)
        z = torch.tensor(X, requires_grad=True)
        torch.sum(torch.sin(plain(z, training=True))).backward()
        self.assertAllClose(x.grad, z.grad, atol=1e-6)

    def test_frozen_weights_are_not_copied(self):
        import torch

        v = backend.Variable(X, trainable=False)
        v.assign(2 * X)
        pointer = v.value.data_ptr()
        x = torch.tensor(X, requires_grad=True)
        seen = []

        @remat
        def f(x):
            seen.append(ops.convert_to_tensor(v).data_ptr())
            return ops.sin(x * v)

        torch.sum(f(x)).backward()
        self.assertEqual(seen, [pointer, pointer])


@pytest.mark.skipif(backend.backend() != "jax", reason="is about JAX")
class JaxTest(testing.TestCase):
    def test_eager_steps_compile_nothing_new(self):
        import jax

        compiled = []

        def listen(event, duration, **kwargs):
            if "compile" in event:
                compiled.append(event)

        dense = layers.Dense(6, activation="gelu")
        dense.build((None, 6))
        f = remat(lambda x: dense(ops.sin(x)))

        def one_step():
            step(lambda x: ops.sum(f(x)), [X], dense.variables)

        one_step()
        one_step()
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            for _ in range(10):
                one_step()
            self.assertEqual(compiled, [])
            jax.jit(lambda x: x * 3.25 + len(compiled))(X)
            self.assertNotEqual(compiled, [])  # the listener does hear
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="is about TensorFlow"
)
class TensorFlowTest(testing.TestCase):
    def test_equal_tensors_in_another_nest_are_refused(self):
        # torch stops before the function returns, once it has its values.
        turns = []

        @remat
        def fickle(x):
            turns.append(1)
            y = ops.sin(x)
            return [y] if len(turns) == 1 else {"y": y}

        with self.assertRaisesRegex(ValueError, r"fickle.*\{'y': 'float32"):
            step(lambda x: ops.sum(fickle(x)[0]), [X])

    @parameterized.parameters(False, True)
    def test_a_variable_that_is_not_of_keras_gets_its_gradient(self, compiled):
        import tensorflow as tf

        v = tf.Variable(X)

        def run():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(remat(lambda x: tf.sin(x * v))(X))
            return tape.gradient(loss, v)

        found = tf.function(run)() if compiled else run()
        self.assertAllClose(found, X * np.cos(X * X), atol=1e-5)
