import os
import sys
from concurrent.futures import ThreadPoolExecutor

from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildTogether(build_ext):
    """Compile the sources of an extension side by side."""

    def build_extensions(self):
        compile_in_turn = self.compiler.compile

        def compile_together(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                found = list(pool.map(lambda source: compile_in_turn([source], **options), sources))
            return [path for paths in found for path in paths]

        self.compiler.compile = compile_together
        super().build_extensions()


def unwritable():
    """The first folder of this tree that a build writes into, but this user may not; None where there is none."""
    folders = (".", "build", os.path.join("build", "native"), "sarlite.egg-info")
    return next((folder for folder in folders if os.path.isdir(folder) and not os.access(folder, os.W_OK)), None)


if folder := unwritable():
    sys.exit(f"sarlite: {os.path.abspath(folder)} cannot be written to, and a build writes there: "
             "copy this folder to where you may write, and install the copy")
setup(cffi_modules=["native/build.py:ffibuilder"], cmdclass={"build_ext": BuildTogether})
