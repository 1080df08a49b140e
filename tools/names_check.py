#!/usr/bin/env python3
"""Checks names of files and identifiers against the list of words that say nothing, and all text against the names that
earlier versions had (retired_names.inc).

A thing called manager, helper or util has no idea of its own; the word marks a boundary in the wrong place. Reads the
files git tracks or would track. What is in EXEMPT keeps names that were fixed elsewhere.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXEMPT = ("src/facade/", "include/headrace/facade/", "python/performance_optimization", "tests/facade_")
FORBIDDEN = {
    "manager", "managers", "helper", "helpers", "util", "utils", "utility", "utilities", "common", "misc", "handler",
    "handlers",
}
# Names that other people's interfaces give us.
FOREIGN = {"sa_handler", "common_type_t", "common_type", "sighandler_t", "terminate_handler", "error_handler_t",
           "j_common_ptr", "CMakePackageConfigHelpers"}
# In Python, a name after a dot is its owner's; ours are seen where they are defined.
IDENTIFIER = {"c": re.compile(r"\b[A-Za-z_]\w*"), "hash": re.compile(r"(?:(?<=self\.)|(?<![.\w]))[A-Za-z_]\w*")}
TYPE_SUFFIX = re.compile(r"\b(?:class|struct|union|concept|enum(?:\s+class)?)\s+(\w+(?:Base|Data))\b(?!\s*::)")
CODE_SUFFIXES = {".h", ".cpp", ".py", ".cmake", ".sh"}
COMMENT_OR_STRING = {
    "c": re.compile(r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*(?:.|\n)*?\*/|'
                    r"^\s*#\s*include[^\n]*", re.MULTILINE),
    "hash": re.compile(r'"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*|'
                       r"^\s*(?:import|from)\s[^\n]*", re.MULTILINE),
}

RETIRED_NAMES = next(ROOT.glob("src/**/retired_names.inc"))
# Where names of earlier versions belong: in history, and in what reads or tests what they wrote.
HISTORY = ("CHANGELOG.md", "docs/decisions/", "tests/recorded", "tests/earlier/", "tests/fuzz_inputs/", "tests/tooling_test.py",
           "bench/two_builds/run.py")
DECISION = re.compile(r"\b\d{4}-[a-z0-9-]+\.md\b")  # Its title is history, too.


def words_of(name: str) -> list[str]:
    """batch_manager, BatchManager and kBatchManager all give batch, manager."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


def tracked_files() -> list[str]:
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True)
    return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def syntax(suffix: str) -> str:
    return "c" if suffix in (".h", ".cpp") else "hash"


def blanked(text: str, suffix: str) -> str:
    """The text without comments, strings and includes; the number of lines stays."""
    return COMMENT_OR_STRING[syntax(suffix)].sub(lambda match: "\n" * match.group(0).count("\n"), text)


def retired_patterns(table: str) -> list[tuple[re.Pattern[str], str]]:
    """Of each line of the table, what finds its name in a text, and what to write instead."""
    patterns = []
    for kind, name, successor in re.findall(r'^RETIRED_(KEY|TABLE|WORD)\("([^"]+)", "([^"]+)"', table, re.MULTILINE):
        if kind == "KEY":
            subscripts = r'"\]\["'.join(map(re.escape, name.split(".")))  # recipe["optimizer"]["lr"]
            pattern = rf'(?<![\w.]){re.escape(name)}(?![\w]|\.\w)|\["{subscripts}"\]'
        elif kind == "TABLE":
            pattern = rf"\[{re.escape(name)}\]|--{re.escape(name)}\.\w"
        elif name.islower() and "_" not in name:  # A word, in an identifier or in prose.
            pattern = rf"(?i:(?<![a-z]){name}s?(?![a-rt-z])|(?<=_){name}s?(?![a-z]))|(?<=[a-z]){name.capitalize()}s?(?![a-z])"
        else:
            pattern = rf"\b{re.escape(name)}\b"
        patterns.append((re.compile(pattern), successor))
    return patterns


def check_retired(name: str, text: str, patterns: list[tuple[re.Pattern[str], str]]) -> list[str]:
    if name.startswith(HISTORY) or Path(name).stem.startswith(RETIRED_NAMES.stem):
        return []
    text = f"{name}\n{DECISION.sub('', text)}"
    patterns = [(pattern, successor) for pattern, successor in patterns if pattern.search(text)]
    findings = {}  # A key may have several lines in the table.
    for number, line in enumerate(text.split("\n") if patterns else []):
        for pattern, successor in patterns:
            if found := pattern.search(line):
                findings.setdefault((number, found.group(0)), []).append(successor)
    return [f"{name}:{number}: {word} is of an earlier version; write {' or '.join(dict.fromkeys(now))}"
            for (number, word), now in findings.items()]


def text_of(name: str) -> str:
    """Empty where it is none."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def check_file(name: str) -> list[str]:
    findings = [f"{name}: a file name with '{word}'" for part in Path(name).parts
                for word in words_of(Path(part).stem) if word in FORBIDDEN]
    path = ROOT / name
    if path.suffix not in CODE_SUFFIXES or name == "tools/names_check.py":
        return findings
    for number, line in enumerate(blanked(path.read_text(errors="replace"), path.suffix).split("\n"), start=1):
        for identifier in set(IDENTIFIER[syntax(path.suffix)].findall(line)) - FOREIGN:
            for word in words_of(identifier):
                if word in FORBIDDEN:
                    findings.append(f"{name}:{number}: {identifier} has '{word}' in its name")
        if path.suffix in (".h", ".cpp"):
            for type_name in TYPE_SUFFIX.findall(line):
                findings.append(f"{name}:{number}: {type_name} ends in Base or Data; name what it is")
    return findings


def main() -> int:
    files = [name for name in tracked_files() if not name.startswith(EXEMPT)]
    patterns = retired_patterns(RETIRED_NAMES.read_text())
    findings = [finding for name in files for finding in check_file(name)]
    findings += [finding for name in files for finding in check_retired(name, text_of(name), patterns)]
    for finding in findings:
        print(finding)
    print(f"{len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
