"""Recurrent layers whose steps run again in parts."""

from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common import remat_test_utils
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat import recurrent


def stack():
    utils.set_random_seed(0)
    inputs = layers.Input((12, 3))
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(inputs)
    x = layers.GRU(4, return_sequences=True, go_backwards=True)(x)
    outputs = layers.SimpleRNN(3)(x)
    return models.Model(inputs, outputs)


@pytest.mark.requires_trainable_backend
class PartsOfTimeTest(testing.TestCase):
    """Stacked, backwards, in both directions; last step and all steps."""

    def compare(self, model, found, compiled):
        x = np.random.default_rng(0).normal(size=(2, 12, 3))

        def loss(x):
            return ops.sum(model(x, training=True) ** 2)

        args = ([x.astype("float32")], model.variables, compiled)
        results = remat_test_utils.step(loss, *args)
        found.append([results[0], *results[1], *results[2]])

    def test_equal_to_plain(self):
        modes = (True,) if backend.backend() == "jax" else (False, True)
        for compiled in modes:
            found = []
            for setting in (None, True):
                model = stack()
                model.remat = setting
                with mock.patch.object(
                    recurrent, "run_region", wraps=recurrent.run_region
                ) as region:
                    self.compare(model, found, compiled)
                # Two directions and two more layers, in parts each.
                self.assertEqual(region.call_count >= 4, setting is True)
            for plain, parts in zip(*found, strict=True):
                self.assertAllClose(plain, parts, atol=1e-6)

    def test_states_that_are_carried_on(self):
        x = np.random.default_rng(0).normal(size=(2, 12, 3))
        found = []
        for setting in (None, True):
            utils.set_random_seed(0)
            cells = [layers.SimpleRNNCell(4), layers.SimpleRNNCell(3)]
            inputs = layers.Input(batch_shape=(2, 12, 3))
            outputs = layers.RNN(cells, stateful=True)(inputs)
            model = models.Model(inputs, outputs)
            model.remat = setting
            model.compile("sgd", "mse")
            losses = [model.train_on_batch(x, x[:, 0]) for _ in range(3)]
            found.append([np.ravel(losses), *model.layers[1].states])
        for plain, parts in zip(*found, strict=True):
            self.assertAllClose(plain, parts, atol=1e-6)

    @pytest.mark.skipif(
        backend.backend() != "jax",
        reason="Only JAX runs the parts in a loop with gradients of its own.",
    )
    def test_second_and_forward_derivatives(self):
        import jax

        x = np.random.default_rng(0).normal(size=(2, 12, 3)).astype("float32")
        found = []
        for setting in (None, True):
            model = stack()
            model.remat = setting
            weights = [v.value for v in model.trainable_variables]
            state = [v.value for v in model.non_trainable_variables]

            def loss(weights, x, model=model, state=state):
                y, _ = model.stateless_call(weights, state, x, training=True)
                return (y**2).sum()

            def penalty(weights, x, loss=loss):
                return (jax.grad(loss, argnums=1)(weights, x) ** 2).sum()

            of_x = lambda x, loss=loss: jax.grad(loss, 1)(weights, x)
            found.append(
                [
                    *jax.jit(jax.grad(penalty))(weights, x),
                    jax.jvp(of_x, (x,), (np.ones_like(x),))[1],
                ]
            )
        for plain, parts in zip(*found, strict=True):
            self.assertAllClose(plain, parts, atol=1e-6)

    @parameterized.parameters(False, True)
    @pytest.mark.skipif(
        backend.backend() != "jax",
        reason="Only JAX runs the parts in a loop.",
    )
    def test_an_unrolled_layer_is_not_made_a_loop(self, unroll):
        import jax

        inputs = layers.Input((12, 3))
        layer = layers.LSTM(4, unroll=unroll)
        model = models.Model(inputs, layer(inputs))
        model.remat = True
        weights = [v.value for v in model.trainable_variables]
        state = [v.value for v in model.non_trainable_variables]

        def loss(weights):
            x = np.ones((2, 12, 3), "float32")
            y, _ = model.stateless_call(weights, state, x, training=True)
            return y.sum()

        jaxpr = str(jax.make_jaxpr(jax.grad(loss))(weights))
        self.assertEqual("scan[" in jaxpr, not unroll)

    @pytest.mark.skipif(
        backend.backend() != "jax",
        reason="Reads XLA's memory analysis.",
    )
    def test_memory_does_not_grow_with_the_residuals_of_all_steps(self):
        import jax

        def peak(setting):
            inputs = layers.Input((64, 8))
            x = layers.LSTM(32, return_sequences=True)(inputs)
            model = models.Model(inputs, layers.Dense(1)(x))
            model.remat = setting
            weights = [v.value for v in model.trainable_variables]
            state = [v.value for v in model.non_trainable_variables]

            def loss(weights, x):
                y, _ = model.stateless_call(weights, state, x, training=True)
                return (y**2).sum()

            step = jax.jit(jax.grad(loss))
            x = np.ones((16, 64, 8), "float32")
            compiled = step.lower(weights, x).compile()
            return compiled.memory_analysis().temp_size_in_bytes

        # Some dozen values a step; of which its input and its result stay.
        self.assertLess(peak(True), 0.35 * peak(None))


