"""The table of seams in docs/upstream.md, made from the patches' headers."""

import pathlib

import patchset
from files import write
from upstream import ForkError

PAGE = "docs/upstream.md"
BEGIN = "<!-- made by `make seams` from the headers of the patches -->\n"
END = "<!-- end of what `make seams` makes -->\n"
HEAD = (
    "| seam in | why it is needed | reported as | upstream status |\n"
    "| --- | --- | --- | --- |\n"
)


def table(root):
    rows = []
    for name, file in patchset.read(root).items():
        if name.endswith(".patch"):
            head = patchset.split(file.data)[0]
            fields = ("Purpose", "Reported", "Upstream-Status")
            cells = [patchset.field(head, x) or "-" for x in fields]
            path = name.removesuffix(".patch").removeprefix("keras/src/")
            rows.append(f"| `{path}` | {' | '.join(cells)} |\n")
    return HEAD + "".join(sorted(rows))


def page(root):
    """Returns the page as it is, and as it should be."""
    path = pathlib.Path(root, PAGE)
    text = path.read_text() if path.exists() else BEGIN + END
    if BEGIN not in text or END not in text.partition(BEGIN)[2]:
        raise ForkError(
            f"{PAGE} needs the two lines between which the table of seams "
            f"stands. Received: not both of {BEGIN!r} and {END!r}."
        )
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return text, before + BEGIN + "\n" + table(root) + "\n" + END + after


def refresh(root):
    """Writes the table, if there is a page for it."""
    if pathlib.Path(root, PAGE).exists():
        write(pathlib.Path(root, PAGE), page(root)[1].encode())


def problems(root):
    if pathlib.Path(root, PAGE).exists():
        now, wanted = page(root)
        if now != wanted:
            yield f"{PAGE}: is older than the patches. Run `make seams`."
