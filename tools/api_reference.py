#!/usr/bin/env python3
"""Writes docs/api.md, to stdout: every public name of the packages headrace and performance_optimization with its signature and docstring.

usage: api_reference.py >docs/api.md    (with the package on PYTHONPATH, and torch)
"""

import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch  # noqa: F401 - Before headrace's engine.

import headrace
import performance_optimization

PACKAGES = ("headrace", "performance_optimization")
SECTIONS = {
    "Tuning": ["autotune", "AutoTune", "tune", "Tuned", "Trial", "Ledger", "Strategy", "StrategyContext", "register_strategy",
               "unregister_strategy", "strategies"],
    "Loading": ["Loader", "AUTOTUNE", "Batch", "RaggedTensor", "Field", "pack", "Transform", "transforms", "DataPipelineOptimizer",
                "OptimizedLoader", "PipelineReport", "LoaderChange"],
    "Training": ["Trainer", "plan_batch_size", "BatchPlan", "BatchProbe", "set_tensor_memory_limit", "gradient_checkpointing_enable",
                 "gradient_checkpointing_disable", "ActivationCheckpointing", "CheckpointingReport", "compiled", "Compiled",
                 "CompileAttempt", "pad_last_batch", "bucket_shapes", "FixedShapes", "set_memory_format", "ScaledDotProductAttention",
                 "MultiheadAttention", "register_kernel", "hardware_settings", "HardwareSettings", "HardwareSetting", "accuracy",
                 "ConfusionMatrix"],
    "Measuring": ["watch", "profile", "schedule", "write_traces", "KeyAverages", "memory_by_role", "MemoryByRole", "monitor", "Alert",
                  "standard_alerts", "Trace", "span", "profile_operation", "diagnose", "diagnose_loop", "Diagnosis", "write_report", "doctor",
                  "compare", "Comparison", "compare_functions", "FunctionComparison"],
    "Errors": ["Error", "errors"],
}
HEAD = """# headrace in Python

`import headrace as hr`. `make docs` writes this page from the docstrings, which `help()` shows, too. Examples are in [the guides](index.md#guides). Callbacks for
frameworks: `headrace.lightning.AutoTune` and `headrace.transformers.AutoTune`, with the keywords of `autotune`.
"""
SECOND_HEAD = """## performance_optimization

`import performance_optimization`, or by its other name `performance_optimization_system`: the same objects. [The guide](guides/performance_config.md) has
examples.
"""
WIDTH = 150


def parameters_of(line: str) -> str:
    """Of the signature that a binder writes on top of a docstring: names and defaults, as "(trace, *, skip=0)"."""
    inner = line[line.index("(") + 1:line.rindex(")")] if "(" in line else ""
    told, depth, begin = [], 0, 0
    for place, sign in enumerate(inner + ","):
        depth += (sign in "[({") - (sign in "])}")
        if sign == "," and depth == 0:
            name, default = re.fullmatch(r"\s*([*/\w]+)(?::.*?)?(?:\s=\s(.*))?", inner[begin:place], re.DOTALL).groups()
            told.append(name + ("" if default is None else f"={default}"))
            begin = place + 1
    return f"({', '.join(name for name in told if name != 'self')})"


def is_native(item: Any) -> bool:
    return not inspect.isfunction(item) and (item.__doc__ or "").startswith(f"{item.__name__}(")


