import functools

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import losses
from keras.src import models
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.remat.budget import show
from keras.src.remat.measure import remat_report
from keras.src.remat.report_test import BATCH
from keras.src.remat.report_test import block_model
from keras.src.remat.report_test import printed
from keras.src.utils import set_random_seed


def decoder(blocks=3, width=32):
    inputs = x = layers.Input((32, width))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 16)(y, y)])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
    return models.Model(inputs, layers.Dense(2)(x))


def decoder_batch(width=32):
    x = np.random.default_rng(0).normal(size=(8, 32, width))
    return x.astype("float32")


def batch(width=16):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, width)).astype("float32")
    return x, rng.normal(size=(BATCH, 2)).astype("float32")


def state(model):
    values = [backend.convert_to_numpy(v) for v in model.variables]
    metrics = [backend.convert_to_numpy(v) for v in model.metrics_variables]
    settings = [layer.remat for layer in model._flatten_layers()]
    losses = [list(layer._losses) for layer in model._flatten_layers()]
    return values, metrics, settings, losses


class Failing(layers.Layer):
    def call(self, x):
        raise RuntimeError("not today")

    def compute_output_spec(self, x):
        return backend.KerasTensor(x.shape, x.dtype)


@functools.cache
def report_of_blocks():
    return remat_report(block_model(), *batch())


