import threading
import warnings

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import layers
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.global_state import clear_session
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import MODES
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_scope import get_current_remat_mode
from keras.src.backend.common.remat_test_utils import ChainModel
from keras.src.backend.common.remat_test_utils import Wave
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")


class Wider(Wave):
    def call(self, x):
        x = ops.concatenate([x] * 4, axis=-1)
        return ops.reshape(super().call(x), (-1, 4, 4))[:, 0]


class Chain(layers.Layer):
    """Calls its parts in order, so that each is a unit of a scope."""

    def __init__(self, *parts, **kwargs):
        super().__init__(**kwargs)
        self.parts = list(parts)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return ops.sin(x)  # torch stops a second run after its last saved value


@pytest.mark.requires_trainable_backend
class WhoWinsTest(testing.TestCase):
    def count(self, layer, scope=None):
        def loss(x):
            if scope is None:
                return ops.sum(layer(x))
            with scope:
                return ops.sum(layer(x))

        with runs() as found:
            step(loss, [X], layer.variables)
        return len(found)

    def test_no_setting_is_no_region(self):
        self.assertEqual(self.count(Wave()), 1)

    def test_the_scope_at_construction(self):
        with RematScope():
            layer = Wave()
        self.assertEqual(self.count(layer), 2)

    def test_the_scope_at_call(self):
        self.assertEqual(self.count(Wave(), RematScope()), 2)

    @parameterized.named_parameters(("off", None, 1), ("on", "full", 2))
    def test_the_scope_at_call_wins_over_construction(self, mode, expected):
        with RematScope(None if mode else "full"):
            layer = Wave()
        self.assertEqual(self.count(layer, RematScope(mode)), expected)

    @parameterized.named_parameters(
        ("false", False, 1),
        ("true", True, 2),
        ("word", "full", 2),
        ("policy", RematPolicy(), 2),
    )
    def test_the_own_setting_wins_over_both(self, setting, expected):
        mode = None if setting else "full"
        with RematScope(mode):
            layer = Wave(remat=setting)
        self.assertEqual(self.count(layer, RematScope(mode)), expected)

    def test_the_innermost_scope_wins(self):
        layer = Wave()
        with RematScope("full"):
            self.assertEqual(self.count(layer, RematScope(None)), 1)
        with RematScope(None):
            self.assertEqual(self.count(layer, RematScope("full")), 2)

    def test_no_region_of_a_scope_in_another(self):
        layer = Chain(Chain(Wave(), Wave()), Wave())
        self.assertEqual(self.count(layer, RematScope()), 2 * 3)

    def test_levels(self):
        layer = Chain(Wave(), Wave())
        self.assertEqual(self.count(layer, RematScope(levels=2)), 3 * 2)

    def test_explicit_nesting_is_honoured(self):
        layer = Chain(Wave(remat=True), remat=True)
        self.assertEqual(self.count(layer), 3)


