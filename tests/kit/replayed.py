"""``replayed.py FILE WORDS``: model.train WORDS, by the first step's rows and without updates, its gradients compared.

FILE gets, of each step after the first, "replays": how many layers' graphs were replayed, and "errors": {parameter:
error of its gradient against the first step's}, the relative error norm, or null where it is not a number. With
``--cuda-graphs`` the first step calls the layers, later ones replay.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

from model import train
from model.loop import session
from reproducers.base.cli import guarded

MODULES = session._modules


def modules(*given: Any) -> tuple[Any, Any]:
    """The engine's and the trainer's, the latter's steps as told above."""
    engine, trainer = MODULES(*given)
    runner = importlib.import_module("megatron.core.transformer.cuda_graphs")._CudaGraphRunner
    replay, replays = runner.replay_graph_capture, [0]

    def counted(*args: Any) -> Any:
        replays[0] += 1
        return replay(*args)

    runner.replay_graph_capture = counted

    class Still(trainer.Trainer):  # type: ignore[misc, name-defined]
        def _steps(self, log: Any, line: Any) -> None:
            taken, parameters = self.engine.launch, dict(self.engine.inner.named_parameters())
            rows: list[Any] = []
            first: dict[str, Any] = {}
            told: list[dict[str, Any]] = []

            def refuses(loss: float, norm: float) -> bool:
                found = {name: parameter.main_grad.double() for name, parameter in parameters.items()}
                if first:
                    errors = {name: float((found[name] - was).norm() / was.norm()) for name, was in first.items()}
                    finite = {name: error if math.isfinite(error) else None for name, error in errors.items()}
                    told.append({"replays": replays[0], "errors": finite})
                else:
                    first.update({name: grad for name, grad in found.items() if grad.any()})
                replays[0] = 0
                return True

            def launch(batches: list[Any], seconds: float) -> Any:
                rows[:] = rows or batches
                return taken(rows, seconds)

            self.engine.refuses, self.engine.launch = refuses, launch
            super()._steps(log, line)
            file.write_text(json.dumps(told))

    trainer.Trainer = Still
    return engine, trainer


if __name__ == "__main__":  # not in the processes that compile kernels
    file = Path(sys.argv.pop(1))
    session._modules = modules
    guarded(train.app)