def signature_of(item: Any) -> str:
    if is_native(item):
        return parameters_of(item.__doc__.split("\n")[0])
    plain = inspect.signature(item)
    kept = [parameter.replace(annotation=inspect.Parameter.empty) for name, parameter in plain.parameters.items() if name != "self"]
    return str(plain.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def text_of(item: Any) -> str:
    """The docstring without the signature that a binder puts on top."""
    text = inspect.getdoc(item) or ""
    return re.sub(r"\A\w*\([^\n]*\n*", "", text) if re.match(r"\w*\((self|.*\) ->)", text.split("\n")[0]) else text


def escaped(text: str) -> str:
    """Markdown that shows this text; what stands between backticks is code there, too."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<\[\]#|]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts)


def filled(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(escaped(" ".join(text.split())), WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                         break_on_hyphens=False)


def listed(paragraph: str) -> str | None:
    """Of a paragraph of "name: sentence" lines, each with indented ones behind it, a list; below one that is a dict its keys are
    a level deeper. None: it is none."""
    entries: list[tuple[str, str]] = []
    for line in paragraph.split("\n"):
        if re.match(r"\w+(=[^\n]*?)?: ", line):
            entries.append(("", line))
        elif re.match(r" {4}\w+=[^\n]*?: ", line):
            entries.append(("  ", line))
        elif entries and line.startswith("    "):
            entries[-1] = entries[-1][0], f"{entries[-1][1]} {line}"
        else:
            return None
    return "\n".join(filled(entry, f"{indent}- ", f"{indent}  ") for indent, entry in entries)


def prose(text: str) -> str:
    """A docstring as Markdown: indented paragraphs are code, "name: sentence" lines are a list."""
    made = []
    for paragraph in re.split(r"\n\s*\n", text):
        if all(line.startswith("    ") for line in paragraph.split("\n")):
            made.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            made.append(listed(paragraph) or filled(paragraph))
    return "\n\n".join(made)


def call_of(name: str, signature: str) -> str:
    """On lines that end between two arguments."""
    whole = re.sub(r"(?<!,) ", "\0", f"{name}{signature}")
    return textwrap.fill(whole, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def members_of(kind: type) -> list[str]:
    """What a class has of its own and of its native half, each as a point of a list."""
    told = []
    for name in sorted({name for one in kind.__mro__ if one.__module__.startswith(PACKAGES) for name in vars(one)}):
        item = inspect.getattr_static(kind, name)
        if name.startswith("_"):
            continue
        if isinstance(item, (classmethod, staticmethod)):
            item = getattr(kind, name)
        is_value = isinstance(item, property) or not callable(item)
        text = text_of(item) if not is_value or isinstance(item, property) else ""
        told.append(filled(f"`{name}{'' if is_value else signature_of(item)}`{': ' if text else ''}{text}", "- ", "  "))
    return told


def is_never_made(item: Any) -> bool:
    """Of a class: its members are what there is of it, or it says only what others have."""
    return inspect.isclass(item) and (issubclass(item, enum.Enum) or getattr(item, "_is_protocol", False))


def entry_of(name: str, item: Any) -> str:
    if isinstance(item, ModuleType):
        kinds = [getattr(item, one) for one in getattr(item, "__all__", None) or sorted(vars(item))
                 if inspect.isclass(getattr(item, one)) and not one.startswith("_")]
        below = [f"#### {item.__name__}.{kind.__name__}\n\n{prose(text_of(kind))}" for kind in kinds]
        return "\n\n".join([f"### {name}", prose(inspect.getdoc(item) or ""), *below])
    if isinstance(item, Mapping):
        return f"### {name}\n\nA table of " + ", ".join(f"`{key}`" for key in item)
    if not callable(item):
        return f"### {name}\n\n`{item!r}`"
    made_by = item.__init__ if inspect.isclass(item) else item
    is_called = (inspect.isfunction(made_by) or is_native(made_by)) and not is_never_made(item)  # Else it is made by others.
    parts = [f"### {name}", f"```text\n{call_of(name, signature_of(made_by))}\n```" if is_called else "", prose(text_of(item))]
    if inspect.isclass(item):
        parts.append("\n".join(members_of(item)))
    return "\n\n".join(part for part in parts if part)


def main() -> int:
    names = [name for group in SECTIONS.values() for name in group]
    if missing := sorted(set(headrace.__all__) - set(names) - {"__version__"}):
        sys.exit(f"api_reference: no section has {', '.join(missing)}")
    pages = [HEAD]
    for section, group in SECTIONS.items():
        pages.append(f"## {section}\n")
        pages += [entry_of(name, getattr(headrace, name)) + "\n" for name in group]
    pages.append(SECOND_HEAD)
    pages += [entry_of(f"performance_optimization.{name}", getattr(performance_optimization, name)) + "\n"
              for name in sorted(performance_optimization.__all__)]
    sys.stdout.write("\n".join(pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
