"""The pages: their Python blocks run as pasted, their links lead somewhere, and the flags that they tell of are the command's."""

import re

import pytest

from sarlite.train import config
from tests.helpers.training_runs import ROOT

pytestmark = pytest.mark.timeout(120)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def blocks(page):
    """Yield each block, behind as many empty lines as come before it, so that errors name the page's own lines."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        yield "\n" * text[: found.start(1)].count("\n") + found[1]


def test_there_are_blocks():
    assert {page.name for page in PAGES if list(blocks(page))} >= {"README.md", "python.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_as_pasted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "pasted"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    headings = {}
    for path in PAGES:
        lines = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
        headings[path.resolve()] = {re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in lines}
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page.resolve()
        assert path.exists(), target
        assert not heading or heading in headings[path], target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_every_flag_is_documented_with_its_default():
    rows = {}
    page = (ROOT / "docs" / "training.md").read_text()
    for line in page[page.index("## Flags") : page.index("## What a run leaves")].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        for name in re.findall(r"`--([a-z-]+)[^`]*`", cells[1]) if len(cells) > 3 else ():
            assert rows.setdefault(name, cells[2]) == cells[2], name
    for group in config.GROUPS.values():
        for name, (default, _, _) in group.items():
            shown = ("yes" if default else "no") if isinstance(default, bool) else str(default)
            assert name in rows, name
            assert default is None or rows[name] == shown, name
