"""Tests of moving the patch set: rebase and pr."""

import tarfile

import gitcmd
import upgrade
import upstream
from fake import MODULE
from fake import archive
from fake import call
from fake import contents
from fake import describe
from fake import edit
from fake import patched
from fake import put
from fake import tree


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
    gitcmd.git(path, "branch", "-m", "main")
    return path


TOPICS = "Double a\n    > Twice is\n    > better.\n    keras/src/a.py\n"


def test_pr_commits_by_topic_and_stops(root, capsys):
    patched(root)
    (root / "topics.txt").write_text(TOPICS)
    path = clone(root)
    assert call(root, "pr", str(path)) == 0
    log = gitcmd.text(path, "log", "--format=%s").splitlines()
    assert log[:2] == ["Add gradient rematerialization", "Double a"]
    said = gitcmd.text(path, "log", "-1", "--format=%b", "remat~")
    assert said == "Twice is better.\n\nkeras/src/a.py: test."
    assert "keras/api/ops/__init__.py" in gitcmd.changed(
        path, "remat~", "remat"
    )
    api = (path / "keras/api/ops/__init__.py").read_text()
    assert "from keras.src.new import new as new" in api
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
