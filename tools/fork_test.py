"""Tests of the patch-set tool, on a Keras of six files.

Those marked `registry` use the real archive and download it if need be.
"""

import importlib.util
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import api
import checker
import exporting
import fork
import gitcmd
import patchset
import upgrade
import upstream
import wheel

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


@pytest.fixture
def root(tmp_path, monkeypatch):
    # A hostile user configuration must change nothing.
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n excludesFile = ~/.ignore\n"
        "[apply]\n whitespace = fix\n[commit]\n gpgSign = true\n"
        "[diff]\n noprefix = true\n context = 9\n"
    )
    (home / ".ignore").write_text("*.py\n*.patch\nbuild\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setattr(checker, "ruff", lambda: None)
    root = tmp_path / "repo"
    pin = archive(root / "build" / "cache", "1.0")
    (root / "upstream.txt").write_text(str(pin))
    put(root / "devtree" / "conftest.py", "# ours\n")
    return root


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


def test_round_trip_changes_nothing(root, capsys):
    patched(root)
    before = contents(root)
    assert set(before) == {"keras/src/a.py.patch", "keras/src/new.py"}
    assert call(root, "export") == 0
    assert contents(root) == before
    assert call(root, "check") == 0
    assert "+1 -1: all rules kept" in capsys.readouterr().out


def test_patch_is_small_and_has_full_blob_ids(root):
    patched(root)
    text = (root / "keras/src/a.py.patch").read_text()
    assert len(checker.INDEX.findall(text)) == 1
    assert "--- a/keras/src/a.py\n" in text
    assert text.count("\n ") == 2


def test_base_commit_is_the_same_everywhere(root):
    patched(root)
    first = gitcmd.text(tree(root), "rev-parse", "base", "made")
    assert call(root, "checkout", "--force") == 0
    assert gitcmd.text(tree(root), "rev-parse", "base", "made") == first


def test_new_patch_needs_a_header(root, capsys):
    patched(root)
    edit(tree(root) / "keras/src/b.py", "y = x\n", "y = 3 * x\n")
    assert call(root, "export") == 0
    assert call(root, "check") == 1
    said = capsys.readouterr().out
    assert "b.py.patch: needs a line `Purpose:" in said
    assert "b.py.patch: needs a line `Upstream-Status:`" in said
    assert "a.py.patch: needs" not in said


def test_export_keeps_headers_and_removes_stale_files(root):
    patched(root)
    edit(tree(root) / "keras/src/a.py", "y = 2 * x\n", "y = 4 * x\n")
    (tree(root) / "keras/src/new.py").unlink()
    assert call(root, "export") == 0
    assert set(contents(root)) == {"keras/src/a.py.patch"}
    assert "Purpose: test." in (root / "keras/src/a.py.patch").read_text()
    edit(tree(root) / "keras/src/a.py", "y = 4 * x\n", "y = x\n")
    assert call(root, "export") == 0
    assert contents(root) == {}


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


def test_replaced_file_needs_its_blob(root, capsys):
    put(root / "keras/src/b.py", "# nothing is exported here now\n")
    assert call(root, "checkout") == 1
    assert "may not stand in" in capsys.readouterr().err
    (root / "replaced.txt").write_text(f"keras/src/b.py {'0' * 40}\n")
    assert call(root, "checkout") == 0
    api_file = tree(root) / "keras/api/ops/__init__.py"
    assert "keras.src.b" not in api_file.read_text()
    assert call(root, "check") == 1
    assert "replaced.txt names blob 000" in capsys.readouterr().out
    blob = gitcmd.listing(tree(root), "base")["keras/src/b.py"][1]
    (root / "replaced.txt").write_text(f"keras/src/b.py {blob}\n")
    assert call(root, "check") == 0


def test_checkout_keeps_unexported_work(root, capsys):
    patched(root)
    put(tree(root) / "keras/src/deep/.gitignore", "*.py\n")
    put(tree(root) / "keras/src/deep/late.py", "x = 1\n")
    (root / "upstream.txt").touch()
    put(root / "keras/src/other.py", "x = 1\n")
    assert call(root, "checkout") == 1
    assert "keras/src/deep/late.py" in capsys.readouterr().err
    assert call(root, "checkout", "--force") == 0
    assert not (tree(root) / "keras/src/deep").exists()


def test_caches_are_no_edits(root):
    patched(root)
    put(tree(root) / "keras/src/__pycache__/a.pyc", "x")
    put(tree(root) / ".pytest_cache/x/y", "x")
    assert patchset.unexported(tree(root)) == {}


def test_export_keeps_newer_files_of_the_repository(root, capsys):
    patched(root)
    put(root / "keras/src/new.py", MODULE.format("newer"))
    edit(tree(root) / "keras/src/b.py", "y = x\n", "y = 3 * x\n")
    assert call(root, "export") == 0
    assert "newer" in (root / "keras/src/new.py").read_text()
    assert (root / "keras/src/b.py.patch").exists()
    assert "run `make tree`: keras/src/new.py" in capsys.readouterr().out
    edit(tree(root) / "keras/src/new.py", "y = x\n", "y = 5 * x\n")
    assert call(root, "export") == 1
    assert "changed there and in build/tree" in capsys.readouterr().err
    assert "newer" in (root / "keras/src/new.py").read_text()


def test_export_refuses_what_it_cannot_keep(root, capsys):
    patched(root)
    put(tree(root) / "conftest.py", "# edited\n")
    assert call(root, "export") == 1
    assert "Received: conftest.py" in capsys.readouterr().err
    gitcmd.git(tree(root), "checkout", "made", "--", "conftest.py")
    (tree(root) / "keras/src/b.py").unlink()
    assert call(root, "export") == 1
    assert "cannot delete" in capsys.readouterr().err


def test_export_refuses_a_tree_it_did_not_make(root, capsys):
    put(tree(root) / "keras/src/a.py", "x = 1\n")
    assert call(root, "export") == 1
    assert call(root, "checkout") == 1
    assert "that `checkout` made" in capsys.readouterr().err


def test_interrupted_swap_is_mended(root):
    patched(root)
    tree(root).rename(tree(root).with_name("tree.old"))
    assert call(root, "status") == 0
    assert call(root, "checkout") == 0
    assert patchset.unexported(tree(root)) == {}
    assert not list((root / "build").glob("scratch-*"))


def test_interrupted_assembly_leaves_the_tree(root, monkeypatch):
    patched(root)
    before = gitcmd.snapshot(tree(root))
    put(root / "keras/src/other.py", "x = 1\n")

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(patchset, "complete", stop)
        call(root, "checkout")
    assert gitcmd.snapshot(tree(root)) == before
    assert not list((root / "build").glob("scratch-*"))
    assert call(root, "checkout") == 0
    assert (tree(root) / "keras/src/other.py").exists()


def test_interrupted_export_can_be_repeated(root, monkeypatch):
    patched(root)
    edit(tree(root) / "keras/src/new.py", "y = x\n", "y = 2 * x\n")
    put(tree(root) / "keras/src/third.py", "x = 1\n")
    saved = []

    def stop(*args):
        if saved:
            raise KeyboardInterrupt
        saved.append(args)
        save(*args)

    save = exporting.save
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(exporting, "save", stop)
        call(root, "export")
    assert call(root, "checkout") == 1
    assert call(root, "export") == 0
    assert "2 * x" in (root / "keras/src/new.py").read_text()
    assert (root / "keras/src/third.py").exists()
    assert call(root, "checkout") == 0


def test_budget_can_be_lifted_by_a_note(root, capsys):
    patched(root)
    edit(
        tree(root) / "keras/src/a.py", "    y = 2 * x\n", "    y = 2 * x\n" * 13
    )
    assert call(root, "export") == 0
    assert call(root, "check") == 1
    assert "adds 13 and removes 1 lines" in capsys.readouterr().out
    path = root / "keras/src/a.py.patch"
    edit(path, "Purpose: test.\n", "Purpose: test.\nNote: why not.\n")
    assert call(root, "check") == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a/keras/src/a.py b/keras/src/a.py", "a/x b/x", "named after"),
        ("y = x\n", "y = z\n", "without fuzz"),
        ("Pending", "Soon", "Received: 'Soon'"),
        ("Pending", "Submitted", "Received: 'Submitted'"),
        ("Purpose:", "Reason:", "needs a line `Purpose"),
        (" 100644", "", "full blob ids"),
    ],
)
def test_bad_patch_is_named(root, capsys, old, new, said):
    patched(root)
    edit(root / "keras/src/a.py.patch", old, new)
    assert call(root, "check") == 1
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_patch_without_its_file_is_refused(root, capsys):
    patched(root)
    (root / "keras/src/a.py.patch").rename(root / "keras/src/z.py.patch")
    assert call(root, "check") == 1
    assert "z.py is not in the archive" in capsys.readouterr().err


