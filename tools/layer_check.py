#!/usr/bin/env python3
"""Checks that every module includes only headers of the modules its headrace_module() line names.

Reads the lines of CMakeLists.txt and the dependency files the compiler wrote into a build tree, so that a header that
comes in by way of another counts. Headers named *_options.h may come in anywhere and may themselves include only base,
options and other *_options.h. Modules without TORCH may not see a LibTorch header at all.

usage: layer_check.py BUILD_TREE
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH_PATH = re.compile(r"(^|/)(torch/include/|ATen/|c10/|torch/csrc/)")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


@dataclass
class Module:
    name: str
    torch: bool = False
    headers: list[str] = field(default_factory=list)
    depends: list[str] = field(default_factory=list)


def read_modules(cmake_text: str) -> dict[str, Module]:
    """The headrace_module() lines, in order."""
    modules: dict[str, Module] = {}
    for call in re.finditer(r"^\s*headrace_module\(([^)]*)\)", cmake_text, re.MULTILINE):
        words = call.group(1).split()
        module = Module(words[0])
        section = None
        for word in words[1:]:
            if word == "TORCH":
                module.torch = True
            elif word in ("PUBLIC", "DEPENDS", "LINK"):
                section = word
            elif section == "PUBLIC":
                module.headers.append(word)
            elif section == "DEPENDS":
                module.depends.append(word)
        modules[module.name] = module
    return modules


def check_order(modules: dict[str, Module]) -> list[str]:
    findings = []
    seen: set[str] = set()
    for module in modules.values():
        for name in module.depends:
            if name not in seen:
                findings.append(f"CMakeLists.txt: module {module.name} depends on {name}, which is not an earlier module")
            elif modules[name].torch and not module.torch:
                findings.append(f"CMakeLists.txt: module {module.name} is before the LibTorch line and depends on {name}")
        seen.add(module.name)
    return findings


def owners_of_public_headers(modules: dict[str, Module]) -> tuple[dict[str, str], list[str]]:
    owners: dict[str, str] = {}
    findings = []
    for module in modules.values():
        for header in module.headers:
            if header in owners:
                findings.append(f"CMakeLists.txt: {header} is PUBLIC of {owners[header]} and of {module.name}")
            owners[header] = module.name
    for path in sorted((ROOT / "include" / "headrace").glob("*.h")):
        if path.name not in owners:
            findings.append(f"include/headrace/{path.name}: no module names it after PUBLIC")
    return owners, findings


def module_of(path: str, owners: dict[str, str]) -> str | None:
    """The module a file of this repository belongs to; None for generated files and the like."""
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ["include", "headrace"]:
        return owners.get(parts[-1])
    return None


def check_option_headers(owners: dict[str, str]) -> list[str]:
    findings = []
    for path in sorted(list(ROOT.glob("src/*/*_options.h")) + list(ROOT.glob("include/headrace/*_options.h"))):
        name = path.relative_to(ROOT).as_posix()
        for included in INCLUDE.findall(path.read_text()):
            if TORCH_PATH.search(included):
                findings.append(f"{name}: an options header includes {included} of LibTorch")
            if included.endswith("_options.h"):
                continue
            for candidate in (f"src/{included}", f"include/{included}"):
                if (ROOT / candidate).exists() and module_of(candidate, owners) not in ("base", "options"):
                    findings.append(f"{name}: an options header includes {included}; only base, options and *_options.h")
    return findings


def read_dependencies(build: Path) -> dict[str, list[str]]:
    """Object file -> the files it was compiled from, relative to the repository where they lie in it."""
    listing = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], check=True, capture_output=True, text=True)
    dependencies: dict[str, list[str]] = {}
    files: list[str] = []
    for line in listing.stdout.splitlines():
        if line.startswith("    "):
            path = os.path.normpath(build / line.strip())
            files.append(path.removeprefix(f"{ROOT}/"))
        elif ": #deps" in line:
            files = []
            if "(VALID)" in line:
                dependencies[line.split(": #deps")[0]] = files
    return dependencies


def source_and_module(target: str, files: list[str], owners: dict[str, str]) -> tuple[str, str] | None:
    """What an object was compiled from and the module that answers for it; None where no module does."""
    source = next((f for f in files if f.endswith(".cpp")), None)
    if source is None:
        return None
    alone = re.match(r"CMakeFiles/headrace_(\w+)_headers\.dir/headers_alone/(.*)\.cpp\.o$", target)
    if alone:
        return f"{alone.group(2)} alone", alone.group(1)
    name = module_of(source, owners)
    return (source, name) if name is not None and (ROOT / source).exists() else None


def check_object(
    source: str, name: str, files: list[str], modules: dict[str, Module], owners: dict[str, str]
) -> list[str]:
    if name == "main":  # The executable sees what libheadrace.so holds.
        allowed, torch = {"main", *(m.name for m in modules.values() if not m.torch)}, False
    elif name in modules:
        allowed, torch = {name, *modules[name].depends}, modules[name].torch
    else:
        return [f"{source}: src/{name} has no headrace_module() line in CMakeLists.txt"]
    findings = []
    for included in files:
        owner = module_of(included, owners)
        if owner is not None and owner not in allowed and not included.endswith("_options.h"):
            findings.append(f"{source}: sees {included} of module {owner}, which the line of {name} does not name")
    seen_torch = next((f for f in files if TORCH_PATH.search(f)), None)
    if seen_torch and not torch:
        findings.append(f"{source}: module {name} is before the LibTorch line and sees {seen_torch}")
    return findings


def main() -> int:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "build.ninja").exists():
        print("usage: layer_check.py BUILD_TREE (configured with Ninja)", file=sys.stderr)
        return 2
    modules = read_modules((ROOT / "CMakeLists.txt").read_text())
    owners, findings = owners_of_public_headers(modules)
    findings += check_order(modules) + check_option_headers(owners)
    objects = read_dependencies(Path(sys.argv[1]).resolve())
    checked = 0
    for target, files in objects.items():
        found = source_and_module(target, files, owners)
        if found is not None:
            findings += check_object(*found, files, modules, owners)
            checked += 1
    if checked == 0:
        findings.append(f"{sys.argv[1]}: no object was compiled here, so nothing could be checked")
    for finding in sorted(set(findings)):
        print(finding)
    print(f"{len(modules)} modules, {checked} objects, {len(set(findings))} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
