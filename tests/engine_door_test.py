"""headrace where its engine cannot be had: another torch, none, another Python, no build. What needs it says why, and all else goes
on. And what `import headrace` leaves for later."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import headrace as hr
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(hr.__file__).parent

OWN_TORCH = "import torch; from headrace import _engine_door; torch.__version__ = _engine_door.BUILT_FOR\n"
OTHER_TORCH = "import torch; torch.__version__ = '2.15.0+cpu'\n"
NO_TORCH = "import sys; sys.modules['torch'] = None\n"
WHY = "built for torch 2.11, found 2.15"


def run(code, *path, **environment):
    """A Python that finds headrace in the folders of `path`, else where it was found here; what it printed."""
    folders = map(str, (*path, PACKAGE.parent, *sys.path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd="/",
                          env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(folders)})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TELLS = """
import headrace
from headrace import _engine_door
print(_engine_door.why_not())
"""


def test_the_engine_is_built_for_the_torch_that_cmake_names():
    from headrace import _engine_door

    named = re.search(r"HEADRACE_TORCH_VERSION (\S+)\)", (ROOT / "cmake" / "torch.cmake").read_text())[1]
    assert _engine_door.BUILT_FOR == named


# ---- Why it cannot be had ----


def test_a_build_without_libtorch_says_so():
    told = run("import headrace._core; headrace._core.torch_built_for = lambda: ''" + TELLS)
    assert told == "not built: in a checkout, run make build, or pip install . there"


TORCHES = {
    "another": (OTHER_TORCH, WHY),
    "of another patch": pytest.param("import torch; torch.__version__ = '2.11.1'\n", "None", marks=pytest.mark.engine),
    "none": (NO_TORCH, "built for torch 2.11, found none"),
    "a folder of that name": ("import sys, types; sys.modules['torch'] = types.ModuleType('torch')\n",
                              "built for torch 2.11, found one without a version"),
}


@pytest.mark.parametrize("torch_at_hand, reason", TORCHES.values(), ids=TORCHES)
def test_a_torch_that_it_was_not_built_for_is_named(torch_at_hand, reason):
    assert run(torch_at_hand + TELLS) == reason


def test_a_torch_that_cannot_be_imported_keeps_its_own_words(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    assert run(TELLS, tmp_path) == "torch cannot be imported: libcudart.so.12: cannot open shared object file"


@pytest.fixture
def package(tmp_path):
    """The package at hand without the engine. From there its libraries do not find each other by themselves."""
    (tmp_path / "headrace").mkdir()
    for file in PACKAGE.iterdir():
        if file.is_file() and not file.name.startswith("_engine."):
            (tmp_path / "headrace" / file.name).symlink_to(file)
    return tmp_path


def in_package(package, code):
    return run(code, package, LD_LIBRARY_PATH=str(PACKAGE.parent.parent / "lib"))


def test_an_engine_that_is_not_built_is_told_with_how_to_build_it(package):
    assert in_package(package, OWN_TORCH + TELLS) == "not built: in a checkout, run make build, or pip install . there"


def test_an_engine_of_another_python_is_named(package):
    (package / "headrace" / "_engine.cpython-399-x86_64-linux-gnu.so").touch()
    assert in_package(package, OWN_TORCH + TELLS) == f"built for Python 3.99, found {sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.engine
def test_an_engine_that_cannot_be_loaded_keeps_its_cause(package):
    (file,) = PACKAGE.glob("_engine.*.so")
    (package / "headrace" / file.name).write_bytes(b"no library")
    reason, cause = in_package(package, TELLS + """
try:
    headrace.Trainer(None, None, None)
except headrace.errors.UnsupportedError as error:
    print(repr(error.__cause__))
""").splitlines()
    assert re.match(rf"cannot be loaded: .*{re.escape(file.name)}: (file too short|invalid ELF header)", reason)
    assert cause.startswith("ImportError(") and file.name in cause


# ---- What says so ----

LOOP = """
import json
import torch
import headrace as hr
from headrace._live_knobs import LiveKnobs
from headrace._subject import Subject

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(3 * 6 * 6, 2))
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randn(8, 2, 8, 8) for _ in range(2)]

def forward(model, batch):
    return model(batch).square().mean()
"""
OFFERS = LOOP + """
subject = Subject(model, batches, optimizer, forward, run_steps=None, budget_s=60, whole_step=True)
knobs = LiveKnobs([model], [optimizer], batches)
found = {}
for door, offered in (("tune", subject.offer("compute")), ("autotune", knobs.offer("rounding", [], [], None))):
    found[door] = [candidate.name for candidate in offered.candidates], {one.key: one.reason for one in offered.not_tried}
