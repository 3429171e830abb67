"""Data sets: readers, the native on-disk format, and the rows that one rank owns.

The names are imported when they are first used, so that `python -m sarlite.data` can end without a traceback after Ctrl-C.
"""

from typing import TYPE_CHECKING

from sarlite import lazy

if TYPE_CHECKING:
    from sarlite.data.dataset import Dataset
    from sarlite.data.divided_data import divided
    from sarlite.data.part import Part
    from sarlite.data.spec import from_tables, load

__all__ = ["Dataset", "Part", "divided", "from_tables", "load"]

lazy.names(__name__, {
    "Dataset": "sarlite.data.dataset", "Part": "sarlite.data.part", "divided": "sarlite.data.divided_data",
    "from_tables": "sarlite.data.spec", "load": "sarlite.data.spec",
})  # fmt: skip
