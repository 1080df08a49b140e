"""Sources as a user would write them, for the tests of sources and loaders: worker processes import them from this file."""

import io
import os
import signal
import sys
import threading
import time

import numpy

SIZE = 24


class Images:
    """24 images of 6 x 5 pixels; the label is what remains by 4."""

    def __len__(self):
        return SIZE

    def pixels(self, index):
        return numpy.random.default_rng(index).integers(0, 256, (6, 5, 3), dtype=numpy.uint8)

    def __getitem__(self, index):
        return self.pixels(index), index % 4


class WithFacts(Images):
    classes = ["a", "b", "c", "d"]

    def __init__(self):
        self.labels = [index % 4 for index in range(SIZE)]


class Grey(Images):
    def pixels(self, index):
        return super().pixels(index)[:, :, 0]  # Two dimensions, and not contiguous.


class Strided(Images):
    def pixels(self, index):
        return numpy.flip(super().pixels(index)[::-1], 0)


class Tensors(Images):
    def pixels(self, index):
        import torch

        return torch.from_numpy(super().pixels(index)).permute(2, 0, 1).contiguous().permute(1, 2, 0)


class Encoded(Images):
    """PNG files, whose pixels are the same."""

    def pixels(self, index):
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(super().pixels(index)).save(file, "PNG")
        return file.getvalue()


class Sizes(Images):
    def pixels(self, index):
        return numpy.full((4 + index, 9, 3), index, numpy.uint8)


class SampleFive(Images):
    """Does something else in place of sample 5."""

    def __init__(self, act, *arguments):
        self.act, self.arguments = act, arguments

    def __getitem__(self, index):
        return globals()[self.act](*self.arguments) if index == 5 else super().__getitem__(index)


class EverySample(SampleFive):
    def __getitem__(self, index):
        return globals()[self.act](*self.arguments)


class Water(ValueError):
    pass


def raises():
    raise Water("too much of it", 7)


def gives(sample):
    return sample


def leaves():
    os._exit(3)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    time.sleep(1000)


class Once(Images):
    """Does something else the first time that any process reads sample 5."""

    def __init__(self, act, flag):
        self.act, self.flag = act, flag

    def __getitem__(self, index):
        if index == 5 and not self.flag.exists():
            self.flag.touch()
            globals()[self.act]()
        return super().__getitem__(index)


class Meets(Images):
    """Samples 10 and 11 wait for each other's beginning."""

    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, index):
        if index in (10, 11):
            (self.folder / str(index)).touch()
            other = self.folder / str(21 - index)
            deadline = time.monotonic() + 60
            while not other.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"sample {21 - index} has not begun")
                time.sleep(0.01)
        return super().__getitem__(index)


class Ids(Images):
    """The label is the thread that read the sample, a process' id where it has only one. Each waits at its first sample until
    `count` have begun, and leaves a file then."""

    def __init__(self, folder, count):
        self.folder, self.count = folder, count
        self.is_open = False
        self.own = threading.local()

    def __getstate__(self):
        return self.folder, self.count

    def __setstate__(self, state):
        self.__init__(*state)

    def __getitem__(self, index):
        if not self.is_open:  # Only to see what images are like.
            self.is_open = True
            return self.pixels(index), 0
        if not hasattr(self.own, "file"):
            self.own.file = (self.folder / f"{threading.get_native_id()} {time.monotonic_ns()}").open("w")
            deadline = time.monotonic() + 60
            while len(list(self.folder.iterdir())) % self.count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.count} have not begun")
                time.sleep(0.002)
        assert not self.own.file.closed
        return self.pixels(index), threading.get_native_id()


class Noted:
    """With a source after it: leaves a file for each sample that was begun."""

    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / str(index)).touch()
        return super().__getitem__(index)


class NotedImages(Noted, Images):
    pass


class Prints(Images):
    def __getitem__(self, index):
        print("a line of the user's", index, flush=True)
        os.write(1, b"and one past Python\n")
        return super().__getitem__(index)


class Remembers(Images):
    """The label is how many samples this process has given before; the red of pixel 0 is whether torch is in it."""

    given = 0

    def __getitem__(self, index):
        image = self.pixels(index)
        image[0, 0, 0] = 255 * ("torch" in sys.modules)
        self.given += 1
        return image, self.given - 1


class Names(Images):
    """Holds as many Python strings as a list of files has, and touches its share of them for each sample."""

    def __init__(self):
        self.names = [f"/data/photographs/{number:08}.jpg" for number in range(240_000)]

    def __getitem__(self, index):
        share = len(self.names) // SIZE
        return self.pixels(index), len(set(map(len, self.names[index * share:(index + 1) * share])))


class Sleeps(Images):
    def __getitem__(self, index):
        time.sleep(0.02)
        return super().__getitem__(index)


class Lengths(Images):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


class Unready(Images):
    def __init__(self):
        self.files = 24

    def __setstate__(self, state):
        raise ImportError("no module named water")


class Init:
    """A worker_init_fn that leaves a file with its process and number."""

    number = None

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, number):
        # Renamed once it is whole: a worker may begin while the test reads the notes.
        aside = self.folder.with_name(f"{self.folder.name}.{os.getpid()}")
        aside.write_text(f"{os.getpid()} {number}")
        aside.rename(self.folder / f"{os.getpid()}")
        Init.number = number


class Initialised(Images):
    """The label is the number that worker_init_fn was called with in this process."""

    def __getitem__(self, index):
        return self.pixels(index), Init.number
