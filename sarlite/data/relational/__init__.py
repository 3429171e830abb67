"""Data sets of several node types and relations: in memory, in the native format, divided, and one rank's rows."""

from sarlite.data.relational.dataset import RelationalDataset
from sarlite.data.relational.part import RelationalPart

__all__ = ["RelationalDataset", "RelationalPart"]
