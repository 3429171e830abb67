"""The distribution sarlite-oracle: sarlite.oracle with what it imports, from the same tree. No compiler, no kernels.

`pip wheel ../..` has the oracle too: install one of the two.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MODULES = ("__init__", "command", "errors", "keys", "lazy", "types")  # of sarlite; a test compares


class OracleAlone(build_py):
    """Leave out what else stands in sarlite."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if package != "sarlite" or one[1] in MODULES]


setup(package_dir={"sarlite": str(Path("..", "..", "sarlite"))}, cmdclass={"build_py": OracleAlone})