def test_wrong_hash_stops_before_unpacking(root, capsys, monkeypatch):
    pin = upstream.read_pin(root)
    (root / "upstream.txt").write_text(str(upstream.Pin("1.0", "0" * 64)))
    refused = f"DO NOT MATCH THE HASHES\n  Got        {pin.sha256}\n"

    def pip(command, **options):
        assert "--require-hashes" in command
        return subprocess.CompletedProcess(command, 1, "", refused)

    monkeypatch.setattr(upstream.subprocess, "run", pip)
    assert call(root, "checkout") == 1
    assert f"Received: {pin.sha256}" in capsys.readouterr().err
    assert not tree(root).exists()


def test_no_network_is_one_clear_line(root, capsys, monkeypatch):
    (root / "build/cache/keras-1.0.tar.gz").unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert call(root, "checkout") == 1
    said = capsys.readouterr().err
    assert "put the archive into build/cache/" in said
    assert said.count("\n") == 1


def test_archive_may_not_leave_its_folder(root, capsys):
    pin = archive(root / "build/cache", "1.0", {"../../x": "x"}.items())
    (root / "upstream.txt").write_text(str(pin))
    assert call(root, "checkout") == 1
    assert "outside the destination" in capsys.readouterr().err
    assert not tree(root).exists()


