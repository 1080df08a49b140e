"""What tests of several files share."""

import functools
import gc
import hashlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

collect_ignore = ["frameworks", "readers"]  # They need other packages: make check PARTS=frameworks names the folders.

# A developer's own torch is not the one that the tests are about.
os.environ.pop("HEADRACE_TORCH", None)


def pytest_addoption(parser):
    parser.addoption("--claims", type=Path, help="folder that runs beside each other share: a test file is run by the first to reach it")


def pytest_collection_modifyitems(config, items):
    """Large files first, so that the shards end at about the same time."""
    if config.option.claims:
        items.sort(key=lambda item: -item.path.stat().st_size)


@functools.cache
def claimed(claims: Path, path: Path) -> bool:
    """Whether this run is the one that runs the file's tests."""
    try:
        (claims / path.name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    claims = item.config.option.claims
    return True if claims and not claimed(claims, item.path) else None  # True: it is seen to.


PHOTOS = 500


@pytest.fixture(scope="session")
def photos() -> Path:
    """A folder of 500 photographs in the real cache, cut on the first run. `make setup JOB=photos` cuts 3,000 of this kind."""
    sys.path.insert(0, str(ROOT / "tools"))
    import make_photos as maker

    identity = maker.identify(PHOTOS, seed=1)
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "headrace" / f"photos-{key}"
    maker.make(folder, PHOTOS, 1, identity)
    return folder


# They build or set up the project itself, whose environments and compiled files lie in the real cache folder.
OF_REAL_CACHE = {"bench_test", "cpp_door_test", "tooling_test"}


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_cache(request, caches):
    """What headrace remembers of earlier runs is the test's own: a folder that is not there yet."""
    if request.path.stem in OF_REAL_CACHE:
        yield None
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder := next(caches)))
        yield folder


@pytest.fixture(autouse=True)
def own_settings():
    """A list of all hardware settings in force has none of an earlier test, which has put back what it changed by its own means."""
    yield
    if (module := sys.modules.get("headrace._hardware_settings")) is not None:
        module._in_force.clear()


@pytest.fixture
def ctrl_c():
    """Python's own handler of SIGINT, also where the tests run in the background of a script, which ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def one_thread():
    """torch computes with one thread. Several would wait for each other on a busy machine, and add up in another order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nothing_compiled(one_thread):
    """torch.compile knows of no earlier test, and no later one of this."""
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def few_objects():
    """Knobs look at every object of the process, of which other tests leave many."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
