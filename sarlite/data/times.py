"""Times as int64: nanoseconds since 1970 UTC, or whole numbers in the user's unit."""

import re
from datetime import datetime, timezone

import numpy as np

from sarlite.errors import ConfigError

KINDS = ("dates", "integers")
_FRACTION = re.compile(r"(.*\.)([0-9]{1,9})(.*)")


def show_time(time: int, kind: str | None) -> str:
    """Return `time`, an int64, as text. If `kind` is "dates", the time counts nanoseconds since 1970, and the text is a date or a UTC
    timestamp; else the text is the number.

    Examples
    --------
    >>> show_time(read_time("2026-03-01T14:30", "dates", "--at"), "dates")
    '2026-03-01T14:30:00'
    """
    if kind != "dates":
        return str(time)
    text = str(np.datetime64(int(time), "ns"))
    day, _, clock = text.partition("T")
    return day if not clock.strip("0:.") else f"{day}T{clock.rstrip('0').rstrip('.') if '.' in clock else clock}"


def read_time(text: str, kind: str, where: str) -> int:
    """Return the time in `text` as an integer. If `kind` is "dates", the text is an ISO 8601 date or timestamp, and the result counts
    nanoseconds since 1970 UTC; else the text is a whole number. Messages begin with `where`.

    A timestamp without a zone is taken as UTC.

    Parameters
    ----------
    text : str
    kind : {"dates", "integers"}
    where : str
        Start of error messages.

    Raises
    ------
    ConfigError
        If the text is not a time of this kind.
    """
    text = text.strip()
    if kind == "integers":
        if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(2**63) <= int(text) < 2**63:
            raise ConfigError(f"{where}: {text!r} is not a whole number, as the times of the data are")
        return int(text)
    try:
        fraction = _FRACTION.fullmatch(text)
        digits = fraction[2].ljust(9, "0") if fraction else "0" * 9
        second = datetime.fromisoformat(re.sub("Z$", "+00:00", fraction[1][:-1] + fraction[3] if fraction else text))
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is not a date or timestamp, such as 2026-03-01 or 2026-03-01T14:30:00, as "
                          "the times of the data are") from None
    second = second if second.tzinfo else second.replace(tzinfo=timezone.utc)
    since_1970 = second - datetime(1970, 1, 1, tzinfo=timezone.utc)
    time = (since_1970.days * 86_400 + since_1970.seconds) * 10**9 + int(digits)
    if not -(2**63) <= time < 2**63:
        raise ConfigError(f"{where}: {text!r} does not fit nanoseconds since 1970 in 64 bits: 1678 to 2261")
    return time