def released(root, monkeypatch, extra=()):
    pin = archive(root / "build/cache", "1.1", extra)
    monkeypatch.setattr(upstream, "latest", lambda *args: pin)
    return pin


def test_rebase_moves_the_pin_and_the_version(root, monkeypatch):
    patched(root)
    path = tree(root) / "keras/src/version.py"
    edit(path, '"1.0"', '"1.0+remat.1"')
    assert call(root, "export") == 0
    describe(root, "keras/src/version.py.patch")
    pin = released(root, monkeypatch)
    before = contents(root)
    assert call(root, "rebase", "1.1", "--dry-run") == 0
    assert contents(root) == before
    assert call(root, "rebase", "1.1") == 0
    assert upstream.read_pin(root) == pin
    assert '"1.1+remat.1"' in path.read_text()
    assert call(root, "check") == 0


def conflict(root, monkeypatch, capsys):
    patched(root)
    theirs = MODULE.format("a").replace("y = x\n", "y = -x\n")
    pin = released(root, monkeypatch, {"keras/src/a.py": theirs}.items())
    assert call(root, "rebase", "1.1", "--dry-run") == 1
    assert call(root, "rebase", "1.1") == 1
    assert "keras/src/a.py" in capsys.readouterr().err
    assert upstream.read_pin(root).version == "1.0"
    assert call(root, "export") == 1
    assert call(root, "checkout") == 1
    assert "rebase --continue" in capsys.readouterr().err
    return pin


