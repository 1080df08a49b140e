"""headrace.Trainer's steps a second on the tiny MLP of bench/python_step, one thread. Prints one JSON line.

usage: step_rate.py SECONDS       with the package of the build in PYTHONPATH; nothing here has another name in another build
"""

import json
import sys
import time

import headrace as hr
import torch
from torch import nn

WARM_UP, BLOCK = 200, 100


def main() -> None:
    seconds = float(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True),
                         lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
    batch = torch.randn(16, 32), torch.randint(10, (16,))
    for _ in range(WARM_UP):
        trainer.step(batch)
    steps, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < seconds:
        for _ in range(BLOCK):
            trainer.step(batch)
        steps += BLOCK
    print(json.dumps({"steps": steps, "seconds": taken}))


if __name__ == "__main__":
    main()
