"""Tests of the public API. Those marked `registry` use the real archive."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

import api
import fork
import patchset
import upstream
from fake import HEAD
from fake import MODULE
from fake import call
from fake import edit
from fake import patched
from fake import put
from fake import tree


def test_api_follows_the_decorators_at_once(root):
    patched(root)
    for top in api.ROOTS:
        rows = (tree(root) / top / "ops/__init__.py").read_text()
        assert rows.endswith(
            "import b as b\nfrom keras.src.new import new as new\n"
        )
    edit(tree(root) / "keras/src/new.py", "keras.ops.new", "keras.extra.n")
    assert call(root, "export") == 0
    for top in api.ROOTS:
        assert "new" not in (tree(root) / top / "ops/__init__.py").read_text()
        made = (tree(root) / top / "extra/__init__.py").read_text()
        assert made == HEAD + "from keras.src.new import new as n\n"
        above = (tree(root) / top / "__init__.py").read_text()
        assert "from keras import extra as extra\n" in above
    assert call(root, "checkout") == 0
    assert call(root, "check") == 0


def test_public_name_has_one_owner(root, capsys):
    put(root / "keras/src/new.py", MODULE.format("a"))
    assert call(root, "checkout") == 1
    assert "one owner. Received: keras.ops.a" in capsys.readouterr().err
    assert not tree(root).exists()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """The real archive, unpacked."""
    pin = upstream.read_pin(fork.ROOT)
    path = tmp_path_factory.mktemp("keras") / "tree"
    upstream.unpack(upstream.fetch(pin, fork.ROOT / "build/cache"), path)
    return path


@pytest.mark.registry
def test_api_files_are_sorted_as_upstream_does(pristine):
    paths = list(pristine.glob("keras/api/**/*.py"))
    assert len(paths) > 100
    for path in paths:
        text = path.read_text()
        assert api.render(*api.parse(text)) == text


@pytest.mark.registry
def test_decorators_give_exactly_the_public_names(pristine):
    found = set()
    for path in pristine.glob("keras/src/**/*.py"):
        if not path.name.endswith("_test.py"):
            name = path.relative_to(pristine).as_posix()
            found |= api.exports(path.read_bytes(), name)
    public = {x for x in found if not x[0].startswith("keras._legacy.")}
    for name, module, symbol in public:
        package, alias = name.rsplit(".", 1)
        inner = package.replace(".", "/").replace("keras", "keras/api", 1)
        path = pristine / inner / "__init__.py"
        _, rows = api.parse(path.read_text())
        assert (module, symbol, alias) in rows
    assert len(public) > 1000


NAMEX = """
import namex
namex.generate_api_files("keras", code_directory="src", target_directory="out")
"""


def public(top):
    """Returns {(package, module, symbol, alias)} of the files below."""
    found = set()
    for path in top.rglob("__init__.py"):
        package = path.parent.relative_to(top).as_posix()
        if not package.startswith(("_tf_keras", "_legacy")):
            _, rows = api.parse(path.read_text())
            found |= {(package, *x) for x in rows if "keras.src" in x[0]}
    return {x for x in found if x[3] != "__version__"}


@pytest.mark.registry
@pytest.mark.parametrize("patched", [False, True])
def test_public_api_is_what_namex_finds(pristine, tmp_path, patched):
    """namex imports all of Keras, so it needs every backend."""
    for name in ("namex", "jax", "tensorflow", "torch", "openvino"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    tree = tmp_path / "tree"
    if patched:
        patchset.assemble(fork.ROOT, tree)
    else:
        shutil.copytree(pristine, tree)
        for name, file in patchset.devtree(fork.ROOT).items():
            (tree / name).write_bytes(file.data)
    (tree / "keras" / "out").mkdir()
    env = os.environ | {"PYTHONPATH": str(tree), "KERAS_BACKEND": "numpy"}
    command = [sys.executable, "-c", NAMEX]
    subprocess.run(command, cwd=tree, env=env, check=True)
    assert public(tree / "keras/out") == public(tree / "keras/api")
