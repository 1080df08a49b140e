#!/usr/bin/env python3
"""Photographs a second from a source written in Python that decodes with Pillow: a DataLoader's worker processes against
headrace.Loader's, two each, and the loader's threads under the GIL. The same __getitem__ gives a 160 x 160 uint8 array; a
flip and normalisation are torchvision's in the DataLoader's workers and the Loader's own in ours; batches of 64. Nothing is trained. Rounds are
interleaved; the first, which fills the page cache and starts workers, is not counted.

usage: make bench NAME=python-source
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import numpy  # noqa: E402
from PIL import Image  # noqa: E402

import loader_speed  # noqa: E402  Without torch: workers import this script.

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Photographs:
    def __init__(self, folder: Path, count: int, size: int) -> None:
        files = sorted(folder.glob("train/*/*.jpg"))
        self.files, self.size = files[:: max(1, len(files) // count)][:count], size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int):
        with Image.open(self.files[index]) as image:
            return numpy.array(image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)), 0


class Normalized:
    """What a DataLoader's user adds in __getitem__ to get a tensor that is ready for the network."""

    def __init__(self, source: Photographs) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int):
        import torch
        from torchvision.transforms import v2

        image, label = self.source[index]
        tensor = v2.functional.to_dtype(torch.from_numpy(image).permute(2, 0, 1), torch.float32, scale=True)
        if torch.rand(()) < 0.5:
            tensor = v2.functional.horizontal_flip(tensor)
        return v2.functional.normalize(tensor, MEAN, DEVIATION), label


def main() -> int:
    import torch

    import headrace as hr

    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--data", type=Path, default=harness.ROOT / "photos")
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.samples} photographs at {arguments.size} x {arguments.size}; "
                          f"{harness.interval_remark(arguments.rounds)}")
    source = Photographs(arguments.data, arguments.samples, arguments.size)
    workers = arguments.workers
    options = {"batch_size": 64, "transform": {"flip_probability": 0.5, "mean": MEAN, "std": DEVIATION}}
    loaders = {
        f"DataLoader, {workers} workers": torch.utils.data.DataLoader(
            Normalized(source), batch_size=64, shuffle=True, num_workers=workers, persistent_workers=True),
        f"hr.Loader, {workers} workers": hr.Loader(source, num_workers=workers, worker_type="process", **options),
        f"hr.Loader, {workers} threads": hr.Loader(source, num_workers=workers, **options),
    }
    found = bench.measure([harness.Arm(name, lambda _, loader=loader: loader_speed.samples_per_second(loader))
                           for name, loader in loaders.items()], arguments.rounds, warm_up=1)
    print(harness.arms_table(found, "samples/s"))
    theirs, processes, threads = map(statistics.median, found.values())
    print(f"{processes / theirs:.2f} times the DataLoader by processes, {threads / theirs:.2f} times by threads (ratios of medians)",
          flush=True)
    return bench.end({"by processes": processes / theirs, "by threads": threads / theirs})


if __name__ == "__main__":
    sys.exit(main())
