"""What the wheel holds asks for no symbol that its oldest system lacks: manylinux_2_34, which is RHEL 9 and Debian 12. `make package`
has auditwheel look at the wheel itself; here the build tree's files are looked at, symbol by symbol."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"

# As auditwheel 6.8.2 has the policy manylinux_2_34_x86_64.
FLOOR = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}
# What a system of that policy has, and what comes with torch; all else that our files need goes into the wheel.
OF_THE_SYSTEM = re.compile(r"lib(c|m|dl|pthread|rt|util|gcc_s|stdc\+\+|z|c10|torch\w*)\.so|ld-linux")


def built() -> list[Path]:
    package = BUILD / "python" / "headrace"
    return [*(BUILD / "bin").glob("headrace"), *(BUILD / "lib").glob("libheadrace*.so.*"), *(BUILD / "lib").glob("libheadrace_gpu.so"),
            *package.glob("_core.*.so"), *package.glob("_engine.*.so")]


def grafted() -> list[Path]:
    """Debian's libraries that the wheel gets a copy of."""
    (library,) = (BUILD / "lib").glob("libheadrace.so.*")
    listing = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    found = dict(re.findall(r"(\S+) => (/\S+)", listing))
    return [Path(path) for name, path in sorted(found.items()) if not OF_THE_SYSTEM.match(name)]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def too_new(listing: str) -> list[str]:
    """Of `objdump -T`: the symbols that a file takes from elsewhere in a version above the floor."""
    wanted = re.findall(r"\*UND\*.*\(?\b(GLIBCXX|GLIBC|CXXABI|GCC)_([\d.]+)\)?\s+(\S+)$", listing, re.MULTILINE)
    return [f"{name} ({family}_{version})" for family, version, name in wanted if numbers(version) > FLOOR[family]]


def symbols_of(file: Path) -> str:
    return subprocess.run(["objdump", "-T", file], check=True, capture_output=True, text=True).stdout


def test_a_symbol_above_the_floor_is_found():
    listing = """
0000000000000000      DF *UND*	0000000000000000 (GLIBC_2.35) hypot
0000000000000000      DF *UND*	0000000000000000 (GLIBC_2.34) dlopen
0000000000000000      DF *UND*	0000000000000000 (GLIBCXX_3.4.30) _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE
0000000000000000      DF *UND*	0000000000000000 (GLIBCXX_3.4.9) _ZSt16__ostream_insertIcSt11char_traitsIcEERSt13basic_ostreamIT_T0_ES6_PKS3_l
0000000000000000      DF *UND*	0000000000000000 (CXXABI_1.3.14) __cxa_new_one
00000000000a1b2c g    DF .text	0000000000000012  GLIBC_2.36  ours
"""
    assert too_new(listing) == ["hypot (GLIBC_2.35)", "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE (GLIBCXX_3.4.30)",
                                "__cxa_new_one (CXXABI_1.3.14)"]


def test_what_is_looked_at_is_what_the_wheel_holds():
    names = {re.sub(r"\.(so|abi3|cpython-).*", "", path.name) for path in built()}
    assert {"headrace", "libheadrace", "libheadrace_torch", "_core", "_engine"} <= names
    assert {re.sub(r"\.so.*", "", path.name) for path in grafted()} >= {"libjpeg", "libpng16", "liblz4", "libsqlite3", "libxxhash", "libhwy"}
    for path in (*built(), *grafted()):
        assert "*UND*" in symbols_of(path), path


@pytest.mark.parametrize("files", [built, grafted], ids=["ours", "Debian's"])
def test_no_symbol_is_newer_than_the_floor(files):
    """Of condition_variable::wait: include core/base/condition_variable.h in the file that waits."""
    assert {path.name: found for path in files() if (found := too_new(symbols_of(path)))} == {}
