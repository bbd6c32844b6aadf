import copy
import functools
import inspect
import os
import pickle

import numpy as np
from absl.testing import parameterized

from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import saving
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.models.cloning import clone_model

SETTINGS = {
    "on": True,
    "off": False,
    "policy": RematPolicy(keep=["wave"], every=2),
}


@saving.register_keras_serializable("remat_setting_test")
class Plain(layers.Layer):
    """Knows nothing of remat: no `**kwargs`, and a config of its own."""

    def __init__(self, units):
        super().__init__()
        self.units = units

    def call(self, x):
        return ops.sin(x)

    def get_config(self):
        return {"units": self.units}

    @classmethod
    def from_config(cls, config):
        return cls(config["units"])


@saving.register_keras_serializable("remat_setting_test")
class Subclassed(models.Model):
    def __init__(self, units=2, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(units)

    def call(self, x):
        return self.dense(x)


def functional():
    inputs = layers.Input((3,))
    return models.Model(inputs, layers.Dense(2)(inputs))


def sequential():
    return models.Sequential([layers.Input((3,)), layers.Dense(2)])


def subclassed():
    model = Subclassed()
    model(np.ones((1, 3)))
    return model


def custom():
    return Plain(2)


MAKERS = {
    "dense": lambda: layers.Dense(2),
    "custom": custom,
    "functional": functional,
    "sequential": sequential,
    "subclassed": subclassed,
}


class RematSettingTest(testing.TestCase):
    @parameterized.named_parameters(*SETTINGS.items())
    def test_constructors_take_it(self, setting):
        inputs = layers.Input((3,))
        for layer in (
            layers.Dense(2, remat=setting),
            layers.LSTM(2, remat=setting),
            layers.Bidirectional(layers.GRU(2), remat=setting),
            layers.Lambda(ops.sin, remat=setting),
            models.Sequential([layers.Dense(2)], remat=setting),
            models.Model(inputs, layers.Dense(2)(inputs), remat=setting),
            Subclassed(remat=setting),
        ):
            self.assertEqual(layer.remat, setting, msg=repr(layer))

    def test_a_constructor_without_other_keywords_takes_it(self):
        class Scaled(layers.Layer):
            def __init__(self, units, factor=2.0):
                super().__init__()
                self.units, self.factor = units, factor

        class Open(layers.Layer):
            def __init__(self, units, **kwargs):
                super().__init__(**kwargs)
                self.units = units

        class Named(layers.Layer):
            def __init__(self, remat=None):
                super().__init__()
                self.mine = remat

        policy = RematPolicy(keep=["wave"])
        for layer in (
            Scaled(3, 4.0, remat=policy),
            Open(3, remat=policy),
            layers.SpatialDropout1D(0.5, remat=True),
            layers.Discretization(num_bins=3, remat=True),
            layers.Pipeline([layers.Rescaling(0.5)], remat=True),
        ):
            self.assertIn(layer.remat, (True, policy))
            self.assertIn("remat", layer.get_config())
            if not isinstance(layer, Scaled):  # Keras asks for `**kwargs`
                copy = type(layer).from_config(layer.get_config())
                self.assertEqual(copy.remat, layer.remat)
        self.assertEqual(Scaled(3, 4.0).get_config()["units"], 3)
        self.assertNotIn("remat", Scaled(3, 4.0).get_config())
        self.assertIsNone(Named(remat="mine").remat)
        with self.assertRaisesRegex(ValueError, "`remat` must be"):
            layers.SpatialDropout1D(0.5, remat="fulll")

    def test_an_argument_of_that_name_is_left_alone(self):
        class Auto(layers.Layer):
            def __init__(self, remat="block", **kwargs):
                super().__init__(**kwargs)
                self.mine = remat

        class Explicit(Auto):
            def __init__(self, units, remat=False, **kwargs):
                super().__init__(remat=remat, **kwargs)
                self.units = units

            def get_config(self):
                own = {"units": self.units, "remat": self.mine}
                return {**super().get_config(), **own}

        with RematScope():
            recorded = Auto(remat="head")
        for layer in (Auto(remat="head"), Explicit(3, remat=True), recorded):
            copy = type(layer).from_config(layer.get_config())
            self.assertEqual(copy.mine, layer.mine)
            self.assertIsNone(copy.remat)

    def test_an_argument_that_is_passed_on(self):
        class Passing(layers.Layer):
            def __init__(self, remat=None, **kwargs):
                super().__init__(remat=remat, **kwargs)

        policy = RematPolicy(keep=["wave"])
        layer = Passing(remat=True)
        self.assertIs(Passing.from_config(layer.get_config()).remat, True)
        layer.remat = policy
        copy = Passing.from_config(layer.get_config())
        self.assertEqual(copy.remat, policy)

    def test_a_constructor_that_is_no_function(self):
        class Activated(layers.Layer):
            def __init__(self, units, activation="relu", **kwargs):
                super().__init__(**kwargs)
                self.units, self.activation = units, activation

        class Gelu(Activated):
            __init__ = functools.partialmethod(
                Activated.__init__, activation="gelu"
            )

        self.assertEqual(Gelu(3).activation, "gelu")
        self.assertIs(Gelu(3, remat=True).remat, True)

    def test_the_constructor_of_every_layer_takes_it(self):
        for name, cls in vars(layers).items():
            if not isinstance(cls, type) or not issubclass(cls, layers.Layer):
                continue
            found = inspect.signature(cls.__init__, follow_wrapped=False)
            kinds = [p.kind for p in found.parameters.values()]
            takes = inspect.Parameter.VAR_KEYWORD in kinds
            wrapped = hasattr(cls.__init__, "__wrapped__")
            self.assertTrue(takes or wrapped, msg=name)

    def test_the_word_full_means_true(self):
        self.assertIs(layers.Dense(2, remat="full").remat, True)

    @parameterized.parameters("fulll", 1.5, "matmuls", [{"a": 1}])
    def test_a_wrong_value_lists_the_valid_ones(self, setting):
        layer = layers.Dense(2)
        with self.assertRaises(ValueError) as caught:
            layer.remat = setting
        for text in ("`True`", "`False`", "full", "RematPolicy", repr(setting)):
            self.assertIn(text, str(caught.exception))
        self.assertIsNone(layer.remat)
        with self.assertRaisesRegex(ValueError, "`remat` must be"):
            layers.Dense(2, remat=setting)

    @parameterized.parameters("20MiB", 0.5, 10**6, "auto")
    def test_a_bare_budget_is_shown_the_way(self, setting):
        advice = rf"RematPolicy\(memory_budget={setting!r}\)"
        with self.assertRaisesRegex(ValueError, advice):
            layers.Dense(2).remat = setting

    @parameterized.named_parameters(*MAKERS.items())
    def test_the_config_has_it_only_when_set(self, make):
        layer = make()
        self.assertNotIn("remat", layer.get_config())
        layer.remat = True
        self.assertIs(layer.get_config()["remat"], True)
        layer.remat = None
        self.assertNotIn("remat", layer.get_config())

    def test_the_config_of_an_unset_model_has_no_trace_of_it(self):
        self.assertNotIn("remat", functional().to_json())
        self.assertNotIn("remat", sequential().to_json())

    @parameterized.product(make=list(MAKERS), setting=list(SETTINGS))
    def test_it_survives_every_copy(self, make, setting):
        layer, setting = MAKERS[make](), SETTINGS[setting]
        layer.remat = setting
        config = layer.get_config()
        copies = {
            "from_config": type(layer).from_config(config),
            "deepcopy": copy.deepcopy(layer),
            "pickle": pickle.loads(pickle.dumps(layer)),
            "serialize": saving.deserialize_keras_object(
                saving.serialize_keras_object(layer)
            ),
        }
        for name, found in copies.items():
            self.assertEqual(found.remat, setting, msg=name)
        self.assertEqual(layer.get_config(), config)

    @parameterized.product(
        make=["functional", "sequential", "subclassed"],
        setting=list(SETTINGS),
    )
    def test_clone_and_file(self, make, setting):
        model, setting = MAKERS[make](), SETTINGS[setting]
        model.remat = setting
        model.layers[-1].remat = setting
        path = os.path.join(self.get_temp_dir(), "model.keras")
        model.save(path)
        found = saving.load_model(path)
        self.assertEqual(found.remat, setting)
        x = np.ones((2, 3), "float32")
        self.assertAllClose(found(x), model(x))
        found = clone_model(model)
        self.assertEqual(found.remat, setting)
        if make != "subclassed":  # its parts are made by its own code
            self.assertEqual(found.layers[-1].remat, setting)

    def test_layers_of_a_saved_model_keep_theirs(self):
        inputs = layers.Input((3,))
        x = layers.Dense(3, name="a", remat=True)(inputs)
        x = layers.Dense(3, name="b", remat=False)(x)
        model = models.Model(inputs, layers.Dense(3, name="c")(x))
        found = models.Model.from_config(model.get_config())
        settings = [found.get_layer(name).remat for name in "abc"]
        self.assertEqual(settings, [True, False, None])

    def test_the_scope_at_construction_is_saved(self):
        with RematScope("larger_than", output_size_threshold=7):
            layer = layers.Dense(2)
        self.assertIsNone(layer.remat)
        found = layers.Dense.from_config(layer.get_config())
        self.assertIsNone(found.remat)
        self.assertEqual(found._remat_mode.mode, "larger_than")
        self.assertEqual(found._remat_mode.output_size_threshold, 7)

    def test_setting_it_makes_the_trainer_trace_again(self):
        model = sequential()
        model.compile("sgd", "mse")
        model.train_function = traced = object()
        model.remat = True
        self.assertIsNot(model.train_function, traced)
