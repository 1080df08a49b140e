"""headrace as pip installs its wheel, outside of the tree and with nothing to build with: what is in it, what it can do with the torch
at hand or without one, and what it says of the rest. Wants an environment that `make package CHECK=1` makes, so that no other run of
pytest collects it."""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import headrace as hr
import numpy
import pytest
from headrace import _core, _engine_door
from PIL import Image

PACKAGE = Path(hr.__file__).parent
BUILT_FOR = ".".join(_core.torch_built_for().split(".")[:2])
TORCH = importlib.metadata.version("torch").partition("+")[0] if importlib.util.find_spec("torch") else None
MINOR = ".".join(TORCH.split(".")[:2]) if TORCH else "none"
COMMAND = Path(sys.prefix) / "bin" / "headrace"


def engine_refusal() -> str | None:
    """What the door must say here."""
    if MINOR != BUILT_FOR:
        return f"built for torch {BUILT_FOR}, found {MINOR}"
    (engine,) = PACKAGE.glob("_engine.cpython-*.so")
    version = re.match(r"_engine\.cpython-(\d)(\d+)-", engine.name)
    built_for, found = f"{version[1]}.{version[2]}", f"{sys.version_info.major}.{sys.version_info.minor}"
    return None if built_for == found else f"built for Python {built_for}, found {found}"


def run(*words, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Fashion-MNIST's form, of 64 images whose brightness is their number."""
    path = tmp_path_factory.mktemp("idx")
    for split, count in (("train", 64), ("t10k", 16)):
        images = numpy.repeat(numpy.arange(count, dtype=numpy.uint8), 64)
        (path / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 8, 8) + images.tobytes())
        (path / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + bytes(index % 4 for index in range(count)))
    return path


@pytest.fixture
def recipe(folder, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(f'[data]\nsource = "idx:{folder}"\nbatch_size = 16\n[model]\nname = "mlp"\n[train]\nepochs = 1\n')
    return path


# ---- What is there ----


def test_it_is_the_wheels_and_names_one_version():
    assert "site-packages" in PACKAGE.parts and hr.__version__ == importlib.metadata.version("headrace")
    files = {str(file) for file in importlib.metadata.files("headrace")}
    (tag,) = re.findall(r"^Tag: (\S+)$", importlib.metadata.distribution("headrace").read_text("WHEEL"), re.MULTILINE)
    assert tag.startswith("cp311-abi3-manylinux_2_34_")
    information = f"headrace-{hr.__version__}.dist-info"
    assert {"headrace/bin/headrace", "headrace/py.typed", f"{information}/licenses/LICENSE", f"{information}/licenses/NOTICE",
            f"{information}/licenses/libjpeg62-turbo.txt", f"{information}/sboms/headrace.cdx.json"} <= files


def test_there_is_nothing_to_build_with():
    assert [name for name in ("cc", "gcc", "g++", "clang", "cmake", "ninja") if shutil.which(name)] == []
    assert list(Path("/usr/include").glob("python3*/Python.h")) == []


def test_libraries_are_its_own(folder):
    list(hr.Loader(f"idx:{folder}"))
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    own = {path for path in loaded if Path(path).is_relative_to(PACKAGE.parent / "headrace.libs")}
    assert {re.sub(r"-.*", "", Path(path).name) for path in own} >= {"libjpeg", "libpng16", "liblz4", "libsqlite3", "libxxhash", "libhwy"}


# ---- What needs no torch ----


def test_a_loader_gives_every_sample_as_tensors_or_as_arrays(folder):
    loader = hr.Loader(f"idx:{folder}", batch_size=16, num_workers=2, seed=3, transform={"dtype": "uint8"})
    kind = {type(images).__module__.partition(".")[0] for images, _ in loader}
    assert kind == {"torch" if TORCH else "numpy"}
    seen = sorted(int(image.reshape(-1)[0]) for images, _ in loader for image in images)
    assert seen == list(range(64))


def test_images_of_every_kind_are_decoded(tmp_path):
    for place, (suffix, options) in enumerate({"jpg": {}, "png": {}, "jpeg": {"progressive": True}}.items()):
        for name in ("cat", "dog"):
            (tmp_path / "train" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 44), (50 * place, 100, 200)).save(tmp_path / "train" / name / f"{place}.{suffix}", **options)
    loader = hr.Loader(f"folder:{tmp_path}", batch_size=6, shuffle=False, transform={"dtype": "uint8", "size": 32})
    ((images, labels),) = loader
    assert tuple(images.shape) == (6, 3, 32, 32) and sorted(map(int, labels)) == [0] * 3 + [1] * 3
    assert sorted(round(int(image[0, 16, 16]) / 50) for image in images) == [0, 0, 1, 1, 2, 2]


