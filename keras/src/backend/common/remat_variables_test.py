import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import metrics
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_test_utils import step
from keras.src.backend.common.stateless_scope import StatelessScope

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


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