def test_rebase_with_conflict_ends_by_export(root, monkeypatch, capsys):
    pin = conflict(root, monkeypatch, capsys)
    text = MODULE.format("a").replace("y = x\n", "y = -2 * x\n")
    put(tree(root) / "keras/src/a.py", text)
    gitcmd.git(tree(root), "add", "keras/src/a.py")
    env = {"GIT_EDITOR": "true"}
    gitcmd.git(tree(root), "rebase", "--continue", env=env)
    assert call(root, "checkout") == 1
    assert call(root, "export") == 0
    assert upstream.read_pin(root) == pin
    assert "-    y = -x" in (root / "keras/src/a.py.patch").read_text()
    assert call(root, "checkout") == 0
    assert call(root, "check") == 0


def test_rebase_with_conflict_can_be_given_up(root, monkeypatch, capsys):
    before_pin = upstream.read_pin(root)
    conflict(root, monkeypatch, capsys)
    before = contents(root)
    gitcmd.git(tree(root), "rebase", "--abort")
    assert call(root, "checkout") == 0
    assert call(root, "export") == 0
    assert contents(root) == before
    assert upstream.read_pin(root) == before_pin
    assert (tree(root) / "conftest.py").exists()


def clone(root):
    """A git clone of upstream that is one commit ahead of the release."""
    path = root.parent / "clone"
    with tarfile.open(root / "build/cache/keras-1.0.tar.gz") as tar:
        tar.extractall(path.parent, filter="data")
    (path.parent / "keras-1.0").rename(path)
    gitcmd.init(path)
    gitcmd.commit(path, "release", "release")
    edit(path / "keras/src/a.py", "return y\n", "return y\n\n\n# later\n")
    gitcmd.commit(path, "later", "later")
    return path


def test_pr_commits_by_topic_and_stops(root, capsys):
    patched(root)
    (root / "topics.txt").write_text("Double a: keras/src/a.py\n")
    path = clone(root)
    assert call(root, "pr", str(path)) == 0
    log = gitcmd.text(path, "log", "--format=%s").splitlines()
    assert log[:3] == [
        "Regenerate the public API",
        "Add gradient rematerialization",
        "Double a",
    ]
    text = (path / "keras/src/a.py").read_text()
    assert "y = 2 * x" in text and "# later" in text
    assert not (path / "conftest.py").exists()
    put(path / "new.py", "x = 1\n")
    assert call(root, "pr", str(path)) == 1
    assert "without uncommitted work" in capsys.readouterr().err


def test_pr_goes_on_after_a_conflict(root, capsys):
    patched(root)
    path = clone(root)
    edit(path / "keras/src/a.py", "y = x\n", "y = -x\n")
    gitcmd.commit(path, "other", "other")
    assert call(root, "pr", str(path)) == 1
    assert "keras/src/a.py" in capsys.readouterr().err
    put(path / "keras/src/a.py", MODULE.format("a"))
    gitcmd.commit(path, "Add gradient rematerialization", "mended")
    assert call(root, "pr", str(path)) == 0
    log = gitcmd.text(path, "log", "--format=%s").splitlines()
    assert log[0] == upgrade.API_TOPIC


def test_wheel_must_equal_the_tree(root, tmp_path):
    patched(root)
    source = tmp_path / "source"
    wheel.copy(tree(root), "made", source)
    want = wheel.expected(source)
    assert "keras/ops/__init__.py" in want and "keras/src/new.py" in want
    packed = tmp_path / "x.whl"
    with zipfile.ZipFile(packed, "w") as file:
        for name, data in want.items():
            file.writestr(name, data)
    wheel.compare(packed, source)
    with zipfile.ZipFile(packed, "a") as file:
        file.writestr("keras/conftest.py", "")
    with pytest.raises(upstream.ForkError, match="keras/conftest.py"):
        wheel.compare(packed, source)


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
            found |= api.exports(path.read_text(), name)
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
