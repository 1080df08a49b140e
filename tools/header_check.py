#!/usr/bin/env python3
"""Checks the public headers, include/headrace, and the lists (.inc) that they read: each includes only the standard library,
other public headers and, where a tensor must show, <ATen/core/Tensor.h>; includes itself what it names of the standard library,
as far as USES knows it; and has at most 150 lines that are neither blank nor comment alone.

usage: header_check.py [FOLDER]
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 150
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
STANDARD = re.compile(r"[a-z_0-9]+")  # <vector>, <cstdint>: no folder and no suffix.
USES = {header: re.compile(rf"\bstd::(?:{names})\b") for header, names in {
    "array": "array", "atomic": r"atomic\w*", "chrono": "chrono", "concepts": "same_as", "cstddef": "size_t|byte",
    "cstdint": r"u?int\d+_t", "filesystem": "filesystem", "functional": "function", "future": r"\w*future|promise",
    "limits": "numeric_limits", "map": "map", "memory": r"\w+_ptr", "optional": "optional|nullopt", "span": "span",
    "stdexcept": r"\w+_error", "string": "string", "string_view": "string_view", "type_traits": r"remove_\w+|is_\w+_v",
    "utility": "move|pair|exchange|forward", "variant": "variant", "vector": "vector"}.items()}


def findings_for(name: str, text: str, exists) -> list[str]:
    """`exists(path)`: whether the folder of public headers holds it."""
    findings = []
    code = 0
    written = re.sub(r"//.*", "", text)
    findings += [f"{name}: uses {use[0]}; wanted #include <{header}>" for header, names in USES.items()
                 if (use := names.search(written)) and f"#include <{header}>" not in written]
    for number, line in enumerate(text.splitlines(), 1):
        code += bool(line.strip()) and not line.lstrip().startswith("//")
        found = INCLUDE.match(line)
        if found is None:
            continue
        bracket, included = found.groups()
        ours = included.startswith("headrace/") and exists(included)
        if bracket != "<" or not (ours or included == "ATen/core/Tensor.h" or STANDARD.fullmatch(included)):
            findings.append(f"{name}:{number}: includes {included}; wanted the standard library, a public header in angle "
                            "brackets, or ATen/core/Tensor.h")
    if code > LINES_MAX:
        findings.append(f"{name}: {code} lines of code; wanted at most {LINES_MAX}, one idea a header")
    return findings


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "include"
    headers = sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".inc"))
    findings = [f for path in headers
                for f in findings_for(path.relative_to(folder).as_posix(), path.read_text(), lambda p: (folder / p).is_file())]
    if not headers:
        findings.append(f"{folder}: no header")
    for finding in findings:
        print(finding)
    longest = max((sum(bool(l.strip()) and not l.lstrip().startswith("//") for l in p.read_text().splitlines()), p.name)
                  for p in headers) if headers else (0, "none")
    print(f"{len(headers)} public headers, the longest {longest[1]} with {longest[0]} lines of code; {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
