"""pytest plugin for the tests that packs add upstream, where there is no GPU: the CPU lane's stand-ins, as an arm has.

Tests of upstream expect a GPU; whoever runs them upstream has one.
"""

import sys
import types
from pathlib import Path

import torch

from reproducers.probe.lanes.megatron import megatron_lane

megatron_lane("cpu")
for folder in map(Path, sys.path):
    if (folder / "mamba_ssm").is_dir():  # its __init__ wants compiled extensions
        sys.modules["mamba_ssm"] = types.ModuleType("mamba_ssm")
        sys.modules["mamba_ssm"].__path__ = [str(folder / "mamba_ssm")]
from megatron.core.tensor_parallel import random  # noqa: E402 - after the stand-ins

random._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
