import collections
import dataclasses
import gc
import threading
import weakref

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import metrics
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common import global_state
from keras.src.backend.common import remat_region
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_test_utils import Counter
from keras.src.backend.common.remat_test_utils import Inferring
from keras.src.backend.common.remat_test_utils import Penalty
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.stateless_scope import get_stateless_scope

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


@dataclasses.dataclass(frozen=True)
class Point:
    x: object
    y: object
    name: str = "point"


Pair = collections.namedtuple("Pair", ["a", "b"])


@pytest.mark.requires_trainable_backend
class EqualNumbersTest(testing.TestCase):
    def test_training_flag_is_inferred_on_both_runs(self):
        results = []
        for rematerialize in (False, True):
            layer = Inferring(rematerialize)
            layer(X)

            def loss(x):
                return ops.sum(ops.sin(layer(x, training=True)))

            gradients = step(loss, [X], layer.variables)[1:]
            results.append((gradients, layer.drop.seed_generator.state))
        (expected, seed), (found, our_seed) = results
        for a, b in zip(found[0] + found[1], expected[0] + expected[1]):
            self.assertAllClose(a, b, atol=1e-5, rtol=1e-5)
        self.assertAllEqual(our_seed, seed)

    def test_second_order_gradient(self):
        def slope(f, x):
            """The gradient of `f`, through which a gradient can be taken."""
            if backend.backend() == "jax":
                import jax

                return jax.grad(f)(x)
            if backend.backend() == "tensorflow":
                import tensorflow as tf

                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = f(x)
                return tape.gradient(y, x)
            import torch

            return torch.autograd.grad(f(x), x, create_graph=True)[0]

        f = remat(lambda x: ops.sum(ops.sin(x) * x))
        _, (found,), _ = step(lambda x: ops.sum(slope(f, x)), [X])
        self.assertAllClose(found, 2 * np.cos(X) - X * np.sin(X), atol=1e-5)


@pytest.mark.requires_trainable_backend
class RealRunsTest(testing.TestCase):
    @parameterized.named_parameters(("eager", False), ("compiled", True))
    def test_a_region_runs_exactly_once_more(self, compiled):
        def f(x):
            return ops.tanh(counted(ops.sin(x)))

        with runs() as plain:
            step(lambda x: ops.sum(f(x)), [X], compiled=compiled)
        with runs() as found:
            step(lambda x: ops.sum(remat(f)(x)), [X], compiled=compiled)
        self.assertLen(plain, 1)
        self.assertLen(found, 2)

    def test_without_gradient_it_runs_once(self):
        f = remat(lambda x: ops.tanh(counted(ops.sin(x))))
        with runs() as found:
            f(ops.convert_to_tensor(X))
        self.assertLen(found, 1)

    def test_a_nested_region_runs_once_more_per_level(self):
        @remat
        def inner(x):
            return ops.tanh(counted(ops.sin(x), "inner"))

        @remat
        def outer(x):
            return ops.sin(inner(ops.tanh(counted(x, "outer"))))

        with runs() as found:
            _, (gradient,), _ = step(lambda x: ops.sum(outer(x)), [X])
        self.assertEqual(found.count("outer"), 2)
        self.assertEqual(found.count("inner"), 3)
        plain = lambda x: ops.sum(ops.sin(ops.tanh(ops.sin(ops.tanh(x)))))
        self.assertAllClose(gradient, step(plain, [X])[1][0], atol=1e-5)

    def test_state_moves_once_in_nested_regions(self):
        counter = Counter()
        counter.build(None)
        f = remat(lambda x: ops.sin(remat(lambda x: counter(x))(x)))
        step(lambda x: ops.sum(f(x)), [X], counter.variables)
        self.assertEqual(int(counter.count), 1)


