"""Settings that C libraries read from the environment when they are loaded."""

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager


@contextmanager
def default_environment(
    *, unless: tuple[str, ...] = (), environ: MutableMapping[str, str] = os.environ, **values: object
) -> Iterator[None]:
    """Return a context that sets the variables `values` in the environment `environ`, and deletes them at its end. Nothing is set if a
    variable of `values` or `unless` exists already, because the user then chose it.

    Parameters
    ----------
    unless : tuple of str
        Names of further variables. Nothing is set if the environment has one of these variables, or one of `values`.
    environ : mutable mapping of str
        Environment that is changed.
    **values : object
        Values of the variables, by name.

    Examples
    --------
    >>> environ = {"OMP_WAIT_POLICY": "active"}
    >>> with default_environment(GOMP_SPINCOUNT=0, environ=environ):
    ...     environ["GOMP_SPINCOUNT"]
    '0'
    >>> with default_environment(GOMP_SPINCOUNT=0, unless=("OMP_WAIT_POLICY",), environ=environ):
    ...     "GOMP_SPINCOUNT" in environ
    False
    >>> environ
    {'OMP_WAIT_POLICY': 'active'}
    """
    if any(name in environ for name in (*values, *unless)):
        yield
        return
    environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name in values:
            del environ[name]
