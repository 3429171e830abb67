"""Notations of a table's options in `edges:` specs, TOML files, dicts and function arguments, so that error messages show options as the
user writes them.
"""

from typing import NamedTuple


class OptionNotation(NamedTuple):
    """How one user interface writes the options of a table: `edges:` specs, TOML files, dicts or function arguments. Error messages use it
    to show options as the user writes them.

    Attributes
    ----------
    pattern : str
        Form of an option, with {name} and {value}.
    quoted : str
        Form of a value that is a word, with {}.
    options : frozenset of str, optional
        Options that exist; None for all options of docs/tables.md.
    transforms : str
        Form of a feature with a transform, with {column} and {value}; empty if features have no transforms.
    missing : str
        Form of a feature with a transform and the replacement of missing values, with {column}, {transform} and {value}.
    """

    pattern: str
    quoted: str
    options: frozenset[str] | None = None
    transforms: str = ""
    missing: str = ""

    def option(self, name: str, value: object) -> str:
        """Return the option `name` with `value` in this notation, such as `null = "n/a"`; "" if this interface has no such option.

        Examples
        --------
        >>> SPEC.option("nodes", 7), TOML.option("nodes", 7), TOML.option("null", "n/a"), HETERO_PANDAS.option("null", "n/a")
        ('nodes=7', 'count = 7', 'null = "n/a"', '')
        """
        if self.options is not None and name not in self.options:
            return ""
        shown = self.quoted.format(value) if isinstance(value, str) else str(value)
        return self.pattern.format(name="count" if name == "nodes" and self.pattern != SPEC.pattern else name,
                                   value=shown.lower() if isinstance(value, bool) and self is not MAPPING else shown)

    def feature(self, column: str, transform: str) -> str:
        """Return the feature `column` with `transform` in this notation, such as "age:standard"; "" if features have no transforms here."""
        return self.transforms.format(column=column, value=transform)

    def remedy(self, *options: tuple[str, object, str], otherwise: str = "change the table first") -> str:
        """Return advice for an error message, such as "fill=0 replaces gaps", from `options`, triples (option, value or values, effect).
        Options that this interface lacks are left out; `otherwise` is the advice if none is left.
        """
        texts = []
        for name, value, effect in options:
            shown = [self.option(name, one) for one in (value if isinstance(value, tuple) else (value,))]
            texts += [f"{' or '.join(shown)} {effect}"] if all(shown) else []
        return "; ".join(texts) or otherwise


_MISSING = 'features = {{ "{column}" = {{ transform = "{transform}", missing = "{value}" }} }}'
SPEC = OptionNotation("{name}={value}", "{}", None, "features={column}:{value}", f"{_MISSING} in a TOML file")
"""Options of `edges:FILE,...`."""
EDGES_SPEC = SPEC._replace(transforms="edge_features={column}:{value}")
"""Options of `edges:FILE,...` that are about the edges."""
TOML = OptionNotation("{name} = {value}", '"{}"', None, 'features = {{ "{column}" = "{value}" }}', _MISSING)
"""Keys of a TOML file."""
MAPPING = OptionNotation('"{name}": {value}', '"{}"', None, '"features": {{"{column}": "{value}"}}',
                         '"features": {{"{column}": {{"transform": "{transform}", "missing": "{value}"}}}}')
"""Keys of the dict of `from_tables`."""
PANDAS = OptionNotation("{name}={value}", '"{}"', frozenset(("fill", "on_unknown")))
"""Arguments of `Graph.from_pandas`."""
HETERO_PANDAS = OptionNotation("{name}={value}", '"{}"', frozenset(("on_unknown",)))
"""Arguments of `HeteroGraph.from_pandas`."""
