"""Distribution sarlite-oracle: sarlite.oracle and the modules that it imports, without a compiler and without kernels.

The distribution sarlite has the same files: install one of the two.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MODULES = ("__init__", "command", "errors", "keys", "lazy", "types")  # modules of the package sarlite; a test compares this list


class OracleAlone(build_py):
    """Build the package sarlite without the modules that the oracle does not import."""

    def find_package_modules(self, package, package_dir):
        """Return (package, module, path) of the modules to build."""
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if package != "sarlite" or module[1] in MODULES]


setup(package_dir={"sarlite": str(Path("..", "..", "sarlite"))}, cmdclass={"build_py": OracleAlone})
