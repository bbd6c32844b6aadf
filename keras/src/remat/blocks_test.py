import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step
from keras.src.remat.measure import remat_report
from keras.src.remat.structure import holds_blocks

X = np.linspace(-1, 1, 1024 * 8).reshape((1024, 8)).astype("float32")
BLOCKS = 6


class Block(layers.Layer):
    """A composite layer, counted."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.up = layers.Dense(16, activation="gelu")
        self.down = layers.Dense(8)

    def build(self, shape):
        self.up.build(shape)
        self.down.build((*shape[:-1], 16))

    def call(self, x):
        return x + self.down(counted(self.up(x), self.name))


class Encoder(layers.Layer):
    """A row of blocks in one layer, as encoders of KerasHub are."""

    def __init__(self, n=BLOCKS, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [Block(name=f"block{i}") for i in range(n)]
        self.norm = layers.LayerNormalization()

    def build(self, shape):
        for part in [*self.blocks, self.norm]:
            part.build(shape)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Subclassed(models.Model):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = layers.Dense(2)

    def call(self, x):
        return self.head(self.encoder(x))


def functional():
    inputs = layers.Input((8,))
    x = Encoder()(layers.Dense(8)(inputs))
    return models.Model(inputs, layers.Dense(2)(x))


def subclassed():
    model = Subclassed()
    model(X)
    return model


def nested():
    inputs = layers.Input((8,))
    return models.Model(inputs, layers.Dense(2)(functional()(inputs)))


def flat():
    inputs = x = layers.Input((8,))
    for i in range(BLOCKS):
        x = Block(name=f"block{i}")(x)
    return models.Model(inputs, layers.Dense(2)(x))


KINDS = {
    "functional": functional,
    "subclassed": subclassed,
    "nested": nested,
}


def trained(make, setting=None, scope=None):
    """Loss and gradients of one step, and how often which block ran."""
    utils.set_random_seed(0)
    model = make()
    model.remat = setting

    def loss(x):
        return ops.mean(ops.square(model(x, training=True)))

    with runs() as found, scope or RematScope(mode=None):
        results = step(loss, [X], model.variables)
    return results, found


@pytest.mark.skipif(
    backend.backend() in ("numpy", "openvino"),
    reason="this backend takes no gradients",
)
class BlocksInALayerTest(testing.TestCase):
    def test_is_a_row_of_blocks(self):
        self.assertTrue(holds_blocks(Encoder(3)))
        self.assertFalse(holds_blocks(Encoder(2)))
        self.assertFalse(holds_blocks(Block()))
        attention = layers.MultiHeadAttention(2, 4)
        attention.build((1, 4, 8), (1, 4, 8))
        self.assertFalse(holds_blocks(attention))
        self.assertFalse(holds_blocks(ops.numpy.Add()))

    @parameterized.named_parameters((k, k) for k in KINDS)
    def test_blocks_run_twice_and_give_the_same(self, kind):
        (loss, *plain), once = trained(KINDS[kind])
        again, twice = trained(KINDS[kind], setting=True)
        self.assertAllClose(loss, again[0])
        for a, b in zip(plain, again[1:]):
            for p, q in zip(a, b):
                self.assertAllClose(p, q)
        self.assertEqual(sorted(once * 2), sorted(twice))

    @parameterized.named_parameters((k, k) for k in KINDS)
    @pytest.mark.skipif(
        backend.backend() == "jax", reason="the order of callbacks is free"
    )
    def test_last_block_runs_again_first(self, kind):
        _, found = trained(KINDS[kind], setting=True)
        self.assertEqual(found[BLOCKS:], found[:BLOCKS][::-1])

    @pytest.mark.skipif(
        backend.backend() == "jax", reason="the order of callbacks is free"
    )
    def test_in_a_scope(self):
        _, found = trained(subclassed, scope=RematScope())
        self.assertEqual(found[BLOCKS:], found[:BLOCKS][::-1])
        _, found = trained(
            subclassed, scope=RematScope(layer_types=["Encoder"])
        )
        self.assertEqual(found[BLOCKS:], found[:BLOCKS])

    def test_each_second_block(self):
        _, found = trained(functional, setting=RematPolicy(every=2))
        self.assertLen(found, BLOCKS + BLOCKS // 2)

    @parameterized.named_parameters((k, k) for k in KINDS)
    @pytest.mark.skipif(
        backend.backend() == "tensorflow",
        reason="this backend does not tell its peak",
    )
    def test_saves_as_the_flat_model_does(self, kind):
        best = remat_report(flat(), X).remat_peak
        report = remat_report(KINDS[kind](), X)
        self.assertLess(report.remat_peak, 0.6 * report.plain_peak)
        self.assertLess(report.remat_peak, 1.3 * best)