@pytest.mark.requires_trainable_backend
class RematReportTest(testing.TestCase):
    def assert_same(self, before, after):
        for a, b in zip(before[0] + before[1], after[0] + after[1]):
            self.assertAllEqual(a, b)
        self.assertEqual(before[2:], after[2:])

    def test_full_keeps_less_than_plain(self):
        found = report_of_blocks()
        self.assertLess(found.remat_bytes, 0.6 * found.plain_bytes)
        self.assertGreater(found.remat_bytes, 0)
        # At least each product's input: 64 numbers wide, in each block.
        self.assertGreater(found.plain_bytes, 3 * BATCH * 64 * 4)
        self.assertIn(show(found.remat_bytes), repr(found))

    def test_prediction_is_near_the_measurement(self):
        model = block_model()
        model.remat = RematPolicy(memory_budget=0.8)
        found = remat_report(model, *batch())
        self.assertAllClose(
            found.predicted_plain_bytes, found.plain_bytes, rtol=0.1
        )
        self.assertLessEqual(found.remat_bytes, 1.1 * found.predicted_bytes)
        self.assertLess(found.remat_bytes, found.plain_bytes)

    @parameterized.product(
        keep=("matmuls", "matmuls_no_batch"), budget=(None, 0.85)
    )
    def test_prediction_knows_what_regions_keep(self, keep, budget):
        found, flops = [], []
        for policy in (RematPolicy(), RematPolicy(keep, memory_budget=budget)):
            model = decoder()
            model.remat = policy
            found.append(remat_report(model, decoder_batch()))
            plan = model.remat_plan(batch_size=8)
            flops.append(plan.predicted_extra_flops)
        nothing, kept = found
        self.assertGreater(kept.remat_bytes, 1.5 * nothing.remat_bytes)
        self.assertAllClose(kept.predicted_bytes, kept.remat_bytes, rtol=0.1)
        if keep == "matmuls":  # no product runs again
            self.assertLess(flops[1], 0.2 * flops[0])
        self.assertLess(flops[1], flops[0])

    def test_layers_add_up(self):
        found = report_of_blocks()
        self.assertIn("up_0", found.by_layer)
        self.assertGreater(found.by_layer["up_0"].plain, 0)
        rows = found.by_layer.values()
        self.assertEqual(sum(r.plain for r in rows), found.plain_bytes)
        self.assertEqual(sum(r.remat for r in rows), found.remat_bytes)
        names = {x.name for x in block_model().layers} | {"(loss)"}
        self.assertLessEqual(set(found.by_layer), names)

    def test_model_stays_what_it_was(self):
        model = block_model()
        model.evaluate(*batch(), verbose=0)
        model.remat = RematPolicy(memory_budget=0.8)
        model.layers[1].remat = False
        before = state(model)
        remat_report(model, *batch())
        self.assert_same(before, state(model))

    def test_model_stays_what_it_was_after_an_error(self):
        model = models.Sequential(
            [layers.Input((16,)), layers.Dense(4), Failing()]
        )
        before = state(model)
        with self.assertRaises(RuntimeError):
            remat_report(model, batch()[0])
        self.assert_same(before, state(model))
        self.assertIsNone(model.remat)
        self.assertFalse(backend.in_stateless_scope())

    def test_training_after_a_report_equals_training_without(self):
        found = []
        for measured in (False, True):
            set_random_seed(3)
            model = block_model()
            if measured:
                remat_report(model, *batch())
                self.assertFalse(model._compile_loss.built)
                self.assertFalse(model.optimizer.built)
            model.train_on_batch(*batch())
            found.append(state(model)[0])
        for a, b in zip(*found):
            self.assertAllClose(a, b, rtol=1e-6, atol=1e-7)

    def test_scope_around_the_report_is_followed(self):
        model = block_model()
        x, y = batch()
        with RematScope("list_of_layers", layer_names=["up_*"]):
            found = remat_report(model, x, y)
        rows = found.by_layer
        self.assertIsNone(found.predicted_bytes)
        self.assertLess(rows["up_1"].remat, rows["up_1"].plain)
        self.assertEqual(rows["norm_1"].remat, rows["norm_1"].plain)

    def test_several_outputs_without_targets(self):
        inputs = layers.Input((16,))
        hidden = layers.Dense(8, activation="gelu")(inputs)
        outputs = {"a": layers.Dense(2)(hidden), "b": layers.Dense(3)(hidden)}
        model = models.Model({"x": inputs}, outputs)
        found = remat_report(model, {"x": batch()[0]})
        self.assertGreater(found.plain_bytes, 0)

    def test_several_outputs_with_compiled_losses(self):
        inputs = layers.Input((16,))
        hidden = layers.Dense(8, activation="gelu")(inputs)
        outputs = [layers.Dense(2)(hidden), layers.Dense(3)(hidden)]
        model = models.Model(inputs, outputs)
        model.compile("sgd", [losses.MeanSquaredError(), "mae"])
        x, y = batch()
        found = remat_report(model, x, [y, np.ones((BATCH, 3))])
        self.assertGreater(found.plain_bytes, 0)

    def test_subclassed_model(self):
        class Own(models.Model):
            def __init__(self):
                super().__init__()
                self.one = layers.Dense(64, activation="gelu", name="one")
                self.two = layers.Dense(2, name="two")

            def call(self, x):
                return self.two(self.one(x))

        model = Own()
        model(batch()[0])
        found = remat_report(model, batch()[0])
        self.assertIsNone(found.predicted_bytes)
        self.assertLess(found.by_layer["one"].remat, found.plain_bytes)
        self.assertGreater(found.by_layer["one"].plain, 0)

    def test_model_must_be_built(self):
        model = models.Sequential([layers.Dense(4)])
        with self.assertRaisesRegex(ValueError, "is built"):
            remat_report(model, batch()[0])

    def test_what_is_no_model_or_batch(self):
        with self.assertRaisesRegex(ValueError, "Keras model or layer"):
            remat_report(lambda x: x, batch()[0])
        with self.assertRaisesRegex(ValueError, "a batch of inputs"):
            remat_report(block_model(), None)

    def test_summary_shows_both(self):
        found = report_of_blocks()
        text = printed(found.summary)
        for word in ("up_0", "predicted", "Total", "Peak"):
            self.assertIn(word, text)


@pytest.mark.skipif(
    backend.backend() not in ("numpy", "openvino"), reason="it trains"
)
class NotTrainableTest(testing.TestCase):
    def test_report_says_that_the_backend_does_not_train(self):
        model = models.Sequential([layers.Input((4,)), layers.Dense(2)])
        with self.assertRaisesRegex(ValueError, "does not train"):
            remat_report(model, np.ones((2, 4), "float32"))
        self.assertIsNone(model.remat)
