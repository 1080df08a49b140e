#!/usr/bin/env python3
"""What a report's page weighs, asks for and takes to its first paint, in a headless Chromium at phone and desk width, light and dark.

The pages are made by report_probe of a made-up recording (tests/made_up_trace.py), once as a profile and once as a tuning, and of one
that reaches the limits of a report. Bars: at most 1.5 MB, no request beside the page, the first paint within 0.5 s, no error or warning
in the console, nothing that scrolls sideways, and the same screenshot with scripts off. Exit code 3: one of them is missed. Without a
browser (apt-get install chromium) the size alone is judged. Screenshots of each page lie in --out, to be looked at.

usage: make bench NAME=report-page
       make bench NAME=report-page ARGS="--page runs/mine/latest/report.html"
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.ROOT / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import browser  # noqa: E402
from made_up_trace import write_ledger, write_trace  # noqa: E402

BYTES_MAX, PAINT_S_MAX = 1_500_000, 0.5
WINDOWS = {"phone": (360, 740), "desk": (1280, 900)}


class View(NamedTuple):
    page: str
    window: str
    dark: bool

    def __str__(self) -> str:
        return f"{self.page}, {self.window}, {'dark' if self.dark else 'light'}"


class Row(NamedTuple):
    what: str
    found: str
    wanted: str
    met: bool


def made_pages(out: Path) -> dict[str, Path]:
    """By name, the pages of recordings that were made up."""
    write_trace(out / "before.json")
    write_trace(out / "after.json", slower=0.66, seed=2)
    write_trace(out / "large.json", steps=600, operators=[f"{'&' * 100}{i}" for i in range(60)], loaders=12)
    write_ledger(out / "ledger.json", harness.ROOT / "tests" / "recorded" / "ledger.json")
    probe = harness.PROGRAMS / "report_probe"
    harness.run([probe, "profile", out / "profile", out / "before.json"])
    harness.run([probe, "tuning", out / "tuning", out / "before.json", out / "after.json", out / "ledger.json"])
    harness.run([probe, "tuning", out / "large", out / "large.json", out / "large.json", out / "ledger.json"])
    return {name: out / f"{name}.html" for name in ("profile", "tuning", "large")}


def sizes(pages: dict[str, Path]) -> list[Row]:
    return [Row(f"{name}: bytes", f"{size:,}", f"at most {BYTES_MAX:,}", size <= BYTES_MAX)
            for name, size in ((name, page.stat().st_size) for name, page in pages.items())]


def looks(pages: dict[str, Path], opened: browser.Browser, out: Path) -> list[Row]:
    """Of each page in each window and scheme once, with its screenshot."""
    rows = []
    for view in views(pages):
        width, height = WINDOWS[view.window]
        shown = opened.visit(pages[view.page], width, height, view.dark)
        without = opened.visit(pages[view.page], width, height, view.dark, scripts=False)
        (out / f"{view.page}-{view.window}-{'dark' if view.dark else 'light'}.png").write_bytes(shown.screenshot)
        is_same = without.screenshot == shown.screenshot
        rows += [Row(f"{view}: requests", ", ".join(shown.requests) or "0", "0", not shown.requests),
                 Row(f"{view}: console", "; ".join(shown.messages) or "nothing", "nothing", not shown.messages),
                 Row(f"{view}: width of its content", f"{shown.content_width:g} px", f"at most {width} px", shown.content_width <= width),
                 Row(f"{view}: with scripts off", "the same" if is_same else "another screenshot", "the same", is_same)]
    return rows


def views(pages: dict[str, Path]) -> list[View]:
    return [View(page, window, dark) for page in pages for window in WINDOWS for dark in (False, True)]


def paints(pages: dict[str, Path], opened: browser.Browser, bench: harness.Bench, rounds: int) -> list[Row]:
    def arm(view: View) -> harness.Arm:
        width, height = WINDOWS[view.window]
        return harness.Arm(str(view), lambda _: opened.visit(pages[view.page], width, height, view.dark).first_paint_s)

    found = bench.measure(map(arm, views(pages)), rounds, warm_up=1, title="first paint, s")
    return [Row(f"{name}: first paint", harness.with_interval(seconds, "s", 3), f"below {PAINT_S_MAX} s",
                harness.Summary.of(seconds).median < PAINT_S_MAX) for name, seconds in found.items()]


def version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip() or harness.UNAVAILABLE


def judged(arguments: argparse.Namespace, bench: harness.Bench) -> list[Row]:
    arguments.out.mkdir(parents=True, exist_ok=True)
    pages = {page.stem: page for page in arguments.page} or made_pages(arguments.out)
    rows = sizes(pages)
    path = browser.found()
    if path is None:
        print(f"no browser here: requests, console, widths and paints are {harness.UNAVAILABLE} (apt-get install chromium)")
        return rows
    print(f"{version(path)}; {harness.interval_remark(arguments.rounds)}")
    with browser.Browser(path) as opened:
        return rows + looks(pages, opened, arguments.out) + paints(pages, opened, bench, arguments.rounds)


def main() -> int:
    parser = harness.parser(__doc__, rounds=9)
    parser.add_argument("--out", type=Path, default=harness.ROOT / "runs" / "report_page",
                        help="folder for pages and screenshots (%(default)s)")
    parser.add_argument("--page", type=Path, nargs="*", default=[], help="reports to look at, in the place of made up ones")
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, "a report's page in a browser")
    rows = judged(arguments, bench)
    print(harness.table(["", "found", "wanted", ""], [[row.what, row.found, row.wanted, "met" if row.met else "MISSED"] for row in rows],
                        left=(0, 1, 2, 3)))
    print(f"pages and screenshots: {arguments.out}")
    return bench.end([row._asdict() for row in rows], status=0 if all(row.met for row in rows) else 3)


if __name__ == "__main__":
    raise SystemExit(main())
