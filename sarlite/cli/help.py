"""Parsers of commands with their help texts, and the table of options in docs/training.md."""

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
"""Titles of the sections of `RunOptions` whose title differs from their name."""


def groups() -> dict[str, Mapping[str, Option]]:
    """Return the options of the training command as {title of a section: {name: option}}."""
    return {TITLES.get(name, name): options_of(section) for name, section in SECTIONS.items()}


class _HelpAll(argparse.Action):
    """Action of the flag --help-all: print the help of all options and exit."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object,
                 option_string: str | None = None) -> None:
        training_parser(everything=True).print_help()
        parser.exit()


def training_parser(everything: bool = False) -> Parser:
    """Return the argument parser of the training command. Its --help shows all options if `everything` is True, else only the
    common options.

    The parser sets no defaults: `config.resolve` fills them in, after the values of the configuration file.

    Parameters
    ----------
    everything : bool
        True if the help shows all options, False if it shows only the common options.
    """
    command = parser(groups(), everything, prog="python -m sarlite.train", usage="%(prog)s [options]",
                   pages={"--mode": "docs/which-mode.md"}, description="Train a graph neural network, full-batch and "
                   "exactly or on minibatches, on the ranks of mpiexec or on --ranks threads.\n"
                   "Each option is followed by its [default]. All options may stand in a file, as `hidden = 64`: "
                   "--config.\n" + ("" if everything else "These are the options that most runs need; --help-all shows "
                                    "all options."))
    command.help_flag = "--help-all"
    command.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all options and exit")
    return command


def parser(groups: Mapping[str, Mapping[str, Option]], everything: bool = True, **parser_options: Any) -> Parser:
    """Return an argument parser with the options of `groups`, {title: {name: option}}. Its help shows all of them if `everything`
    is True, else only the common options.

    Parameters
    ----------
    groups : dict of str to dict of str to Option
        Options by name, for each title of a group.
    everything : bool
        False if the help leaves out the options that are not common.
    **parser_options
        Keywords of `command.Parser`.
    """
    command = Parser(argument_default=argparse.SUPPRESS, **parser_options)
    for title, options in groups.items():
        group = command.add_argument_group(title)
        for option in options.values():
            default = defaults_of_models(option) if _is_of_models(option) else option.default_words
            option.add_to(group, default, hidden=not (everything or option.common))
    return command


def table() -> str:
    """Return the table of the training command's options for docs/training.md, as Markdown."""
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
    """Return True if each model's class has a default of its own for `option`."""
    return option.name in options_of(ModelOptions) and option.default is None and not option.otherwise


def defaults_of_models(option):
    """Return the defaults of `option` in all models that have the option, as text such as "gcn 16, sage 256"."""
    parameters = {model: inspect.signature(cls).parameters.get(option.argument or option.name)
           for model, cls in {**MODELS, **RELATIONAL}.items()}
    none = "as dropout" if option.name.endswith("dropout") else "none"
    return ", ".join(f"{model} {none if p.default is None else in_words(p.default)}"
                     for model, p in parameters.items() if p is not None)


if __name__ == "__main__":
    print(table(), end="")
