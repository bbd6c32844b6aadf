import os
from unittest import mock

import numpy as np
import pytest

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.backend.common import global_state
from keras.src.backend.common import remat_region
from keras.src.backend.common.remat_inference import for_inference

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")


def make_model():
    parts = [layers.Dense(6, activation="gelu") for _ in range(6)]
    model = models.Sequential(
        [layers.Input((6,)), *parts, layers.BatchNormalization()]
    )
    model.remat = True
    model.compile(optimizer="sgd", loss="mse")
    return model


def counting_regions():
    return mock.patch.object(remat_region, "Run", wraps=remat_region.Run)


@pytest.mark.requires_trainable_backend
class NoRegionsTest(testing.TestCase):
    def test_training_has_regions(self):
        with counting_regions() as run:
            make_model().fit(X, X, verbose=0)
        self.assertGreater(run.call_count, 1)

    @pytest.mark.skipif(
        backend.backend() == "jax",
        reason="jax.checkpoint is nothing where nothing is differentiated",
    )
    def test_prediction_and_evaluation_have_none(self):
        model = make_model()
        with counting_regions() as run:
            model.predict(X, verbose=0)
            model.evaluate(X, X, verbose=0)
        self.assertEqual(run.call_count, 0)

    def test_an_exported_model_has_none(self):
        model = make_model()
        path = os.path.join(self.get_temp_dir(), "model.pt2")
        by_torch = backend.backend() == "torch"
        kind = "torch" if by_torch else "tf_saved_model"
        with counting_regions() as run:
            model.export(path, format=kind, verbose=False)
        self.assertEqual(run.call_count, 0)
        if by_torch:
            import torch

            serve = torch.export.load(path).module()
            found = serve(torch.tensor(X[:1])).detach()
        else:
            import tensorflow as tf

            loaded = tf.saved_model.load(path)
            found = loaded.serve(X[:1])
        self.assertAllClose(found, model.predict(X[:1], verbose=0), atol=1e-5)

    @pytest.mark.skipif(
        backend.backend() != "tensorflow", reason="is about TensorFlow"
    )
    def test_an_endpoint_of_an_archive_has_none(self):
        from keras.src.export.saved_model import ExportArchive

        model, archive = make_model(), ExportArchive()
        archive.track(model)
        with counting_regions() as run:
            archive.add_endpoint(
                "serve", model, [layers.InputSpec("float32", (4, 6))]
            )
        self.assertEqual(run.call_count, 0)

    @pytest.mark.skipif(backend.backend() != "torch", reason="is about torch")
    def test_tracers_of_torch_see_none(self):
        import torch

        model, x = make_model(), torch.tensor(X)
        with counting_regions() as run:
            exported = torch.export.export(model, (x,)).module()
            traced = torch.jit.trace(model, (x,))
        self.assertEqual(run.call_count, 0)
        expected = model.predict(X, verbose=0)
        self.assertAllClose(exported(x).detach(), expected, atol=1e-5)
        self.assertAllClose(traced(x).detach(), expected, atol=1e-5)

    def test_training_goes_on_after_an_export_that_failed(self):
        model = make_model()
        with self.assertRaises(ValueError):
            model.export("model.wrong", format="wrong")
        self.assertIsNone(global_state.get_global_attribute("remat_inference"))
        with counting_regions() as run:
            model.fit(X, X, verbose=0)
        self.assertGreater(run.call_count, 1)


class DecoratorTest(testing.TestCase):
    def test_it_ends_with_the_call(self):
        @for_inference
        def f(inner):
            marks = [self.marked()]
            if inner:
                marks += f(False)
            return [*marks, self.marked()]

        self.assertEqual(f(True), [True] * 4)
        self.assertFalse(self.marked())

    def marked(self):
        return bool(global_state.get_global_attribute("remat_inference"))
