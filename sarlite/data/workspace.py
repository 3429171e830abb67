"""Workspace for building a data set: in memory, or in files of a folder within a memory limit."""

from pathlib import Path

from sarlite.data import budget
from sarlite.data.spool import Spool
from sarlite.errors import writing


class Workspace:
    """Storage for the arrays of a data set that is being built: memory, or temporary files within a memory limit.

    Parameters
    ----------
    folder : path, optional
        Existing private folder, which the caller removes. Without it everything is held in memory.
    n_bytes : int, optional
        Memory limit of sorters in bytes; None is no limit.
    """

    def __init__(self, folder=None, n_bytes=None):
        self.folder, self.n_bytes = None if folder is None else Path(folder), n_bytes

    def spool(self, name, dtype=None):
        """Return a new `Spool`, an array that grows by appended rows, in the file `name` of the folder; in memory if there is no folder."""
        return Spool(None if self.folder is None else self.folder / name, dtype)

    def array(self, name, pieces):
        """Return one array joined from `pieces`, arrays of rows: mapped from the file `name` in the folder, or in memory if there
        is no folder.
        """
        spool = self.spool(name)
        for piece in pieces:
            spool.write(piece)
        return spool.array()

    def within(self, name, share=1):
        """Return a workspace in the subfolder `name`. Its memory limit is the limit of this workspace divided by `share`."""
        if self.folder is None:
            return self
        with writing(self.folder / name):
            (self.folder / name).mkdir(parents=True)
        return Workspace(self.folder / name, self.n_bytes // share)

    def at_once(self, most=1 << 20):
        """Return the number of rows to process at a time so that they fit into the memory limit, at most `most`."""
        return budget.at_once(self.n_bytes, most)
