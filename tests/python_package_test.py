"""The package headrace as it lies in the build tree: what importing it needs, refuses and costs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "build" / "release" / "python"


def run_python(code: str, *path: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/")


def test_package_is_imported_without_the_repository_or_library_paths():
    done = run_python("import headrace; print(headrace.__file__)", PACKAGE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(PACKAGE))


def test_another_torch_is_refused_by_name(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.10.1+cpu'\n")
    done = run_python("import headrace", tmp_path, PACKAGE)
    assert done.returncode != 0
    assert re.search(r"ImportError: headrace needs torch==2\.11\.0, found torch 2\.10\.1\+cpu in \S*/torch$",
                     done.stderr.strip()), done.stderr


def copied_package(folder: Path) -> Path:
    """headrace without its native module, as a build of the executable alone leaves it."""
    (folder / "headrace").mkdir()
    for file in (ROOT / "python" / "headrace").iterdir():
        if file.is_file():
            (folder / "headrace" / file.name).symlink_to(file)
    return folder


def test_a_package_that_is_not_built_says_so_and_how_to_build_it(tmp_path):
    done = run_python("import headrace", copied_package(tmp_path))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and "circular" not in done.stderr
    assert re.match(rf"ImportError: headrace's Python module is not built: no _native for cpython-\d+ in {tmp_path}/headrace\. ", last)
    assert "make build" in last and "build/release/python" in last and "pip install ." in last


@pytest.mark.parametrize("broken", ["_core", "_native"])
def test_a_native_module_that_cannot_be_loaded_keeps_its_cause(tmp_path, broken):
    package = copied_package(tmp_path)
    for name in ("_core", "_native"):
        (module,) = (PACKAGE / "headrace").glob(f"{name}.*.so")
        if name == broken:
            (package / "headrace" / module.name).write_bytes(b"no library")
            broken_file = module.name
        else:
            (package / "headrace" / module.name).symlink_to(module)
    with pytest.MonkeyPatch.context() as patch:  # From where the module lies now it does not find the library by itself.
        patch.setenv("LD_LIBRARY_PATH", str(PACKAGE.parent / "lib"))
        done = run_python("import headrace", package)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert broken_file in last and ("file too short" in last or "invalid ELF header" in last), done.stderr


def test_a_backend_of_nanobind_that_is_missing_is_named_with_the_command_that_installs_it():
    done = run_python("import sys; sys.modules['nanobind_backend'] = None; import headrace", PACKAGE)
    assert done.returncode != 0
    assert re.search(r"ImportError: .*_core.* nanobind backend .*pip install nanobind_backend", done.stderr), done.stderr


def test_package_wants_the_torch_that_it_was_compiled_against():
    compiled = re.search(r"HEADRACE_TORCH_VERSION (\S+)\)", (ROOT / "cmake" / "torch.cmake").read_text())[1]
    wanted = re.search(r'_TORCH_VERSION = "(.*)"', (ROOT / "python" / "headrace" / "__init__.py").read_text())[1]
    assert wanted == compiled


def test_every_kind_of_error_is_an_error_and_a_built_in_exception():
    import headrace

    codes = re.search(r"enum class ErrorCode \{(.*?)\};", (ROOT / "include" / "headrace" / "error.h").read_text(), re.S)
    names = re.findall(r"^  (\w+),", codes[1], re.M)
    assert sorted(headrace.errors.class_of_code) == sorted(names)
    for code, cls in headrace.errors.class_of_code.items():
        assert issubclass(cls, headrace.Error) and cls.code == code
        assert any(base.__module__ == "builtins" and base is not Exception for base in cls.__mro__[1:-3])
        assert str(cls("one line")) == "one line"
