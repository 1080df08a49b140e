"""Blocks of code in the documents."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README, GUIDES, MIGRATION = ROOT / "README.md", ROOT / "docs" / "guides", ROOT / "docs" / "migration"


def blocks_of(document: Path) -> list[tuple[str, str, int]]:
    """Language, text and first line of each, in order. A block without a language has the empty one."""
    text = document.read_text()
    return [(found[1], found[2], text[:found.start(2)].count("\n") + 1)
            for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def snippet(document: Path, language: str, word: str) -> str:
    """The only block in this language that has the word."""
    found, = [text for spoken, text, _ in blocks_of(document) if spoken == language and word in text]
    return found
