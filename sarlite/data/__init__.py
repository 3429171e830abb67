"""Data sets: readers, the native on-disk format, and the rows that one rank owns."""

from sarlite.data.dataset import Dataset
from sarlite.data.divided_data import divided
from sarlite.data.part import Part
from sarlite.data.spec import from_tables, load

__all__ = ["Dataset", "Part", "divided", "from_tables", "load"]