print(json.dumps(found))
"""


@pytest.mark.engine
def test_both_doors_try_what_needs_no_engine_and_tell_of_the_rest():
    here, elsewhere = (json.loads(run(torch_at_hand + OFFERS)) for torch_at_hand in ("", OTHER_TORCH))
    needing = {"tune": {"arena for tensors", "native step"}, "autotune": {"arena for tensors"}}
    for door, names in needing.items():
        assert names <= set(here[door][0])
        assert elsewhere[door][0] == [name for name in here[door][0] if name not in names]
        assert elsewhere[door][1] == {**here[door][1], "compute.allocator": WHY, "train.engine": WHY}
        assert WHY not in here[door][1].values()


def test_a_tuning_tells_what_was_not_applicable_and_switches_the_rest():
    told = json.loads(run(OTHER_TORCH + LOOP + """
tuned = hr.tune(model, batches, optimizer, forward, budget_s=5.0, only=["denormals as 0"], whole_step=True)
print(json.dumps([[trial["name"] for trial in tuned.ledger["trials"]], {one.key: one.reason for one in tuned.not_applicable}]))
"""))
    assert told[0] == ["denormals as 0"]
    assert told[1]["compute.allocator"] == told[1]["train.engine"] == WHY


def test_settings_that_need_it_are_refused_by_name_and_the_others_hold():
    told = json.loads(run(OTHER_TORCH + LOOP + """
knobs = LiveKnobs([model], [optimizer], batches)
said = [sorted(key for key in knobs.baseline() if key.startswith("compute."))]
for key, value in (("compute.allocator", "arena"), ("train.engine", "native")):
    try:
        knobs.apply({key: json.dumps(value)})
    except hr.errors.UnsupportedError as error:
        said.append(str(error))
knobs.apply({"compute.flush_denormal": "true", "compute.intra_op_threads": "2"})
said.append(int(torch.full((1 << 18,), 1e-20).mul(1e-20).ne(0).sum()))
knobs.undo()
said.append(int(torch.full((1 << 18,), 1e-20).mul(1e-20).ne(0).sum()))
print(json.dumps(said))
"""))
    assert told == [["compute.flush_denormal", "compute.intra_op_threads"],
                    f"autotune: compute.allocator: not applicable: {WHY}", f"autotune: train.engine: not applicable: {WHY}", 0, 1 << 18]


@pytest.mark.parametrize("torch_at_hand, reason", [(OTHER_TORCH, WHY), (NO_TORCH, "built for torch 2.11, found none")],
                         ids=["another torch", "none"])
def test_a_trainer_is_a_class_that_says_why_there_is_none(torch_at_hand, reason):
    told = run(torch_at_hand + """
from headrace import Trainer, errors
assert not isinstance(1, Trainer)
try:
    Trainer(None, None, lambda model, batch: 0, epochs=2)
except errors.UnsupportedError as error:
    print(error)
""")
    assert told == f"headrace.Trainer: not applicable: {reason}"


# ---- What is left for later ----

def test_import_loads_neither_torch_nor_the_engine():
    loaded = run("import sys, headrace; print(*sorted({'torch', 'numpy', 'headrace._engine', 'headrace._core'} & sys.modules.keys()))")
    assert loaded == "headrace._core"


@pytest.mark.engine
def test_every_name_can_be_had_in_any_order_and_is_listed():
    assert set(hr.__all__) <= set(dir(hr))
    assert run("import headrace; print([name for name in headrace.__all__ if getattr(headrace, name) is None])") == "[]"
    assert run("from headrace import *; print(tune.__name__, watch.__name__, Trainer.__module__)") == "tune watch headrace._engine"
    assert "Trainer" in run("import pydoc, headrace; print(pydoc.render_doc(headrace))")


def test_names_that_type_checkers_see_are_those_that_come_later():
    body = ast.parse((ROOT / "python" / "headrace" / "__init__.py").read_text()).body
    (seen,) = (node for node in body if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING")
    names = {alias.name: line.module for line in seen.body for alias in line.names}
    assert names == {**hr._LATER, **hr._LATER_WITH_TORCH, "Trainer": "_engine"}
    assert names.keys() <= set(hr.__all__)


def test_a_name_that_there_is_not_is_told_as_of_any_module():
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'nothing'"):
        hr.nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'headrace'"):
        from headrace import nothing  # noqa: F401


def test_without_torch_what_needs_it_says_so_and_help_shows_the_rest():
    told = run(NO_TORCH + """
import pydoc
import headrace
names, said = dir(headrace), []
for name in (*headrace.__all__, *sorted(headrace._LATER_WITH_TORCH)):
    try:
        getattr(headrace, name)
    except headrace.errors.UnsupportedError as error:
        assert name not in names
        said.append(str(error))
    else:
        assert name in names
from headrace import *
assert Loader is headrace.Loader and Trainer is headrace.Trainer and "tune" not in globals()
try:
    from headrace import tune
except headrace.errors.UnsupportedError as error:
    assert str(error) == "headrace.tune: wanted torch, found none"
else:
    raise AssertionError("it is there")
print(*said, sep="\\n")
assert "Loader" in pydoc.render_doc(headrace)
""").splitlines()
    assert told == [f"headrace.{name}: wanted torch, found none" for name in sorted(hr._LATER_WITH_TORCH)]
