"""Tests of `pr` with our own patch set, on a stand-in for a clone of Keras."""

import ast
import pathlib

import pytest

import fork
import gitcmd
import patchset
import upgrade
import upstream

pytestmark = pytest.mark.registry


class Series:
    """The commits that `pr` makes, each with its files."""

    def __init__(self, folder):
        self.clone = pathlib.Path(folder, "clone")
        pin = upstream.read_pin(fork.ROOT)
        archive = upstream.fetch(pin, fork.ROOT / "build" / "cache")
        upstream.unpack(archive, self.clone)
        gitcmd.init(self.clone)
        gitcmd.commit(self.clone, f"keras {pin.version}", "base")
        gitcmd.git(self.clone, "branch", "-m", "main")
        assert fork.main(["pr", str(self.clone)]) == 0
        span = f"base..{upgrade.BRANCH}"
        log = gitcmd.text(self.clone, "rev-list", "--reverse", span)
        self.commits = log.split()

    def message(self, commit):
        return gitcmd.text(self.clone, "log", "-1", "--format=%B", commit)

    def subjects(self):
        return [self.message(x).splitlines()[0] for x in self.commits]

    def files(self, commit):
        return gitcmd.listing(self.clone, commit)

    def changed(self, commit):
        return gitcmd.changed(self.clone, f"{commit}~", commit)

    def text(self, commit, path):
        return gitcmd.git(self.clone, "show", f"{commit}:{path}").decode()


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return Series(tmp_path_factory.mktemp("series"))


def test_every_file_has_a_topic(series):
    assert upgrade.REST_TOPIC not in series.subjects()
    assert len(series.commits) > 5


def test_the_api_comes_last_and_alone(series):
    assert series.subjects()[-1] == upgrade.API_TOPIC
    for commit in series.commits:
        in_api = {"/api/" in path for path in series.changed(commit)}
        assert in_api == {commit == series.commits[-1]}


def test_the_series_ends_in_the_patch_set(series):
    """But for what marks the fork: its version, and devtree."""
    names = {x.removesuffix(".patch") for x in patches()}
    found = gitcmd.changed(series.clone, "base", upgrade.BRANCH, "keras/src")
    assert set(found) == names - {"keras/src/version.py"}
    for path, file in patches().items():
        if not path.endswith(".patch"):
            assert series.text(upgrade.BRANCH, path).encode() == file.data


def patches():
    return patchset.read(fork.ROOT)


def test_each_commit_stands_without_the_later_ones(series):
    """What a file imports at its top is there when the file is."""
    last = series.files(upgrade.BRANCH)
    for commit in series.commits:
        here = series.files(commit)
        later = {module(x) for x in last.keys() - here.keys()}
        for path in gitcmd.changed(series.clone, "base", commit):
            wanted = imports(series.text(commit, path))
            assert not later & wanted, (series.message(commit), path)


def module(path):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(code):
    names = set()
    for node in ast.parse(code).body:
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{x.name}" for x in node.names)
        elif isinstance(node, ast.Import):
            names.update(x.name for x in node.names)
    return names


def test_tests_come_beside_their_code_or_after_it(series):
    seen = set()
    for commit in series.commits:
        seen |= set(series.changed(commit))
        for path in series.changed(commit):
            if path.endswith("_test.py"):
                code = path.replace("_test.py", ".py")
                assert code in seen or code not in patches(), path


def test_each_commit_says_what_each_file_is_for(series):
    for commit in series.commits[:-1]:
        said = " ".join(series.message(commit).split())
        for path in series.changed(commit):
            if not path.endswith(("_test.py", "__init__.py")):
                assert f"{path}: " in said
