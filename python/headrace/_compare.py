"""hr.compare: what `headrace compare` says of two versions of a job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._charts import paragraph, table
from ._trial import interval_text
from .errors import CancelledError, Error, InvalidArgumentError, UnsupportedError

_COMMAND = os.path.join(os.path.dirname(__file__), "__main__.py")  # Which finds program and torch as the command does.
_DONE, _USAGE, _WORSE, _STOPPED = 0, 2, 3, (130, 143)  # Exit codes, as the command has them.
_HEAD = ("metric", "old", "new", "change", "95 % interval", "verdict")


class Comparison(dict[str, Any]):
    """What hr.compare found: a dict as `headrace compare --json` writes it; json.dump() takes it. As a text it is the command's table, in a
    notebook a table."""

    def __init__(self, found: Mapping[str, Any], text: str) -> None:
        super().__init__(found)
        self._text = text

    @property
    def is_failure(self) -> bool:
        """Something is worse, missing or wrong: the command ends with exit code 3."""
        return bool(self["failure"])

    @property
    def conclusion(self) -> str:
        """In a sentence."""
        return str(self["conclusion"])

    @property
    def verdicts(self) -> dict[str, str]:
        """Of each metric: "regressed", "improved", "equivalent", "inconclusive" or "missing"."""
        return {metric["name"]: metric["verdict"] for metric in self["metrics"]}

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<headrace.Comparison: {self.conclusion}>"

    def _repr_html_(self) -> str:
        rows = [_row(metric) for metric in self["metrics"]]
        return paragraph(self.conclusion) + table(_HEAD, rows) + "".join(paragraph(remark) for remark in self["remarks"])


def _row(metric: Mapping[str, Any]) -> tuple[str, ...]:
    change, form = metric["change"] or {}, "+.4g" if metric["absolute"] else "+.1%"
    values = ["unavailable" if value is None else f"{value:.4g}" for value in (metric["old"], metric["new"])]
    middle = change.get("median")
    return (metric["name"], *values, "unavailable" if middle is None else f"{middle:{form}}",
            interval_text(change.get("low"), change.get("high"), form), metric["verdict"])


def compare(
        old: str | os.PathLike[str], new: str | os.PathLike[str], arguments: Sequence[str | os.PathLike[str]] = (), *, pairs: int = 60,
        metrics: Iterable[str] = (), tolerance: Mapping[str, float] | None = None, higher_is_better: Iterable[str] = (),
        absolute: Iterable[str] = (), false_discovery_rate: float = 0.02, train: bool = False, build: str = "", python: str = "",
        limit_s: float = 600.0, seed: int = 0, html: str | os.PathLike[str] | None = None,
        history: str | os.PathLike[str] | None = None, save: str | os.PathLike[str] | None = None) -> Comparison:
    """Whether the job `new` is slower than `old`, needs more memory, or computes something wrong: runs the command `headrace compare`, which
    runs both in turns, each run in a process of its own, until it is decided.

        found = hr.compare("old.py", "new.py", ["--epochs", "1"], metrics=["step_p50_s", "accuracy"])
        print(found)
        assert not found.is_failure

    old, new: recipes (.toml), scripts (.py), programs or folders of a build, commits of the git repository in the current folder; or stored
    runs. arguments: for both; of commits the command. pairs: at most. metrics: compare these alone; one that a run does not tell is a
    failure. tolerance: by metric, what of a change matters: a share (0.02), of accuracy and hit_rate a difference (0.005).
    higher_is_better, absolute: names of metrics of which more is better, and of those that are compared by differences.
    false_discovery_rate: of what is called regressed or improved, how much may be so wrongly. train: recipes are trained to their end.
    build: of commits, a line for sh that builds each. python: runs scripts; this Python by default. limit_s: seconds for one run.
    seed: draws the order within pairs; 0: by the clock. html: also write a page with the pairs drawn. history: a SQLite file to add the
    verdict to. save: a folder to keep the runs in.

    InvalidArgumentError: an argument makes no sense. Error: a run failed, or OLD or NEW is nothing that can be compared; the message has the
    last line that it wrote. CancelledError: the command was stopped by a signal.
    """
    if isinstance(arguments, str):
        raise InvalidArgumentError(f"compare: arguments: wanted a list of words, found the text {arguments!r}")
    if not sys.executable:
        raise UnsupportedError("compare: this Python does not know its own program (sys.executable), which runs the command")
    # No file of ours is in the command that a page or the result shows: it can be run again as it stands.
    words = ["--json=/dev/stdout", f"--pairs={pairs}", f"--limit-s={limit_s}", f"--false-discovery-rate={false_discovery_rate}"]
    words += _given("--metrics", _names(metrics)) + _given("--higher-is-better", _names(higher_is_better))
    words += _given("--absolute", _names(absolute)) + _given("--tolerance", _names(
        f"{name}={value}" for name, value in (tolerance or {}).items()))
    words += _given("--build", build) + _given("--python", python) + _given("--order-seed", str(seed) if seed else "")
    for flag, path in (("--html", html), ("--history", history), ("--save", save)):
        words += _given(flag, "" if path is None else os.fspath(path))
    if train:
        words.append("--train")
    behind = ["--", *(os.fspath(word) for word in arguments)] if arguments else []
    told = _run([sys.executable, _COMMAND, "compare", os.fspath(old), os.fspath(new), *words, *behind])
    found, end = json.JSONDecoder().raw_decode(told)
    return Comparison(found, told[end:].lstrip("\n"))


def _names(names: Iterable[str]) -> str:
    """As the command takes them; a text is taken to be so already."""
    return names if isinstance(names, str) else ",".join(names)


def _given(flag: str, value: str) -> list[str]:
    return [f"{flag}={value}"] if value else []


def _run(command: Sequence[str]) -> str:
    """What it wrote, once it has ended with a verdict: its JSON, then its table."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace") as process:
        try:
            text, told = process.communicate()
        except BaseException:  # Ctrl-C: what it runs ends with it.
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
    if process.returncode in (_DONE, _WORSE):
        return text
    last = re.sub(r"\Aheadrace: (error: |warning: )?", "", told.rstrip("\n").rpartition("\n")[2])
    kind = InvalidArgumentError if process.returncode == _USAGE else CancelledError if process.returncode in _STOPPED else Error
    raise kind(last or f"compare: the command ended with {process.returncode} and no word")
