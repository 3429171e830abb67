"""No package has more lines of code, or more tokens a line, than packaging/size.toml allows."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "packaging" / "size.py"
spec = importlib.util.spec_from_file_location("package_sizes", FILE)
size = importlib.util.module_from_spec(spec)
spec.loader.exec_module(size)


def test_packages_are_below_their_ceilings():
    messages = size.above(size.sizes(), size.read(size.CEILINGS.read_text(encoding="utf-8")))
    assert messages == [], "make the package smaller, or raise its ceiling in a commit of its own that says why"


@pytest.mark.parametrize("text, lines, tokens", [
    ("x = 1\n", 1, 3), ('"""Doc.\n\nMore.\n"""\n\n# comment\nx = 1  # why\n', 1, 3), ("x = (1,\n     2)\n", 2, 7),
    ('def f():\n    """Doc."""\n    return 1\n', 2, 7), ('x = """a\nb"""\n', 2, 3),
])  # fmt: skip
def test_lines_and_tokens_of_code_count(text, lines, tokens):
    assert size.measure(text) == (lines, tokens)


def test_what_is_above_a_ceiling_is_told():
    sizes = {"a": size.Size(10, 95), "b": size.Size(1, 1)}
    assert size.above(sizes, {"a": (10, 9.5), "b": (1, 1.0)}) == []
    assert size.above(sizes, {"a": (9, 9.4), "c": (1, 1.0)}) == [
        "b has no ceiling", "c has a ceiling but no module", "a: 10 lines of code, the ceiling is 9",
        "a: 9.5 tokens a line, the ceiling is 9.4"]


def test_ceilings_are_read_as_they_are_written():
    sizes = size.sizes()
    assert size.read(size.written(sizes)) == {name: (each.lines, each.tokens_a_line) for name, each in sizes.items()}
