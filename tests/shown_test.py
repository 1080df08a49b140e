"""What hr.tune, hr.autotune, hr.watch and hr.diagnose found, as a session shows it: in one line, in a notebook, and as their progress."""

import contextlib
import copy
import io
import json
import math
import pickle
import re
import sys
import types
from html.parser import HTMLParser

import headrace as hr
import pytest
import torch
from headrace import _charts, _progress
from torch import nn

NAMES = ["channels-last", "<img src=x onerror=alert(1)>", "a & b", "never measured", "a single pair", "one, upwards"]


def trial(name, verdict, gain, pairs=18):
    measured = None if gain is None else dict(zip(("median", "low", "high"), gain))
    return {"name": name, "verdict": verdict, "reason": "none", "sentence": f"Says <b>{name}</b>.", "gain": measured, "pairs": pairs,
            "changes": {"custom.x": "true"}}


def document(title="a <script>title</script>"):
    return {"title": title, "speedup": {"median": 1.2, "low": 1.15, "high": 1.28, "pairs": 18}, "trials": [
        trial(NAMES[0], "kept", (0.2, 0.148, 0.277)), trial(NAMES[1], "refused", (-0.37, -0.538, -0.281)),
        trial(NAMES[2], "inconclusive", (0.1, -0.9, 304.0)), trial(NAMES[3], "refused", None, 0),
        trial(NAMES[4], "inconclusive", (0.4, -1, None), 1), trial(NAMES[5], "inconclusive", (0.3, None, 0.5), 1)]}


SPLIT = {"steps": 40, "total_s": 2.0, "data_wait_s": 1.2, "transfer_s": 0.0, "forward_s": 0.3, "backward_s": 0.3, "optimizer_s": 0.1,
         "other_s": 0.1}
FOUND = {"bound": "data", "sentence": "data-bound: <i>60 %</i> of a step waits", "findings": [
    {"code": "data_loading_slow", "sentence": "Loading & waiting.", "advice": "Try data.num_workers = 2."}]}


