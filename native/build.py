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
KERNELS = ["spmm", "extremum", "attend", "attend_backward", "attend_rows", "rows", "dropout", "norm", "activate", "add",     # for every set
           "gemm", "sample", "number", "exact", "exact_edges"]
PLAIN_SOURCES = ["machine", "philox", "buffers", "transpose", "cache", "narrow", "quantize"]
TARGETS = {"portable": None, "avx2": "avx2,fma", "avx512": "avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"}
REGISTERS = {"portable": 16, "avx2": 32, "avx512": 64}     # bytes
# For tests: the AVX-512 kernels' code compiled for AVX2, which then "avx512" runs (sar_can_run), where no processor has AVX-512.
AVX512_AS_AVX2 = bool(os.environ.get("SARLITE_AVX512_AS_AVX2"))
if AVX512_AS_AVX2:
    TARGETS["avx512"] = TARGETS["avx2"]
# `make sanitize` sets the variable. Checks are calls: inlined ones take minutes to compile.
SANITIZE = ["-O1", "-g1", "-fsanitize=address,signed-integer-overflow,shift,bounds,float-cast-overflow,integer-divide-by-zero",
            "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "--param", "asan-instrumentation-with-call-threshold=0"]
if not os.environ.get("SARLITE_SANITIZE"):
    SANITIZE = []


def instruction_sets():
    """Return the names of the instruction sets to compile for, such as "avx512".

    They are the portable set, and on x86-64 the sets that the compiler knows. Sanitized builds have the portable set and the widest set
    that this processor runs: the sets share their code, and the width of the registers is all that differs.
    """
    if not sysconfig.get_platform().endswith(("x86_64", "amd64")):      # the target platform, which may differ from this machine
        return ["portable"]
    names = [name for name, target in TARGETS.items()
             if target is None or _accepts(source=_targeted(target, "int main(void) { return 0; }\n"))]
    if not SANITIZE:
        return names
    runnable = [name for name in names if name != "avx512" or _runs_avx512()]
    return [*runnable[:1], *runnable[1:][-1:]]


def _runs_avx512():
    """Return True if this processor has AVX-512."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return " avx512bw" in file.read()


def _targeted(target, text):
    """Return the C code `text` with pragmas that compile its functions for the instruction set `target`."""
    return (f'#ifdef __clang__\n#pragma clang attribute push(__attribute__((target("{target}"))), apply_to = function)\n'
            f'#else\n#pragma GCC target("{target}")\n#endif\n{text}#ifdef __clang__\n#pragma clang attribute pop\n#endif\n')


def write_sources(names):
    """Write a C source for each kernel file and each instruction set in `names`; return the paths of the sources."""
    folder = os.path.join("build", "native")
    os.makedirs(os.path.join(ROOT, folder), exist_ok=True)
    paths = []
    for name in names:
        for kernel in KERNELS:
            include = f'#include "{kernel}.c"\n'
            body = _targeted(TARGETS[name], include) if TARGETS[name] else include
            paths.append(os.path.join(folder, f"{kernel}_{name}.c"))
            defines = f"#define ISA _{name}\n#define SAR_REGISTER {REGISTERS[name]}\n"
            if name == "portable" and len(names) > 1:
                defines += "#define SAR_FALLBACK\n"
            _write(os.path.join(ROOT, paths[-1]), f'{defines}#include "philox.h"\n#include "prototypes.h"\n{body}')
    return paths


def _write(path, text):
    """Write `text` unless the file has this text already, so that an unchanged source is not compiled again."""
    if os.path.exists(path):
        with open(path, encoding="ascii") as file:
            if file.read() == text:
                return
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def declarations(names):
    """Return the C prototypes of all kernels, for each dtype and each instruction set in `names`, as text that cffi reads."""
    floats = [("float", "_f32"), ("double", "_f64")]
    indexes = [("int32_t", "_i32"), ("int64_t", "_i64")]
    text = _instance("prototypes_plain.h", "", {})
    for name in names:
        for index, suffix in indexes:
            text += _instance("prototypes_indices.h", f"{suffix}_{name}", {"I": index})
        for value, suffix in floats:
            text += _instance("prototypes_float.h", f"{suffix}_{name}", {"T": value})
            for index, index_suffix in indexes:
                for kind in ("rows", "index"):
                    types = {"T": value, "S": value, "I": index}
                    text += _instance(f"prototypes_{kind}.h", f"{suffix}{index_suffix}_{name}", types)
        text += _instance("prototypes_rows.h", f"_bf16_i32_{name}", {"T": "float", "S": "uint16_t", "I": "int32_t"})
    return text


def _instance(name, suffix, types):
    with open(os.path.join(ROOT, "native", name), encoding="ascii") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    text = re.sub(r"NAME\((\w+)\)", r"\g<1>" + suffix, text).replace("restrict ", "")
    for letter, ctype in types.items():
        text = re.sub(rf"\b{letter}\b", ctype, text)
    return text


def _accepts(*flags, source="int main(void) { return 0; }\n"):
    """Return True if the compiler builds and links the C program `source` with these flags, without a warning."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "try.c")
        with open(path, "w", encoding="ascii") as file:
            file.write(source)
        try:
            done = subprocess.run([*compiler, "-Werror", *flags, path, "-o", os.path.join(folder, "try")], capture_output=True)
        except OSError:
            return False
        return done.returncode == 0


def flags():
    """Return (compile flags, link flags). Without OpenMP the kernels run on one thread."""
    optimized = SANITIZE or ["-O3", "-g0"]
    # No code reads floating point flags. With -ftrapping-math GCC keeps branches around arithmetic, so AVX2 loops stay scalar.
    compile_flags = ["-std=c11", *optimized, "-ffp-contract=off", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
    compile_flags += ["-DSAR_AVX512_AS_AVX2"] * AVX512_AS_AVX2
    if _accepts("-fno-loop-unroll-and-jam"):        # GCC would unroll over edges and no longer vectorize over columns
        compile_flags.append("-fno-loop-unroll-and-jam")
    if sys.platform != "darwin" and _accepts("-fopenmp"):
        return [*compile_flags, "-fopenmp"], ["-fopenmp", *SANITIZE]
    compile_flags += ["-Wno-unused-variable", "-Wno-unused-parameter"]      # the sizes of thread teams
    return [*compile_flags, *(["-fopenmp-simd"] if _accepts("-fopenmp-simd") else [])], [*SANITIZE]


def builder():
    """Return the cffi object that describes the module sarlite._native, which setuptools compiles."""
    ffi = FFI()
    names = instruction_sets()
    ffi.cdef(declarations(names))
    compile_flags, link_flags = flags()
    included = sorted(name for name in os.listdir(os.path.join(ROOT, "native")) if name.endswith(".h") or name[:-2] in KERNELS)
    ffi.set_source(
        "sarlite._native",
        '#include "sarlite.h"\n' + "".join(f'#define ISA _{name}\n#include "prototypes.h"\n#undef ISA\n' for name in names),
        sources=[*(f"native/{name}.c" for name in PLAIN_SOURCES), *write_sources(names)],
        include_dirs=["native"],
        depends=[f"native/{name}" for name in included],
        libraries=["m"],
        extra_compile_args=compile_flags,
        extra_link_args=link_flags,
        py_limited_api=True,
    )
    return ffi


ffibuilder = builder()
