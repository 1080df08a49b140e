"""The package headrace as it lies in the build tree: what importing it needs, refuses and costs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import headrace
from headrace import _engine_door

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(headrace.__file__).parent.parent


def run_python(code: str, *path: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/")


def test_package_is_imported_without_the_repository_or_library_paths():
    done = run_python("import headrace; print(headrace.__file__)", PACKAGE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(PACKAGE))


def test_the_engine_can_be_had_where_it_lies_beside_the_package():
    assert (_engine_door.why_not() is None) == any((PACKAGE / "headrace").glob("_engine.*.so"))


def copied_package(folder: Path) -> Path:
    """headrace without its extensions, as a build of the executable alone leaves it."""
    (folder / "headrace").mkdir()
    for file in (ROOT / "python" / "headrace").iterdir():
        if file.is_file():
            (folder / "headrace" / file.name).symlink_to(file)
    return folder


def test_a_package_that_is_not_built_says_so_and_how_to_build_it(tmp_path):
    done = run_python("import headrace", copied_package(tmp_path))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and "circular" not in done.stderr
    assert re.match(rf"ImportError: headrace's Python module is not built: no _core for cpython-\d+ in {tmp_path}/headrace\. ", last)
    assert "make build" in last and "build/release/python" in last and "pip install ." in last


def test_a_native_module_that_cannot_be_loaded_keeps_its_cause(tmp_path):
    package = copied_package(tmp_path)
    (package / "headrace" / "_core.abi3.so").write_bytes(b"no library")
    done = run_python("import headrace", package)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "_core.abi3.so" in last and ("file too short" in last or "invalid ELF header" in last), done.stderr


def test_a_backend_of_nanobind_that_is_missing_is_named_with_the_command_that_installs_it():
    done = run_python("import sys; sys.modules['nanobind_backend'] = None; import headrace", PACKAGE)
    assert done.returncode != 0
    assert re.search(r"ImportError: .*_core.* nanobind backend .*pip install nanobind_backend", done.stderr), done.stderr


def test_every_kind_of_error_is_an_error_and_a_built_in_exception():
    codes = re.search(r"enum class ErrorCode \{(.*?)\};", (ROOT / "include" / "headrace" / "error.h").read_text(), re.S)
    names = re.findall(r"^  (\w+),", codes[1], re.M)
    assert sorted(headrace.errors.class_of_code) == sorted(names)
    for code, cls in headrace.errors.class_of_code.items():
        assert issubclass(cls, headrace.Error) and cls.code == code
        assert any(base.__module__ == "builtins" and base is not Exception for base in cls.__mro__[1:-3])
        assert str(cls("one line")) == "one line"
