"""The package headrace as it lies in the build tree: what importing it needs, refuses and costs, and beside what it works."""

import ast
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import headrace
import pytest
from headrace import _engine_door

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(headrace.__file__).parent.parent.resolve()
HERE = f"Python {sys.version_info.major}.{sys.version_info.minor}"


def run_python(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/", timeout=120)


def printed(code: str, *path: Path, **environment: str) -> str:
    done = run_python(code, *(path or (PACKAGE,)), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refusal(code: str, *path: Path, **environment: str) -> str:
    """The last line that a Python says that cannot import the package."""
    done = run_python(code, *path, **environment)
    assert done.returncode != 0 and "circular" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_package_is_imported_without_the_repository_or_library_paths():
    assert printed("import headrace; print(headrace.__file__)").startswith(str(PACKAGE))


def test_the_engine_can_be_had_where_it_lies_beside_the_package():
    assert (_engine_door.why_not() is None) == any((PACKAGE / "headrace").glob("_engine.*.so"))


def test_the_version_stands_in_one_place():
    (version,) = re.findall(r"^project\(headrace VERSION ([\d.]+) ", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert printed("import headrace; print(headrace.__version__)") == version == headrace.__version__
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project and version not in project
    assert re.search(rf"^## .*\b{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


# ---- What is refused ----


def copied_package(folder: Path) -> Path:
    """headrace without its extensions, as a build of the executable alone leaves it."""
    (folder / "headrace").mkdir()
    for file in (ROOT / "python" / "headrace").iterdir():
        if file.is_file():
            (folder / "headrace" / file.name).symlink_to(file)
    return folder


@pytest.fixture
def package(tmp_path):
    """Another copy of the package at hand. From there its libraries do not find each other by themselves."""
    shutil.copy(PACKAGE / "headrace" / "_core.abi3.so", copied_package(tmp_path) / "headrace")
    return tmp_path


LIBRARIES = str(PACKAGE.parent / "lib")


def test_a_package_that_is_not_built_says_so_and_how_to_build_it(tmp_path):
    last = refusal("import headrace", copied_package(tmp_path))
    assert re.match(rf"ImportError: headrace's Python module is not built: no _core for cpython-\d+ in {tmp_path}/headrace\. ", last)
    assert "make build" in last and "build/release/python" in last and "pip install ." in last


def test_a_native_module_that_cannot_be_loaded_keeps_its_cause(tmp_path):
    package = copied_package(tmp_path)
    (package / "headrace" / "_core.abi3.so").write_bytes(b"no library")
    last = refusal("import headrace", package)
    assert "_core.abi3.so" in last and ("file too short" in last or "invalid ELF header" in last), last


def test_a_backend_of_nanobind_that_is_missing_is_named_with_the_command_that_installs_it():
    done = run_python("import sys; sys.modules['nanobind_backend'] = None; import headrace", PACKAGE)
    assert done.returncode != 0
    assert re.search(r"ImportError: .*_core.* nanobind backend .*pip install nanobind_backend", done.stderr), done.stderr


PYTHONS = {
    "too old": ("sys.version_info = (3, 10, 4, 'final', 0)", "wanted Python 3.11 or newer, found Python 3.10"),
    "free-threaded": ("sys.abiflags = 't'", f"wanted a Python with its interpreter lock, found the free-threaded build of {HERE}"),
    "of 32 bits": ("sys.maxsize = 2**31 - 1", f"wanted a Python of 64 bits, found {HERE} of 32"),
    "not CPython": ("sys.implementation.name = 'pypy'", "wanted CPython, found pypy"),
}


@pytest.mark.parametrize("makes, sentence", PYTHONS.values(), ids=PYTHONS)
def test_a_python_that_it_is_not_for_is_named(makes, sentence):
    assert refusal(f"import sys; {makes}; import headrace", PACKAGE) == f"ImportError: headrace cannot be loaded: {sentence}"


def test_what_names_an_old_python_can_be_read_by_it():
    for name in ("__init__", "_core_door"):
        ast.parse((ROOT / "python" / "headrace" / f"{name}.py").read_text(), feature_version=(3, 8))


def test_files_for_another_machine_are_named_with_both(package):
    module = package / "headrace" / "_core.abi3.so"
    content = bytearray(module.read_bytes())
    (here,) = struct.unpack_from("<H", content, 18)
    names = {62: "x86_64", 183: "aarch64"}
    other = next(number for number in names if number != here)
    struct.pack_into("<H", content, 18, other)
    module.write_bytes(content)
    assert refusal("import headrace", package) == (f"ImportError: headrace cannot be loaded: {module} is built for {names[other]}, "
                                                   f"64 bits, found a Python for {names[here]}, 64 bits")


def test_a_package_without_the_libraries_that_come_with_it_says_which_and_where_they_lie(package):
    last = refusal("import headrace", package)
    assert re.match(rf"ImportError: headrace cannot be loaded: the library libheadrace\.so\.{re.escape(headrace.__version__)} is missing\. "
                    r"The wheel has its libraries in headrace and headrace\.libs, .*: install it with pip", last), last


FORGOTTEN = """
import sys
import headrace
for name in [name for name in sys.modules if name.partition(".")[0] == "headrace"]:
    del sys.modules[name]
"""


def test_a_second_copy_does_not_come_into_a_process(package):
    last = refusal(f"{FORGOTTEN}\nsys.path.insert(0, {str(package)!r})\nimport headrace", PACKAGE, LD_LIBRARY_PATH=LIBRARIES)
    assert last == (f"ImportError: {package}/headrace/_core.abi3.so cannot be loaded beside {PACKAGE}/headrace/_core.abi3.so: a process "
                    "has room for one headrace; start a new one, and take one of the two off sys.path")


def test_a_package_that_python_has_forgotten_is_not_loaded_again():
    last = refusal(f"{FORGOTTEN}\nimport headrace", PACKAGE)
    assert re.match(r"ImportError: \S+/_core\.abi3\.so was loaded in this process before, and Python has forgotten it: .* start a new one$",
                    last), last


def test_an_interpreter_beside_the_first_one_is_refused():
    last = refusal("""
import sys
interpreters = __import__("_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters")
failure = interpreters.run_string(interpreters.create(), "import headrace")  # Raises, or from 3.13 on returns it.
sys.exit(getattr(failure, "formatted", "imported"))
""", PACKAGE)
    assert re.search("ImportError.*: headrace cannot be loaded: wanted the first interpreter of a process, found another one; "
                     "start a process for it$", last), last


def test_a_second_copy_on_the_path_is_a_finding(package):
    told = printed("import headrace\nprint(*[one['sentence'] for one in headrace.doctor() if one['code'] == 'two_copies'], sep='\\n')",
                   PACKAGE, package)
    assert told == f"headrace is on sys.path twice: the one in {PACKAGE}/headrace is in use, and not that in {package}/headrace"


# ---- Beside what it works ----


@pytest.fixture(scope="module")
def loads(tmp_path_factory):
    """Code that imports the package and makes sure that it loads all of a data set."""
    folder = tmp_path_factory.mktemp("idx")
    for split, count in (("train", 64), ("t10k", 8)):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 8, 8) + bytes(64 * count))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + bytes(count))
    return f"""
import headrace
batches = list(headrace.Loader("idx:{folder}", batch_size=8, num_workers=2))
assert sum(len(labels) for _, labels in batches) == 64
"""


NO_TORCH = "import sys; sys.modules['torch'] = None\n"
NO_NUMPY = "import sys; sys.modules['numpy'] = None\n"


def test_without_numpy_batches_are_tensors_all_the_same(loads):
    printed(f"{NO_NUMPY}{loads}\nimport torch\nassert type(batches[0][0]) is torch.Tensor")


def test_without_numpy_and_torch_a_loader_says_what_it_wants(loads):
    assert refusal(NO_NUMPY + NO_TORCH + loads, PACKAGE) == (
        "headrace.errors.UnsupportedError: wanted torch, of whose tensors batches are made, or NumPy for arrays in their place; found "
        "neither")


@pytest.mark.parametrize("before", ["", "import headrace"], ids=["before it is imported", "after"])
def test_a_forked_process_loads_too(loads, before):
    printed(f"""{NO_TORCH}{before}
import os
child = os.fork()
if child == 0:
    try:
        exec({loads!r})
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
{loads}""")


def test_threads_import_it_at_once(loads):
    printed(f"""{NO_TORCH}
import threading
ended, begin = [], threading.Barrier(8)
def run():
    begin.wait()
    exec({loads!r}, {{}})
    ended.append(True)
threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(ended) == 8""")


def test_importing_it_twice_and_reloading_it_change_nothing(loads):
    printed(f"""{NO_TORCH}
import importlib
import headrace
import headrace as again
made = headrace.Loader, headrace.Error
assert importlib.reload(headrace) is again and (again.Loader, again.Error) == made
{loads}""")


# Gives memory of its own from one region and takes nothing back: what the system's allocator frees of it is a crash.
ALLOCATOR = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic(char*) region;
static atomic_size_t used;
static const size_t kSize = (size_t)1 << 34;

static char* begin(void) {
  char* found = atomic_load(&region);
  if (found) return found;
  char* made = mmap(NULL, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return NULL;
  char* none = NULL;
  if (atomic_compare_exchange_strong(&region, &none, made)) return made;
  munmap(made, kSize);
  return none;
}

static void* take(size_t alignment, size_t size) {
  if (alignment < 16) alignment = 16;
  const size_t place = atomic_fetch_add(&used, size + alignment + 16);
  char* first = begin();
  if (!first || place + size + alignment + 16 > kSize) { errno = ENOMEM; return NULL; }
  size_t* result = (size_t*)(((uintptr_t)first + place + 16 + alignment - 1) / alignment * alignment);
  result[-1] = size;
  return result;
}

void* malloc(size_t size) { return take(16, size); }
void free(void* pointer) { (void)pointer; }
void* calloc(size_t count, size_t size) {
  size_t whole;
  if (__builtin_mul_overflow(count, size, &whole)) { errno = ENOMEM; return NULL; }
  return take(16, whole);
}
void* realloc(void* pointer, size_t size) {
  void* result = take(16, size);
  if (pointer && result) {
    const size_t before = ((size_t*)pointer)[-1];
    memcpy(result, pointer, before < size ? before : size);
  }
  return result;
}
void* memalign(size_t alignment, size_t size) { return take(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return take(alignment, size); }
int posix_memalign(void** result, size_t alignment, size_t size) { return (*result = take(alignment, size)) ? 0 : ENOMEM; }
size_t malloc_usable_size(void* pointer) { return pointer ? ((size_t*)pointer)[-1] : 0; }
"""


def test_another_allocator_may_be_loaded_before_it(tmp_path, loads):
    (tmp_path / "own.c").write_text(ALLOCATOR)
    subprocess.run(["gcc", "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", tmp_path / "own.so", tmp_path / "own.c"], check=True)
    printed(f"""{NO_TORCH}{loads}
with headrace.Trace() as trace, headrace.span("work"):
    pass
assert trace.summary()["total_operations"] == 1""", LD_PRELOAD=str(tmp_path / "own.so"))


def test_every_kind_of_error_is_an_error_and_a_built_in_exception():
    codes = re.search(r"enum class ErrorCode \{(.*?)\};", (ROOT / "include" / "headrace" / "error.h").read_text(), re.S)
    names = re.findall(r"^  (\w+),", codes[1], re.M)
    assert sorted(headrace.errors.class_of_code) == sorted(names)
    for code, cls in headrace.errors.class_of_code.items():
        assert issubclass(cls, headrace.Error) and cls.code == code
        assert any(base.__module__ == "builtins" and base is not Exception for base in cls.__mro__[1:-3])
        assert str(cls("one line")) == "one line"
