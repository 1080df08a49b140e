"""The page and the text that report_probe makes of a recorded trace and ledger, read by Python's own parser: what a browser would meet.
bench/report_page looks at the same page in one."""

import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_up_trace import OPERATORS, write_ledger, write_trace

ROOT = Path(__file__).resolve().parent.parent
PROBE = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin")) / "report_probe"
BYTES_MAX = 1_500_000
WITHOUT_END = {"meta"}  # Of the elements that a report has.
HOSTILE = ["<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", '" onload="alert(1)', "' style='x", "a & b &lt;",
           "https://user:hunter2@example.org/x?token=hunter2", "\x1b[31mred\x1b[0m\u202egpj.exe", "x" * 5_000]


class Page(HTMLParser):
    """Elements in their order with their attributes, and the text of each part by its heading."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in WITHOUT_END:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data

    def of(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements
                if name == tag and all(attributes.get(key) == value for key, value in wanted.items())]


def report(*words: object, status: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([PROBE, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("report")
    write_trace(place / "before.json")
    write_trace(place / "after.json", slower=0.66, seed=2)
    write_ledger(place / "ledger.json", ROOT / "tests" / "recorded" / "ledger.json")
    report("profile", place / "profile", place / "before.json")
    report("tuning", place / "tuning", place / "before.json", place / "after.json", place / "ledger.json")
    return place


@pytest.fixture(params=["profile", "tuning"])
def page(request, folder):
    return (folder / f"{request.param}.html").read_text(encoding="utf-8")


def test_every_element_is_closed_and_every_id_is_there_once(page):
    ids = [attributes["id"] for _, attributes in Page(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 20
    for _, attributes in Page(page).elements:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(ids)
        for value in attributes.values():
            assert not re.search(r"nan|inf%", value or "")
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= {*ids, "rise-pattern"}  # That one is only where changes are.


def test_nothing_is_asked_of_any_network_and_nothing_runs(page):
    found = Page(page)
    assert not {tag for tag, _ in found.elements} & {"script", "img", "iframe", "link", "object", "embed", "form", "input", "video", "base"}
    for tag, attributes in found.elements:
        assert not {key for key in attributes if key.startswith("on") or key in ("href", "src", "srcset", "style", "xlink:href")}, tag
    (policy,) = found.of("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert set(re.findall(r"url\(.", page)) <= {"url(#"} and "@import" not in page and "//" not in page


def test_a_page_is_small(folder):
    for name in ("profile", "tuning"):
        assert 20_000 < (folder / f"{name}.html").stat().st_size < BYTES_MAX / 5


def test_the_largest_recording_stays_below_the_bound(tmp_path):
    write_trace(tmp_path / "large.json", steps=600, operators=[f"{'&' * 100}{i}" for i in range(60)], loaders=12)
    report("tuning", tmp_path / "large", tmp_path / "large.json", tmp_path / "large.json", ROOT / "tests" / "recorded" / "ledger.json")
    assert (tmp_path / "large.html").stat().st_size < BYTES_MAX
    assert "are left out" in Page((tmp_path / "large.html").read_text(encoding="utf-8")).text


def test_each_part_of_the_page_is_there_with_its_chart(page, request):
    is_tuning = "tuning" in request.node.name
    found = Page(page)
    headings = [attributes["id"] for attributes in found.of("h2")]
    wanted = ["h-split", "h-steps", "h-step", "h-flame", "h-cache", "h-memory", "h-next", "h-settings", "h-again", "h-environment"]
    assert headings == (["h-waterfall", "h-pairs", "h-changes"] if is_tuning else []) + wanted
    charts = {"split": 1, "timeline": 1 + is_tuning, "flame": 3 * (1 + is_tuning), "curve": 1 + is_tuning, "memory": 1}
    if is_tuning:
        charts |= {"waterfall": 1, "pairs-chart": 1}
    assert {name: len(found.of("svg", **{"class": name, "role": "img"})) for name in charts} == charts


def test_the_page_reads_on_a_phone_in_the_dark_on_paper_and_without_colour(page):
    (viewport,) = Page(page).of("meta", name="viewport")
    assert viewport["content"] == "width=device-width, initial-scale=1"
    for rule in ("@media (prefers-color-scheme: dark)", "@media (max-width: 44rem)", "@media print", "color-scheme: light dark"):
        assert rule in page
    # A colour is written in the style alone, where the dark has its own.
    body = page[page.index("<body>"):]
    assert not re.search(r'(fill|stroke|color)="(#|rgb|[a-z])', body)


def test_the_names_of_a_recording_are_shown_and_never_obeyed(tmp_path):
    write_trace(tmp_path / "hostile.json", steps=20, operators=HOSTILE)
    report("profile", tmp_path / "hostile", tmp_path / "hostile.json")
    text = (tmp_path / "hostile.html").read_text(encoding="utf-8")
    found = Page(text)
    assert "<script>alert(1)</script>" in found.text and "a & b &lt;" in found.text
    assert not found.of("script") and not found.of("img")
    assert "hunter2" not in text and "\x1b" not in text and "\u202e" not in text
    plain = (tmp_path / "hostile.txt").read_text(encoding="utf-8")
    assert "hunter2" not in plain and "\x1b" not in plain and "\u202e" not in plain


def test_the_waterfall_lies_within_its_step_and_flame_frames_within_their_thread(folder):
    page = (folder / "profile.html").read_text(encoding="utf-8")
    (timeline,) = re.findall(r'<svg class="timeline".*?</svg>', page, re.DOTALL)
    bars = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)%" y="\d+" width="([\d.]+)%"', timeline)]
    assert len(bars) > 20 and all(0 <= x and x + width <= 100.3 for x, width in bars)  # The shortest are drawn as 0.2.
    frames = [(float(x), float(width)) for x, width in re.findall(r'<svg x="([\d.]+)%" y="\d+" width="([\d.]+)%" height="19">', page)]
    assert len(frames) > 30 and all(0 <= x and x + width <= 100.01 for x, width in frames)


def test_the_text_has_the_same_parts_and_no_line_is_wider_than_asked(folder):
    text = (folder / "tuning.txt").read_text(encoding="utf-8")
    assert all(len(line) <= 80 for line in text.splitlines())
    for heading in ("How long steps take: Before", "How long steps take: After", "One step over time: Before", "Stacks by time: After",
                    "Cache", "Memory"):
        assert f"\n{heading}\n" in text
    for name in (OPERATORS[0], "loader 0", "backward"):
        assert name in text


def test_a_trace_without_steps_is_one_clear_line(tmp_path):
    write_trace(tmp_path / "empty.json", steps=0)
    done = report("profile", tmp_path / "empty", tmp_path / "empty.json", status=1)
    assert "the trace holds 0 whole steps" in done.stderr and not (tmp_path / "empty.html").exists()
