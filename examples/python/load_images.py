"""Goes over a folder of photographs for two epochs, stops in the middle of a third, and goes on there in another Loader.

--data is an ImageFolder: train/CLASS/*.jpg, as `make setup JOB=photos` makes one in photos/.
"""

import argparse
import time

import headrace as hr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="photos")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()

    def make():
        return hr.Loader(f"folder:{args.data}", batch_size=args.batch_size, num_workers=hr.AUTOTUNE, seed=1, transform={
            "size": args.size, "crop": "random_resized", "flip_probability": 0.5,
            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]})

    loader = make()
    print(loader, loader.classes)
    for epoch in range(2):
        begin = time.perf_counter()
        for images, labels in loader:
            pass  # The training step stands here.
        print(f"epoch {epoch + 1}: {loader.samples / (time.perf_counter() - begin):,.0f} images/s")

    batches = iter(loader)
    next(batches)
    state = loader.state_dict()  # torch.save takes it.
    other = make()
    other.load_state_dict(state)
    left = sum(len(labels) for images, labels in other)
    print(f"the third epoch goes on with the {left} images that were left of it")
    for decision in loader.decisions():
        print(f"{decision['what']}: {decision['from']} -> {decision['to']}, {decision['why']}")


if __name__ == "__main__":
    main()
