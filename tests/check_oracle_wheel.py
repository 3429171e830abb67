"""Try the wheel of the oracle without a compiler: `check_oracle_wheel.py FILE.whl`, in a new environment.

PATH is an empty folder.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

KERNEL = """
import sys
import numpy as np
import sarlite.oracle as oracle

def mean(case):
    out = np.zeros((case.n_dst, case.x.shape[1]), case.dtype)
    np.add.at(out, case.dst, case.x[case.src])
    return out / np.maximum(np.bincount(case.dst, minlength=case.n_dst), 1).astype(case.dtype)[:, None]

print(oracle.check(mean, "spmm", reduce="mean", graphs="[cm]*-[1-9]").require())
assert oracle.check(lambda case: mean(case) * 2, "spmm", reduce="mean", graphs="ring-3").first_bad is not None
assert "torch" not in sys.modules
"""


def main(wheel):
    """Install the wheel, check a kernel, and run the command."""
    names = zipfile.ZipFile(wheel).namelist()
    plain = (".py", "corpus.json", "py.typed")
    odd = [name for name in names if not name.endswith(plain) and ".dist-info/" not in name]
    assert not odd and "sarlite/oracle/corpus.json" in names, odd
    assert wheel.name.endswith("-py3-none-any.whl"), wheel.name
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "path").mkdir()
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        env |= {"PATH": f"{folder}/path", "HOME": folder}
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        bin = f"{folder}/venv/bin"
        for words in ([f"{bin}/python", "-m", "pip", "install", "-q", "--only-binary", ":all:", str(wheel)],
                      [f"{bin}/python", "-c", KERNEL], [f"{bin}/sarlite-oracle", "list", "spmm"],
                      [f"{bin}/sarlite-oracle", "selfcheck", "--graphs", "single-*"]):  # fmt: skip
            subprocess.run(words, check=True, cwd=folder, env=env)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
