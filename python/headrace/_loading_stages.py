"""What the loaders of a watched loop take for reading, decoding, transforming and collating, in their worker processes, too.

A DataLoader's fetcher makes a batch: the data set's samples, then collate_fn. Both are timed for every batch. Which of the samples' time
is reading, decoding or transforming is found in some of the batches, by Python's profiling hook: each function and built-in that is
called belongs to a stage by what it is (Stages.of_function, of_builtin), and else to that of its caller."""

from __future__ import annotations

import functools
import inspect
import io
import mmap
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch

from ._loader import Loader

_UNKNOWN, _READ, _DECODE, _AUGMENT = range(4)
_LOADERS, _WORKERS, _BATCHES = 4, 64, 64  # That are told apart, and the first batches of a worker whose times are kept.
_SAMPLES_S, _COLLATE_S, _COUNT, _STAGES = 0, 1, 2, 3  # Of a worker's numbers: places of sums, and of four stages,
_BATCH_S = _STAGES + 4  # and of single batches.
_NUMBERS = _BATCH_S + _BATCHES
_FIRST, _EVERY = 2, 16  # Batches of a worker whose functions are looked at: the first ones, and then each sixteenth.
_NESTED_MAX = 8  # Data sets within data sets that are looked at for their transforms.

_DECODING = ("PIL", "cv2", "imageio", "torchvision.io", "turbojpeg", "simplejpeg", "soundfile", "torchaudio", "av", "decord")
_AUGMENTING = ("torchvision.transforms", "albumentations", "kornia", "imgaug", "audiomentations", "monai.transforms")
_READING = ("pathlib", "fsspec", "s3fs", "gcsfs", "boto3", "botocore", "requests", "urllib", "urllib3", "http", "lmdb", "h5py", "zipfile",
            "tarfile", "sqlite3", "socket", "ssl")
_READING_BUILTINS = ("posix", "io", "_io", "mmap", "_socket", "_ssl")
_BETWEEN = ("torch.utils.data",)  # Calls the data set.
_LAZY = ("PIL.ImageFile",)  # Decodes when the first transform asks for a pixel.
_WORDS = ((_DECODE, ("decode", "imread", "decompress", "parse", "deserial", "unpickle")),
          (_AUGMENT, ("augment", "transform", "crop", "flip", "resize", "normali", "jitter", "rotate", "mixup", "mosaic", "blur")),
          (_READ, ("read", "fetch", "download", "open", "get_bytes", "load_bytes")))
_WAITING = ("sleep", "acquire", "wait", "select", "poll")


class Loading(NamedTuple):
    """In seconds of all that load together, as LoopWatch.set_loading() takes it."""

    read_s: float
    decode_s: float
    augment_s: float
    collate_s: float
    batches: float
    num_workers: int
    prefetch_batches: int
    batch_s: list[float]


