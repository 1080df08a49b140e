"""bench/report_page tells a good page from a bad one, with a browser that only says what it is told."""

import pytest
from bench_scripts import script


@pytest.fixture(scope="module")
def bench():
    return script("report_page")


class Opened:
    """Stands for a Browser: every visit is `shown`, but that scripts off may give another screenshot."""

    def __init__(self, shown, without=None):
        self.shown, self.without, self.visits = shown, without or shown, []

    def visit(self, page, width, height, dark, scripts=True):
        self.visits.append((width, dark, scripts))
        return self.shown if scripts else self.without


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "page.html").write_text("<!doctype html>")
    return {"page": tmp_path / "page.html"}


def missed(rows):
    return {row.what.rsplit(": ", 1)[1] for row in rows if not row.met}


def test_a_good_page_meets_every_bar_at_each_width_in_light_and_dark(bench, pages, tmp_path):
    opened = Opened(bench.browser.Visit(0.1, content_width=360, screenshot=b"png"))
    rows = [*bench.sizes(pages), *bench.looks(pages, opened, tmp_path)]
    assert missed(rows) == set() and len(rows) == 1 + 4 * 4
    assert {(width, dark) for width, dark, _ in opened.visits} == {(360, False), (360, True), (1280, False), (1280, True)}
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "page-desk-dark.png", "page-desk-light.png", "page-phone-dark.png", "page-phone-light.png"]


@pytest.mark.parametrize("fault, named", [
    ({"requests": ["https://example.org/font.woff"]}, "requests"), ({"messages": ["Refused to load"]}, "console"),
    ({"content_width": 1281}, "width of its content")])
def test_a_request_an_error_and_a_page_that_scrolls_sideways_are_each_missed(bench, pages, tmp_path, fault, named):
    opened = Opened(bench.browser.Visit(0.1, **{"content_width": 360, "screenshot": b"png", **fault}))
    assert missed(bench.looks(pages, opened, tmp_path)) == {named}


def test_a_page_that_needs_scripts_is_missed(bench, pages, tmp_path):
    shown = bench.browser.Visit(0.1, content_width=360, screenshot=b"png")
    without = bench.browser.Visit(0.1, content_width=360, screenshot=b"other")
    assert missed(bench.looks(pages, Opened(shown, without), tmp_path)) == {"with scripts off"}


def test_a_page_one_byte_too_large_is_missed(bench, pages):
    pages["page"].write_bytes(b"x" * bench.BYTES_MAX)
    assert missed(bench.sizes(pages)) == set()
    pages["page"].write_bytes(b"x" * (bench.BYTES_MAX + 1))
    assert missed(bench.sizes(pages)) == {"bytes"}


def test_without_a_browser_the_size_alone_is_judged_and_the_rest_is_unavailable(bench, pages, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench.browser, "found", lambda: None)
    arguments = bench.harness.parser("", rounds=1).parse_args([])
    arguments.out, arguments.page = tmp_path, [pages["page"]]
    rows = bench.judged(arguments, None)
    assert [row.what for row in rows] == ["page: bytes"]
    assert "unavailable" in capsys.readouterr().out
