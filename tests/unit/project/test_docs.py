"""The pages: their Python blocks run as pasted, their links lead somewhere, and their flags are flags of the command."""

import re
import runpy

import pytest

from sarlite.cli.help import table
from tests.helpers.train.training_runs import ROOT, command

pytestmark = pytest.mark.timeout(120)
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
SITE = runpy.run_path(str(ROOT / "packaging" / "site" / "pages.py"))
CONTENTS = SITE["CONTENTS"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def blocks(page):
    """Yield each block after as many empty lines as come before it, so that errors name the page's own lines."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        yield "\n" * text[: match.start(1)].count("\n") + match[1]


def test_there_are_blocks():
    assert {page.name for page in PAGES if list(blocks(page))} >= {"README.md", "python.md"}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_blocks_run_as_pasted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if any("import pandas" in block for block in blocks(page)):
        pytest.importorskip("pandas")
    if any("import duckdb" in block for block in blocks(page)):
        pytest.importorskip("duckdb")
    names = {"__name__": "pasted"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    headings = {}
    for path in PAGES:
        lines = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
        headings[path.resolve()] = {re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in lines}
    text = re.sub(r"^( *)```.*?^ *```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)  # no code
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page.resolve()
        assert path.exists(), target
        assert not heading or heading in headings[path], target


COMMANDS = {"train": [], "data": ["convert", "info", "partition", "report", "export"], "predict": [], "smooth": [], "estimate": [],
            "report": [], "sweep": [], "verify": [], "explain": [], "oracle": ["export", "verify", "replay", "check", "list", "selfcheck"]}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


@pytest.fixture(scope="module")
def options():
    """Return the options of each command, {name: set}, as the help of the command and of its subcommands lists them."""
    runs = {name: [["--help"], ["--help-all"], *([word, "--help"] for word in words)] for name, words in COMMANDS.items()}
    texts = {name: "".join(command(*words, module=f"sarlite.{name}").stdout for words in lines) for name, lines in runs.items()}
    listed = {name: set(OPTION.findall(text)) for name, text in texts.items()}
    return {name: words | {"--help", "--help-all"} | {f"--no-{word[2:]}" for word in words} for name, words in listed.items()}


@pytest.mark.parametrize("page", PAGES[2:] + PAGES[:1], ids=NAMES[2:] + NAMES[:1])
def test_a_command_on_a_page_has_options_of_that_command(page, options):
    text = page.read_text().replace("\\\n", " ")
    for name, words in re.findall(r"(?:python -m sarlite\.|sarlite-)(\w+)([^`\n|#]*)", text):
        unknown = set(OPTION.findall(words)) - options.get(name, set())
        assert name not in COMMANDS or not unknown, (name, unknown)


def test_every_page_and_notebook_is_in_the_contents_of_the_site_once():
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "notebooks").glob("*.py")]
    listed = [name for names in CONTENTS.values() for name in names if not name.startswith("reference/") and name != "changelog"]
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "docs").with_suffix("")) for path in files)


def test_the_sources_of_the_site_are_laid_out(tmp_path):
    SITE["main"](tmp_path / "pages")
    listed = {name for names in CONTENTS.values() for name in names}
    pages = {str(path.relative_to(tmp_path / "pages").with_suffix("")) for path in (tmp_path / "pages").rglob("*.*")}
    assert listed < pages and "autofunction:: sarlite.data.from_tables" in (tmp_path / "pages" / "reference" / "data.md").read_text()
    sources = [path.read_text() for path in (tmp_path / "pages" / "source").rglob("*.md")]
    assert len(sources) > 50 and all(text.startswith("---\norphan: true\nnosearch: true\n---\n") for text in sources)


@pytest.mark.parametrize("words, name", [("new users", "new-nodes.md"), ("inductive", "new-nodes.md"), ("imbalance", "pitfalls.md"),
                                         ("class weights", "pitfalls.md"), ("standardize", "transforms.md")])
def test_the_search_finds_the_words_of_the_field(words, name):
    (page,) = (page for page in PAGES if page.name == name)
    assert words in page.read_text().lower()


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.py")), ids=lambda path: path.name)
def test_a_notebook_is_a_script_of_cells_and_runs(path, tmp_path, monkeypatch):
    assert path.read_text().startswith("# %% [markdown]\n# # ")
    if "import pandas" in path.read_text():
        pytest.importorskip("pandas", reason="the notebook on tables needs pandas")
        pytest.importorskip("matplotlib", reason="pandas draws with matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100 and max(map(len, lines)) <= 120


def test_the_table_of_options_is_that_of_their_fields():
    page = (ROOT / "docs" / "training.md").read_text()
    assert table() in page, "python -m sarlite.cli.help prints the table for docs/training.md"

