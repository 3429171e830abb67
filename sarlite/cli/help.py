"""The parsers of commands, `--help`, and the table of options in docs/training.md."""

import argparse
import inspect
from collections.abc import Mapping
from typing import Any

from sarlite.cli.option import Option, in_words, options_of
from sarlite.cli.options import SECTIONS, ModelOptions
from sarlite.command import Parser, flag
from sarlite.models import MODELS, RELATIONAL

TITLES = {
    "links": "links, of --task link, and labels of edges", "graphs": "graphs, of data that are a set of graphs",
    "smoothing": "correct and smooth", "minibatch": "minibatches", "partition": "division of the nodes",
    "schedule": "exchange between ranks", "machine": "ranks", "output": "files and output",
}  # fmt: skip
"""Titles of sections whose title is not their name."""


def groups() -> dict[str, Mapping[str, Option]]:
    """Return the training options by name, in groups by title."""
    return {TITLES.get(name, name): options_of(section) for name, section in SECTIONS.items()}


class _HelpAll(argparse.Action):
    """Prints the help of all options and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        training_parser(everything=True).print_help()
        parser.exit()


def training_parser(everything: bool = False) -> Parser:
    """Return the parser of the training command; its help shows the common options, or everything.

    Defaults are filled in by `config.resolve`, so that a file can come between.
    """
    found = parser(groups(), everything, prog="python -m sarlite.train", usage="%(prog)s [options]",
                   pages={"--mode": "docs/which-mode.md"}, description="Train a graph neural network, full-batch and "
                   "exactly or on minibatches, on the ranks of mpiexec or on --ranks threads.\n"
                   "Each option is followed by its [default]. All options may stand in a file, as `hidden = 64`: "
                   "--config.\n" + ("" if everything else "These are the options that most runs need; --help-all shows "
                                    "all options."))
    found.help_flag = "--help-all"
    found.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all options and exit")
    return found


def parser(options: Mapping[str, Mapping[str, Option]], everything: bool = True, **words: Any) -> Parser:
    """Return a parser of options in groups by title; only `everything` shows options that are not common."""
    found = Parser(argument_default=argparse.SUPPRESS, **words)
    for title, own in options.items():
        group = found.add_argument_group(title)
        for option in own.values():
            default = defaults_of_models(option) if _is_of_models(option) else option.default_words
            option.add_to(group, default, hidden=not (everything or option.common))
    return found


def table() -> str:
    """Return the table of options for docs/training.md."""
    lines: list[str] = []
    for title, options in groups().items():
        lines += ["", f"| {title} | default | |", "|---|---|---|"]
        for name, option in options.items():
            words = f"{flag(name)} {option.value_words}".rstrip().replace("|", "/")
            default = "model" if _is_of_models(option) else option.default_words
            choices = ", ".join(option.choices)
            text = f"{option.help} ({choices})" if choices else option.help
            more = f", [more]({option.see})" if option.see else ""
            lines.append(f"| `{words}` | {default} | {text}{more} |")
    return "\n".join(lines[1:]) + "\n"


def _is_of_models(option):
    """Return True if the default is the model's own."""
    return option.name in options_of(ModelOptions) and option.default is None


def defaults_of_models(option):
    """Return the default of each model whose class takes the option, in words."""
    own = {model: inspect.signature(cls).parameters.get(option.argument or option.name)
           for model, cls in {**MODELS, **RELATIONAL}.items()}
    none = "as dropout" if option.name.endswith("dropout") else "none"
    return ", ".join(f"{model} {none if p.default is None else in_words(p.default)}"
                     for model, p in own.items() if p is not None)


if __name__ == "__main__":
    print(table(), end="")
