"""Fixtures: the device that the tests run on (--device cuda on a GPU machine) and a fresh seed, printed
when a test fails; TILEWISE_TEST_SEED repeats one."""
import importlib.util
import os
import pathlib
import sys
import time

import pytest

if importlib.util.find_spec("flash_attn") is None:  # the drop-in, where it is not installed
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compat"))

SEED = int(os.environ.get("TILEWISE_TEST_SEED", time.time_ns() % 2**31))


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", choices=("cpu", "cuda"))


def pytest_report_header(config):
    return f"tilewise: TILEWISE_TEST_SEED={SEED}, device {config.getoption('--device')}"


@pytest.fixture
def device(request):
    return request.config.getoption("--device")


@pytest.fixture
def cpu_only(device):
    if device != "cpu":
        pytest.skip("says something about the CPU alone")


@pytest.fixture
def torch_seed():
    import torch

    torch.manual_seed(SEED)
    return SEED


@pytest.fixture
def rng():
    import numpy as np

    return np.random.default_rng(SEED)
