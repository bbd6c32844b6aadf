import gc
import weakref

import pytest

from keras.src import backend
from keras.src import testing

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    backend.backend() != "torch", reason="is about torch"
)


class Leaf:
    """What a flattened structure holds; unlike a tuple it can be watched."""


class TorchPytreeTest(testing.TestCase):
    @pytest.fixture(autouse=True)
    def import_it(self):
        from torch.utils import _pytree

        from keras.src.tree import torch_pytree

        self.ours, self.torchs = torch_pytree, _pytree

    def test_equal_to_that_of_torch(self):
        tree = {"a": [1, (2.0, None)], "b": (), "c": [[], "text"]}
        for is_leaf in (None, lambda node: isinstance(node, list)):
            ours = self.ours.tree_flatten(tree, is_leaf=is_leaf)
            self.assertEqual(ours, self.torchs.tree_flatten(tree, is_leaf))
            again = self.ours.tree_unflatten(*ours)
            self.assertEqual(again, tree)

    def test_nothing_is_held_until_the_garbage_collector_runs(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        leaf = Leaf()
        held = weakref.ref(leaf)
        # Keras's `is_leaf` refer to what is flattened.
        self.ours.tree_flatten([leaf], is_leaf=lambda x, tree=leaf: x is tree)
        del leaf
        self.assertIsNone(held())
