"""hr.autotune: a training run that tunes itself while it is under way.

What stands here ties others together: Boundary finds the user's updates, DeviceTimes times them on a device, KeptCalls replays
a forward, LiveKnobs applies a setting, and the native LiveTuner (include/headrace/live_tuner.h) decides what to try, keep and
undo. To repeat a run, LiveReplay (include/headrace/live_replay.h) stands in its place.
"""

from __future__ import annotations

import atexit
import functools
import json
import pathlib
import time
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Iterable

import torch
from torch import nn

from . import _core
from ._autotune_request import Request, requested
from ._boundary import Boundary, Unit
from ._compile_costs import CompileCosts
from ._device_times import DeviceTimes, times_of, why_not_timed
from ._kept_call import KeptCalls, code_of, last_line
from ._ledger import Ledger
from ._live_knobs import LiveKnobs
from ._loader_epochs import LoaderEpochs
from ._loop_objects import raw_objects
from ._pickling import refused_pickling
from ._progress import tell_line
from ._settings import COMPILE
from ._trial import Trial
from ._tuned_loop import LOADING, TunedLoop
from .errors import Error, InvalidArgumentError, UnsupportedError

_UNITS_WITHOUT_CALL = 16  # In a row, until the native tuner gives up the changes that wait for one (kCallsMissingMax).
_AS_WRITTEN = "the loop goes on as written"


@dataclass
class _Hooks:
    """What hangs on the user's objects."""

    knobs: LiveKnobs
    kept: KeptCalls
    boundary: Boundary
    times: DeviceTimes | None  # None: the host's clock tells.
    loop: TunedLoop
    not_tried: list[_core.NotApplicable]


