"""The C sources keep their layout, and the check of the layout detects its faults."""

from pathlib import Path

import pytest

from tests import c_lint

NATIVE = Path(__file__).parents[3] / "native"


def test_the_c_sources_have_no_faults(capsys):
    files = sorted([*NATIVE.glob("*.c"), *NATIVE.glob("*.h")])
    assert len(files) > 15
    assert not c_lint.main(files), capsys.readouterr().out


@pytest.mark.parametrize(("text", "line", "fault"), [
    ("int a;\n" + "x" * 141 + "\n", 2, "141 characters"),
    ("int a;\t\n", 1, "a tab"),
    ("int a; \n", 1, "blanks"),
    ("int f(void) {\n}\n", 1, "a function's brace"),
    ("int f(void)\n{\n    if (a)\n    {\n    }\n}\n", 4, "a brace alone"),
    ("int f(void)\n{\n    if (a) {\n    }\n    else b();\n}\n", 5, "else below"),
    ("int f(void)\n{\n    if (a) {\n}\n", 5, "not closed"),
    ("int f(void)\n{\n}\n}\n", 4, "closes what was not opened"),
])  # fmt: skip
def test_each_fault_of_layout_is_reported(text, line, fault):
    (number, said), *others = c_lint.faults(text)
    assert number == line and fault in said and not others


def test_what_is_right():
    text = ('/* { */\nint f(void)\n{\n    char c = \'{\', *s = "{";\n    if (a) {\n        b();\n    } else\n        c();\n'
            "#pragma omp parallel\n    {\n        d();\n    }\n}\n")
    assert list(c_lint.faults(text)) == []
