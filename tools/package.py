#!/usr/bin/env python3
"""`make package`: the wheel of headrace in dist/, with its SHA256 sums and its bill of materials.

One file serves every Python from 3.11 on, and every torch or none; the engine in it is for the Python that runs this and for the torch
of the project's environment, or with --torch MINOR for the newest patch version of that minor, which is fetched (dist/torchMINOR).
Built by pip, then auditwheel puts Debian's libraries into it, then licences and bill are added, then all of it is checked; what fails
never comes to dist/. Takes as long as compiling the libraries once, little from then on; needs the network once.

usage: package.py [--torch MINOR]
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "package"
TOOLS = ROOT / "tools" / "packaging_requirements.txt"
PLATFORM = f"manylinux_2_34_{platform.machine()}"
BYTES_MAX = 8_000_000
LAST_LINES = 60
# Versions of torch whose engine was built and tested: docs/decisions/0034-the-wheel.md.
TRIED = ("2.11",)
PLUGIN = "headrace/libheadrace_gpu.so"
OF_TORCH = re.compile(r"lib(torch\w*|c10\w*|cudart)\.so")  # These come with it.
# Headers of which code is compiled in: Debian's packages, and PyPI's.
DEBIAN_HEADERS = ("libcli11-dev", "libfmt-dev", "libhwy-dev", "libtomlplusplus-dev", "nlohmann-json3-dev")
PYPI_HEADERS = ("nanobind", "torch")


def fail(message: str) -> NoReturn:
    raise SystemExit(f"package: {message}")


def output_of(*command: object, **options) -> str:
    """Of a program that must succeed. What it says on stderr is shown as it comes, unless the options take it."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        last = "\n".join(f"{done.stdout}\n{done.stderr or ''}".strip().splitlines()[-LAST_LINES:])
        fail(f"{' '.join(map(str, command[:4]))} ... ended with status {done.returncode}\n{last}")
    return done.stdout


class Tools:
    """An environment with what the wheel is made with, and with the torch that its engine is for."""

    def __init__(self, torch: str | None) -> None:
        requirements = TOOLS
        if torch is not None:
            requirements = WORK / f"requirements-torch{torch}.txt"
            requirements.parent.mkdir(parents=True, exist_ok=True)
            requirements.write_text(f"{TOOLS.read_text()}torch=={torch}.*\n")
        name = "packaging" if torch is None else f"packaging-torch{torch}"
        self.bin = Path(output_of("tools/environment.sh", name, requirements).strip()) / "bin"
        commit_time = output_of("git", "log", "-1", "--format=%ct").strip()
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": commit_time,
                            "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
        # -I, as CMake asks: pip hides environments by PYTHONPATH.
        asked = "import importlib.metadata as found; print(found.version('torch').partition('+')[0])"
        self.torch = output_of(self.bin / "python", "-I", "-c", asked).strip()

    def run(self, *command: object) -> str:
        return output_of(self.bin / str(command[0]), *command[1:], env=self.environment, stderr=subprocess.PIPE)

    def files_of(self, package: str, pattern: str) -> list[Path]:
        """Of a package of PyPI, as this environment has it or else the project's."""
        for folder in (*self.bin.parent.glob("lib/python3*/site-packages"), Path(sysconfig.get_paths()["purelib"])):
            if found := sorted(path for path in folder.glob(f"{package}-*.dist-info/{pattern}") if path.is_file()):
                return found
        fail(f"no {pattern} in the package {package}")


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def only(paths) -> Path:
    found = list(paths)
    if len(found) != 1:
        fail(f"wanted one file, found {', '.join(map(str, found)) or 'none'}")
    return found[0]


def build(tools: Tools, torch: str | None) -> Path:
    folder = emptied(WORK / "built")
    settings = [] if torch is None else [f"--config-settings=build-dir=build/pip-torch{torch}",
                                         f"--config-settings=cmake.define.HEADRACE_TORCH_VERSION={tools.torch}"]
    print(f"package: building the wheel, its engine for torch {tools.torch} and Python {platform.python_version()}", flush=True)
    tools.run("python", "-m", "pip", "wheel", "--no-input", "--no-deps", "--no-build-isolation", *settings, "--wheel-dir", folder, ".")
    return only(folder.glob("*.whl"))


def repair(tools: Tools, built: Path) -> Path:
    """With Debian's libraries in it, and a name that says where it runs. Fails where a symbol is too new for that."""
    folder = emptied(WORK / "repaired")
    tools.run("auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--exclude", "libtorch*.so", "--exclude", "libc10*.so",
              "--exclude", "libcudart.so.*", "--wheel-dir", folder, built)
    return only(folder.glob("*.whl"))


def debian_component(name: str) -> dict[str, str]:
    version = output_of("dpkg-query", "-W", "-f", "${Version}", name)
    return component(name, version, f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}")


def pypi_component(name: str, version: str) -> dict[str, str]:
    return component(name, version, f"pkg:pypi/{name}@{quote(version, safe='')}")


def component(name: str, version: str, purl: str) -> dict[str, str]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def bill_of(information: Path, tools: Tools) -> dict:
    """What auditwheel wrote of the libraries that it put in, and the headers that were compiled in: CycloneDX 1.4."""
    written = information / "sboms" / "auditwheel.cdx.json"
    bill = json.loads(written.read_text())
    written.unlink()
    added = [*map(debian_component, DEBIAN_HEADERS), pypi_component("nanobind", importlib.metadata.version("nanobind")),
             pypi_component("torch", tools.torch)]
    bill["components"] += added
    bill["dependencies"][0]["dependsOn"] += [one["bom-ref"] for one in added]
    bill["dependencies"] += [{"ref": one["bom-ref"]} for one in added]
    return bill


