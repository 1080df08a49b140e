"""Figures of matplotlib and bars of tqdm, as these packages make them. In an environment of its own: make check PARTS=frameworks."""

import io
import sys

import headrace as hr
import numpy
from shown_test import FOUND, SPLIT, document
from tqdm import tqdm

from headrace import _progress


def test_figures_are_of_nobodys_pyplot_and_are_saved(tmp_path):
    figures = {"ledger": hr.Ledger(document("costs $5 to $6")).figure(), "diagnosis": hr.Diagnosis(FOUND, SPLIT).figure(),
               "empty": hr.Ledger({**document(), "trials": []}).figure()}
    for name, figure in figures.items():
        figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    pyplot = sys.modules.get("matplotlib.pyplot")  # Others may have imported it.
    assert pyplot is None or pyplot.get_fignums() == []
    (axes,) = figures["ledger"].axes
    assert [label.get_text() for label in axes.get_yticklabels()][0] == "channels-last" and len(axes.containers) == 3


class Pairs:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return numpy.full((8, 8, 3), index, numpy.uint8), index % 2


def test_a_loader_has_the_length_that_tqdm_shows():
    stream = io.StringIO()
    assert len(list(tqdm(hr.Loader(Pairs(), batch_size=4), file=stream))) == 3
    assert "3/3" in stream.getvalue()


def test_a_bar_stands_below_the_lines(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with _progress.shown_progress("headrace.tune", 60.0) as show:
        show("step", "Measuring the loop as it is")
        show("decided", "kept         channels-last: Pays.")
    shown = sys.stderr.getvalue()
    assert "headrace.tune: Measuring the loop as it is" in shown and "\rheadrace: kept         channels-last: Pays.\n" in shown
