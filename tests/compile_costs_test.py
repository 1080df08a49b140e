"""What torch.compile took is known to the next run: what hr.autotune then expects of it, and what becomes of the file."""

import json
import os
import pathlib
import stat
import threading

import headrace as hr
import pytest
import torch
from headrace import _compile_costs, _core
from headrace._compile_costs import CompileCosts
from planted_loop import FASTER, FUSED, STEP_S, Loop, texts
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

USUAL_S = 40.0
A_GUESS = "a guess, as no earlier compilation here is known"
COMPILED = {"model.compile": 1 / 1.6}  # Of a step's seconds.


def layers(count, width=4):
    """A model of one module more."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def costs(*models):
    return CompileCosts(models or (layers(3),))


def estimate(*models):
    return costs(*models).estimate(USUAL_S)


@pytest.fixture
def file(own_cache):
    return own_cache / "headrace" / "compile_costs.json"


def rows(file):
    return json.loads(file.read_text())["compilations"]


def seconds_in(file):
    return [row["seconds"] for row in rows(file)]


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def document(some, **other):
    return json.dumps({"format": "headrace-compile-costs", "version": 1, "compilations": some, **other})


# What is expected.


def test_where_nothing_was_compiled_it_is_what_is_usual_and_nothing_is_written(file):
    assert estimate() == (USUAL_S, A_GUESS)
    assert not file.parent.exists()


def test_of_a_model_that_was_compiled_it_is_the_median_of_the_newest_three(file):
    costs().note(90.0)
    assert estimate() == (90.0, "as 1 compilation of this model here took")
    for seconds in (43.0, 12.0, 14.0):
        costs().note(seconds)
    assert estimate() == (14.0, "as 3 compilations of this model here took")
    assert seconds_in(file) == [90.0, 43.0, 12.0, 14.0]


def test_by_other_models_it_is_what_they_took_a_module_the_first_time():
    nine, one = layers(9), layers(1)
    costs(nine).note(50.0)
    costs(nine).note(8.0)  # From inductor's cache on disk.
    assert estimate() == (20.0, "judged by 1 other model compiled here")
    costs(one).note(14.0)
    assert estimate() == (24.0, "judged by 2 other models compiled here")
    costs().note(30.0)
    assert estimate() == (30.0, "as 1 compilation of this model here took")


@pytest.mark.parametrize("seconds, expected", [(4000.0, 4 * USUAL_S), (0.1, USUAL_S / 4)])
def test_by_other_models_it_is_never_far_from_what_is_usual(seconds, expected):
    costs(layers(9)).note(seconds)
    assert estimate()[0] == expected


def test_a_model_that_compiles_at_once_is_still_one_that_takes_long_to_prepare():
    costs().note(0.3)
    assert estimate()[0] == 2.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_seconds_that_cannot_be_are_not_kept(seconds, file):
    costs().note(seconds)
    assert not file.exists()


@pytest.mark.parametrize("owner, name, other", [(torch, "__version__", "9.9"), (_compile_costs, "_cpu", lambda: "a faster one"),
                                                (_compile_costs, "_device", lambda models: "cuda a GPU")])
def test_what_another_torch_or_machine_took_says_nothing(owner, name, other, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, other)
        costs().note(12.0)
        assert estimate()[0] == 12.0
    assert estimate() == (USUAL_S, A_GUESS)


def test_a_model_is_known_by_types_and_shapes_whatever_its_values_are_and_however_it_is_given():
    model = layers(3)
    costs(model).note(12.0)
    assert estimate(layers(3))[1].startswith("as 1 compilation of this model")
    assert estimate(model, model[0])[1].startswith("as 1 compilation of this model")  # Parts beside their whole.
    assert estimate(layers(3, width=5))[1].startswith("judged by 1 other model")
    assert estimate(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Bilinear(4, 4, 4)))[1].startswith("judged by 1 other model")


class SecretModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.secret_layer = nn.Linear(2, 2)


def test_no_name_of_a_model_or_path_is_in_the_file(file):
    costs(SecretModel()).note(12.0)
    (row,) = rows(file)
    assert row.keys() == {"torch", "device", "cpu", "model", "modules", "seconds", "date"}
    assert len(row["model"]) == 64 and row["modules"] == 2 and row["device"] == "cpu"
    text = file.read_text().lower()
    assert not any(word in text for word in ("secret", "linear", "compile_costs_test", str(pathlib.Path.cwd()).lower()))


# What becomes of the file.


def test_the_newest_64_are_kept(file):
    costs().note(1.0)
    (row,) = rows(file)
    write(file, document([{**row, "seconds": float(number)} for number in range(1, 65)]))
    costs().note(99.0)
    assert seconds_in(file) == [float(number) for number in range(2, 65)] + [99.0]
    assert file.stat().st_size < 64 << 10


def valid():
    return {"torch": str(torch.__version__), "device": "cpu", "cpu": _compile_costs._cpu(), "model": costs()._model, "modules": 4,
            "seconds": 20.0, "date": "2026-11-24T00:00:00+00:00"}


@pytest.mark.parametrize("content", [
    "", "{", "[]", "null", b"\xff\xfe\x00", "[" * 50_000, lambda: document([valid()], version=2),
    lambda: document([valid()], format="another"), lambda: document(valid()), lambda: document([valid()]) + " " * (64 << 10)],
    ids=["empty", "torn", "a list", "null", "no text", "brackets without end", "another version", "another format", "no list",
         "too large"])
def test_a_file_that_is_none_of_ours_counts_for_nothing_and_is_replaced(content, file):
    write(file, content() if callable(content) else content)
    assert estimate() == (USUAL_S, A_GUESS)
    costs().note(12.0)
    assert seconds_in(file) == [12.0] and estimate()[0] == 12.0


@pytest.mark.parametrize("wrong", [
    {"seconds": float("nan")}, {"seconds": True}, {"seconds": -1.0}, {"seconds": 10**400}, {"seconds": "12"}, {"modules": 0},
    {"modules": 2.5}, {"modules": 10**400}, {"torch": 2}, {"cpu": "x" * 101}, {"more": 1}])
def test_an_entry_that_cannot_be_is_left_out_alone(wrong, file):
    write(file, document([{**valid(), **wrong}, valid(), "no entry", {"seconds": 12.0}]))
    assert estimate() == (20.0, "as 1 compilation of this model here took")


def test_what_another_user_wrote_is_not_read_and_another_users_folder_is_left_alone(file, monkeypatch):
    costs().note(12.0)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert estimate() == (USUAL_S, A_GUESS)
    costs().note(20.0)
    assert seconds_in(file) == [12.0]


def test_another_users_file_in_ones_own_folder_is_replaced(file, monkeypatch):
    write(file, document([valid()]))
    plain = os.fstat  # Only root can give a file away: its owner is told as another's.
    monkeypatch.setattr(os, "fstat", lambda given: os.stat_result((*plain(given)[:4], os.geteuid() + 1, *plain(given)[5:])))
    assert estimate() == (USUAL_S, A_GUESS)
    costs().note(12.0)
    monkeypatch.undo()
    assert seconds_in(file) == [12.0] and file.stat().st_uid == os.geteuid()


def test_a_pipe_in_its_place_holds_nothing_up(file):
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    assert estimate() == (USUAL_S, A_GUESS)
    costs().note(12.0)
    assert stat.S_ISFIFO(file.stat().st_mode)


def test_a_link_in_its_place_is_not_followed(file, tmp_path):
    mine = tmp_path / "mine.json"
    file.parent.mkdir(parents=True)
    file.symlink_to(mine)
    mine.write_text(before := document([valid()]))
    assert estimate() == (USUAL_S, A_GUESS)
    costs().note(12.0)
    assert mine.read_text() == before


def raising(error):
    def raises(*_):
        raise error

    return raises


def no_folder(folder, patch):
    folder.write_text("a file")


def full_disk(folder, patch):
    patch.setattr(_core, "write_file", raising(hr.errors.IoError("files: cannot write: no space left")))


def no_home(folder, patch):
    patch.delenv("XDG_CACHE_HOME")
    patch.setattr(pathlib.Path, "home", raising(RuntimeError("Could not determine home directory.")))


@pytest.mark.parametrize("spoil", [no_folder, full_disk, no_home])
def test_where_it_cannot_be_written_nothing_happens(spoil, own_cache, monkeypatch):
    spoil(own_cache, monkeypatch)
    costs().note(12.0)
    assert estimate() == (USUAL_S, A_GUESS)


def test_a_relative_cache_folder_counts_as_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    costs().note(12.0)
    assert seconds_in(tmp_path / "me" / ".cache" / "headrace" / "compile_costs.json") == [12.0]
    assert not (tmp_path / "here").exists()


def test_of_two_that_write_at_once_the_file_is_whole_at_any_moment(file):
    costs().note(1.0)

    def note_often(seconds):
        for _ in range(20):
            costs().note(seconds)

    writers = [threading.Thread(target=note_often, args=(seconds,)) for seconds in (10.0, 20.0)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert rows(file)
    for writer in writers:
        writer.join()
    assert set(seconds_in(file)) <= {1.0, 10.0, 20.0} and len(rows(file)) > 1
    assert [path.name for path in file.parent.iterdir()] == [file.name]


# What a run makes of it.


def compiling(loop, seconds, steps=40_000, **options):
    """Tunes the loop by torch.compile alone, which takes so many seconds of its clock beside what a check takes: two steps."""
    handle = loop.autotune(COMPILED, only=["torch.compile"], steps=steps, **options)
    plain, made = loop.knobs.apply, []

    def apply(settings):
        if "model.compile" in settings and not made:
            made.append(loop.take(seconds + 2 * STEP_S))
        return plain(settings)

    loop.knobs.apply = apply
    return handle


def preparing(loop):
    (text,) = texts(loop.told, "preparing")
    return text


def test_what_a_run_measured_is_what_the_next_one_expects_and_says(file):
    first, second = Loop(), Loop()
    handle = compiling(first, 12.0)
    assert first.run(3000, until=lambda: handle.kept)
    assert preparing(first).startswith(f"torch.compile: 40 s to prepare, {A_GUESS}; at +30 % paid back after 173 s; ")
    assert "; 12 s to prepare; at +" in handle.trials[0].sentence  # Measured by now.
    handle.undo()
    assert seconds_in(file) == [pytest.approx(12, abs=0.01)] and rows(file)[0]["modules"] == 5
    assert costs(second.model).estimate(USUAL_S)[0] == seconds_in(file)[0]

    handle = compiling(second, 5.0)
    assert second.run(3000, until=lambda: handle.kept)
    assert preparing(second).startswith(
        "torch.compile: 12 s to prepare, as 1 compilation of this model here took; at +30 % paid back after 52 s; ")
    handle.undo()
    assert seconds_in(file) == [pytest.approx(12, abs=0.01), pytest.approx(5, abs=0.01)]


def test_a_short_run_tries_what_is_known_to_take_little():
    unknown, known = Loop(), Loop()
    handle = compiling(unknown, 3.0, steps=2000)
    assert unknown.run(200, until=lambda: texts(unknown.told, "ended"))
    assert handle.trials[0].sentence.startswith(f"Not tried: 40 s to prepare, {A_GUESS}; at +30 % paid back after 173 s; ")
    handle.undo()
    costs(known.model).note(3.0)
    handle = compiling(known, 3.0, steps=2000)
    assert known.run(1000, until=lambda: handle.kept)
    handle.undo()


def test_a_compiler_that_fails_is_no_measure_of_what_compiling_takes(file):
    loop = Loop()
    handle = loop.autotune(COMPILED, only=["torch.compile"], steps=40_000)
    plain = loop.knobs.apply

    def refusing(settings):
        if "model.compile" in settings:
            raise hr.errors.UnsupportedError("no such operator")
        return plain(settings)

    loop.knobs.apply = refusing
    assert loop.run(3000, until=lambda: texts(loop.told, "ended"))
    assert "no such operator" in handle.trials[0].sentence and not file.exists()


def test_a_file_that_cannot_be_written_is_no_problem_of_the_run(own_cache):
    own_cache.write_text("no folder")
    loop = Loop()
    handle = compiling(loop, 12.0)
    assert loop.run(3000, until=lambda: handle.kept)
    assert handle.problem is None and texts(loop.told, "problem") == []
    handle.undo()


def test_other_changes_and_a_run_that_is_not_tuned_write_nothing(own_cache):
    loop = Loop()
    handle = loop.autotune(FASTER, steps=40_000, only=[FUSED])
    assert loop.run(3000, until=lambda: handle.kept)
    handle.undo()
    frozen = Loop()
    hr.autotune(frozen.model, frozen.optimizer, frozen.loader, steps=40_000, auto_tune=False)
    frozen.run(50)
    assert not own_cache.exists()


def test_a_repeated_run_writes_nothing(file, tmp_path):
    first, second = Loop(), Loop()
    handle = compiling(first, 12.0, out=tmp_path)
    assert first.run(3000, until=lambda: handle.kept)
    handle.stop()
    file.unlink()
    again = second.autotune(COMPILED, only=[], replay=tmp_path / "ledger.json")
    second.run(first.steps + 5)
    assert any("model.compile" in settings for settings in second.knobs.applied) and again.problem is None
    assert not file.exists()
    again.undo()
