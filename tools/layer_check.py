#!/usr/bin/env python3
"""Checks that the files of every module include only what its headrace_module() line in CMakeLists.txt names, and all of that.

Reads the #include lines of sources, headers, tests and benches. What comes in by way of another header needs no check of its
own: the line of that header's module names it. Tests, benches and fuzzers may also include the modules that share their
test program. Option headers (*_options.h and include/headrace/options/) may be included from anywhere; they include each
other, headrace/options.h and the standard library, and format nothing. Modules without TORCH include no header of LibTorch, and
only the module gpu includes CUDA's. A group stands on one side of the LibTorch line, but for python, whose core is an extension
of its own.

usage: layer_check.py [ROOT]
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

TORCH = re.compile(r"(ATen|c10|caffe2|torch)/")
CUDA = re.compile(r"(ATen|c10|torch/csrc)/cuda/|(cuda|cudnn|cublas|nvrtc)\w*\.h$")
INCLUDE = re.compile(r'^\s*#\s*include(?:_next)?\b\s*(.*)$', re.MULTILINE)
PLAIN = re.compile(r'(?:<([^>"]+)>|"([^>"]+)")\s*(?://.*)?$')
STANDARD = re.compile(r"[a-z_0-9]+$")  # <vector>
SOURCES = (".h", ".cpp", ".inc")
OF_TESTS = re.compile(r"_(test|bench|fuzz)\.cpp$")
FORMATTING = re.compile(r"\bfmt(::|/)|\bHEADRACE_CHECK\b|\bfail\(")
BOTH_SIDES = {"python"}  # docs/decisions/0032-one-library-under-two-extensions.md
KEYWORDS = ("PUBLIC", "DEPENDS", "LINK", "TESTS", "TESTS_READ")


@dataclass
class Module:
    path: str  # "core/base"
    torch: bool = False
    headers: list[str] = field(default_factory=list)  # Below include/headrace.
    depends: list[str] = field(default_factory=list)
    program: str = ""  # Its tests are cases of.

    @property
    def name(self) -> str:
        return self.path.split("/")[-1]


def read_modules(cmake_text: str) -> dict[str, Module]:
    """The headrace_module() lines, in order."""
    modules: dict[str, Module] = {}
    cmake_text = re.sub(r"#.*$", "", cmake_text, flags=re.MULTILINE)
    for call in re.finditer(r"^\s*headrace_module\(([^)]*)\)", cmake_text, re.MULTILINE):
        words = call.group(1).split()
        module = Module(words[0])
        module.program = module.name
        section = None
        for word in words[1:]:
            if word == "TORCH":
                module.torch = True
            elif word in KEYWORDS:
                section = word
            elif section == "PUBLIC":
                module.headers.append(word)
            elif section == "DEPENDS":
                module.depends.append(word)
            elif section == "TESTS":
                module.program = word
        modules[module.name] = module
    return modules


def check_lines(modules: dict[str, Module]) -> list[str]:
    """A line may name earlier lines only, so the lines have no cycle."""
    findings = []
    seen: set[str] = set()
    for module in modules.values():
        for name in module.depends:
            if name not in seen:
                findings.append(f"CMakeLists.txt: module {module.name} depends on {name}, which is not an earlier module")
            elif modules[name].torch and not module.torch:
                findings.append(f"CMakeLists.txt: module {module.name} is before the LibTorch line and depends on {name}")
        seen.add(module.name)
        if any(other.program == module.program and other.torch != module.torch for other in modules.values()):
            findings.append(f"CMakeLists.txt: the tests of {module.name} share {module.program} across the LibTorch line")
        group = module.path.split("/")[0]
        if group not in BOTH_SIDES and any(other.path.startswith(f"{group}/") and other.torch != module.torch
                                           for other in modules.values()):
            findings.append(f"CMakeLists.txt: the group {group} stands on both sides of the LibTorch line")
    return findings


def is_option_header(path: str) -> bool:
    return path.endswith("_options.h") or path.startswith("include/headrace/options/")


class Tree:
    """The files of a repository, by their paths in it, and whose they are."""

    def __init__(self, root: Path):
        self.root = root
        self.modules = read_modules((root / "CMakeLists.txt").read_text())
        self.owners = {f"include/headrace/{header}": module.name for module in self.modules.values() for header in module.headers}
        self.files = {path.relative_to(root).as_posix(): path.read_text() for folder in ("src", "include/headrace")
                      for path in sorted((root / folder).rglob("*")) if path.suffix in SOURCES}
        self.includes: dict[str, list[str]] = {}
        self.quoted: dict[str, list[str]] = {}
        self.findings: list[str] = []  # Of lines and files that this check cannot read.
        for path, text in self.files.items():
            found = [PLAIN.match(what) for what in INCLUDE.findall(text)]
            self.findings += [f'{path}: an include that is neither <...> nor "..."'] * found.count(None)
            self.includes[path] = [line[1] or line[2] for line in found if line]
            self.quoted[path] = [line[2] for line in found if line and line[2]]
        self.findings += [f"{path.relative_to(root).as_posix()}: a file of another kind; wanted {', '.join(SOURCES)}"
                          for folder in ("src", "include/headrace") for path in sorted((root / folder).rglob("*"))
                          if path.is_file() and path.suffix not in SOURCES]

    def owner(self, path: str) -> str | None:
        """The module a file belongs to, "main" for the executable; None: none that CMakeLists.txt knows."""
        if path.startswith("include/"):
            return self.owners.get(path)
        folder = path.removeprefix("src/")
        for name, module in self.modules.items():
            if folder.startswith(f"{module.path}/"):
                return name
        return "main" if folder.startswith("engine/main/") else None

    def place_of(self, path: str, name: str) -> str | None:
        """The file of the repository that `path` includes as `name`; None: it is none of these."""
        beside = f"{path.rsplit('/', 1)[0]}/"
        return next((place for place in (f"src/{name}", f"include/{name}", f"{beside}{name}") if place in self.files), None)

    def resolved(self, path: str) -> list[str]:
        """The files of the repository that one includes itself."""
        found = (self.place_of(path, name) for name in self.includes[path])
        return [place for place in found if place is not None]


def check_paths(tree: Tree) -> list[str]:
    """What includes say must be the path of a file here, or another's."""
    findings = list(tree.findings)
    for path, names in tree.includes.items():
        findings += [f"{path}: includes {name}; wanted a path without .." for name in names if ".." in name.split("/")]
    for path, names in tree.quoted.items():
        findings += [f"{path}: includes \"{name}\", which is no file of src/" for name in names if tree.place_of(path, name) is None
                     and not (OF_TESTS.search(path) and (tree.root / "bench" / name).is_file())]
    return findings


