import numpy as np
import pytest

import keras
from keras.src import backend
from keras.src import layers
from keras.src import testing
from keras.src.backend.jax.remat_trainer_test import step_bytes
from keras.src.remat import profile
from keras.src.remat.units import Units

FLOAT = 4
REASON = "the rules are those of XLA"


def cost_of(layer, *shape):
    """The `NodeCost` of a layer called on a tensor of this shape."""
    inputs = keras.Input(batch_shape=shape)
    # What comes before is differentiable, so its gradient is wanted.
    hidden = layers.Rescaling(2.0)(layers.Dense(shape[-1])(inputs))
    model = keras.Model(inputs, layer(hidden))
    units = Units(model)
    costs = profile.node_costs(units, units.nodes, model.inputs)
    return costs[-1]


def plain_bytes(use_bias):
    """Residuals of a plain run of `conv_net`, as the planner sees them."""
    plan = conv_net(use_bias).remat_plan(batch_size=16)
    return plan.chain.held_before[-1]


def conv_net(use_bias=False):
    """Convolutions with normalization, as in residual networks."""
    inputs = hidden = keras.Input((32, 32, 4))
    for _ in range(8):
        new = layers.Conv2D(16, 3, padding="same", use_bias=use_bias)(hidden)
        new = layers.BatchNormalization()(new)
        hidden = layers.Activation("relu")(new)
    outputs = layers.GlobalAveragePooling2D()(hidden)
    return keras.Model(inputs, outputs)


def net_of_kernels():
    """Kernels are much larger than values, which have fewer places."""
    inputs = hidden = keras.Input((2, 2, 64))
    for _ in range(8):
        hidden = layers.Conv2D(64, 3, padding="same")(hidden)
    model = keras.Model(inputs, hidden)
    x = np.ones((4, 2, 2, 64), "float32")
    return model, x, x, sum(v.value.nbytes for v in model.trainable_variables)


@pytest.mark.skipif(backend.backend() != "jax", reason=REASON)
class ResidualsTest(testing.TestCase):
    def test_a_centred_input_is_made_again(self):
        cost = cost_of(layers.BatchNormalization(), 8, 4, 4, 16)
        size = 8 * 4 * 4 * 16 * FLOAT
        self.assertGreaterEqual(cost.saved_internal, size)
        self.assertLess(cost.saved_internal + cost.beyond, 0.1 * size)

    def test_zeros_are_not_kept(self):
        cost = cost_of(layers.Activation("relu"), 8, 16)
        self.assertEqual(cost.saved_internal, 8 * 16 * (FLOAT + 1))
        self.assertEqual(cost.saved_internal + cost.beyond, 8 * 16)

    def test_a_call_may_return_a_number(self):
        cost = cost_of(layers.ZeroPadding1D(1), 8, 4, 16)
        self.assertTrue(cost.profiled)
        cost = cost_of(layers.Conv1D(16, 2, padding="causal"), 8, 4, 16)
        self.assertTrue(cost.profiled)
        self.assertGreaterEqual(cost.saved_internal, 8 * 5 * 16 * FLOAT)

    def test_a_mask_gives_way_to_what_it_is_made_of(self):
        cost = cost_of(layers.Dense(16, activation="relu"), 8, 16)
        self.assertEqual(cost.saved_internal + cost.beyond, 8 * 16 * FLOAT)

    def test_dear_residuals_stay(self):
        # Those of gelu are an error function, an exponential, and a half of
        # its input, which needs the input in its place.
        cost = cost_of(layers.Dense(16, activation="gelu"), 8, 16)
        self.assertEqual((cost.saved_internal, cost.beyond), (3 * 512, 0))

    def test_a_product_stays_for_a_mask_that_is_made_of_it(self):
        def held(blocks):
            inputs = hidden = keras.Input((16,))
            for _ in range(blocks):
                hidden = layers.Activation("relu")(layers.Dense(16)(hidden))
            plan = keras.Model(inputs, hidden).remat_plan(batch_size=8)
            return plan.chain.held_before[-1]

        # The product and the result of the activation, and no mask.
        self.assertEqual(held(5) - held(3), 2 * 2 * 8 * 16 * FLOAT)

    def test_sums_of_rows_fill_rows(self):
        cost = cost_of(layers.Softmax(), 8, 16)
        self.assertGreater(cost.beyond, 0)


