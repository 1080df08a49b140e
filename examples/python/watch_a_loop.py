"""Where the time of a loop goes: the same small network behind a loader that is slow, and behind one that is not.

A data set that sleeps stands for a slow disk; no data are needed.
"""

import argparse
import time

import headrace as hr
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, size, seconds):
        self.size, self.seconds = size, seconds

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((3, 32, 32), index / self.size), index % 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--report", help="a file for the report of the slow loop, as HTML")
    args = parser.parse_args()

    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for name, seconds in (("slow", 0.002), ("fast", 0.0)):
        loader = DataLoader(Images(args.samples, seconds), batch_size=32)
        with hr.watch(model, optimizer, loader, title=f"a loop behind a {name} loader") as seen:
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        print(seen.summary())
        for finding in seen.findings:
            print(f"{finding['code']}: {finding['advice']}")
        if args.report and name == "slow":
            seen.write_report(args.report)


if __name__ == "__main__":
    main()
