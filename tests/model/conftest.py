"""The processes that the tests of the whole model share, and the text they train on."""

import pytest
import torch
from data_kit import make_dataset
from forked import Server
from isolated import Worker, working

torch.set_num_threads(1)  # as many threads as cores in each of as many workers wait for each other at every small sum


@pytest.fixture(scope="session")
def megatron():
    """A worker with the patched stack on the CPU; one size of model only is run in it (``tiny``)."""
    with working(Worker()) as worker:
        yield worker


@pytest.fixture(scope="session")
def deepseek():
    """Another, for networks that clear what others left of Megatron's (``model.alignment.trained``): DeepSeek-V4's
    (``v4_network``), and NAM56R's beside its formulas."""
    with working(Worker()) as worker:
        yield worker


@pytest.fixture(scope="session")
def gpu():
    """A worker with the patched stack on CUDA."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with working(Worker("cuda")) as worker:
        yield worker


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """A server that forks processes with the patched stack imported."""
    with working(Server(tmp_path_factory.mktemp("forked"))) as server:
        yield server


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """The folder of a small dataset with structure."""
    return make_dataset(tmp_path_factory.mktemp("text"), documents=80).folder


@pytest.fixture(scope="session")
def other_text(tmp_path_factory):
    """Of other documents."""
    return make_dataset(tmp_path_factory.mktemp("other"), documents=20, seed=1).folder
