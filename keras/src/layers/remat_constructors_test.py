import dataclasses
import inspect

from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import ops
from keras.src import saving
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy

# These need an engine of their own, or a file that it wrote.
ELSEWHERE = ("FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper")


@saving.register_keras_serializable("remat_constructors_test")
def wave(x):
    return ops.sin(x)


ARGUMENTS = {
    "activation": "relu",
    "axes": 1,
    "cell": lambda: layers.GRUCell(2),
    "cells": lambda: [layers.GRUCell(2)],
    "dims": (1,),
    "equation": "ab,bc->ac",
    "factor": 1,
    "function": lambda: wave,
    "height_factor": 0.5,
    "layer": lambda: layers.GRU(2),
    "layers": lambda: [layers.Rescaling(2.0)],
    "output_shape": (2,),
    "rate": 0.5,
    "scale": 2.0,
    "stddev": 0.5,
    "target_shape": (2,),
    "vocabulary_dtype": "int64",
    "width_factor": 0.5,
}

# What a class needs besides the arguments that have no default.
FURTHER = {
    "CategoryEncoding": {"num_tokens": 3},
    "Discretization": {"num_bins": 3},
    "InputLayer": {"shape": (2,)},
    "IntegerLookup": {"vocabulary": [1, 2]},
    "SpectralNormalization": {"layer": lambda: layers.Dense(2)},
    "StringLookup": {"vocabulary": ["a"]},
    "TextVectorization": {"vocabulary": ["a"]},
}


def all_classes():
    for name in sorted(dir(layers)):
        cls = getattr(layers, name)
        if inspect.isclass(cls) and issubclass(cls, layers.Layer):
            yield name, cls


def arguments_of(name, cls):
    given = {}
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD:
            given[p.name] = ARGUMENTS.get(p.name, 2)
    given.update(FURTHER.get(name, {}))
    return {k: v() if callable(v) else v for k, v in given.items()}


@saving.register_keras_serializable("remat_constructors_test")
@dataclasses.dataclass(eq=False)
class Data(layers.Layer):
    units: int = 2

    def __post_init__(self):
        super().__init__()


class Width:
    """No layer, and passes nothing on."""

    def __init__(self, width):
        layers.Layer.__init__(self)
        self.width = width


class Mixed(Width, layers.Layer):
    pass


class Dropping(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(name=kwargs.pop("name", None))


class Lookup(layers.IntegerLookup):
    def __init__(self, first, **kwargs):
        super().__init__(vocabulary=[first, first + 1], **kwargs)


class Reading(layers.Layer):
    """Looks at its own setting while it is made."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = self.remat


class Taking(layers.Layer):
    """Takes a keyword of that name for itself."""

    def __init__(self, **kwargs):
        self.mine = kwargs.pop("remat", None)
        super().__init__(**kwargs)


class Handing(layers.Dense):
    def __init__(self, units, **kwargs):
        super().__init__(units, remat=True, **kwargs)


class RematConstructorsTest(testing.TestCase):
    @parameterized.named_parameters(*all_classes())
    def test_each_layer_takes_it(self, cls):
        name = cls.__name__
        if name in ELSEWHERE:
            with self.assertRaisesRegex(ValueError, "`remat` must be"):
                cls(**arguments_of(name, cls), remat="fulll")
            return
        try:
            plain = cls(**arguments_of(name, cls))
        except ImportError as e:
            self.skipTest(str(e))
        self.assertIsNone(plain.remat)
        self.assertNotIn("remat", plain.get_config())
        policy = RematPolicy(keep="matmuls")
        for setting in (True, False, policy):
            layer = cls(**arguments_of(name, cls), remat=setting)
            self.assertEqual(layer.remat, setting)
            self.assertIn("remat", layer.get_config())
        copy = cls.from_config(layer.get_config())
        self.assertEqual(copy.remat, policy)

    @parameterized.named_parameters(
        ("dataclass", lambda **kwargs: Data(units=3, **kwargs)),
        ("mixin", lambda **kwargs: Mixed(3, **kwargs)),
        ("dropped_keywords", Dropping),
        ("below_a_layer_that_refuses", lambda **kwargs: Lookup(1, **kwargs)),
        ("reading", Reading),
    )
    def test_layers_of_users_take_it(self, make):
        for setting in (True, False, RematPolicy(keep="matmuls")):
            self.assertEqual(make(remat=setting).remat, setting)
        self.assertIsNone(make().remat)
        with self.assertRaisesRegex(ValueError, "`remat` must be"):
            make(remat="fulll")

    def test_a_layer_sees_its_setting_while_it_is_made(self):
        self.assertIs(Reading(remat=True).seen, True)
        self.assertIsNone(Reading().seen)

    def test_a_dataclass_keeps_its_config(self):
        layer = Data(units=3, remat=True)
        self.assertEqual(layer.units, 3)
        self.assertEqual(layer.get_config()["units"], 3)

    def test_what_a_constructor_does_with_it_is_left_alone(self):
        layer = Taking(remat="mine")
        self.assertEqual((layer.mine, layer.remat), ("mine", None))
        self.assertIs(Handing(2).remat, True)
        with self.assertRaises(TypeError):
            Handing(2, remat=False)

    def test_a_layer_made_by_another_has_no_setting(self):
        layer = layers.Bidirectional(layers.GRU(2), remat=True)
        self.assertIsNone(layer.forward_layer.remat)
        self.assertEqual(backend.standardize_dtype(layer.dtype), "float32")
