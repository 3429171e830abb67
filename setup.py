import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildTogether(build_ext):
    """Extension build that compiles the sources side by side, each of them once.

    pip builds in a temporary folder, so objects stay in build/objects. The folder there is named by a hash of the
    compiler, the options and the sources.
    """

    def build_extensions(self):
        compile_in_turn = self.compiler.compile

        def compile_together(sources, output_dir=None, **options):
            try:
                version = subprocess.run([*self.compiler.compiler_so, "--version"], capture_output=True).stdout
            except OSError:
                version = b""  # no compiler: compiling says so
            about = repr((sys.version, version, self.compiler.compiler_so, sorted(options.items())))
            native = (path.read_bytes() for path in sorted(Path("native").glob("*.*")))
            folder = Path("build", "objects", _digest(about.encode(), *native))

            def compile_once(source):
                kept = folder / f"{Path(source).stem}-{_digest(Path(source).read_bytes())}.o"
                if not kept.exists():
                    compiled, = compile_in_turn([source], output_dir=output_dir, **options)
                    folder.mkdir(parents=True, exist_ok=True)
                    whole = shutil.copy(compiled, f"{kept}.{os.getpid()}")  # another file system, perhaps
                    os.replace(whole, kept)
                return str(kept)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(pool.map(compile_once, sources))

        self.compiler.compile = compile_together
        super().build_extensions()


def _digest(*parts):
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def unwritable():
    """Return the first folder of this tree that a build writes into and this user may not; None if there is none."""
    folders = (".", "build", os.path.join("build", "native"), os.path.join("build", "objects"), "sarlite.egg-info")
    return next((folder for folder in folders if os.path.isdir(folder) and not os.access(folder, os.W_OK)), None)


if folder := unwritable():
    sys.exit(f"sarlite: {os.path.abspath(folder)} cannot be written to, and a build writes there: "
             "copy this folder to where you may write, and install the copy")
setup(cffi_modules=["native/build.py:ffibuilder"], cmdclass={"build_ext": BuildTogether})
