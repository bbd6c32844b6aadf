"""`keras.remat` on symbolic tensors: regions of a Functional model."""

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common import remat_marks
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step
from keras.src.models.cloning import clone_model
from keras.src.remat.name_op import remat_name
from keras.src.saving import register_keras_serializable

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")


@register_keras_serializable("remat_marks_test")
class Wave(layers.Layer):
    """Counts how often it runs."""

    def call(self, x):
        return ops.tanh(counted(ops.sin(x), self.name))


def block_with_a_side_branch(wrap, policy=None):
    """A region beside plain nodes of the same depths, that reads both."""
    inputs = layers.Input((4,))
    side = Wave(name="side")(layers.Dense(4)(inputs))
    dense, norm = layers.Dense(4), layers.BatchNormalization()
    drop = layers.Dropout(0.5, seed=3)
    first, second = Wave(name="a"), Wave(name="b")

    def block(x, scale, more=None):
        y = remat_name(first(dense(x)), "wave")
        z = drop(norm(second(y))) * scale
        return {"z": z + side + more["side"], "y": y, "none": None}

    block = remat(block, policy=policy) if wrap else block
    made = block(inputs, 0.5, more={"side": side})
    outputs = layers.Dense(2)(ops.sin(made["z"]) + ops.sin(made["y"]))
    return models.Model(inputs, outputs)


def nested_blocks(wrap):
    inputs = layers.Input((4,))
    wrap = remat if wrap else lambda f: f
    inner = models.Sequential([Wave(name="deep"), layers.Dense(4)])
    block = wrap(lambda x: inner(x) + 1.0)
    outer = wrap(lambda x: ops.sin(block(Wave(name="outer")(x))))
    return models.Model(inputs, outer(ops.sin(inputs)))


def saved(model):
    copy = models.Model.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy


def cloned(model):
    copy = clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def cut(model):
    model.remat = True
    return model


@pytest.mark.requires_trainable_backend
class MarkedGraphTest(testing.TestCase):
    def results(self, model):
        def loss(x):
            return ops.sum(ops.sin(model(x, training=True)))

        return step(loss, [X], model.variables), model.get_weights()

    def assert_equal_to_plain(self, make, change, **kwargs):
        utils.set_random_seed(5)
        plain = make(False)
        utils.set_random_seed(5)
        ours = change(make(True, **kwargs))
        self.assertLen(ours.layers, len(plain.layers))
        expected, found = self.results(plain), self.results(ours)
        (a, *gradients), (b, *same) = found[0], expected[0]
        self.assertAllClose(a, b, atol=1e-5)
        for g, h in zip(sum(gradients, []), sum(same, [])):
            self.assertAllClose(g, h, atol=1e-5)
        self.assertLen(found[1], len(expected[1]))
        for v, w in zip(found[1], expected[1]):
            self.assertAllClose(v, w, atol=1e-5)

    @parameterized.product(
        make=(block_with_a_side_branch, nested_blocks),
        change=(lambda model: model, saved, cloned, cut),
    )
    def test_equal_numbers(self, make, change):
        self.assert_equal_to_plain(make, change)

    @parameterized.parameters("matmuls", ["wave"])
    def test_equal_numbers_with_a_policy(self, *keep):
        keep = keep[0] if keep[0] == "matmuls" else list(keep)
        policy = RematPolicy(keep=keep)
        for change in (lambda model: model, saved):
            self.assert_equal_to_plain(
                block_with_a_side_branch, change, policy=policy
            )

    @parameterized.parameters(lambda model: model, saved, cloned)
    def test_the_function_runs_again_and_nothing_else(self, change):
        model = change(block_with_a_side_branch(True))
        with runs() as found:
            step(lambda x: ops.sum(model(x)), [X], model.variables)
        self.assertEqual(sorted(found), ["a", "a", "b", "b", "side"])

    @parameterized.parameters(lambda model: model, saved)
    def test_nested_functions(self, change):
        model = change(nested_blocks(True))
        with runs() as found:
            step(lambda x: ops.sum(model(x)), [X], model.variables)
        self.assertEqual(found.count("outer"), 2)
        self.assertEqual(found.count("deep"), 3)

    def test_scopes_make_no_region_inside(self):
        wave = Wave(name="a")
        with RematScope("list_of_layers", layer_names=["a"]):
            with runs() as found:
                f = remat(lambda x: ops.sin(wave(x)))
                step(lambda x: ops.sum(f(x)), [X])
        self.assertLen(found, 2)

    def test_nodes_know_their_policy(self):
        keep = RematPolicy(lambda op, name, shape, dtype: True)
        inputs = layers.Input((4,))
        f = remat(lambda x: ops.sin(remat_name(ops.sin(x), "s")), policy=keep)
        node = f(inputs)._keras_history.operation._inbound_nodes[0]
        self.assertIs(node.remat_marks[0].policy, keep)


class OrderTest(testing.TestCase):
    def test_without_gradients_it_is_the_plain_model(self):
        utils.set_random_seed(5)
        expected = nested_blocks(False)(X)
        utils.set_random_seed(5)
        self.assertAllClose(nested_blocks(True)(X), expected, atol=1e-6)

    def test_nodes_without_marks_save_as_before(self):
        inputs = layers.Input((4,))
        model = models.Model(inputs, layers.Dense(2)(inputs))
        self.assertNotIn("remat", str(model.get_config()))

    def test_a_unit_runs_after_all_that_it_reads(self):
        x = backend.KerasTensor((2, 3))
        f = remat(lambda a, late: ops.sin(a) + ops.cos(late))
        late = x
        for _ in range(3):
            late = ops.tanh(late)
        y = ops.exp(f(x, late))
        nodes = models.Model(layers.Input(tensor=x), y)._nodes_by_depth
        nodes = [n for d in sorted(nodes, reverse=True) for n in nodes[d]]
        units = remat_marks.units([n for n in nodes if not n.is_input])
        names = [[type(n.operation).__name__ for n in u] for _, u in units]
        self.assertEqual(names[:3], [["Tanh"]] * 3)
        self.assertEqual(sorted(names[3]), ["Add", "Cos", "Sin"])
        self.assertEqual(names[4], ["Exp"])