RATES = {"dropout": 0.4, "recurrent_dropout": 0.3}


def dropping(kind):
    """A recurrent layer whose cell holds masks of dropout between its steps."""
    if kind == "stacked":
        cells = [
            layers.LSTMCell(3, seed=1, **RATES),
            layers.GRUCell(3, seed=2, **RATES),
        ]
        return layers.RNN(layers.StackedRNNCells(cells))
    return layers.LSTM(3, seed=1, **RATES)


@pytest.mark.requires_trainable_backend
class DropoutOfCellsTest(testing.TestCase):
    """A layer takes masks off its cell before the backward pass begins."""

    def results(self, kind, cell, layer, compiled):
        utils.set_random_seed(0)
        rnn = dropping(kind)
        rnn.build((2, 3, 3))
        rnn.cell.remat, rnn.remat = cell, layer
        x = np.random.default_rng(0).normal(size=(2, 3, 3))

        def loss(x):
            return ops.sum(rnn(x, training=True) ** 2)

        args = ([x.astype("float32")], rnn.variables, compiled)
        loss, *gradients = remat_test_utils.step(loss, *args)
        gradients = [g for g in sum(gradients, []) if g is not None]
        state = [backend.convert_to_numpy(v) for v in rnn.variables]
        return [loss, *gradients, *state]

    @parameterized.parameters(
        ("lstm", "nothing", None),
        ("lstm", "matmuls", "matmuls"),
        ("stacked", "matmuls", None),
    )
    def test_equal_to_plain(self, kind, cell, layer):
        cell, layer = [k and RematPolicy(k) for k in (cell, layer)]
        compiled = backend.backend() == "jax" or layer is not None
        plain = self.results(kind, None, None, compiled)
        found = self.results(kind, cell, layer, compiled)
        self.assertLen(found, len(plain))
        for a, b in zip(plain, found):
            self.assertAllClose(a, b, atol=1e-5)

    def test_a_cell_called_by_itself_keeps_its_mask(self):
        cell = layers.LSTMCell(3, seed=1, **RATES)
        x, state = np.ones((2, 3), "float32"), [np.zeros((2, 3), "float32")] * 2
        cell.build(x.shape)
        cell.remat = True
        outputs = []

        def loss(x):
            for _ in range(2):
                outputs.append(cell(x, state, training=True)[0])
            masks = [cell._dropout_mask, cell._recurrent_dropout_mask]
            self.assertNotIn(None, masks)
            cell.reset_dropout_mask()
            cell.reset_recurrent_dropout_mask()
            return ops.sum(ops.square(outputs[0] - outputs[1]))

        compiled = backend.backend() == "jax"
        found = remat_test_utils.step(loss, [x], cell.variables, compiled)
        self.assertAllClose(found[0], 0.0)


@pytest.mark.requires_trainable_backend
class FailingCellTest(testing.TestCase):
    def test_its_masks_are_as_before(self):
        class Failing(layers.LSTMCell):
            def call(self, inputs, states, training=False):
                super().call(inputs, states, training=training)
                raise KeyError("mine")

        cell = Failing(4, dropout=0.5, recurrent_dropout=0.5, remat=True)
        cell.build((2, 3))
        state = [ops.zeros((2, 4))] * 2

        def loss(x):
            return ops.sum(cell(x, state, training=True)[0])

        x = np.ones((2, 3), "float32")
        with self.assertRaisesRegex(KeyError, "mine"):
            remat_test_utils.step(loss, [x], cell.variables)
        self.assertEqual(recurrent.masks_of([cell]), [[None, None]])