def licence_of(name: str, tools: Tools) -> str:
    files = tools.files_of(name, "licenses/**/*") if name in PYPI_HEADERS else [Path(f"/usr/share/doc/{name}/copyright")]
    return "\n".join(file.read_text(errors="replace") for file in files)


def complete(tools: Tools, repaired: Path) -> Path:
    """With the licence of all that is in it, and its bill of materials, which lies beside it, too."""
    folder = emptied(WORK / "complete")
    tools.run("wheel", "unpack", "--dest", folder, repaired)
    unpacked = only(folder.iterdir())
    information = only(unpacked.glob("*.dist-info"))
    bill = bill_of(information, tools)
    names = sorted({one["name"] for one in bill["components"]} - {"headrace"})
    for name in names:
        (information / "licenses" / f"{name}.txt").write_text(licence_of(name, tools))
    metadata = (information / "METADATA").read_text()
    own = re.findall(r"^License-File: .*\n", metadata, re.MULTILINE)
    added = "".join(f"License-File: {name}.txt\n" for name in names)
    (information / "METADATA").write_text(metadata.replace(own[-1], own[-1] + added, 1))
    text = json.dumps(bill, indent=1) + "\n"
    (information / "sboms" / "headrace.cdx.json").write_text(text)
    packed = emptied(WORK / "packed")
    tools.run("wheel", "pack", "--dest-dir", packed, unpacked)
    (packed / f"{unpacked.name}.cdx.json").write_text(text)
    return only(packed.glob("*.whl"))


def has_plugin(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return PLUGIN in archive.namelist()


def check(tools: Tools, wheel: Path, wants_plugin: bool) -> None:
    faults = [f"wanted {PLUGIN} in it"] if wants_plugin and not has_plugin(wheel) else []
    version = wheel.name.split("-")[1]
    if wheel.name != (wanted := f"headrace-{version}-cp311-abi3-{PLATFORM}.whl"):
        faults.append(f"it is called {wheel.name}; wanted {wanted}")
    if (size := wheel.stat().st_size) > BYTES_MAX:
        faults.append(f"it has {size} bytes; wanted {BYTES_MAX} at most")
    shown = json.loads(tools.run("auditwheel", "show", "--json", wheel))
    if shown["sym_tag"] != PLATFORM or shown["unsupported_isa"]:
        faults.append(f"by its symbols it is for {shown['sym_tag']}; wanted {PLATFORM}")
    if foreign := [name for name in shown["external_libs"] if not OF_TORCH.match(name)]:
        faults.append(f"it needs {', '.join(foreign)}, which it does not bring")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for pattern in (r"headrace/_core\.abi3\.so", r"headrace/_engine\.cpython-\d+-.*\.so", r"headrace/bin/headrace",
                        r"headrace/libheadrace\.so\.[\d.]+", r"headrace/libheadrace_torch\.so\.[\d.]+",
                        r"headrace\.libs/libjpeg-.*", r"headrace/py\.typed", r"headrace/dtypes\.inc", r"performance_optimization/py\.typed",
                        r"performance_optimization_system/py\.typed", r".*\.dist-info/licenses/NOTICE"):
            if sum(re.fullmatch(pattern, name) is not None for name in names) != 1:
                faults.append(f"wanted one {pattern} in it")
        folders = [str(folder).encode() for folder in (ROOT, (ROOT / ".venv").resolve(), tools.bin.parent)]
        faults += [f"{name} names a folder of this machine" for name in names
                   if any(folder in archive.read(name) for folder in folders)]
        program = archive.getinfo("headrace/bin/headrace")
        if not program.external_attr >> 16 & 0o100:
            faults.append("its program may not be run")
    tools.run("twine", "check", "--strict", wheel)
    if faults:
        fail(f"{wheel}: " + "; ".join(faults))


def write_sums(folder: Path) -> None:
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines))


def deliver(packed: Path, target: Path) -> None:
    """In the place of what an earlier run left there, or headrace-*.whl would be two. Other files stay."""
    target.mkdir(parents=True, exist_ok=True)
    for earlier in (*target.glob("headrace-*"), target / "SHA256SUMS", target / "checks.txt"):
        earlier.unlink(missing_ok=True)
    for path in packed.iterdir():
        shutil.move(path, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="MINOR", help="as 2.15: the torch that the engine is for")
    torch = parser.parse_args().torch
    if torch is not None and not re.fullmatch(r"\d+\.\d+", torch):
        fail(f"wanted a minor version of torch as 2.15, found {torch}")
    if torch is not None and importlib.metadata.version("torch").startswith(f"{torch}."):
        torch = None  # The project's own.
    tools = Tools(torch)
    target = ROOT / "dist" / (f"torch{torch}" if torch else "")
    packed = complete(tools, repair(tools, build(tools, torch)))
    check(tools, packed, wants_plugin=torch is None)  # Another torch is fetched without the packages of CUDA that it compiles with.
    write_sums(packed.parent)
    deliver(packed.parent, target)
    wheel = target / packed.name
    minor = ".".join(tools.torch.split(".")[:2])
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB, {PLATFORM}, every Python from 3.11 on; its engine is for torch "
          f"{minor} and Python {sys.version_info.major}.{sys.version_info.minor}"
          + ("" if minor in TRIED else f". No test has run with torch {minor}: tried are {', '.join(TRIED)}")
          + ("" if has_plugin(wheel) else f". It has no {PLUGIN}: no trainer of it uses a GPU"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