@pytest.mark.requires_trainable_backend
class ModesTest(testing.TestCase):
    def names(self, layer, scope):
        """Names of the layers that ran twice."""

        def loss(x):
            with scope:
                return ops.sum(layer(x))

        with runs() as found:
            step(loss, [X], layer.variables)
        self.assertLessEqual(max(map(found.count, found)), 2)
        return {name for name in found if found.count(name) == 2}

    @parameterized.named_parameters(
        ("full", {}, {"wave_a", "wave_b", "wider"}),
        ("off", {"mode": None}, set()),
        ("name", {"layer_names": ["wave_b"]}, {"wave_b"}),
        ("pattern", {"layer_names": ["wave_*"]}, {"wave_a", "wave_b"}),
        ("path", {"layer_names": ["chain_model/wider"]}, {"wider"}),
        ("larger_than", {"mode": "larger_than"}, set()),
        ("type", {"layer_types": Wider}, {"wider"}),
        ("type_name", {"layer_types": ["Wider"]}, {"wider"}),
        ("base_type", {"layer_types": [Wave]}, {"wave_a", "wave_b", "wider"}),
        ("every", {"every": 2}, {"wave_a", "wider"}),
    )
    def test_which_layers_of_a_model_run_again(self, kwargs, expected):
        if "layer_names" in kwargs:
            kwargs = {"mode": "list_of_layers", **kwargs}
        model = ChainModel(
            Wave(name="wave_a"), Wave(name="wave_b"), Wider(name="wider")
        )
        model(X)
        if "chain_model/wider" in kwargs.get("layer_names", ()):
            kwargs["layer_names"] = [model.parts[2].path]
        self.assertEqual(self.names(model, RematScope(**kwargs)), expected)

    @parameterized.parameters((11, {"wave"}), (12, set()))
    def test_larger_than_counts_the_batch(self, threshold, expected):
        scope = RematScope("larger_than", output_size_threshold=threshold)
        self.assertEqual(self.names(Wave(name="wave"), scope), expected)

    def test_activations_runs_only_the_activation_again(self):
        def activation(x):
            return ops.tanh(counted(x, "activation"))

        dense = layers.Dense(4, activation=activation, use_bias=False)
        dense.build((None, 4))
        scope = RematScope("activations")
        chain = Chain(dense, Wave(name="wave"))
        self.assertEqual(self.names(chain, scope), {"activation"})
        self.assertIs(dense.activation, activation)

    def test_names_that_match_nothing_are_warned_of_once(self):
        scope = RematScope("list_of_layers", layer_names=["wave", "absent"])
        model = ChainModel(Wave(name="wave"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.assertEqual(self.names(model, scope), {"wave"})
            self.assertEqual(self.names(model, scope), {"wave"})
        texts = [str(w.message) for w in caught]
        texts = [t for t in texts if "RematScope" in t]
        self.assertLen(texts, 1)
        self.assertIn("['absent']", texts[0])


class RematScopeTest(testing.TestCase):
    @parameterized.named_parameters(
        ("mode", {"mode": "fulll"}, [repr(m) for m in MODES]),
        ("names", {"layer_names": "dense"}, ["list of strings"]),
        ("names_type", {"layer_names": [3]}, ["list of strings"]),
        ("types", {"layer_types": [3]}, ["layer classes or their names"]),
        ("every", {"every": 0}, ["at least 1"]),
        ("levels", {"levels": "2"}, ["at least 1"]),
        ("policy", {"policy": "all"}, ["'nothing'", "'matmuls'"]),
        ("budget", {"memory_budget": "much"}, ["2GiB", "auto"]),
        ("no_names", {"mode": "list_of_layers"}, ["needs `layer_names`"]),
        ("threshold", {"output_size_threshold": "big"}, ["a number"]),
        ("threshold_below", {"output_size_threshold": -1}, ["a number"]),
        (
            "budget_by_size",
            {"mode": "larger_than", "memory_budget": 0.5},
            ["mode 'full'", "'larger_than'"],
        ),
        (
            "budget_by_type",
            {"layer_types": "Dense", "policy": RematPolicy(memory_budget=0.5)},
            ["without `layer_types`", "['Dense']"],
        ),
    )
    def test_a_wrong_value_lists_the_valid_ones(self, kwargs, valid):
        with self.assertRaises(ValueError) as caught:
            RematScope(**kwargs)
        for text in [*valid, "Received: "]:
            self.assertIn(text, str(caught.exception))

    def test_config_round_trip(self):
        scope = RematScope(
            "list_of_layers",
            layer_names=["a*"],
            layer_types=[Wave],
            every=2,
            levels=2,
            policy=RematPolicy(keep=["x"]),
        )
        config = scope.get_config()
        self.assertEqual(RematScope(**config).get_config(), config)
        config = RematScope(memory_budget="1MB").get_config()
        self.assertEqual(RematScope(**config).get_config(), config)

    def test_names_that_the_mode_does_not_follow(self):
        with self.assertWarnsRegex(UserWarning, "mode 'list_of_layers' only"):
            RematScope(layer_names=["wave"])

    def test_current_mode_follows_the_nesting(self):
        self.assertIsNone(get_current_remat_mode())
        with RematScope("larger_than", output_size_threshold=5):
            self.assertEqual(get_current_remat_mode().mode, "larger_than")
            self.assertEqual(get_current_remat_mode().output_size_threshold, 5)
            with RematScope(None):
                self.assertIsNone(get_current_remat_mode())
            self.assertEqual(get_current_remat_mode().mode, "larger_than")
        self.assertIsNone(get_current_remat_mode())

    def test_one_scope_may_be_entered_again(self):
        scope = RematScope()
        with scope, scope:
            pass
        self.assertIsNone(get_current_remat_mode())
        with scope:
            self.assertEqual(get_current_remat_mode().mode, "full")

    def test_an_exception_closes_the_scope(self):
        with self.assertRaises(KeyError):
            with RematScope(), RematScope("activations"):
                raise KeyError
        self.assertIsNone(get_current_remat_mode())

    def test_each_thread_has_its_own(self):
        found = []

        def look():
            found.append(get_current_remat_mode())
            with RematScope("activations"):
                found.append(get_current_remat_mode().mode)

        with RematScope():
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            self.assertEqual(get_current_remat_mode().mode, "full")
        self.assertEqual(found, [None, "activations"])

    def test_clear_session_inside(self):
        with RematScope():
            clear_session(free_memory=False)
            self.assertIsNone(get_current_remat_mode())
        self.assertIsNone(get_current_remat_mode())
