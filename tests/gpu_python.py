#!/usr/bin/env python3
"""The Python package's tests with CUDA tensors, where the package is installed for this python3 (`pip
install .`) and pytest and hypothesis are there. A piece of gpu_suite.py, which passes the library."""
import importlib.util
import os
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"

missing = [m for m in ("tilewise", "pytest", "hypothesis") if importlib.util.find_spec(m) is None]
if missing:
    print(f"left out: this python3 has no {', '.join(missing)}")
    sys.exit(0)
several = ["-n", "8"] if importlib.util.find_spec("xdist") else []  # kernels compile side by side
# JAX would take most of the GPU's memory for itself.
environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
sys.exit(subprocess.run([sys.executable, "-m", "pytest", str(TESTS), "--device", "cuda", *several],
                        env=environment, check=False).returncode)
