"""A Keras of seven files and a repository for it, for the tests here."""

import io
import tarfile

import fork
import patchset
import upstream

HEAD = '"""DO NOT EDIT."""\n\n'
MODULE = """from keras.src.api_export import keras_export


@keras_export("keras.ops.{0}")
def {0}(x):
    y = x
    return y
"""
VERSION_FILE = '# One truth.\n__version__ = "{}"\n'


def archive(folder, version, extra=()):
    """Writes a source archive of a tiny Keras; returns its pin."""
    ops = "from keras.src.a import a as a\nfrom keras.src.b import b as b\n"
    files = {
        "keras/api/__init__.py": HEAD + "from keras import ops as ops\n",
        "keras/api/ops/__init__.py": HEAD + ops,
        "keras/api/utils/__init__.py": HEAD
        + "from keras.src.c import c as c\n",
        "keras/src/__init__.py": "",
        "keras/src/a.py": MODULE.format("a"),
        "keras/src/b.py": MODULE.format("b"),
        "keras/src/version.py": VERSION_FILE.format(version),
    }
    for name in list(files):
        if name.startswith("keras/api/"):
            mirror = name.replace("keras/api/", "keras/api/_tf_keras/keras/")
            files[mirror] = files[name]
    files |= dict(extra)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"keras-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"keras-{version}/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return upstream.Pin(version, upstream.digest(path))


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def call(root, *args):
    return fork.main(["--root", str(root), *args])


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def tree(root):
    return root / "build" / "tree"


def describe(root, name):
    """Replaces the TODO header of a patch."""
    path = root / name
    _, diff = patchset.split(path.read_bytes())
    path.write_text(f"Purpose: test.\nUpstream-Status: Pending\n\n{diff}")


def patched(root):
    """A repository with one patch and one file of its own, and its tree."""
    assert call(root, "checkout") == 0
    edit(tree(root) / "keras/src/a.py", "y = x\n", "y = 2 * x\n")
    put(tree(root) / "keras/src/new.py", MODULE.format("new"))
    assert call(root, "export") == 0
    describe(root, "keras/src/a.py.patch")
    assert call(root, "checkout") == 0


def contents(root):
    return {k: v.data for k, v in patchset.read(root).items()}