@pytest.mark.requires_trainable_backend
class StructureTest(testing.TestCase):
    def test_arguments_that_are_not_tensors(self):
        seen = []

        @remat
        def f(x, flag, *, nest, name, none=None, shape=(), dtype="float32"):
            seen.append((flag, name, none, shape, nest["n"], nest["p"].b))
            self.assertIs(type(nest["p"]), Pair)
            y = ops.reshape(ops.cast(x, dtype), shape)
            return ops.sum(ops.sin(y) * nest["p"].a) if flag else None

        def loss(x):
            nest = {"p": Pair(x * 1.0, "b"), "n": 3}
            return f(x, True, nest=nest, name="n", shape=(4, 6))

        _, (gradient,), _ = step(loss, [X])
        self.assertAllClose(gradient, np.sin(X) + X * np.cos(X), atol=1e-5)
        self.assertEqual(set(seen), {(True, "n", None, (4, 6), 3, "b")})

    def test_results_that_are_not_tensors(self):
        def f(x):
            y = ops.sin(x)
            return {"p": Pair(y, [None, "text"]), "n": 3, "t": (True, 2 * y)}

        def loss(x):
            results = remat(f)(x)
            self.assertEqual(results["p"].b, [None, "text"])
            self.assertEqual((results["n"], results["t"][0]), (3, True))
            return ops.sum(results["p"].a * results["t"][1])

        _, (gradient,), _ = step(loss, [X])
        self.assertAllClose(gradient, 4 * np.sin(X) * np.cos(X), atol=1e-5)

    def test_dataclasses_enter_and_leave(self):
        @remat
        def f(point):
            y = ops.sin(point.x)
            return Point(y, [Point(y * point.x, None, "inner"), 3], "outer")

        def loss(x):
            result = f(Point(x, None))
            inner, number = result.y
            self.assertEqual(
                (result.name, inner.name, number), ("outer", "inner", 3)
            )
            return ops.sum(result.x + inner.x)

        _, (gradient,), _ = step(loss, [X])
        expected = np.cos(X) + np.sin(X) + X * np.cos(X)
        self.assertAllClose(gradient, expected, atol=1e-5)

    def test_keyword_tensors_get_gradients(self):
        f = remat(lambda x, y: ops.sum(ops.sin(x) * y))
        _, (gx, gy), _ = step(lambda x, y: f(x, y=y), [X, 2 * X])
        self.assertAllClose(gx, 2 * X * np.cos(X), atol=1e-5)
        self.assertAllClose(gy, np.sin(X), atol=1e-5)

    def test_the_same_tensor_twice(self):
        f = remat(lambda x, y: ops.sum(ops.sin(x) * y))
        _, (gradient,), _ = step(lambda x: f(x, x), [X])
        self.assertAllClose(gradient, np.sin(X) + X * np.cos(X), atol=1e-5)

    def test_an_input_that_is_also_the_result(self):
        f = remat(lambda x, y: (x, ops.sin(y), x))

        def loss(x):
            a, b, c = f(x, x)
            return ops.sum(a * b + c)

        _, (gradient,), _ = step(loss, [X])
        expected = np.sin(X) + X * np.cos(X) + 1
        self.assertAllClose(gradient, expected, atol=1e-5)

    def test_integers_and_bools_beside_floats(self):
        rows = ops.convert_to_tensor(np.array([2, 0], "int32"))
        keep = ops.convert_to_tensor(np.array([[True], [False]]))

        @remat
        def f(x, rows, keep):
            y = ops.where(keep, ops.sin(ops.take(x, rows, axis=0)), 0.0)
            return y, rows + 1, ops.logical_not(keep)

        def loss(x):
            y, after, flipped = f(x, rows, keep)
            self.assertIn("int32", backend.standardize_dtype(after.dtype))
            self.assertEqual(backend.standardize_dtype(flipped.dtype), "bool")
            return ops.sum(y)

        _, (gradient,), _ = step(loss, [X])
        expected = np.zeros_like(X)
        expected[2] = np.cos(X[2])
        self.assertAllClose(gradient, expected, atol=1e-5)

    def test_no_tensor_at_all(self):
        v = backend.Variable(X)
        f = remat(lambda: ops.sum(ops.sin(v)))
        loss, _, (gradient,) = step(f, [], [v])
        self.assertAllClose(loss, np.sum(np.sin(X)), atol=1e-5)
        self.assertAllClose(gradient, np.cos(X), atol=1e-5)

    def test_a_batch_of_zero(self):
        dense = layers.Dense(3)
        dense.build((None, 6))
        f = remat(lambda x: ops.sum(ops.sin(dense(x))))
        _, (gx,), gw = step(f, [X[:0]], dense.variables)
        self.assertEqual(gx.shape, (0, 6))
        self.assertAllClose(gw[0], np.zeros((6, 3)))

    def test_masks_enter_and_leave(self):
        mask = np.array([[True, True, False, True, False, True]] * 4)

        def f(x):
            entered.append(get_keras_mask(x) is not None)
            y = ops.sin(x)
            set_keras_mask(y, ops.logical_not(get_keras_mask(x)))
            return y

        def loss(x):
            set_keras_mask(x, ops.convert_to_tensor(mask))
            y = remat(f)(x)
            weights = ops.cast(get_keras_mask(y), "float32")
            return ops.sum(y * weights)

        entered = []
        _, (gradient,), _ = step(loss, [X])
        self.assertTrue(all(entered))
        self.assertAllClose(gradient, np.cos(X) * ~mask, atol=1e-5)


