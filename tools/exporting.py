"""Writes build/tree back to the repository, and loses nobody's work."""

import pathlib

import api
import gitcmd
import patchset
from files import File
from files import marks
from files import write
from upstream import ForkError


def some(paths, limit=8):
    names = sorted(paths)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def export(root, tree, facts):
    """Exports `tree`, which remembers `facts` of the repository.

    Where only one side has changed since the tree was made, that side holds.
    """
    rebased = promote(root, tree, facts)
    edits = patchset.unexported(tree)
    if not rebased:
        refuse_foreign(root, edits)
    mine = patchset.exported(root, tree)
    mine["upstream.txt"] = File(facts["pin"].encode())
    ours, before = marks(mine), facts["files"]
    now = patchset.remember(root)["files"]
    names = ours.keys() | now.keys() | before.keys()
    differ = {x for x in names if ours.get(x) != now.get(x)}
    moved = {x for x in names if now.get(x) != before.get(x)}
    both = {
        x
        for x in differ & moved
        if rebased or x.removesuffix(".patch") in edits
    }
    if edits and "upstream.txt" in moved & differ:
        both.add("upstream.txt")
    refuse_both(both)
    for name in sorted(differ - moved):
        save(root, name, mine.get(name))
    settle(
        tree,
        facts,
        {x: ours.get(x, before.get(x)) for x in names},
        differ & moved,
    )


def refuse_both(both):
    if both:
        raise ForkError(
            "Export may not overwrite newer files of the repository. Received: "
            f"changed there and in build/tree: {some(both)}. Put one side "
            "back: `git stash`, or `git -C build/tree checkout made -- PATH`."
        )


def refuse_foreign(root, edits):
    """Edits that have no place in the patch set must not vanish silently."""
    made = patchset.devtree(root)
    lost = [
        path
        for path in edits
        if path in made
        or not path.startswith("keras/")
        or path.startswith("keras/api/")
    ]
    if lost:
        raise ForkError(
            "Only keras/src can be exported: keras/api is generated and "
            f"devtree is edited in devtree/. Received: {some(lost)}. Undo by "
            "`git -C build/tree checkout made -- PATH`, or delete new files."
        )


def save(root, name, file):
    path = pathlib.Path(root, name)
    if file is None:
        path.unlink()
        print(f"removed {name}")
    elif write(path, file.data, file.executable):
        print(f"wrote   {name}")


def promote(root, tree, facts):
    """After a rebase with conflicts: the tree stands on the new release."""
    following = facts.pop("next", None)
    if not following:
        return False
    try:
        inside = ["merge-base", "--is-ancestor", following["commit"], "HEAD"]
        gitcmd.git(tree, *inside)
    except gitcmd.GitError:
        return False  # it was aborted
    gitcmd.git(tree, "tag", "-f", "base", following["commit"])
    facts["pin"] = following["pin"]
    patchset.complete(root, tree)
    return True


def settle(tree, facts, known, stale):
    """Commits the tree's work, so that `git diff` shows what comes next."""
    api.generate(tree, "base")
    gitcmd.commit(tree, "exported", "made")
    before = facts["files"]
    merged = {x: before.get(x) if x in stale else y for x, y in known.items()}
    facts["files"] = {x: y for x, y in merged.items() if y}
    patchset.note(tree, facts)
    if stale:
        print(f"newer in the repository, run `make tree`: {some(stale)}")
