import pytest
from absl.testing import parameterized

from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src import tree
from keras.src import utils
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import step
from keras.src.remat.graph_test import X
from keras.src.remat.graph_test import dense
from keras.src.remat.graph_test import sequential


def skips():
    inputs = x = layers.Input((6,))
    for _ in range(4):
        y = layers.BatchNormalization()(dense()(x))
        x = layers.Dropout(0.5, seed=3)(x + y)
    return models.Model(inputs, ops.sin(x) + inputs)


def several():
    a, b = layers.Input((6,)), layers.Input((6,))
    x = dense()(layers.Concatenate()([dense()(a), dense()(b)]))
    early = layers.Dense(2)(x)
    return models.Model([a, b], [early, dense()(dense()(x)), x])


def shared():
    inputs = x = layers.Input((6,))
    one = layers.Dense(6, activation="tanh", activity_regularizer="l2")
    norm = layers.BatchNormalization()
    for _ in range(4):
        x = norm(one(x))
    return models.Model(inputs, x)


def nested():
    def block():
        inputs = layers.Input((6,))
        x = layers.Dropout(0.5, seed=3)(dense()(inputs))
        return models.Model(inputs, layers.BatchNormalization()(dense()(x)))

    inputs = layers.Input((6,))
    x = block()(inputs)
    x = models.Sequential([dense(), block(), dense()])(x)
    return models.Model(inputs, block()(x))


def dicts():
    inputs = {"a": layers.Input((6,)), "b": layers.Input((6,))}
    x = dense()(dense()(inputs["a"])) + dense()(inputs["b"])
    return models.Model(inputs, {"x": x, "deep": [dense()(dense()(x)), x]})


def chain():
    parts = [dense(), layers.BatchNormalization(), layers.Dropout(0.5, seed=3)]
    return sequential([*parts, dense(), dense(), layers.Dense(2)])


MODELS = {
    "skips": skips,
    "several": several,
    "shared": shared,
    "nested": nested,
    "dicts": dicts,
    "sequential": chain,
}


def made(make):
    utils.set_random_seed(5)
    return make()


def loss_of(model, training=True):
    """A function of the flat inputs: the sum of all outputs and losses."""
    inputs = model.inputs[0] if len(model.inputs) == 1 else model.input
    structure = tree.map_structure(lambda x: None, inputs)

    def loss(*xs):
        outputs = model(tree.pack_sequence_as(structure, xs), training=training)
        outputs = [ops.sum(ops.sin(y)) for y in tree.flatten(outputs)]
        return sum(outputs) + sum(model.losses)

    return loss


@pytest.mark.requires_trainable_backend
class EqualNumbersTest(testing.TestCase):
    def assert_equal_steps(self, make, setting, compiled=False):
        plain, ours = made(make), made(make)
        ours.remat = setting
        xs = [X + i for i in range(len(plain.inputs))]
        expected = step(loss_of(plain), xs, plain.variables, compiled)
        found = step(loss_of(ours), xs, ours.variables, compiled)
        self.assertAllClose(found[0], expected[0], rtol=1e-5)
        for a, b in zip(found[1] + found[2], expected[1] + expected[2]):
            self.assertAllClose(a, b, atol=1e-5, rtol=1e-4)
        for a, b in zip(ours.variables, plain.variables):
            self.assertAllClose(a, b, atol=1e-5, rtol=1e-5, msg=b.path)

    @parameterized.named_parameters(*((name, name) for name in MODELS))
    def test_a_model_with_remat_equals_a_plain_one(self, name):
        self.assert_equal_steps(MODELS[name], True)

    @parameterized.named_parameters(
        ("every", RematPolicy(every=2)),
        ("levels", RematPolicy(levels=2)),
        ("matmuls", RematPolicy(keep="matmuls")),
        ("budget", RematPolicy(memory_budget=0.9)),
    )
    def test_a_policy_equals_plain(self, policy):
        self.assert_equal_steps(skips, policy)

    def test_in_a_compiled_step(self):
        self.assert_equal_steps(chain, True, compiled=True)

    def test_fit_equals_plain(self):
        weights = []
        for setting in (None, True):
            model = made(chain)
            model.remat = setting
            model.compile("sgd", "mse")
            model.fit(X, X[:, :2], batch_size=2, shuffle=False, verbose=0)
            weights.append(model.get_weights())
        for a, b in zip(*weights):
            self.assertAllClose(a, b, atol=1e-5)
