"""Before a run: the table of what each setting costs (`--dry-run`), the choice among them (`--mode auto`), and the limit of memory."""

import argparse

from sarlite.errors import ConfigError


def refuse(config: argparse.Namespace) -> None:
    """Raise where costs are asked for, which cannot be counted while they are rebuilt."""
    for flag, asked in (("--dry-run", config.dry_run), ("--mode auto", config.mode == "auto"), ("--memory-limit", config.memory_limit)):
        if asked:
            raise ConfigError(f"{flag}: costs are not counted")


def counts(config: argparse.Namespace) -> bool:
    """Tell whether the costs of a run can be counted."""
    return False