@pytest.mark.skipif(
    backend.backend() != "jax", reason="the rules are those of XLA on a CPU"
)
class LayoutsTest(testing.TestCase):
    def setUp(self):
        import jax

        super().setUp()
        if jax.default_backend() != "cpu":
            self.skipTest("kernels are laid out anew on a CPU only")

    def test_kernels_have_a_copy(self):
        layer = layers.Conv2D(16, 3, use_bias=False)
        cost = cost_of(layer, 2, 8, 8, 4)
        kernel = 3 * 3 * 4 * 16 * FLOAT
        self.assertEqual(cost.beyond, kernel)

    def test_regions_hold_no_kernels_that_others_need(self):
        model, x, y, kernels = net_of_kernels()
        plan = model.remat_plan(batch_size=4)
        self.assertLess(plan.predicted_bytes, kernels)
        model.remat = True
        self.assertLess(step_bytes(model, x, y), 1.05 * plan.predicted_bytes)

    def test_plain_parts_of_a_plan_copy_kernels_once(self):
        model, x, y, _ = net_of_kernels()
        plan = model.remat_plan(batch_size=4, memory_budget=0.9)
        self.assertTrue(any(not s.remat for s in plan.segments))
        model.remat = keras.RematPolicy(memory_budget=0.9)
        self.assertLess(step_bytes(model, x, y), 1.05 * plan.budget)

    def test_kernels_of_plain_parts_are_not_counted_as_kept(self):
        model, x, y, kernels = net_of_kernels()
        model.remat = keras.RematPolicy(memory_budget=0.9)
        model.compile("sgd", "mse")
        report = keras.utils.remat_report(model, x, y)
        self.assertLess(report.remat_bytes, kernels / 8)

    def test_a_kernel_of_a_dense_layer_has_none(self):
        cost = cost_of(
            layers.EinsumDense("abc,cde->abde", (None, 2, 8)), 2, 3, 4
        )
        self.assertEqual(cost.beyond, 0)

    def test_a_depthwise_gradient_is_that_of_a_dense_kernel(self):
        wide = cost_of(layers.DepthwiseConv2D(3), 2, 8, 8, 64).scratch
        self.assertGreaterEqual(wide, 2 * 3 * 3 * 64 * 64 * FLOAT)

    def test_max_pooling_has_indices_before_all_else(self):
        cost = cost_of(layers.MaxPooling2D(2), 2, 8, 8, 4)
        self.assertEqual(cost.constants, 4 * 2 * 8 * 8 * 4 * 4)
        # Those of the maxima alone stay after a plain run.
        self.assertEqual(cost.beyond, 4 * 2 * 4 * 4 * 4 * 4)
        cost = cost_of(layers.MaxPooling2D(3, 2, "same"), 2, 8, 8, 4)
        self.assertEqual(cost.constants, 4 * 2 * 9 * 9 * 4 * 4)  # Padding too.
        cost = cost_of(layers.AveragePooling2D(2), 2, 8, 8, 4)
        self.assertEqual((cost.constants, cost.beyond), (0, 0))

    def test_max_pooling_that_pads_finds_maxima_again(self):
        plain = cost_of(layers.MaxPooling2D(2), 2, 8, 8, 4).scratch
        pads = cost_of(layers.MaxPooling2D(3, 2, "same"), 2, 8, 8, 4).scratch
        again = 2 * 9 * 9 * 4 + 2 * 4 * 4 * 4
        self.assertEqual(pads - plain, again * FLOAT)

    def test_max_pooling_stays_plain_where_its_indices_are_large(self):
        inputs = hidden = keras.Input((64, 64, 8))
        hidden = layers.Conv2D(8, 3, padding="same")(hidden)
        hidden = layers.MaxPooling2D(2)(hidden)
        hidden = layers.UpSampling2D(2)(hidden)
        for _ in range(12):
            hidden = layers.Conv2D(8, 3, padding="same")(hidden)
        model = keras.Model(inputs, hidden)
        plan = model.remat_plan(batch_size=8)
        plain = [s for s in plan.segments if not s.remat]
        self.assertIn((1, 2), [(s.start, s.stop) for s in plain])
        x = np.ones((8, 64, 64, 8), "float32")
        y = np.ones((8, 64, 64, 8), "float32")
        model.remat = True
        self.assertLess(step_bytes(model, x, y), 1.05 * plan.predicted_bytes)

    def test_a_budget_holds_for_convolutions(self):
        model = conv_net()
        x = np.ones((16, 32, 32, 4), "float32")
        y = np.ones((16, 16), "float32")
        plan = model.remat_plan(batch_size=16, memory_budget=0.7)
        model.remat = keras.RematPolicy(memory_budget=0.7)
        self.assertLess(step_bytes(model, x, y), 1.05 * plan.budget)

    def test_a_normalized_product_is_kept_twice_if_it_has_a_bias(self):
        kept = [plain_bytes(use_bias) for use_bias in (False, True)]
        value = 16 * 32 * 32 * 16 * FLOAT
        self.assertEqual(kept[1] - kept[0], 8 * value)

    def test_a_budget_holds_where_products_are_kept_twice(self):
        model = conv_net(use_bias=True)
        x = np.ones((16, 32, 32, 4), "float32")
        y = np.ones((16, 16), "float32")
        plan = model.remat_plan(batch_size=16, memory_budget=0.7)
        model.remat = keras.RematPolicy(memory_budget=0.7)
        self.assertLess(step_bytes(model, x, y), 1.05 * plan.budget)


@pytest.mark.skipif(backend.backend() != "jax", reason=REASON)
class PeakTest(testing.TestCase):
    def test_a_loop_carries_in_place_what_was_made_for_it(self):
        import jax

        from keras.src.backend.jax.remat_compiled import peak

        def loop(x, uses):
            start = jax.numpy.dot(x, x)
            body = lambda carry, _: (jax.numpy.dot(carry, carry), None)
            end = jax.lax.scan(body, start, length=3)[0]
            return end + start if uses else end

        x = jax.numpy.ones((64, 64))
        once, twice = (
            peak(jax.make_jaxpr(lambda x: loop(x, uses))(x).jaxpr, ())
            for uses in (False, True)
        )
        self.assertEqual(once, x.nbytes)
        self.assertGreaterEqual(twice, 2 * x.nbytes)