class AutoTune:
    """A run that hr.autotune tunes: what it has found so far, and how to end it. Its hooks hold it, so it need not be kept.
    As a context manager it undoes everything at the end of the block. Use it from the thread that trains."""

    _is_open = False  # Something of ours hangs on the user's objects.

    def __init__(self, models: list[nn.Module], optimizers: list[torch.optim.Optimizer], loader: Any, request: Request,
                 on_progress: Callable[[str, str], Any] | None = None, *, refusal: str | None = None,
                 forward_of: Callable[..., Any] | None = None, knobs: LiveKnobs | None = None,
                 epochs: LoaderEpochs | None = None, clock: Callable[[], float] | None = None,
                 times: DeviceTimes | None = None) -> None:
        """For headrace's own adapters and tests; users call hr.autotune. refusal: why such a loop is not tuned, which is its
        `problem` then. forward_of: as KeptCalls has it. knobs: in the place of those made here. epochs: the loader's, where they
        are watched already. clock: monotonic seconds. times: as if the models were on a device."""
        self._models, self._optimizers, self._loader, self._request = models, optimizers, loader, request
        self._on_progress = on_progress or (_print_line if request.replay is None else _print_text)
        self._problem: str | None = None
        self._began = self._ended = self._settled = self._is_undone = False
        self._ends_in_problem = False  # Whose line says why, in the place of the one that the search is over.
        self._inside = False  # One of our own calls is at work.
        self._wanted: tuple[str, bool] | None = None  # What was asked for meanwhile: why, and whether all is undone.
        self._armed = False
        self._loads = False  # Changes of loading are among those that are tried.
        self._units_without_call = 0
        self._unwritten: str | None = None  # Why ledger and report could not be written the last time.
        self._decided = False  # Since ledger and report were written last.
        self._spent_s = 0.0  # To find out what there is to try.
        self._compile_costs: CompileCosts | None = None  # None: compiling is not tried.
        self._hooks: _Hooks | None = None
        if request.auto_tune:
            self._problem = refusal or self._no_tuning()
        candidates: list[_core.Candidate] = []
        try:
            if request.auto_tune and self._problem is None:
                candidates = self._make_hooks(knobs, forward_of, epochs, clock, times)
            self._tuner = self._make_tuner(candidates, clock)
            if self._hooks is not None:
                self._loads = self._switches_loading(candidates)
                if self._loads:
                    self._hooks.knobs.follow()
                self._hooks.boundary.install()
        except BaseException:
            self._take_hooks_away(undo=True)
            raise
        if self._hooks is not None:
            self._is_open = True
            _open_handles.add(self)
            if loader is not None and (reason := self._hooks.boundary.loader_refusal):
                self._guarded(self._tell, "loader", f"waiting for data is not seen: {reason}")
            if self._is_open and isinstance(self._tuner, _core.LiveReplay):
                self._guarded(self._begin_replay, self._tuner)
        elif self._problem is not None:
            self._tell("problem", f"{self._problem}; {_AS_WRITTEN}")

    # What users call.

    def report(self) -> str:
        """What was tried, kept and lost so far, as text."""
        return self._result()[1]

    def stop(self) -> None:
        """Ends the search: kept changes stay in force, all others are undone, hooks that nothing kept needs are removed.
        Called from on_progress, it does so once the update at hand is done."""
        self._leave("stopped", undo=False)

    def undo(self) -> None:
        """Gives the user's objects back as they were, but for what the training has made of their values. What was found
        stays in report() and ledger. From on_progress as stop()."""
        self._leave("undone", undo=True)

    def __enter__(self) -> AutoTune:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._is_open and isinstance(error, Exception):
            self._guarded(self._tuner.failed, code_of(error), f"the loop raised {last_line(error)}", [])
        self.undo()

    @property
    def trials(self) -> list[Trial]:
        """What came of each change that was looked at; gain and pairs are those of its proof. Of a repeated run, what came of it
        there, once every turn is applied."""
        return [Trial.of(entry) for entry in self._tuner.trials()]

    @property
    def kept(self) -> list[str]:
        """Names of the changes that are proved, in the order of trials."""
        return [trial.name for trial in self.trials if trial.verdict == "kept"]

    @property
    def settings(self) -> dict[str, str]:
        """What the kept changes set, as TOML values."""
        return {key: value for trial in self.trials if trial.verdict == "kept" for key, value in trial.settings.items()}

    @property
    def ledger(self) -> Ledger:
        """Everything as JSON values: ledger.json as it would be written now. A notebook shows it as a table and a chart."""
        return Ledger(json.loads(self._result()[0]))

    @property
    def watching(self) -> bool:
        """Whether hooks still follow the loop: during the search, and after it while kept changes are checked again."""
        return self._is_open and self._tuner.watching()

    @property
    def problem(self) -> str | None:
        """Why nothing, or nothing more, is tried; None: nothing is wrong."""
        return self._problem or (None if self._hooks is None else self._hooks.boundary.problem) or self._unwritten

    @property
    def not_applicable(self) -> list[_core.NotApplicable]:
        """Changes that are not tried on these objects: name, key, reason."""
        return [] if self._hooks is None else list(self._hooks.not_tried)

    def __repr__(self) -> str:
        state = "watching" if self.watching else "not watching"
        return f"<headrace.AutoTune {state}; kept: {', '.join(self.kept) or 'nothing'}; {len(self.trials)} looked at>"

    def _repr_html_(self) -> str:
        return self.ledger._repr_html_()

    __reduce__ = refused_pickling("a headrace.AutoTune cannot be pickled or copied: it hangs on the objects of a run in this process. "
                                  "Keep its ledger, by which replay= repeats the run")

    def __del__(self) -> None:
        # The loop's objects went, and the handle with them. A ledger that was asked for is written.
        if self._is_open:
            self._guarded(self._finish, "the loop's objects are gone", False)

    # What the hooks call, between two updates and inside the user's optimizer.step().

    def _on_unit(self, unit: Unit) -> None:
        if self._is_open:
            self._guarded(self._follow, unit)

    def _before_update(self) -> None:
        if self._is_open and self._armed:
            self._guarded(self._check)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Calls what is ours within the user's step: its exceptions end the tuning, and never the run."""
        self._inside = True
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - the run is the user's; the error is told as `problem`.
            self._give_up(error)
        finally:
            self._inside = False
        if self._wanted is not None:
            (why, undo), self._wanted = self._wanted, None
            self._guarded(self._finish, why, undo)

    def _on_begin(self) -> None:
        """In a run that is resumed a turn may hold from its second update on, and the first one ends no unit."""
        if self._is_open and isinstance(self._tuner, _core.LiveReplay):
            self._guarded(self._repeat_first, self._tuner)

    def _repeat_first(self, replay: _core.LiveReplay) -> None:
        assert self._hooks is not None
        replay.after_update(self._hooks.boundary.updates, 0.0, 0.0, 0.0, False, "")
        self._see_tuner()

    def _on_followed(self, error: Exception | None) -> None:
        if self._is_open:
            self._guarded(self._see_tuner, error)

    def _follow(self, unit: Unit) -> None:
        assert self._hooks is not None
        boundary, times = self._hooks.boundary, self._hooks.times
        if times is not None:
            times.add(unit, kept_call=self._armed)
        self._tuner.note_update(boundary.updates)
        if boundary.problem is not None:
            self._finish(boundary.problem, undo=False, goes_on=True)
            return
        if self._began and self._request.replay is None:  # Before it begins, a loop may warm up on batches of its own.
            self._hooks.knobs.note_epochs(boundary.epochs)
        self._fail_what_ended()
        for known in (unit,) if times is None else times.known():
            self._tuner.after_update(boundary.updates, known.seconds, known.work, known.wait_s, known.countable, known.why_not)
            if self._tuner.keeps_call():
                break  # What is told next is the unit that the call is kept in.
        self._see_tuner()

    def _see_tuner(self, error: Exception | None = None) -> None:
        """What it wants now; or the error that it raised."""
        if error is not None:
            raise error
        assert self._hooks is not None
        boundary, kept = self._hooks.boundary, self._hooks.kept
        if not self._settled and self._tuner.keeps_call():
            kept.arm()
            self._armed = True
        elif self._armed:
            kept.disarm()
            self._armed = False
        if not self._tuner.watching():
            self._finish("", undo=False)
        elif self._ended and not self._settled:
            self._settle()
        elif self._decided:  # A run that is killed leaves what it had found.
            self._write()
            boundary.leave_out("ledger and report were written")
        if self._is_open:
            boundary.ask_before_updates(self._armed)
            boundary.follow(self._follower(), self._hooks.knobs.ended_between_switches)

    def _follower(self) -> _core.LiveTuner | None:
        """Who is told of units without Python; None: each is looked at here."""
        assert self._hooks is not None
        tuner, boundary = self._tuner, self._hooks.boundary
        sees_loader = boundary.epochs > 0 or not self._loads
        is_simple = self._hooks.times is None and not self._armed and sees_loader and not self._hooks.loop.has_ended()
        return tuner if is_simple and isinstance(tuner, _core.LiveTuner) else None

    def _check(self) -> None:
        assert self._hooks is not None
        kept = self._hooks.kept
        if kept.ready():
            self._hooks.knobs.note_calls(kept.called)
            self._tuner.before_update()
        if kept.ready():  # Not where the call could not be made again.
            self._units_without_call = 0
            return
        self._units_without_call += 1
        if self._units_without_call == _UNITS_WITHOUT_CALL:  # Before, it may be a step that GradScaler skipped.
            self._problem = f"nothing can be checked: {kept.why_not}"
            self._tell("problem", self._problem)

    def _fail_what_ended(self) -> None:
        """Before the unit in which it ended is told."""
        assert self._hooks is not None
        for key, reason in self._hooks.loop.take_ended().items():
            self._tuner.failed(UnsupportedError.code, reason, [key])

    def _begin_replay(self, replay: _core.LiveReplay) -> None:
        replay.begin(self._request.first_update - 1)
        if not replay.watching():  # There are no turns.
            self._finish("", undo=False)

    def _settle(self) -> None:
        """The search is over: only what kept changes and their rechecks need is left."""
        assert self._hooks is not None
        self._settled = True
        self._hooks.kept.end()
        self._armed = False
        self._hooks.knobs.keep_only()
        self._write()

    def _hear(self, kind: str, text: str) -> None:
        assert self._hooks is not None
        self._hooks.boundary.call_back()
        self._began = self._began or kind == "began"
        self._ended = self._ended or kind == "ended"
        self._decided = self._decided or kind == "decided"
        if kind != "ended" or not self._ends_in_problem:
            self._tell(kind, text)

    # How it ends.

    def _leave(self, why: str, undo: bool) -> None:
        if self._inside or (self._hooks is not None and self._hooks.boundary.is_telling):
            self._wanted = (why, undo or (self._wanted is not None and self._wanted[1]))
            if self._hooks is not None:
                self._hooks.boundary.call_back()
            return
        self._inside = True
        try:
            self._finish(why, undo)
        finally:
            self._inside = False
            self._wanted = None

    def _finish(self, why: str, undo: bool, goes_on: bool = False) -> None:
        """goes_on: the loop is under way; the line of what ends the tuning says how it goes on."""
        if self._hooks is None or self._is_undone:
            return
        was_open, self._is_undone = self._is_open, undo
        problem = self._why_nothing() if was_open and self._problem is None else None
        self._ends_in_problem = self._ends_in_problem or problem is not None
        try:
            if was_open:
                self._fail_what_ended()
                if undo:
                    self._tuner.undo()
                elif self._tuner.watching():
                    self._tuner.stop(why)
            elif undo:  # Updates are no longer counted, so that no turn could say when it was.
                self._hooks.loop.apply({})
        finally:
            self._take_hooks_away(undo)
        if problem is not None:
            self._problem = problem
            self._tell("problem", f"{problem}; {self._how_it_goes_on()}" if goes_on else problem)
        self._write()

    def _how_it_goes_on(self) -> str:
        kept = self.kept
        return f"what was kept stays: {', '.join(kept)}" if kept else _AS_WRITTEN

    def _take_hooks_away(self, undo: bool) -> None:
        self._is_open = self._armed = False
        _open_handles.discard(self)
        if self._hooks is None:
            return
        try:
            self._hooks.boundary.remove()
            self._hooks.kept.end()
        finally:
            if undo:
                self._hooks.knobs.undo()
            else:
                self._hooks.knobs.keep_only()

    def _give_up(self, error: Exception) -> None:
        assert self._hooks is not None
        repeats = self._request.replay is not None  # Part of a run is of no use to anybody: all of it is undone.
        what = "the run cannot be repeated" if repeats else "headrace failed"
        self._problem = f"{what}: {last_line(error)}"
        self._ends_in_problem = True
        for last in (functools.partial(self._finish, what, repeats), self._hooks.knobs.undo):
            try:
                last()
                break
            except Exception as again:  # noqa: BLE001 - told with the first; what is left to do is done all the same.
                self._problem += f"; then {last_line(again)}"
        try:
            self._tell("problem", f"{self._problem}; {_AS_WRITTEN}{'' if repeats else ', but for what is kept'}")
        except Exception as again:  # noqa: BLE001 - on_progress is the user's, and may be what failed first.
            self._problem += f"; on_progress: {last_line(again)}"

    def _why_nothing(self) -> str | None:
        """Of a run that is over: why no change could be tried, or not every turn repeated; None: they could."""
        assert self._hooks is not None
        boundary = self._hooks.boundary
        if boundary.problem is not None:
            return boundary.problem
        if isinstance(self._tuner, _core.LiveReplay):
            applied, turns = self._tuner.turns()
            return None if applied == turns else (f"{self._request.replay}: the run ended after {boundary.updates} updates, with "
                                                  f"{applied} of {turns} turns applied")
        if boundary.thread is None:
            refusal = "" if self._loader is None else boundary.loader_refusal
            return "no update was seen: none of the optimizers' step() was called" + (f"; {refusal}" if refusal else "")
        if not self._began:
            seen = boundary.updates - self._request.first_update + 1
            return f"the run was over after {seen} updates, before the loop was known well enough to try anything"
        return None

    # What it is made of, and what it tells.

    def _no_tuning(self) -> str | None:
        taken = {id(one) for other in list(_open_handles) for one in (*other._models, *other._optimizers, other._loader)}
        for one in (*self._models, *self._optimizers, self._loader):
            if one is not None and id(one) in taken:
                return f"another autotune is at work on this {type(one).__name__}"
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            return (f"{distributed.get_world_size()} processes train together; wanted one, because all would have to "
                    "switch at the same update")
        return why_not_timed(self._models) if self._request.replay is None else None

    def _make_hooks(self, knobs: LiveKnobs | None, forward_of: Callable[..., Any] | None, epochs: LoaderEpochs | None,
                    clock: Callable[[], float] | None, times: DeviceTimes | None) -> list[_core.Candidate]:
        """Nothing hangs on the loop yet. Returns what there is to try."""
        request = self._request
        if request.replay is None and times is None:
            times = times_of(self._models)
        knobs = knobs or LiveKnobs(self._models, self._optimizers, self._loader)
        kept = KeptCalls(self._models, self._optimizers, forward_of)
        boundary = Boundary(self._models, self._optimizers, self._loader, on_unit=self._on_unit,
                            before_update=self._before_update, on_followed=self._on_followed, on_begin=self._on_begin,
                            epochs=epochs, updates=request.first_update - 1,
                            **({} if clock is None else {"clock": clock}))
        loop = TunedLoop(knobs, kept, boundary, request, times)
        if request.replay is not None:
            self._hooks = _Hooks(knobs, kept, boundary, None, loop, [])
            return []
        began = (clock or time.perf_counter)()
        offered = knobs.offer(request.allow, request.fixed, request.only, loop.updates_left())
        candidates = offered.candidates
        self._weigh_compiling(candidates)
        self._spent_s = (clock or time.perf_counter)() - began
        names = [candidate.name for candidate in candidates]
        for name in request.only:
            if name not in names and not any(name.startswith(change.name) for change in offered.not_tried):
                raise InvalidArgumentError(
                    f'autotune: only: wanted names of changes, found "{name}"; there are {", ".join(names) or "none"}')
        self._hooks = _Hooks(knobs, kept, boundary, times, loop, offered.not_tried)
        return candidates

    def _weigh_compiling(self, candidates: list[_core.Candidate]) -> None:
        """By what it took on this machine before."""
        for candidate in candidates:
            if candidate.key == COMPILE:
                self._compile_costs = CompileCosts(self._models)
                candidate.prepare_s, candidate.prepare_note = self._compile_costs.estimate(candidate.prepare_s)

    def _note_prepared(self, key: str, seconds: float) -> None:
        if key == COMPILE and self._compile_costs is not None:
            self._compile_costs.note(seconds)

    def _make_tuner(self, candidates: list[_core.Candidate],
                    clock: Callable[[], float] | None) -> _core.LiveTuner | _core.LiveReplay:
        request = self._request
        options = {"allow": request.allow, "gain_min": request.gain_min, "only": request.only, "fixed": request.fixed,
                   "frozen": not request.auto_tune, "spent_s": self._spent_s}
        if self._hooks is None:  # It is for its report alone.
            tuner = _core.LiveTuner(None, candidates, options, request.seed, {}, clock)
            if self._problem is not None:
                tuner.stop(self._problem)
            return tuner
        progress = {kind: functools.partial(self._hear, kind) for kind in ("began", "machine", "preparing", "decided", "ended")}
        if request.replay is not None:
            replay = _core.LiveReplay(self._hooks.loop, str(request.replay), progress)
            self._check_turns(replay, self._hooks.knobs)
            return replay
        return _core.LiveTuner(self._hooks.loop, candidates, options, request.seed,
                                 {**progress, "prepared": self._note_prepared}, clock)

    def _check_turns(self, replay: _core.LiveReplay, knobs: LiveKnobs) -> None:
        """headrace.Error where the ledger has settings that these objects cannot have. Nothing hangs on them yet."""
        for settings in replay.settings():
            try:
                knobs.check(settings)
            except Error as error:
                raise type(error)(
                    f"autotune: replay: {self._request.replay}: {str(error).removeprefix('autotune: ')}") from error

    def _switches_loading(self, candidates: list[_core.Candidate]) -> bool:
        tuner = self._tuner
        tried = tuner.settings() if isinstance(tuner, _core.LiveReplay) else [candidate.changes for candidate in candidates]
        return any(key.startswith(LOADING) for settings in tried for key in settings)

    def _tell(self, kind: str, text: str) -> None:
        self._on_progress(kind, text)

    def _result(self) -> tuple[str, str, str]:
        """ledger.json, the report as text and as HTML."""
        request, hooks = self._request, self._hooks
        names = ", ".join(type(one).__name__ for one in (*self._models, *self._optimizers))
        return self._tuner.result({
            "title": request.title, "note": "" if self.problem is None else f"{self.problem}.",
            "command": f"headrace.autotune({names}, {request.shown()})",
            "baseline": {} if hooks is None else hooks.knobs.baseline(), "not_tried": self.not_applicable,
            "settings": [] if hooks is None else [*hooks.loop.in_force(), *(
                ("autotune.calls", "no_hook", "forward_hook", f"{name}: {reason}") for name, reason in
                hooks.boundary.hooked.items())],
        })

    def _write(self) -> None:
        folder, self._decided = self._request.out, False
        if folder is None:
            return
        told, self._unwritten = self._unwritten, None
        document, _, html = self._result()
        try:
            _core.write_file(str(folder / "ledger.json"), document)
            _core.write_file(str(folder / "report.html"), html)
        except Error as error:
            self._unwritten = f"out: {error}"
            if self._unwritten != told:
                self._tell("problem", self._unwritten)