@pytest.mark.requires_trainable_backend
class VariableTest(testing.TestCase):
    def test_closures_see_new_values(self):
        v = backend.Variable(2.0)
        f = remat(lambda x: ops.sum(ops.sin(x * v)))
        for value in (2.0, 3.0):
            v.assign(value)
            loss, (gradient,), (gv,) = step(f, [X], [v])
            self.assertAllClose(loss, np.sum(np.sin(X * value)), atol=1e-5)
            self.assertAllClose(gradient, value * np.cos(X * value), atol=1e-5)
            self.assertAllClose(gv, np.sum(X * np.cos(X * value)), atol=1e-5)

    def test_closures_over_tensors_get_gradients(self):
        def loss(x, y):
            return ops.sum(remat(lambda x: ops.sin(x) * y)(x))

        _, (_, gradient), _ = step(loss, [X, X])
        self.assertAllClose(gradient, np.sin(X), atol=1e-5)

    @parameterized.named_parameters(("eager", False), ("compiled", True))
    def test_a_write_before_the_backward_run_does_not_leak(self, compiled):
        v = backend.Variable(2.0, trainable=False)
        f = remat(lambda x: ops.sin(x * v))

        def loss(x):
            y = f(x)
            v.assign(5.0)
            return ops.sum(y * v)

        _, (gradient,), _ = step(loss, [X], [v], compiled)
        self.assertAllClose(gradient, 10 * np.cos(2 * X), atol=1e-5)
        self.assertAllClose(v, 5.0)

    def test_a_write_inside_is_read_inside(self):
        v = backend.Variable(2.0, trainable=False)

        @remat
        def f(x):
            v.assign(v + 1.0)
            y = ops.sin(x * v)
            v.assign(v + 1.0)
            return y

        _, (gradient,), _ = step(lambda x: ops.sum(f(x)), [X], [v])
        self.assertAllClose(gradient, 3 * np.cos(3 * X), atol=1e-5)
        self.assertAllClose(v, 4.0)

    def test_as_an_argument_and_in_a_closure_it_counts_once(self):
        v = backend.Variable(X)
        f = remat(lambda x, w: ops.sum(x * w * v))
        _, _, (gradient,) = step(lambda x: f(x, v), [X], [v])
        self.assertAllClose(gradient, 2 * X * X, atol=1e-5)

    def test_a_stateless_scope_around_the_forward_run_is_kept(self):
        v = backend.Variable(2.0)

        def loss(x, w):
            with StatelessScope([(v, w)]):
                y = remat(lambda x: ops.sin(x * v))(x)
            return ops.sum(y)

        w = np.float32(3.0)
        _, (gx, gw), _ = step(loss, [X, w])
        self.assertAllClose(gx, 3 * np.cos(3 * X), atol=1e-5)
        self.assertAllClose(gw, np.sum(X * np.cos(3 * X)), atol=1e-5)

    def test_metrics_move_once(self):
        mean = metrics.Mean()

        @remat
        def f(x):
            mean.update_state(ops.mean(x))
            return ops.sin(x)

        step(lambda x: ops.sum(f(x)), [X + 1], mean.variables)
        self.assertAllClose(mean.count, 1.0)
        self.assertAllClose(mean.result(), 1.0, atol=1e-5)

    @pytest.mark.skipif(
        backend.backend() == "jax",
        reason="a JAX step runs in a stateless scope, which makes no variables",
    )
    def test_variables_first_made_inside(self):
        made = []

        def f(x):
            if not made:
                made.append(backend.Variable(2 * np.ones((6,), "float32")))
            return ops.sin(x * made[0])

        _, (gradient,), _ = step(lambda x: ops.sum(remat(f)(x)), [X])
        self.assertAllClose(gradient, 2 * np.cos(2 * X), atol=1e-5)
        self.assertAllClose(made[0], 2 * np.ones((6,)))

    def test_layers_first_built_inside(self):
        dense = layers.Dense(3)
        f = remat(lambda x: ops.sum(ops.sin(dense(x))))
        step(f, [X])
        self.assertTrue(dense.built)
        for v in dense.variables:
            self.assertEqual(backend.convert_to_numpy(v).shape, tuple(v.shape))
        expected = step(
            lambda x: ops.sum(ops.sin(dense(x))), [X], dense.variables
        )
        found = step(f, [X], dense.variables)
        self.assertAllClose(found[1][0], expected[1][0], atol=1e-5)
        self.assertAllClose(found[2][0], expected[2][0], atol=1e-5)

    @pytest.mark.skipif(
        backend.backend() != "torch", reason="only torch writes in place"
    )
    def test_a_write_in_place_is_refused(self):
        import torch

        v = backend.Variable(2.0, name="scale")
        x = torch.tensor(X, requires_grad=True)
        loss = torch.sum(remat(lambda x: ops.sin(x * v))(x))
        with torch.no_grad():
            v.value.add_(1.0)
        with self.assertRaisesRegex(RuntimeError, "scale"):
            loss.backward()


