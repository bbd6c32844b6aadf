"""Files go both ways between this Keras and stock Keras 3.15.1.

Stock Keras runs in a process of its own, from the source archive that the
patch set is built on.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import keras
from keras import layers

ROOT = pathlib.Path(__file__).resolve().parents[1]
TREE = "keras-3.15.1"
ARCHIVE = ROOT / "build" / "cache" / "keras-3.15.1.tar.gz"
X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")

SAVE = """
model = build()
model.compile("sgd", "mse")
model.save("model.keras")
np.save("expected.npy", model.predict(X, verbose=0))
"""
LOAD = """
model = keras.saving.load_model("model.keras")
np.save("found.npy", model.predict(X, verbose=0))
"""

TRAINS = keras.backend.backend() not in ("numpy", "openvino")

pytestmark = pytest.mark.skipif(
    not ARCHIVE.exists(), reason="`make tree` fetches stock Keras"
)


def build():
    inputs = keras.Input((6,))
    x = layers.Dense(8, activation="gelu", name="dense")(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Reshape((2, 4), name="rows")(layers.Dropout(0.1, seed=1)(x))
    x = layers.LSTM(3, name="lstm")(x)
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(2)], name="head")
    return keras.Model(inputs, inner(x))


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stock")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    # The archive has no `keras/__init__.py`; a wheel gets one when it is built.
    shutil.copy(ROOT / "devtree/keras/__init__.py", folder / TREE / "keras")
    return folder / TREE


def run_stock(stock, folder, script):
    """Runs a script with the functions of this file, under stock Keras."""
    here = pathlib.Path(__file__).read_text()
    start, end = here.index("def build()"), here.index("@pytest.fixture")
    head = (
        "import numpy as np, keras\nfrom keras import layers\n"
        "assert not hasattr(keras.Layer, 'remat')\n"
        "X = np.linspace(-1, 1, 24).reshape((4, 6)).astype('float32')\n"
    )
    subprocess.run(
        [sys.executable, "-c", head + here[start:end] + script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(stock)},
        check=True,
    )


def load(folder):
    keras.utils.set_random_seed(0)  # a file has no seeds
    return keras.saving.load_model(folder / "model.keras")


def test_a_model_of_stock_keras_loads_and_trains_with_remat(stock, tmp_path):
    run_stock(stock, tmp_path, SAVE)
    model = load(tmp_path)
    expected = np.load(tmp_path / "expected.npy")
    np.testing.assert_allclose(
        model.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6
    )
    assert model.remat is None
    if not TRAINS:
        return
    plain = load(tmp_path)
    model.remat = True
    for each in (plain, model):
        keras.utils.set_random_seed(0)
        each.fit(X, np.zeros((4, 2)), epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.variables, plain.variables, strict=True):
        a, b = map(keras.ops.convert_to_numpy, (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_model_without_a_setting_loads_in_stock_keras(stock, tmp_path):
    model = build()
    model.compile("sgd", "mse")
    if TRAINS:
        model.remat = True
        model.fit(X, np.zeros((4, 2)), verbose=0)
        model.remat = None
    model.save(tmp_path / "model.keras")
    run_stock(stock, tmp_path, LOAD)
    np.testing.assert_allclose(
        np.load(tmp_path / "found.npy"),
        model.predict(X, verbose=0),
        rtol=1e-5,
        atol=1e-6,
    )
