"""Train nam56r_tiny for four steps on the CPU, the first two watched: ``covered_run.py RUN [PATCHES]``, a process."""

import importlib
import json
import sys
from pathlib import Path

import torch

from model.families.sizes import SIZES
from model.kinds import catalogue
from model.kinds.run import Run
from model.patched import lock, overlay
from model.patched.proof.watching import Coverage
from reproducers.probe.lanes import megatron
from reproducers.probe.ranks import Rank
from reproducers.upstream.store import Store

run, patches = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "all"
tree = overlay.build(Store(), overlay.chosen(patches), "cpu")
overlay.activate(tree)
size, tokens = SIZES["nam56r_tiny"], 512
coverage, tracing = Coverage(tree, wanted=overlay.wanted(tree, asked=patches != "all")), []
with coverage.building():
    megatron.start_megatron(importlib.import_module, 0, Rank(0, 1))
    network = importlib.import_module("model.step.network")
    model = network.Nam56r(size, Run(), catalogue.choose(size, Run()))
    packed = importlib.import_module("model.layers.common.packed").packed
coverage.attach(model)
lock.verify(tree)
bounds = torch.tensor([0, 100, 256, tokens], dtype=torch.int32)
text = torch.randint(256, (1, tokens))  # [1, T]
positions = torch.cat([torch.arange(b - a) for a, b in zip(bounds.tolist()[:-1], bounds.tolist()[1:], strict=True)])
fields = {name: torch.randint(classes, (tokens,)) for name, classes in size.structure.fields.items()}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(4):
    with coverage.step():
        optimizer.zero_grad()
        given = {"labels": text.roll(-1, 1), "loss_mask": torch.ones(1, tokens), "fields": fields}
        model(text, positions[None], packed(bounds, 256), **given).mean().backward()
        optimizer.step()
        tracing.append(sys.gettrace() is not None or (sys.version_info >= (3, 12) and bool(sys.monitoring.get_tool(4))))
coverage.record().write(run)
hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
after = {"tracing": tracing, "watched": coverage.watched, "hooks": hooks}
(run / "after.json").write_text(json.dumps(after))
(run / "patches.json").write_text(json.dumps(lock.as_record(tree)))