class PlainBackendTest(testing.TestCase):
    def test_results_are_those_of_the_function(self):
        counter = Counter()
        counter.build(None)
        f = remat(lambda x, n: (ops.sin(counter(x)) * n, None, "text"))
        y, none, text = f(ops.convert_to_tensor(X), n=2)
        self.assertAllClose(y, 2 * np.sin(X), atol=1e-5)
        self.assertEqual((none, text), (None, "text"))
        self.assertEqual(int(counter.count), 1)


@pytest.mark.requires_trainable_backend
class FailureTest(testing.TestCase):
    def thread_state(self):
        names = (*remat_region.SURROUNDINGS, "traceback_filtering")
        found = {n: global_state.get_global_attribute(n) for n in names}
        return {**found, "scope": get_stateless_scope()}

    def test_an_exception_leaves_all_as_it_was(self):
        drop, count, penalty = layers.Dropout(0.5, seed=3), Counter(), Penalty()
        count.build(None)
        seed = backend.convert_to_numpy(drop.seed_generator.state)
        before = self.thread_state()

        @remat
        def f(x, fail):
            y = penalty(count(drop(x, training=True)))
            if fail:
                raise KeyError("mine")
            return y

        variables = count.variables + drop.variables
        with self.assertRaisesRegex(KeyError, "mine"):
            step(lambda x: ops.sum(f(x, True)), [X], variables)
        self.assertEqual(self.thread_state(), before)
        self.assertEqual(int(count.count), 0)
        self.assertAllEqual(drop.seed_generator.state, seed)
        self.assertEqual(penalty.losses, [])
        step(lambda x: ops.sum(f(x, False)), [X], variables)
        self.assertEqual(int(count.count), 1)

    @pytest.mark.skipif(
        backend.backend() == "jax",
        reason="JAX runs the trace again, not the function",
    )
    def test_an_exception_in_the_second_run_names_the_function(self):
        turns = []

        @remat
        def fragile(x):
            turns.append(1)
            if len(turns) == 2:
                raise KeyError("mine")
            return ops.tanh(ops.sin(x))

        before = self.thread_state()
        with self.assertRaisesRegex(KeyError, "mine") as caught:
            step(lambda x: ops.sum(fragile(x)), [X])
        self.assertIn("fragile", "".join(caught.exception.__notes__))
        self.assertEqual(self.thread_state(), before)

    @parameterized.named_parameters(
        ("shape", lambda x: ops.sin(ops.concatenate([x, x]))),
        ("dtype", lambda x: ops.sin(ops.cast(x, "float16"))),
        ("fewer", lambda x: None),
    )
    @pytest.mark.skipif(
        backend.backend() == "jax",
        reason="JAX runs the trace again, not the function",
    )
    def test_another_result_in_the_second_run_names_the_function(self, other):
        turns = []

        @remat
        def fickle(x):
            turns.append(1)
            x = x + 1.0
            return ops.sin(x) if len(turns) == 1 else other(x)

        before = self.thread_state()
        with self.assertRaises((ValueError, RuntimeError)) as caught:
            step(lambda x: ops.sum(ops.sin(fickle(x))), [X])
        notes = getattr(caught.exception, "__notes__", [])
        text = " ".join([str(caught.exception), *notes])
        # torch compares what it saves, before the function ends.
        by_torch = "torch.utils.checkpoint: Recomputed values" in text
        self.assertTrue("fickle" in text or by_torch, msg=text)
        self.assertEqual(self.thread_state(), before)


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
        names = (*remat_region.SURROUNDINGS, "traceback_filtering")
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
