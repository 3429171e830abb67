"""Check the layout of the C sources: width, tabs, blanks at the end of a line, and the places of braces.

    python tests/c_lint.py native/*.c native/*.h

A function's brace stands alone at the start of a line. Any other brace opens at the end of its statement, and `else` follows a closing
brace on its line. The status is 1 if a rule is broken; a line names file, line number and fault.
"""

import re
import sys
from pathlib import Path

WIDTH = 140
OPENED_ALONE = re.compile(r"\s+\{\s*$")
CONTROL = re.compile(r"(if|for|while|switch|else|do)\b")


def without_comments(text):
    """Return the same lines with comments, strings and character constants replaced by blanks."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def faults(text):
    """Yield (line number, fault) of each broken rule."""
    code = without_comments(text).split("\n")
    depth, before = 0, ""
    for number, (line, bare) in enumerate(zip(text.split("\n"), code), 1):
        if len(line) > WIDTH:
            yield number, f"{len(line)} characters, more than {WIDTH}"
        if "\t" in line or line != line.rstrip():
            yield number, "a tab, or blanks at the end"
        if not before.startswith("#pragma") and OPENED_ALONE.match(bare):
            yield number, "a brace alone that opens no function"
        if bare.startswith("{") and CONTROL.match(before):
            yield number, "the brace of a statement on a line of its own"
        if before == "}" and bare.strip().startswith("else"):
            yield number, "else below the brace that it follows"
        if re.match(r"\w[^;=#]*\)\s*\{\s*$", bare) and not CONTROL.match(bare):
            yield number, "a function's brace at the end of its line"
        depth += bare.count("{") - bare.count("}")
        if depth < 0:
            yield number, "a brace closes what was not opened"
            depth = 0
        before = bare.strip() or before
    if depth:
        yield number, "a brace is not closed"


def main(paths):
    messages = [f"{path}:{number}: {fault}" for path in paths for number, fault in faults(Path(path).read_text(encoding="ascii"))]
    print("\n".join(messages) or f"{len(paths)} files: no faults")
    return bool(messages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
