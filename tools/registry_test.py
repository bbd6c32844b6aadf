"""Tests against the real releases: they need a package registry."""

import subprocess
import sys
import zipfile

import pytest

import fork
import gitcmd
import patchset
import upstream
import wheel
from fake import call
from fake import contents
from fake import describe
from fake import edit
from fake import put
from fake import tree

pytestmark = pytest.mark.registry
LAYER = "keras/src/layers/layer.py"
SEAM = "keras/src/layers/seam.py"
AT = "def is_backend_tensor_or_symbolic("
VERSION = "keras/src/version.py"
EXPORT = """from keras.src.api_export import keras_export


@keras_export("keras.layers.seam")
def seam():
    return 1
"""


@pytest.fixture
def older(tmp_path):
    """A repository on the release before ours: two patches and a file."""
    root = tmp_path / "repo"
    pin = upstream.latest("3.15.0", root / "build" / "cache")
    put(root / "upstream.txt", str(pin))
    assert call(root, "checkout") == 0
    edit(tree(root) / VERSION, '"3.15.0"', '"3.15.0+remat.1"')
    edit(tree(root) / LAYER, AT, f"SEAM = 1\n\n\n{AT}")
    put(tree(root) / SEAM, EXPORT)
    assert call(root, "export") == 0
    describe(root, f"{VERSION}.patch")
    describe(root, f"{LAYER}.patch")
    return root


def test_rebase_from_release_to_release(older):
    assert call(older, "check") == 0
    assert call(older, "rebase", "3.15.1") == 0
    assert upstream.read_pin(older) == upstream.read_pin(fork.ROOT)
    assert '"3.15.1+remat.1"' in (tree(older) / VERSION).read_text()
    assert set(contents(older)) == {f"{LAYER}.patch", f"{VERSION}.patch", SEAM}
    assert call(older, "checkout") == 0
    assert call(older, "check") == 0


def test_wrong_hash_of_the_real_archive(tmp_path, capsys):
    pin = upstream.read_pin(fork.ROOT)
    put(tmp_path / "upstream.txt", str(upstream.Pin(pin.version, "0" * 64)))
    assert call(tmp_path, "checkout") == 1
    assert f"Received: {pin.sha256}" in capsys.readouterr().err
    left = {x.name for x in (tmp_path / "build").rglob("*")}
    assert left == {"lock", "cache"}


def published(folder):
    """Returns the files of upstream's own wheel."""
    pin = upstream.read_pin(fork.ROOT)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--only-binary", "keras", "-d", str(folder)]
    subprocess.run([*command, f"keras=={pin.version}"], check=True)
    return files(next(folder.glob("keras-*.whl")))


def files(path):
    with zipfile.ZipFile(path) as packed:
        names = [x for x in packed.namelist() if ".dist-info/" not in x]
        return {x: packed.read(x) for x in names}


def test_wheel_is_the_published_one_and_our_files(tmp_path):
    new, source = tmp_path / "tree", tmp_path / "source"
    patchset.assemble(fork.ROOT, new)
    wheel.copy(new, "made", source)
    for name in patchset.devtree(fork.ROOT):
        (source / name).unlink()
    ours = files(wheel.pip_wheel(source, tmp_path))
    theirs = published(tmp_path / "published")
    letters = gitcmd.changed(new, "base", "made", "keras/src", "keras/api")
    letters = {
        x.replace("keras/api/", "keras/", 1): y for x, y in letters.items()
    }
    assert ours.keys() - theirs.keys() == {
        x for x, y in letters.items() if y == "A"
    }
    assert not theirs.keys() - ours.keys()
    differ = {x for x in theirs if theirs[x] != ours[x]}
    assert differ == {x for x, y in letters.items() if y == "M"}
