"""Arguments and results that trees do not look into."""

import dataclasses

import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_test_utils import step

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")


@dataclasses.dataclass
class Pair:
    a: object
    b: object
    name: str = "pair"


@dataclasses.dataclass
class Config:
    rate: float = 2.0


@dataclasses.dataclass(eq=False)
class Scale(layers.Layer):
    rate: float = 3.0

    def __post_init__(self):
        super().__init__()

    def call(self, x):
        return ops.sin(x * self.rate)


@pytest.mark.requires_trainable_backend
class ArgumentsTest(testing.TestCase):
    def compare(self, loss):
        found = [step(lambda *x: loss(w, *x), [X, X + 1]) for w in (id_, remat)]
        for plain, received in zip(found[0][1], found[1][1]):
            self.assertAllClose(plain, received, atol=1e-5)

    def test_an_instance_that_the_function_changes(self):
        def f(pair):
            pair.a = ops.sin(pair.a)
            return ops.tanh(pair.a * pair.b)

        self.compare(lambda wrap, x, y: ops.sum(wrap(f)(Pair(x, y))))

    def test_instances_without_tensors_are_passed_as_they_are(self):
        config, scale = Config(), Scale()

        def f(x, given, layer):
            self.assertIs(given, config)
            self.assertIs(layer, scale)
            return layer(x) * given.rate, given, layer

        def loss(wrap, x, y):
            z, given, layer = wrap(f)(x * y, config, scale)
            self.assertIs(given, config)
            self.assertIs(layer, scale)
            return ops.sum(z)

        self.compare(loss)

    def test_iterators_are_not_used_up(self):
        def f(values, pairs):
            total = sum(ops.sin(v) for v in values)
            for i, y in pairs:
                total = total * ops.cos(y * i)
            return total

        def loss(wrap, x, y):
            return ops.sum(wrap(f)((v * 2 for v in (x, y)), enumerate([x, y])))

        self.compare(loss)

    def test_an_iterator_as_the_result(self):
        def loss(wrap, x, y):
            results = wrap(lambda x, y: (ops.sin(v) * x for v in (x, y)))(x, y)
            return ops.sum(next(results) * ops.cos(next(results)))

        self.compare(loss)

    def test_an_iterator_without_end_is_refused(self):
        f = remat(lambda values: ops.sin(next(values)))
        loss = lambda x: ops.sum(f(x for _ in iter(int, 1)))
        with self.assertRaisesRegex(ValueError, "must end"):
            step(loss, [X])


def id_(f):
    return f


@pytest.mark.skipif(backend.backend() != "jax", reason="is about JAX")
class NestsOfJaxTest(testing.TestCase):
    def test_registered_classes_enter_and_leave(self):
        import jax

        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Data:
            a: object
            b: object

        @jax.tree_util.register_pytree_node_class
        class Node:
            def __init__(self, a, b):
                self.a, self.b = a, b

            def tree_flatten(self):
                return (self.a, self.b), None

            @classmethod
            def tree_unflatten(cls, _, children):
                return cls(*children)

        for cls in (Data, Node):

            def loss(wrap, x, y, cls=cls):
                f = wrap(lambda n: cls(ops.sin(n.a) * n.b, ops.cos(n.b)))
                result = f(f(cls(x, y)))
                self.assertIsInstance(result, cls)
                return ops.sum(result.a * result.b)

            found = [jax.grad(loss, (1, 2))(w, X, X + 1) for w in (id_, remat)]
            self.assertAllClose(*found, atol=1e-5)

    def test_keys_enter_and_leave(self):
        import jax

        def f(x, key):
            noise = jax.random.normal(key, x.shape)
            return ops.sin(x * noise), jax.random.split(key)[0]

        def loss(wrap, x, key):
            y, key = wrap(f)(x, key)
            return ops.sum(wrap(f)(y, key)[0])

        key = jax.random.key(3)
        found = [jax.grad(loss, 1)(w, X, key) for w in (id_, remat)]
        self.assertAllClose(*found, atol=1e-5)