def check_owners(tree: Tree) -> list[str]:
    findings = []
    named: dict[str, str] = {}
    for module in tree.modules.values():
        for header in module.headers:
            if header in named:
                findings.append(f"CMakeLists.txt: {header} is PUBLIC of {named[header]} and of {module.name}")
            named[header] = module.name
    for path in tree.files:
        if tree.owner(path) is None:
            findings.append(f"{path}: no module names it after PUBLIC" if path.startswith("include/")
                            else f"{path}: its folder has no headrace_module() line in CMakeLists.txt")
    return findings


def check_includes(tree: Tree) -> list[str]:
    findings = []
    used: dict[str, set[str]] = {name: set() for name in tree.modules}
    for path in tree.files:
        name = tree.owner(path)
        if name is None or is_option_header(path):
            continue
        module = tree.modules.get(name)
        if module is None:  # The executable sees what libheadrace.so holds.
            allowed = {"main", *(other.name for other in tree.modules.values() if not other.torch)}
        else:
            allowed = {name, *module.depends}
            if OF_TESTS.search(path):
                allowed |= {other.name for other in tree.modules.values() if other.program == module.program}
        for included in tree.resolved(path):
            owner = tree.owner(included)
            if is_option_header(included) or owner is None:
                continue
            if owner not in allowed:
                findings.append(f"{path}: includes {included} of module {owner}, which the line of {name} does not name")
            if owner != name and "/detail/" in included:
                findings.append(f"{path}: includes {included}, which is module {owner}'s own")
            if module is not None:
                used[name].add(owner)
    for module in tree.modules.values():
        findings += [f"CMakeLists.txt: module {module.name} depends on {name}, which none of its files includes"
                     for name in module.depends if name not in used[module.name]]
    return findings


