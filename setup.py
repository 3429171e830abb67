import os
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


setup(cffi_modules=["native/build.py:ffibuilder"], cmdclass={"build_ext": BuildTogether})
