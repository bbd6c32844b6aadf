import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend import KerasTensor
from keras.src.remat import planner
from keras.src.remat import profile
from keras.src.remat.profile_trace import engine
from keras.src.remat.units import ordered_nodes

FLOAT = 4


def costs_of(model, *shapes, dtype="float32"):
    specs = [KerasTensor(shape, dtype) for shape in shapes]
    return profile.node_costs(model, ordered_nodes(model), specs)


def chain_of(model, *shapes, dtype="float32"):
    nodes = ordered_nodes(model)
    costs = costs_of(model, *shapes, dtype=dtype)
    return profile.chain_of(model, nodes, costs)


def saved_of(model, *shapes, dtype="float32"):
    return int(chain_of(model, *shapes, dtype=dtype).saved_before[-1])


def mlp(depth, width=16, activation="sigmoid"):
    x = inputs = layers.Input((width,))
    for _ in range(depth):
        x = layers.Dense(width, activation=activation)(x)
    return models.Model(inputs, x)


class ProfileTest(testing.TestCase):
    def setUp(self):
        super().setUp()
        profile.CACHE.clear()

    @pytest.mark.requires_trainable_backend
    def test_a_value_is_counted_once_at_its_producer(self):
        # The result of exp serves its own backward and the next product.
        model = mlp(3, activation="exponential")
        chain = chain_of(model, (8, 16))
        self.assertEqual(
            list(np.diff(chain.saved_before)), [8 * 16 * FLOAT] * 3
        )
        self.assertFalse(chain.unsaved_size.any())

    @pytest.mark.requires_trainable_backend
    def test_batch_scales_saved_bytes_and_flops(self):
        small, large = costs_of(mlp(2), (4, 16)), costs_of(mlp(2), (8, 16))
        for a, b in zip(small, large):
            self.assertEqual(2 * a.output_bytes[0], b.output_bytes[0])
            self.assertEqual(2 * a.flops, b.flops)
            self.assertEqual(a.grads, b.grads)

    @pytest.mark.requires_trainable_backend
    def test_flops_of_products(self):
        model = models.Sequential(
            [layers.Input((8, 8, 3)), layers.Conv2D(4, 3, use_bias=False)]
        )
        cost = costs_of(model._functional, (2, 8, 8, 3))[-1]
        self.assertEqual(cost.flops, 2 * (2 * 6 * 6 * 4) * (3 * 3 * 3))
        self.assertEqual(cost.kept_by_matmuls, 2 * 6 * 6 * 4 * FLOAT)

    @pytest.mark.requires_trainable_backend
    def test_graph_inputs_are_not_residuals(self):
        inputs = layers.Input((16,))
        model = models.Model(inputs, layers.Dense(4)(inputs))
        cost = costs_of(model, (8, 16))[0]
        self.assertEqual(cost.saves_inputs, (0,))
        self.assertEqual(cost.grads, (16 * 4 + 4) * FLOAT)
        self.assertEqual(saved_of(model, (8, 16)), 0)

    @pytest.mark.requires_trainable_backend
    def test_what_needs_no_gradient_is_not_kept(self):
        model = mlp(2, activation="exponential")
        model.layers[1].trainable = False
        chain = chain_of(model, (8, 16))
        self.assertEqual(list(np.diff(chain.saved_before)), [512, 512])
        model.trainable = False
        self.assertEqual(saved_of(model, (8, 16)), 0)

    @pytest.mark.requires_trainable_backend
    def test_a_reshape_is_no_value_of_its_own(self):
        inputs = layers.Input((4, 4))
        x = layers.Dense(4, activation="exponential")(inputs)
        x = layers.Flatten()(x)
        model = models.Model(inputs, layers.Dense(2)(x))
        costs = costs_of(model, (8, 4, 4))
        self.assertEqual(costs[1].aliases, (0,))
        chain = profile.chain_of(model, ordered_nodes(model), costs)
        self.assertEqual(list(chain.producer), [0, 2])
        self.assertEqual(list(chain.last), [2, 3])
        self.assertEqual(int(chain.saved_before[-1]), 8 * 16 * FLOAT)

    @parameterized.named_parameters(
        ("dropout", lambda: layers.Dropout(0.5, seed=1)),
        ("noise_shape", lambda: layers.Dropout(0.5, (None, 1), seed=1)),
        ("norm", lambda: layers.BatchNormalization()),
        ("attention", lambda: layers.Attention(seed=3)),
        ("lstm", lambda: layers.LSTM(4, dropout=0.5, seed=1)),
    )
    @pytest.mark.requires_trainable_backend
    def test_nothing_about_the_layer_moves(self, make):
        inputs = layers.Input((6, 8) if "LSTM" in str(make()) else (8,))
        layer = make()
        shape = (4, 6, 8)
        if isinstance(layer, layers.Attention):
            inputs = layers.Input((6, 8))
            x = layer([inputs, inputs])
        elif isinstance(layer, layers.LSTM):
            inputs = layers.Input((6, 8))
            x = layer(inputs)
        else:
            x, shape = layer(inputs), (4, 8)
        model = models.Model(inputs, x)
        before = [np.array(v) for v in model.variables]
        unprofiled = []
        nodes = ordered_nodes(model)
        profile.node_costs(
            model, nodes, [KerasTensor(shape)], unprofiled=unprofiled
        )
        self.assertEqual(unprofiled, [])
        for v, old in zip(model.variables, before):
            self.assertTrue(backend.is_tensor(v.value))
            self.assertAllEqual(np.array(v), old)

    @pytest.mark.requires_trainable_backend
    def test_training_decides(self):
        inputs = layers.Input((8,))
        x = layers.Dense(8)(inputs)
        model = models.Model(inputs, layers.Dropout(0.5)(x))
        nodes, specs = ordered_nodes(model), [KerasTensor((4, 8))]
        train = profile.node_costs(model, nodes, specs)[1]
        infer = profile.node_costs(model, nodes, specs, training=False)[1]
        self.assertGreater(train.saved_internal + len(train.saves_outputs), 0)
        self.assertEqual(infer.saved_internal, 0)
        self.assertEqual(infer.aliases, (0,))

    @pytest.mark.requires_trainable_backend
    def test_a_nested_model_costs_what_its_nodes_cost(self):
        inner = mlp(3, activation="exponential")
        inputs = layers.Input((16,))
        x = layers.Dense(16, activation="exponential")(inputs)
        x = layers.Dense(16)(inner(x))
        outer = models.Model(inputs, x)
        chain = chain_of(outer, (8, 16))
        self.assertEqual(int(chain.saved_before[-1]), 4 * 512)
        cost = costs_of(outer, (8, 16))[1]
        self.assertEqual(cost.saved_internal, 2 * 512)
        self.assertEqual(cost.saves_inputs, (0,))
        self.assertEqual(cost.saves_outputs, (0,))
        self.assertEqual(cost.grads, 3 * (16 * 16 + 16) * FLOAT)

    @pytest.mark.requires_trainable_backend
    def test_shared_weights_have_one_gradient(self):
        inputs = layers.Input((16,))
        dense = layers.Dense(16)
        model = models.Model(inputs, dense(dense(inputs)))
        chain = chain_of(model, (8, 16))
        size = (16 * 16 + 16) * FLOAT
        if engine().UPDATES_AT_ONCE:
            size = 0
        self.assertEqual(list(chain.grads_after), [size, size, 0])

    @pytest.mark.requires_trainable_backend
    def test_masks_and_integers_flow(self):
        inputs = layers.Input((6,), dtype="int32")
        x = layers.Embedding(10, 8, mask_zero=True)(inputs)
        x = layers.LSTM(4)(x)
        model = models.Model(inputs, layers.Dense(1)(x))
        unprofiled = []
        costs = profile.node_costs(
            model,
            ordered_nodes(model),
            [KerasTensor((4, 6), "int32")],
            unprofiled=unprofiled,
        )
        self.assertEqual(unprofiled, [])
        self.assertIn(4 * 6 * 8 * FLOAT, [c.output_bytes[0] for c in costs])

    def test_a_layer_that_cannot_be_traced_is_estimated_and_named(self):
        class NoTrace(layers.Layer):
            def call(self, x):
                raise RuntimeError("No abstract values")

            def compute_output_spec(self, x):
                return KerasTensor(x.shape, x.dtype)

        inputs = layers.Input((16,))
        x = layers.Dense(16)(inputs)
        model = models.Model(inputs, NoTrace(name="dark")(x))
        unprofiled = []
        costs = profile.node_costs(
            model,
            ordered_nodes(model),
            [KerasTensor((8, 16))],
            unprofiled=unprofiled,
        )
        self.assertEqual(unprofiled, ["dark"])
        self.assertFalse(costs[1].profiled)
        self.assertEqual(costs[1].output_bytes, (512,))

    def test_unknown_dimensions_are_refused(self):
        with self.assertRaisesRegex(ValueError, "size of every dimension"):
            costs_of(mlp(1), (None, 16))

    def test_the_chain_can_be_planned(self):
        chain = chain_of(mlp(16), (8, 16))
        plan = planner.least_peak(chain)
        self.assertLessEqual(plan.peak, chain.plain_peak())

    def test_part_of_a_graph(self):
        model = mlp(4)
        nodes = ordered_nodes(model)
        specs = [KerasTensor((8, 16))]
        costs = profile.node_costs(model, nodes[1:3], specs)
        chain = profile.chain_of(model, nodes[1:3], costs)
        self.assertEqual(chain.n, 2)
        self.assertEqual(list(chain.producer), [0, 1])
        self.assertEqual(list(chain.last), [1, 2])

    def test_operations_without_variables(self):
        inputs = layers.Input((16,))
        x = layers.Dense(16)(inputs)
        model = models.Model(inputs, ops.sum(x[:, :4] * x[:, 4:8], axis=-1))
        costs = costs_of(model, (8, 16))
        self.assertLen(costs, 5)
        self.assertEqual(costs[-1].output_bytes, (8 * FLOAT,))

    def test_free_memory(self):
        free = engine().free_memory()
        self.assertTrue(free is None or free > 0)
