"""Describe the compiled module sarlite._native to cffi (API mode): its declarations, sources and compiler flags."""
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile

from cffi import FFI

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = ["spmm", "extremum", "attend", "attend_rows", "rows", "dropout", "norm", "activate", "threads"]
PLAIN = """
enum sar_status { SAR_OK, SAR_INDEX_OUT_OF_BOUNDS, SAR_LABEL_OUT_OF_BOUNDS, ... };
int sar_threads(void);
int sar_set_threads(int n_threads);
int sar_philox4x32(uint32_t *out, const uint32_t *counter, const uint32_t *key);
"""


def declarations():
    """Return the prototypes of every instance of the templates, as cffi reads them."""
    floats = [("float", "_f32"), ("double", "_f64")]
    indexes = [("int32_t", "_i32"), ("int64_t", "_i64")]
    text = PLAIN
    for value, suffix in floats:
        text += _instance("prototypes_float.h", suffix, {"T": value})
        for index, index_suffix in indexes:
            text += _instance("prototypes_index.h", suffix + index_suffix, {"T": value, "I": index})
    return text


def _instance(name, suffix, types):
    with open(os.path.join(ROOT, "native", name), encoding="ascii") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    text = re.sub(r"NAME\((\w+)\)", r"\g<1>" + suffix, text).replace("restrict ", "")
    for letter, ctype in types.items():
        text = re.sub(rf"\b{letter}\b", ctype, text)
    return text


def _accepts(*flags):
    """Tell whether the compiler builds and links a program with these flags."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "try.c")
        with open(source, "w", encoding="ascii") as file:
            file.write("int main(void) { return 0; }\n")
        try:
            done = subprocess.run([*compiler, *flags, source, "-o", os.path.join(folder, "try")], capture_output=True)
        except OSError:
            return False
        return done.returncode == 0


def flags():
    """Return (compile flags, link flags). Without OpenMP the kernels run on one thread."""
    compile_flags = ["-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
    if _accepts("-fno-loop-unroll-and-jam"):        # GCC would unroll over edges, and so lose the vectors over columns
        compile_flags.append("-fno-loop-unroll-and-jam")
    if sys.platform != "darwin" and _accepts("-fopenmp"):
        return [*compile_flags, "-fopenmp"], ["-fopenmp"]
    compile_flags += ["-Wno-unused-variable", "-Wno-unused-parameter"]      # the sizes of thread teams
    return [*compile_flags, *(["-fopenmp-simd"] if _accepts("-fopenmp-simd") else [])], []


def builder():
    """Return the FFI object that setuptools compiles."""
    ffi = FFI()
    ffi.cdef(declarations())
    compile_flags, link_flags = flags()
    headers = sorted(name for name in os.listdir(os.path.join(ROOT, "native")) if name.endswith(".h"))
    ffi.set_source(
        "sarlite._native",
        '#include "sarlite.h"',
        sources=[f"native/{name}.c" for name in SOURCES],
        include_dirs=["native"],
        depends=[f"native/{name}" for name in headers],
        libraries=["m"],
        extra_compile_args=compile_flags,
        extra_link_args=link_flags,
        py_limited_api=True,
    )
    return ffi


ffibuilder = builder()