_open_handles: weakref.WeakSet[AutoTune] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for handle in list(_open_handles):
        handle._guarded(handle._finish, "the interpreter ended", False)


def autotune(model: nn.Module | Iterable[nn.Module], optimizer: Any, loader: Any = None, *, allow: str = "rounding",
             steps: int | None = None, epochs: int | None = None, only: Iterable[str] = (), fixed: Iterable[str] = (),
             gain_min: float = 0.02, out: str | pathlib.Path | None = None, auto_tune: bool = True, seed: int = 0,
             title: str = "training loop", replay: str | pathlib.Path | None = None, first_update: int = 1,
             on_progress: Callable[[str, str], Any] | None = None) -> AutoTune:
    """Tunes a training loop while it runs. One statement before the loop, which stays as it is:

        hr.autotune(model, optimizer, loader)
        for batch in loader:
            ...

    The loop's own steps are the trial: between two updates a change is switched on or off, and what the pairs prove to be
    faster stays. Before a change is first in force, one kept call of the model is replayed under it, and gradients are compared.
    At no update is the run further behind the loop as written than 10 s plus 2 % of its expected length.

    model, optimizer: as you train them, or lists of them (GANs); Accelerate's and Lightning's wrapped optimizers will do. Where
    the loop calls parts of a model and never the model itself (`model.training_loss(batch)`), precision and compiling are tried
    if these parts stand in the list beside it. loader: a DataLoader, a headrace.Loader, another iterable of batches, or None.
    allow: what a kept change may do to the numbers: "bit_equal", "rounding" or "reduced_precision". steps or epochs: how many
    updates or epochs the whole run has, where you know it: what may be lost depends on it, and compiling is tried only then, where
    the rest of the run pays what it took in earlier runs on this machine (compile_costs.json in ~/.cache/headrace, without names).
    only: changes by name; fixed: keys, or tables of keys, that stay. gain_min: the smallest gain worth keeping, 0.02 is 2 %.
    out: a folder for ledger.json and report.html, written at each decision, when the search ends, at stop(), undo(), and when
    the interpreter ends. auto_tune: False hooks nothing and tries nothing. seed: draws the order of each pair. replay: a ledger,
    as told below. first_update: the number of the next update in the whole run, where this is one that was resumed from a
    checkpoint behind update first_update - 1: ledger, replay, `steps` and `epochs` count from there. on_progress(kind, text) is told "loader" (its epochs, and waiting for it, cannot be seen), "began", "machine" (it is not
    quiet: few changes are tried at a time), "preparing" (something that takes long, as compiling, is next), "decided", "ended", "problem";
    without it each is a line on stderr.

    Returns a handle. report() tells what was found so far; stop() ends the search with what is kept; undo(), or the end of
    `with hr.autotune(...):`, gives the objects back as they were.

    replay="out/ledger.json" repeats the tuned run that wrote this ledger: what it had in force at each update is in force again,
    nothing is measured, and what it kept stays; `allow` and all that steers a search mean nothing. With the same script, data,
    seeds, thread counts, torch and kind of machine the run has the bits of the first one, but for three things. What changed
    within an update is repeated from its start or end: stop() between two micro-batches, a setting that ended by itself (a model
    that recompiles). torch.compile may make other code for inputs of many shapes, as it depends on those it met first. Where
    another number of worker processes that draw was kept and checked again, they may draw others. A ledger that is broken or
    does not fit the objects is a headrace.Error at once; where a turn cannot be applied later, all is undone, and one line and
    handle.problem say so, as where the run ends before the last turn. With first_update it is repeated from there on: what held
    for that update is in force at once. Of several optimizers at least 12 steps go by until a turn can be applied.

    Cost: some tens of microseconds an update, and what the budget allows. Memory for one kept call while changes are checked. On a CUDA
    device updates are timed by events, and nothing waits for those: what an update took is known some updates later.

    InvalidArgumentError for objects of another kind. Where a loop cannot be tuned (it never updates, updates in two threads,
    is tuned already, trains with other processes, on several devices or on one that is neither the CPU nor CUDA's), one line says
    so, handle.problem holds it, and the loop runs as it was. So it does when something of headrace's own fails, but for changes
    that were kept by then.

    Numbers that are not finite are looked for where calls are replayed, and not in each step, which would cost one. An exception
    of your own code passes as it is. In the form `with` all is undone then; in the other, what is in force stays so until the
    next update, stop() or undo().
    """
    models, optimizers, loader = raw_objects(model, optimizer, loader)
    request = requested(allow=allow, steps=steps, epochs=epochs, only=only, fixed=fixed, gain_min=gain_min, out=out,
                        auto_tune=auto_tune, seed=seed, title=title, replay=replay, first_update=first_update)
    return AutoTune(models, optimizers, loader, request, on_progress)


def _print_line(kind: str, text: str) -> None:
    _print_text(kind, f"the search is over: {text}" if kind == "ended" else text)


def _print_text(kind: str, text: str) -> None:
    del kind
    tell_line(text)
