"""Place where a data set is made: in memory, or in files of a folder with a limit of memory in bytes."""

from pathlib import Path

from sarlite.data import budget
from sarlite.data.spool import Spool
from sarlite.errors import writing


class Workspace:
    """Makes spools that are in memory, or in a folder and within a number of bytes.

    Parameters
    ----------
    folder : path, optional
        Private, which exists and is the caller's to remove. Without it everything is in memory.
    n_bytes : int, optional
        Of memory that sorters take; None is no limit.
    """

    def __init__(self, folder=None, n_bytes=None):
        self.folder, self.n_bytes = None if folder is None else Path(folder), n_bytes

    def spool(self, name, dtype=None):
        """Return a `Spool`, whose file is `name`."""
        return Spool(None if self.folder is None else self.folder / name, dtype)

    def array(self, name, pieces):
        """Return an array of pieces of rows, mapped from the file `name`."""
        spool = self.spool(name)
        for piece in pieces:
            spool.write(piece)
        return spool.array()

    def within(self, name, share=1):
        """Return a workspace in a folder of this one, of one `share`-th of the bytes."""
        if self.folder is None:
            return self
        with writing(self.folder / name):
            (self.folder / name).mkdir(parents=True)
        return Workspace(self.folder / name, self.n_bytes // share)

    def at_once(self, most=1 << 20):
        """Return how many rows are worked on at a time, at most `most`."""
        return budget.at_once(self.n_bytes, most)