class Checked(HTMLParser):
    """Every tag is closed, and what is shown as text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def coordinates(page):
    return [float(value) for value in re.findall(r'\b(?:x|x1|x2|cx)="([^"]+)"', page)]


# ---- Ledgers ----

@pytest.mark.parametrize("made", [document(), {"title": "a <script>title</script>", "ledger": document()}], ids=["tune", "live"])
def test_a_ledger_is_a_table_and_a_chart_in_a_notebook_with_every_name_escaped(made):
    page = Checked(hr.Ledger(made)._repr_html_())
    assert {"table", "svg", "circle"} <= set(page.tags) and not {"script", "img", "b"} & set(page.tags)
    assert all(name in page.text for name in (*NAMES, "a <script>title</script>", "+20.0%", "[+14.8%, +27.7%]"))
    assert page.tags.count("circle") == 5  # Of what was measured.
    assert all(0 <= place <= 680 for place in coordinates(hr.Ledger(made)._repr_html_()))


def test_a_ledger_is_the_dict_that_it_was_and_goes_through_json_pickle_and_copy():
    ledger = hr.Ledger(document())
    assert ledger == document() and json.loads(json.dumps(ledger)) == document()
    for other in (pickle.loads(pickle.dumps(ledger)), copy.deepcopy(ledger)):
        assert other == ledger and type(other) is hr.Ledger
    assert [one.verdict for one in ledger.trials] == ["kept", "refused", "inconclusive", "refused", "inconclusive", "inconclusive"]
    assert "1.20 times as fast [1.15, 1.28], 18 pairs; kept: channels-last; 1 kept, 2 refused, 3 inconclusive" in repr(ledger)


def test_a_ledger_without_trials_or_without_figures_shows_too():
    empty = hr.Ledger({"title": "x", "speedup": {"median": None, "low": None, "high": None, "pairs": 0}, "trials": []})
    assert "Nothing was kept." in empty._repr_html_() and "svg" not in empty._repr_html_()
    assert repr(empty) == "<headrace.Ledger of x: Nothing was kept; nothing tried>"
    still = hr.Ledger({**document(), "trials": [trial("none", "refused", (0.0, 0.0, 0.0))]})
    assert all(0 <= place <= 680 for place in coordinates(still._repr_html_()))


def test_a_file_is_read_as_a_ledger_or_refused_by_its_path(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(document()))
    assert hr.Ledger.read(path) == document()
    others = ("[1, 2]", '{"ledger": 3}', '{"trials": 3, "speedup": {}}', '{"trials": []}', '{"trials": [], "speedup": 2}')
    for text, words in (*((other, "found JSON without trials and their speedup") for other in others), ("{", "found no JSON")):
        path.write_text(text)
        with pytest.raises(hr.errors.CorruptDataError, match=f"{path}: wanted a ledger.json, {words}"):
            hr.Ledger.read(path)


def test_a_trial_shows_in_a_line():
    measured, other = hr.Ledger(document()).trials[0], hr.Ledger(document()).trials[3]
    assert repr(measured) == "<headrace.Trial channels-last: kept, +20.0% [+14.8%, +27.7%], 18 pairs>"
    assert repr(other) == "<headrace.Trial never measured: refused, not measured, 0 pairs>"


def test_a_single_pair_has_a_gain_and_no_interval():
    single, other = hr.Ledger(document()).trials[4:]
    assert (single.gain, other.gain) == ((0.4, None, None), (0.3, None, None))
    assert repr(single) == "<headrace.Trial a single pair: inconclusive, +40.0%, 1 pairs>"
    ledger = hr.Ledger({**document(), "speedup": {"median": 1.4, "low": 0, "high": None, "pairs": 1},
                        "trials": [trial("a single pair", "kept", (0.4, -1, None), 1)]})
    assert "1.40 times as fast, 1 pairs; kept: a single pair" in repr(ledger)
    page = ledger._repr_html_()
    assert "+40.0%" in Checked(page).text and "None" not in page and "[" not in Checked(page).text
    (begin, end), (middle,) = re.findall(r'<line x1="([^"]+)" x2="([^"]+)"', page)[1], re.findall(r'cx="([^"]+)"', page)
    assert begin == end == middle  # The line has no length.


# ---- Diagnoses ----

def test_a_diagnosis_is_a_table_and_a_chart_in_a_notebook_with_every_text_escaped():
    diagnosis = hr.Diagnosis(FOUND, SPLIT)
    page = Checked(diagnosis._repr_html_())
    assert {"table", "svg", "rect"} <= set(page.tags) and "i" not in page.tags
    assert all(text in page.text for text in ("<i>60 %</i>", "data wait", "30 ms", "60.0%", "Loading & waiting.", "num_workers = 2"))
    assert diagnosis == FOUND and repr(diagnosis) == "<headrace.Diagnosis: data-bound: <i>60 %</i> of a step waits>"
    for other in (pickle.loads(pickle.dumps(diagnosis)), copy.deepcopy(diagnosis)):
        assert other == diagnosis and other.time_split == SPLIT
    nothing = hr.Diagnosis({**FOUND, "findings": []}, {**SPLIT, "total_s": 0.0, "steps": 0})
    assert Checked(nothing._repr_html_()).tags.count("rect") == 0


def loop_of(watched_steps=3):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(8, 4)] * watched_steps

    def run():
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    return model, optimizer, batches, run


def test_a_watch_shows_its_state_and_what_it_saw():
    *_, run = loop_of()
    seen = hr.watch(title="mine <b>")
    assert repr(seen) == "<headrace.watch of mine <b>: not begun>" and "not begun" in Checked(seen._repr_html_()).text
    with seen:
        assert "watching" in repr(seen) and "watching" in seen._repr_html_()
        run()
    assert re.match(r"<headrace\.watch of mine <b>: 3 steps; ", repr(seen))
    page = Checked(seen._repr_html_())
    assert {"table", "svg"} <= set(page.tags) and "b" not in page.tags and "backward" in page.text
    with hr.watch() as empty:
        pass
    assert "step" in repr(empty) and "svg" not in empty._repr_html_()


# ---- What belongs to the process ----

def test_what_holds_a_run_is_neither_pickled_nor_copied_and_says_what_to_keep():
    model, optimizer, batches, run = loop_of()
    with hr.watch() as seen:
        run()
    tuning = hr.autotune(model, optimizer, batches, auto_tune=False)
    tuned = hr.tune(model, batches, optimizer, lambda model, batch: model(batch).square().mean(), budget_s=1.0, only=["fused optimizer"])
    with hr.Trace() as trace:
        pass
    for thing, words in ((seen, "watch .* write_report"), (tuning, "AutoTune .* replay="), (tuned, r"Tuned .* state_dict\(\)"),
                         (trace, r"Trace .* summary\(\)")):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"^a headrace.{words}"):
                way(thing)


@pytest.mark.engine
@pytest.mark.parametrize("way", [pickle.dumps, copy.deepcopy], ids=["pickle", "deep copy"])
def test_a_trainer_is_neither_pickled_nor_copied_and_shows_its_updates(way):
    model, optimizer, batches, _ = loop_of()
    trainer = hr.Trainer(model, optimizer, lambda model, batch: model(batch).square().mean())
    trainer.fit(batches, 1)
    assert repr(trainer) == "<headrace.Trainer after 3 updates>"
    with pytest.raises(TypeError, match=r"^a headrace.Trainer .* save\(\), and load\(\)"):
        way(trainer)


def test_traces_and_what_is_not_tried_show_in_a_line():
    trace = hr.Trace()
    assert repr(trace) == "<headrace.Trace not begun>"
    with trace:
        assert repr(trace) == "<headrace.Trace recording>"
        with hr.span("work"):
            pass
    assert re.fullmatch(r"<headrace\.Trace of \d+ events>", repr(trace))
    model, optimizer, batches, _ = loop_of()
    with hr.autotune(model, optimizer, batches, fixed=["compute"], on_progress=lambda *told: None) as tuning:
        assert re.match(r"<headrace\.AutoTune watching; kept: nothing; \d+ looked at>", repr(tuning))
        assert all(re.fullmatch(r"<[^\n]+: [^\n]+>", repr(one)) for one in tuning.not_applicable)
        assert "table" in Checked(tuning._repr_html_()).tags


# ---- Figures, and progress ----

def test_a_figure_is_refused_in_a_sentence_where_there_is_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for thing in (hr.Ledger(document()), hr.Diagnosis(FOUND, SPLIT)):
        with pytest.raises(hr.errors.UnsupportedError, match="^figure: wanted matplotlib, found none; pip install matplotlib$"):
            thing.figure()


class Bar:
    """What is asked of tqdm."""

    made: list = []

    def __init__(self, **options):
        self.total, self.options, self.told, self.n = options["total"], options, [], 0
        Bar.made.append(self)

    def close(self):
        self.told.append("closed")

    def get_lock(self):
        return contextlib.nullcontext()

    def set_description_str(self, text, refresh):
        self.told.append(text)

    def set_postfix_str(self, text, refresh):
        self.told.append(text)

    def refresh(self, nolock):
        pass

    @staticmethod
    def write(text, file):
        Bar.made[-1].told.append(text) if Bar.made else file.write(text + "\n")


@pytest.fixture
def tqdm(monkeypatch):
    """A tqdm, where somebody looks."""
    Bar.made = []
    module, auto = types.ModuleType("tqdm"), types.ModuleType("tqdm.auto")
    module.tqdm = auto.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", module)
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    monkeypatch.setattr(_progress, "_is_looked_at", lambda: True)
    return module


def tell(show):
    show("step", "Measuring the loop as it is")
    show("diagnosis", "compute-bound: 96 % of a step is forward and backward")
    show("decided", "kept         channels-last: Pays.")


def test_progress_is_a_bar_with_a_line_for_each_decision_where_tqdm_is_and_somebody_looks(tqdm):
    with _progress.shown_progress("headrace.tune", 60.0) as show:
        tell(show)
    (bar,) = Bar.made
    assert bar.total == 60 and bar.n <= 60
    assert bar.told == ["headrace.tune: Measuring the loop as it is", "headrace.tune: compute-bound",
                        "headrace: kept         channels-last: Pays.", "closed"]


def test_a_bar_is_closed_where_the_loop_raises(tqdm):
    with pytest.raises(KeyboardInterrupt), _progress.shown_progress("headrace.tune", 0.2) as show:
        tell(show)
        raise KeyboardInterrupt
    assert Bar.made[0].told[-1] == "closed" and Bar.made[0].total == 1


EPOCH = {"epoch": 1, "loss": 0.25, "samples_per_second": 12.34, "evaluation": {"samples": 4, "loss": 0.5, "top1": 0.75}}
LINE = "headrace: epoch 1 of 2: loss 0.2500, 12.3 samples/s; evaluation: loss 0.5000, top1 0.7500"


def test_each_epoch_of_a_fit_has_a_bar_with_the_loss_and_its_mean_and_leaves_a_line(tqdm, monkeypatch):
    monkeypatch.setattr(_progress, "_SHOWN_EVERY_S", math.inf)
    progress = _progress.TrainingProgress(2)
    progress.begin_epoch(1, 10, 3)
    assert progress.is_due() and not progress.is_due()
    progress.show(4, 0.125, 0.25)
    progress.show(5, 0.125, None)
    progress.end_epoch(EPOCH)
    (bar,) = Bar.made
    assert (bar.total, bar.n) == (10, 5)
    assert bar.options == {"total": 10, "initial": 3, "desc": "Training, epoch 1 of 2", "unit": "batch", "leave": False}
    assert bar.told == ["Loss: 0.1250, Avg Loss: 0.2500", "Loss: 0.1250, Avg Loss: unavailable", "closed", LINE]
    progress.close()
    assert bar.told[-1] == LINE


def test_without_tqdm_or_a_terminal_a_fit_leaves_the_lines_alone_and_reads_no_loss(tqdm, monkeypatch, capsys):
    monkeypatch.setattr(_progress, "_is_looked_at", lambda: False)
    progress = _progress.TrainingProgress(2)
    progress.begin_epoch(1, None, 0)
    assert not progress.is_due()
    progress.end_epoch({**EPOCH, "loss": None, "evaluation": {}})
    progress.close()
    assert Bar.made == []
    assert capsys.readouterr().err == "headrace: epoch 1 of 2: loss unavailable, 12.3 samples/s\n"


@pytest.mark.parametrize("lacks", ["tqdm", "a terminal"])
def test_progress_is_plain_lines_without_tqdm_or_where_nobody_looks(lacks, tqdm, monkeypatch, capsys):
    if lacks == "tqdm":
        monkeypatch.setitem(sys.modules, "tqdm", None)
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    else:
        monkeypatch.setattr(_progress, "_is_looked_at", lambda: False)
    with _progress.shown_progress("headrace.tune", 60.0) as show:
        tell(show)
    assert Bar.made == []
    assert capsys.readouterr().err.splitlines() == [
        "headrace: Measuring the loop as it is", "headrace: compute-bound: 96 % of a step is forward and backward",
        "headrace: kept         channels-last: Pays."]


class Full(io.StringIO):
    """A terminal that takes nothing."""

    def isatty(self):
        return True

    def write(self, text):
        raise OSError(28, "No space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("made", [closed, lambda: None, Full], ids=["closed", "none", "full"])
def test_a_stderr_that_takes_nothing_ends_no_run(made, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "stderr", made())
    with _progress.shown_progress("headrace.tune", 60.0) as show:
        tell(show)
    with pytest.raises(OSError, match="the loop's own"), _progress.shown_progress("headrace.tune", 60.0):
        raise OSError("the loop's own")
    _progress.tell_line("as hr.autotune does")
    assert capsys.readouterr().out == ""


def test_a_bar_that_cannot_be_drawn_ends_no_run(tqdm, monkeypatch):
    def refused(*given, **options):
        raise OSError(28, "No space left on device")

    for name in ("refresh", "write", "close"):
        monkeypatch.setattr(Bar, name, refused)
    with _progress.shown_progress("headrace.tune", 60.0) as show:
        tell(show)
    assert len(Bar.made) == 1


def test_lines_of_autotune_go_past_the_bars_of_a_script(tqdm):
    tqdm.tqdm(total=3)
    model, optimizer, batches, _ = loop_of()
    hr.autotune(model, optimizer, batches, steps=5).undo()
    assert any(line.startswith("headrace: ") for line in Bar.made[0].told)


def test_tune_tells_of_itself_on_stderr_unless_it_is_told_where(capsys):
    model, optimizer, batches, _ = loop_of()
    options = {"budget_s": 1.0, "only": ["fused optimizer"]}
    hr.tune(model, batches, optimizer, lambda model, batch: model(batch).square().mean(), **options)
    told = capsys.readouterr()
    assert "headrace: Measuring the loop as it is" in told.err and told.out == ""
    hr.tune(model, batches, optimizer, lambda model, batch: model(batch).square().mean(), on_progress=lambda *told: None, **options)
    assert capsys.readouterr().err == ""


def test_colours_are_of_every_part_of_a_split():
    assert list(_charts.PARTS) == [key.removesuffix("_s") for key in SPLIT if key not in ("steps", "total_s")]
