"""Docstrings and names keep the rules of plain English: how a docstring starts, how long a sentence is, which names say nothing."""

import ast
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("sarlite", "models", "native", "benchmarks", "examples", "packaging", "tests")
FILES = {folder: [file for file in sorted((ROOT / folder).rglob("*.py")) if not file.is_symlink()] for folder in FOLDERS}
OPENINGS = re.compile(r"(Of|What|Which|Whether|Those|That|As|Where|None of|Says)\b")
EMPTY_NAMES = {"found", "told", "made", "there", "given", "own"}
LONGEST = 35
"""Words of the longest sentence that a docstring may have."""


def sentences(docstring):
    """Return the sentences of a docstring, without code and rules; a line of another indentation starts a sentence."""
    lines = [line for line in docstring.splitlines() if not re.match(r"\s*(-{3,}|>>>|\.\.\. |\||```|    )", line)]
    blocks = groupby(lines, key=lambda line: len(line) - len(line.lstrip()) if line.strip() else None)
    return [sentence for _, block in blocks for sentence in re.split(r"(?<=[.:;])\s+", " ".join(block))]


def faults(text):
    """Return the faults of a file's docstrings and names, each with its line."""
    result, tree = [], ast.parse(text)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(line.target) for node in classes for line in node.body if isinstance(line, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (docstring := ast.get_docstring(node)):
            line = getattr(node, "lineno", 1)
            if OPENINGS.match(docstring):
                result.append(f"{line}: starts with {docstring.split()[0]!r}")
            result += [f"{line}: a sentence of {len(sentence.split())} words" for sentence in sentences(docstring)
                       if len(sentence.split()) > LONGEST]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES and id(node) not in fields:
            result.append(f"{node.lineno}: the name {node.id!r} says nothing")
    return result


@pytest.mark.parametrize("text, n", [
    ('"""Which rows."""', 1), ('"""Whichever rows."""', 0), ('def f():\n    """Of rows."""\n    found = 1', 2),
    (f'"""{"word " * 36}."""', 1), (f'"""{"word " * 34}."""', 0), ("x.found = 1", 0), ("class C:\n    own: int", 0)])  # fmt: skip
def test_the_rules_themselves(text, n):
    assert len(faults(text)) == n


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_names_keep_the_rules(folder):
    assert FILES[folder]
    bad = [f"{file.relative_to(ROOT)}:{fault}" for file in FILES[folder] for fault in faults(file.read_text("utf-8"))]
    assert not bad, "\n".join(bad)


def test_no_two_classes_share_a_name():
    nodes = [node for folder in ("sarlite", "models") for file in FILES[folder] for node in ast.parse(file.read_text("utf-8")).body]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    twice = {name for name, count in names.items() if count > 1}
    assert twice == {"Linear"}, twice  # nn.Linear is a layer; fn.Linear is the message that fn.linear returns