def check_torch(tree: Tree) -> list[str]:
    findings = []
    for path in tree.files:
        module = tree.modules.get(tree.owner(path) or "")
        if is_option_header(path) or module is None or not module.torch:
            findings += [f"{path}: stands before the LibTorch line and includes {name}"
                         for name in tree.includes[path] if TORCH.match(name) and f"src/{name}" not in tree.files]
    return findings


def check_cuda(tree: Tree) -> list[str]:
    """What every other file links to would need a GPU's libraries, too (docs/decisions/0040-the-gpu-plugin.md)."""
    return [f"{path}: includes {name}, which the module gpu alone may" for path, names in tree.includes.items()
            if tree.owner(path) != "gpu" for name in names if CUDA.match(name) and tree.place_of(path, name) is None]


def check_option_headers(tree: Tree) -> list[str]:
    findings = []
    for path, text in tree.files.items():
        if not is_option_header(path):
            continue
        for included in tree.resolved(path):
            if not is_option_header(included) and included != "include/headrace/options.h":
                findings.append(f"{path}: an option header includes {included}; wanted option headers, headrace/options.h and "
                                "the standard library")
        findings += [f"{path}: an option header includes {name}; wanted option headers, headrace/options.h and the standard library"
                     for name in tree.includes[path] if not STANDARD.match(name) and tree.place_of(path, name) is None]
        call = FORMATTING.search(text)
        if call is not None:
            line = text.count("\n", 0, call.start()) + 1
            findings.append(f"{path}:{line}: an option header formats text; wanted in a source")
    return findings


def cycle_in(graph: dict[str, list[str]]) -> list[str]:
    """The nodes of one cycle, the first again at the end; empty: there is none."""
    done: set[str] = set()
    for start in graph:
        way: list[str] = []
        stack = [(start, iter(graph[start]))] if start not in done else []
        way += [start] * len(stack)
        while stack:
            node, rest = stack[-1]
            following = next((other for other in rest if other not in done), None)
            if following is None:
                done.add(node)
                stack.pop()
                way.pop()
            elif following in way:
                return [*way[way.index(following):], following]
            else:
                stack.append((following, iter(graph.get(following, []))))
                way.append(following)
    return []


def check_cycles(tree: Tree) -> list[str]:
    """Among files, and among modules by what their files include, whatever their lines say. Nothing includes a test."""
    files = {path: tree.resolved(path) for path in tree.files}
    modules: dict[str, list[str]] = {}
    for path, included in files.items():
        name = tree.owner(path)
        if name is not None and not OF_TESTS.search(path) and not is_option_header(path):
            others = (tree.owner(other) for other in included if not is_option_header(other))
            modules.setdefault(name, []).extend(other for other in others if other not in (None, name))
    return [f"{kind} include each other in a circle: {' -> '.join(circle)}"
            for kind, circle in (("files", cycle_in(files)), ("modules", cycle_in(modules))) if circle]


def check(root: Path) -> tuple[Tree, list[str]]:
    tree = Tree(root)
    findings = [*check_lines(tree.modules), *check_paths(tree), *check_owners(tree), *check_includes(tree), *check_torch(tree),
                *check_cuda(tree), *check_option_headers(tree), *check_cycles(tree)]
    if not tree.modules or not tree.files:
        findings.append(f"{root}: no module, or no file of one, so nothing could be checked")
    return tree, sorted(set(findings))


def main() -> int:
    tree, findings = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    for finding in findings:
        print(finding)
    print(f"{len(tree.modules)} modules, {len(tree.files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
