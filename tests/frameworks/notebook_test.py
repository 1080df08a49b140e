"""Figures of matplotlib and bars of tqdm, as these packages make them, and a notebook's kernel. In an environment of its own:
make check PARTS=frameworks."""

import io
import os
import re
import sys
from pathlib import Path

import headrace as hr
import numpy
import pytest
from document_blocks import GUIDES, snippet
from jupyter_client.manager import start_new_kernel
from shown_test import FOUND, SPLIT, document
from tiny_run import write_idx
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


def test_the_guides_figure_of_a_ledger_is_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(snippet(GUIDES / "reading_a_report.md", "python", "ledger.figure()"), {"ledger": hr.Ledger(document())})
    assert Path("ledger.png").read_bytes().startswith(b"\x89PNG")


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


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Of this interpreter: its process and a client. Nothing is written outside of the test's folder."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    process, client = start_new_kernel(startup_timeout=60, kernel_name="python3", cwd=str(tmp_path))
    yield process, client
    client.stop_channels()
    process.shutdown_kernel(now=True)


def said(client, cell: str) -> str:
    """What a cell prints, or its error."""
    printed = []

    def take(message):
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(cell, timeout=120, output_hook=take)["content"]
    return "".join(printed).strip() if reply["status"] == "ok" else f"{reply['ename']}: {reply['evalue']}"


FORGETS = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "headrace"]:
    del sys.modules[name]
"""


def test_a_notebook_loads_again_once_its_kernel_is_restarted(kernel, tmp_path):
    process, client = kernel
    write_idx(tmp_path, "train", 64)
    write_idx(tmp_path, "t10k", 8)
    loads = f"""
import headrace as hr
print(sum(len(labels) for _, labels in hr.Loader("idx:{tmp_path}", batch_size=8, num_workers=2)))
"""
    assert [said(client, loads), said(client, loads)] == ["64", "64"]  # A cell that is run twice.
    assert said(client, "hr.Loader('folder:there_is_none')").startswith("NotFoundError: ")
    assert said(client, FORGETS) == ""
    assert re.match(r"ImportError: \S+/_core\.abi3\.so was loaded in this process before, and Python has forgotten it: .* start a new one$",
                    said(client, loads))
    process.restart_kernel()
    client.wait_for_ready(timeout=60)
    assert said(client, loads) == "64"