class LoadingStages:
    """Of the loaders whose epochs begin within begins(), while hook() is not undone. Workers that were started before tell nothing, nor do
    those that are not forked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * _LOADERS * _WORKERS * _NUMBERS)  # Forked workers have it, too.
        self._numbers = memoryview(self._memory).cast("d")
        self._loaders: list[tuple[Any, dict[str, Any] | None]] = []  # Of a headrace.Loader with its statistics at the beginning.
        self._at: int | None = None  # Of the loader whose epoch begins; None: of none, or of one too many.

    def hook(self) -> Callable[[], None]:
        """Returns what takes the hooks off again."""
        base, kinds = fetch._BaseDatasetFetcher, (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
        plain_init, plain = base.__init__, [kind.fetch for kind in kinds]

        @functools.wraps(plain_init)
        def init(fetcher: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(fetcher, *args, **kwargs)
            fetcher._headrace_numbers = self._numbers_of_worker()
            fetcher._headrace_transforms = _codes_of_transforms(fetcher.dataset)

        base.__init__ = init
        for kind, one in zip(kinds, plain):
            kind.fetch = _timed(one)

        def undo() -> None:
            base.__init__ = plain_init
            for kind, one in zip(kinds, plain):
                kind.fetch = one

        return undo

    @contextmanager
    def begins(self, loader: Any) -> Iterator[None]:
        """An epoch of it begins within the block: the fetchers that are made there are its, those of the workers that it forks, too."""
        places = [i for i, (known, _) in enumerate(self._loaders) if known is loader]
        if not places and len(self._loaders) < _LOADERS:
            places = [len(self._loaders)]
            self._loaders.append((loader, loader.statistics() if isinstance(loader, Loader) else None))
        self._at = places[0] if places else None
        try:
            yield
        finally:
            self._at = None

    def forget(self) -> None:
        """Lets go of the loaders."""
        self._loaders.clear()

    def found(self) -> Loading | None:
        """So far, of the loader that gave most batches; None: nobody could time one."""
        known = [one for i in range(len(self._loaders)) if (one := self._of_loader(i)) is not None]
        return max(known, key=lambda one: one.batches, default=None)

    def _of_loader(self, at: int) -> Loading | None:
        loader, before = self._loaders[at]
        if isinstance(loader, Loader):
            return _of_native(loader, before)
        return self._of_workers(at, loader) if isinstance(loader, DataLoader) else None

    def _of_workers(self, at: int, loader: DataLoader) -> Loading | None:
        workers = [one for i in range(min(_WORKERS, max(1, loader.num_workers))) if (one := self._numbers_of(at, i))[_COUNT] > 0]
        if not workers:
            return None
        samples_s, collate_s, batches = (sum(one[place] for one in workers) for place in (_SAMPLES_S, _COLLATE_S, _COUNT))
        stages = [sum(one[_STAGES + stage] for one in workers) for stage in range(4)]
        shares = [seconds / sum(stages) for seconds in stages] if sum(stages) > 0 else [1.0, 0.0, 0.0, 0.0]
        return Loading(shares[_READ] * samples_s, (shares[_DECODE] + shares[_UNKNOWN]) * samples_s, shares[_AUGMENT] * samples_s, collate_s,
                       batches, loader.num_workers, loader.num_workers * (loader.prefetch_factor or 1), list(_in_order(workers)))

    def _numbers_of(self, loader: int, worker: int) -> memoryview:
        place = (loader * _WORKERS + worker) * _NUMBERS
        return self._numbers[place:place + _NUMBERS]

    def _numbers_of_worker(self) -> memoryview | None:
        """Where this process sums up for the loader whose epoch begins; None: for none that is told apart."""
        worker = info.id if (info := get_worker_info()) is not None else 0
        return None if self._at is None or worker >= _WORKERS else self._numbers_of(self._at, worker)


def _timed(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def timed(fetcher: Any, index: Any) -> Any:
        numbers = getattr(fetcher, "_headrace_numbers", None)  # One that was made before the hooks has none.
        return plain(fetcher, index) if numbers is None else _fetch(plain, fetcher, index, numbers)

    return timed


def _fetch(plain: Callable[..., Any], fetcher: Any, index: Any, numbers: memoryview) -> Any:
    count = int(numbers[_COUNT])
    looks = (count < _FIRST or count % _EVERY == 0) and sys.getprofile() is None
    stages = Stages(fetcher._headrace_transforms) if looks else None
    collate = fetcher.collate_fn
    begin = time.perf_counter()
    collated_at: list[float] = []

    def collated(samples: Any) -> Any:
        if stages is not None:
            stages.end()
        collated_at.append(time.perf_counter())
        return collate(samples)

    fetcher.collate_fn = collated
    try:
        if stages is not None:
            stages.begin()
        return plain(fetcher, index)
    finally:
        if stages is not None:
            stages.end()
        fetcher.collate_fn = collate
        if collated_at:  # Else it raised, or the data set has ended.
            _note(numbers, count, collated_at[0] - begin, time.perf_counter() - collated_at[0], stages)


def _note(numbers: memoryview, count: int, samples_s: float, collate_s: float, stages: Stages | None) -> None:
    numbers[_SAMPLES_S] += samples_s
    numbers[_COLLATE_S] += collate_s
    if stages is not None:
        for stage, seconds in enumerate(stages.seconds):
            numbers[_STAGES + stage] += seconds
    if count < _BATCHES:
        numbers[_BATCH_S + count] = samples_s + collate_s
    numbers[_COUNT] = count + 1


def read_seconds(dataset: Any, indices: Iterable[int]) -> float | None:
    """What reading these samples takes now, of all that making them takes. None: the data set does not give one of them here, or somebody
    else has Python's profiling hook."""
    if sys.getprofile() is not None:
        return None
    stages = Stages(_codes_of_transforms(dataset))
    stages.begin()
    try:
        for index in indices:
            dataset[index]
    except Exception:  # noqa: BLE001 - it is the loader's to raise it, where it asks for that sample.
        return None
    finally:
        stages.end()
    return stages.seconds[_READ]


