"""Tests of `pr` with our own patch set, on a stand-in for a clone of Keras."""

import ast
import pathlib

import pytest

import api
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
        self.listings = {}
        self.known = {}

    def message(self, commit):
        return gitcmd.text(self.clone, "log", "-1", "--format=%B", commit)

    def subjects(self):
        return [self.message(x).splitlines()[0] for x in self.commits]

    def files(self, commit):
        if commit not in self.listings:
            self.listings[commit] = gitcmd.listing(self.clone, commit)
        return self.listings[commit]

    def changed(self, commit):
        return gitcmd.changed(self.clone, f"{commit}~", commit)

    def text(self, commit, path):
        return gitcmd.git(self.clone, "show", f"{commit}:{path}").decode()

    def of(self, function, commit, path, *args):
        """`function` of a parsed file; most are the same in many commits."""
        _, blob = self.files(commit)[path]
        key = function, blob, *args
        if key not in self.known:
            text = gitcmd.git(self.clone, "cat-file", "blob", blob)
            self.known[key] = function(ast.parse(text), *args)
        return self.known[key]


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return Series(tmp_path_factory.mktemp("series"))


def test_every_file_has_a_topic(series):
    assert upgrade.REST_TOPIC not in series.subjects()
    assert len(series.commits) > 5


def test_the_api_is_regenerated_where_it_changes(series):
    """A commit's exports are in both copies of its API, and no others."""
    for commit in series.commits:
        gone, added = api.ours(series.clone, "base", commit)
        for name, module, symbol in gone | added:
            package, alias = name.rsplit(".", 1)
            inner = package.split(".")[1:]
            row = f"from {module} import {symbol} as {alias}\n"
            for root in api.ROOTS:
                path = "/".join([root, *inner, "__init__.py"])
                there = row in series.text(commit, path)
                assert there == ((name, module, symbol) in added), name
    assert upgrade.API_TOPIC not in series.subjects()


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
    """What a file imports is there when the file is.

    Of code only the imports at its top: what is not called yet may wait.
    """
    ours = set(gitcmd.changed(series.clone, "base", upgrade.BRANCH))
    ours = {module(path): path for path in ours if "/api/" not in path}
    for commit, subject in zip(series.commits, series.subjects()):
        here = series.files(commit)
        for path in gitcmd.changed(series.clone, "base", commit, "keras/src"):
            deep = path.endswith("_test.py")
            for origin, name in series.of(imports, commit, path, deep):
                told = subject, path, origin, name
                if f"{origin}.{name}" in ours:
                    assert ours[f"{origin}.{name}"] in here, told
                elif origin in ours:
                    assert ours[origin] in here, told
                    known = series.of(names, commit, ours[origin])
                    assert name in known, told


def module(path):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(code, deep):
    """Returns {(module, name)} of each `from module import name`."""
    nodes = ast.walk(code) if deep else code.body
    froms = [x for x in nodes if isinstance(x, ast.ImportFrom)]
    return {(x.module, name.name) for x in froms for name in x.names}


def names(code):
    """Returns the names that a module defines or imports at its top."""
    found = set()
    for node in code.body:
        for part in ast.walk(node):
            if isinstance(part, (ast.Import, ast.ImportFrom)):
                found |= {x.asname or x.name for x in part.names}
            elif isinstance(part, ast.Name):
                found.add(part.id)
        found.add(getattr(node, "name", None))
    return found


def test_tests_come_beside_their_code_or_after_it(series):
    seen = set()
    for commit in series.commits:
        seen |= set(series.changed(commit))
        for path in series.changed(commit):
            if path.endswith("_test.py"):
                code = path.replace("_test.py", ".py")
                assert code in seen or code not in patches(), path


def test_each_commit_says_what_each_file_is_for(series):
    for commit in series.commits:
        said = " ".join(series.message(commit).split())
        for path in series.changed(commit):
            if not path.endswith(("_test.py", "__init__.py")):
                assert f"{path}: " in said
