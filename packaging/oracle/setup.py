"""Distribution sarlite-oracle: sarlite.oracle and the modules that it imports, without a compiler and without kernels.

The distribution sarlite has the same files: install one of the two.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MODULES = ("__init__", "command", "errors", "keys", "lazy", "types")  # modules of the package sarlite; a test compares this list


class OracleAlone(build_py):
    """Command of setuptools that builds the package sarlite with only the modules that the oracle imports."""

    def find_package_modules(self, package, package_dir):
        """Return a list of (package, module, path) of the modules to build: all of a package, of sarlite those in `MODULES`."""
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if package != "sarlite" or module[1] in MODULES]


setup(package_dir={"sarlite": str(Path("..", "..", "sarlite"))}, cmdclass={"build_py": OracleAlone})