class Stages:
    """Divides the time of calls by stages. `clock` in seconds."""

    def __init__(self, transforms: frozenset[CodeType], clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = [0.0, 0.0, 0.0, 0.0]
        self._transforms, self._clock = transforms, clock
        self._stack = [_UNKNOWN]
        self._since = 0.0
        self._on = False

    def begin(self) -> None:
        self._on, self._since = True, self._clock()
        sys.setprofile(self.saw)

    def end(self) -> None:
        """A second one does nothing."""
        if self._on:
            sys.setprofile(None)
            self._spend()
            self._on = False

    def saw(self, frame: FrameType, event: str, what: Any) -> None:
        """As sys.setprofile() calls it."""
        self._spend()
        caller = self._stack[-1]
        if event == "call":
            self._stack.append(self.of_function(frame.f_code, frame.f_globals.get("__name__") or "", caller))
        elif event == "c_call":
            self._stack.append(self.of_builtin(what, caller))
        elif len(self._stack) > 1:  # It returns, or raises.
            self._stack.pop()
        self._since = self._clock()  # What looking takes is nobody's.

    def of_function(self, code: CodeType, module: str, caller: int) -> int:
        """Within a transform all belongs to it, but for an image that is decoded when it is first looked at."""
        if _is_within(module, _LAZY):
            return _DECODE
        if _is_within(module, _BETWEEN):
            return caller
        if caller == _AUGMENT or code in self._transforms or _is_within(module, _AUGMENTING):
            return _AUGMENT
        if _is_within(module, _DECODING):
            return _DECODE
        if _is_within(module, _READING):
            return _READ
        return _by_words(code.co_name.lower(), caller)

    def of_builtin(self, function: Any, caller: int) -> int:
        name = getattr(function, "__name__", "").lower()
        if caller == _AUGMENT and "decode" not in name:
            return _AUGMENT
        if isinstance(getattr(function, "__self__", None), io.IOBase) or getattr(function, "__module__", None) in _READING_BUILTINS:
            return _READ
        if caller == _UNKNOWN and name in _WAITING:
            return _READ
        return _DECODE if "decode" in name or "decompress" in name else caller

    def _spend(self) -> None:
        self.seconds[self._stack[-1]] += self._clock() - self._since


def _by_words(name: str, caller: int) -> int:
    return next((stage for stage, words in _WORDS if any(word in name for word in words)), caller)


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _codes_of_transforms(dataset: Any) -> frozenset[CodeType]:
    """Of what the data set, or one within it, holds under the names that transforms have. Runs none of its properties: what they raise or
    take is no affair of a loop that is watched."""
    codes: set[CodeType] = set()
    for _ in range(_NESTED_MAX):
        for name in ("transform", "transforms", "target_transform", "augment", "augmentation", "augmentations"):
            held = inspect.getattr_static(dataset, name, None)
            for function in (held, getattr(type(held), "__call__", None), getattr(type(held), "forward", None)):
                if isinstance(code := getattr(function, "__code__", None), CodeType):
                    codes.add(code)
        if (dataset := inspect.getattr_static(dataset, "dataset", None)) is None:
            break
    return frozenset(codes)


def _in_order(workers: list[memoryview]) -> Iterator[float]:
    """The times of single batches, as the loader hands them out: one of each worker in turn."""
    for i in range(int(min(_BATCHES, *(one[_COUNT] for one in workers)))):
        for one in workers:
            yield one[_BATCH_S + i]


def _of_native(loader: Loader, before: dict[str, Any] | None) -> Loading | None:
    now = loader.statistics()
    if now is None or before is None or not now["batches"] > before["batches"]:
        return None
    costs = {key: now["costs"][key] - before["costs"][key] for key in ("read_s", "decode_s", "augment_s", "collate_s")}
    return Loading(**costs, batches=float(now["batches"] - before["batches"]), num_workers=now["num_workers"],
                   prefetch_batches=now["prefetch_batches"], batch_s=[])