def test_what_is_recorded_is_read_and_written(tmp_path):
    with hr.Trace() as trace:
        with hr.span("work"):
            pass
    assert {entry["name"]: entry["count"] for entry in trace.summary()["operations"]} == {"work": 1}
    trace.write(tmp_path / "trace.json")
    assert "work" in [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert isinstance(hr.doctor(), list)


def test_every_name_is_there_or_says_that_it_wants_torch():
    for name in {*hr.__all__, *hr._LATER_WITH_TORCH}:
        if TORCH is None and name in hr._LATER_WITH_TORCH:
            assert name not in hr.__all__
            with pytest.raises(hr.errors.UnsupportedError, match=f"^headrace.{name}: wanted torch, found none$"):
                getattr(hr, name)
        else:
            assert getattr(hr, name) is not None


# ---- What the engine alone can do ----


def test_the_engine_is_there_for_its_torch_and_its_python_and_else_says_which():
    assert _engine_door.why_not() == engine_refusal()


def test_a_trainer_steps_or_says_why_there_is_none():
    if (reason := engine_refusal()) is not None:
        with pytest.raises(hr.errors.UnsupportedError, match=re.escape(f"headrace.Trainer: not applicable: {reason}")):
            hr.Trainer(None, None, None)
        return
    import torch

    model = torch.nn.Linear(4, 2)
    before = model.weight.detach().clone()
    hr.Trainer(model, torch.optim.AdamW(model.parameters()), lambda made, batch: made(batch).square().mean()).step(torch.randn(3, 4))
    assert not torch.equal(before, model.weight)


# ---- The command ----


def test_the_command_is_on_the_path_of_its_environment():
    for words in ([COMMAND], [sys.executable, "-m", "headrace"]):
        said = run(*words, "--version")
        assert said.returncode == 0 and said.stdout.startswith(f"headrace {hr.__version__}\n"), said.stderr
    assert run(COMMAND, "doctor", "--json", "-").returncode in (0, 3)
    assert run(COMMAND, "explain", "data.batch_size").stdout.startswith("data.batch_size = 128")


def test_a_pack_is_written_verified_and_loaded(folder, tmp_path):
    for words in (["pack", f"idx:{folder}", tmp_path / "images.pack"], ["pack", "--verify", tmp_path / "images.pack"]):
        done = run(COMMAND, *words)
        assert done.returncode == 0, done.stderr
    assert sum(len(labels) for _, labels in hr.Loader(f"pack:{tmp_path / 'images.pack'}", batch_size=16)) == 64


def test_verbs_that_train_do_it_with_their_torch_and_name_another(recipe, tmp_path):
    done = run(COMMAND, "train", recipe, "--out", tmp_path / "run")
    if MINOR == BUILT_FOR:
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "run" / "result.json").is_file()
        return
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert re.match(rf"headrace: error: train: not applicable: built for torch {re.escape(BUILT_FOR)}, found {re.escape(MINOR)}", done.stderr)
    assert not (tmp_path / "run").exists()


# ---- A wheel that pip did not install ----


def refusal_of(folder: Path) -> str:
    done = run(sys.executable, "-c", "import headrace", env={"PYTHONPATH": str(folder)}, cwd="/")
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def test_a_package_that_was_copied_without_its_libraries_says_where_they_lie(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    assert re.match(r"ImportError: headrace cannot be loaded: the library lib\w+-\S+ is missing\. .*headrace\.libs.* install it with pip",
                    refusal_of(tmp_path))


def test_a_wheel_that_was_unpacked_whole_works_and_names_a_program_that_may_not_be_run(tmp_path):
    for name in ("headrace", "headrace.libs"):
        shutil.copytree(PACKAGE.parent / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(tmp_path)}
    assert run(sys.executable, "-m", "headrace", "--version", env=environment, cwd="/").returncode == 0
    (tmp_path / "headrace" / "bin" / "headrace").chmod(0o644)  # As Python's zipfile unpacks it.
    done = run(sys.executable, "-m", "headrace", "--version", env=environment, cwd="/")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "Permission denied" in done.stderr and "install the wheel with pip" in done.stderr
