"""The guide docs/architecture.md quotes the code as it is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
LISTING = "native/     "
"""Begin of the only block that is no code: the list of folders."""


def code_lines(text):
    """Return lines of code without comments and with single blanks; lines of comments alone are left out."""
    lines = [" ".join(re.sub(r"(^|\s{2,})# .*", "", line).split()) for line in text.splitlines()]
    return [line for line in lines if line]


def quotes():
    """Return the lines of code that the page quotes: all blocks but the list of folders."""
    blocks = [block for block in re.findall(r"^```\n(.*?)^```", TEXT, re.M | re.S) if not block.startswith(LISTING)]
    return [line for block in blocks for line in code_lines(block)]


def test_the_guide_has_at_most_300_lines():
    assert len(TEXT.splitlines()) <= 300


def test_each_quoted_line_stands_in_the_code():
    files = [file for folder in ("sarlite", "models") for file in (ROOT / folder).rglob("*.py")]
    lines = {line for file in files for line in code_lines(file.read_text("utf-8"))}
    missing = [line for line in quotes() if line not in lines]
    assert len(quotes()) > 15 and not missing, missing
