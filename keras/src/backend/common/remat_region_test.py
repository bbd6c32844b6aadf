import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import ops
from keras.src import testing
from keras.src.backend.common import global_state
from keras.src.backend.common import remat_surroundings
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_test_utils import Counter
from keras.src.backend.common.remat_test_utils import Inferring
from keras.src.backend.common.remat_test_utils import Penalty
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step
from keras.src.backend.common.remat_test_utils import with_input_gradient
from keras.src.backend.common.stateless_scope import get_stateless_scope

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


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
        f = remat(lambda x: ops.sum(ops.sin(x) * x))
        slope = lambda x: with_input_gradient(f, x)[1]
        _, (found,), _ = step(lambda x: ops.sum(slope(x)), [X])
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
        names = (*remat_surroundings.SURROUNDINGS, "traceback_filtering")
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
        self.assertIn("fickle", " ".join([str(caught.exception), *notes]))
        self.assertEqual(self.thread_state(), before)
