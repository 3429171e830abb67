"""Count lines of code and tokens a line of each package. Docstrings, comments and blank lines do not count.

`python packaging/size.py` prints the counts beside the ceilings of packaging/size.toml, `--write` makes them the ceilings.
"""

import ast
import io
import math
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "packaging" / "size.toml"
HEAD = """# Ceilings of each package: lines of code (without docstrings, comments and blank lines), and tokens a line.
# tests/unit/project/test_size.py reads them. Raise one in a commit of its own that says why.
"""
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Size(NamedTuple):
    """Number of lines of code of a package, and number of tokens on these lines."""

    lines: int
    tokens: int

    def __add__(self, other):
        return Size(self.lines + other.lines, self.tokens + other.tokens)

    @property
    def tokens_a_line(self):
        """Return the mean number of tokens on a line of code, rounded up to one decimal place."""
        return math.ceil(10 * self.tokens / max(self.lines, 1)) / 10


def measure(text):
    """Return the `Size` of the text of a Python file."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, node.end_lineno + 1))
    lines, n_tokens = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE and token.start[0] not in docstrings:
            n_tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    return Size(len(lines), n_tokens)


def sizes(root=ROOT):
    """Return {package: Size} of `models` and the packages of sarlite below `root`; modules directly in sarlite count as "sarlite"."""
    by_package = defaultdict(lambda: Size(0, 0))
    for folder in ("sarlite", "models"):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).parts
            if parts[:2] != ("sarlite", "models"):  # a link to models, in some checkouts
                name = "/".join(parts[:2]) if folder == "sarlite" and len(parts) > 2 else folder
                by_package[name] += measure(path.read_text(encoding="utf-8"))
    return dict(sorted(by_package.items()))


def written(by_package):
    """Return the text of size.toml for {package: Size}."""
    tables = (f'\n["{name}"]\nlines = {size.lines}\ntokens_a_line = {size.tokens_a_line}\n' for name, size in by_package.items())
    return HEAD + "".join(tables)


def read(text):
    """Return {package: (lines, tokens a line)} of the text of size.toml."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return {name: (entry["lines"], entry["tokens_a_line"]) for name, entry in tomllib.loads(text).items()}


def above(by_package, ceilings):
    """Return a line for each package of {package: Size} that has no ceiling, exceeds its ceiling, or has a ceiling but no module."""
    missing = [f"{name} has no ceiling" for name in by_package if name not in ceilings]
    gone = [f"{name} has a ceiling but no module" for name in ceilings if name not in by_package]
    over = []
    for name, (lines, tokens) in ceilings.items():
        size = by_package.get(name, Size(0, 0))
        over += [f"{name}: {size.lines} lines of code, the ceiling is {lines}"] * (size.lines > lines)
        over += [f"{name}: {size.tokens_a_line} tokens a line, the ceiling is {tokens}"] * (size.tokens_a_line > tokens)
    return missing + gone + over


def main(argv):
    by_package = sizes()
    if "--write" in argv:
        CEILINGS.write_text(written(by_package), encoding="utf-8")
    ceilings = read(CEILINGS.read_text(encoding="utf-8"))
    for name, size in by_package.items():
        lines, tokens = ceilings.get(name, ("none", "none"))
        print(f"{name:20} {size.lines:6} lines of code of {lines:6}, {size.tokens_a_line:5} tokens a line of {tokens:5}")


if __name__ == "__main__":
    main(sys.argv[1:])
