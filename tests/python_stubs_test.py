"""Stubs and docstrings say what the native modules have: every class, method, property, argument and option."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import headrace as hr
import pytest
from headrace import _core

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "headrace"


@pytest.fixture(params=["_core", pytest.param("_engine", marks=pytest.mark.engine)])
def module(request):
    import torch  # noqa: F401 - First: _engine takes its libraries from the process.

    return importlib.import_module(f"headrace.{request.param}")


def stubs_of(module) -> list[ast.stmt]:
    return ast.parse((PACKAGE / f"{module.__name__.removeprefix('headrace.')}.pyi").read_text()).body


def public(names) -> set[str]:
    kept = {"__init__", "__iter__", "__len__", "__next__", "__enter__", "__exit__", "__await__", "__call__"}
    return {name for name in names if not name.startswith("_") or name in kept}


def arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args + function.args.kwonlyargs]


def bound_arguments(function) -> list[str]:
    """Of the signature that pybind11 and nanobind write on top of a docstring; "**kwargs" of the options is left out."""
    signature = re.match(r"\w+\((.*)\)", function.__doc__.split("\n")[0])[1]
    names = re.findall(r"(?:^|, )(\w+)(?=:|,|$)", re.sub(r"[\[{][^\]}]*[\]}]", "", signature))
    return [name for name in names if name not in ("args", "kwargs")]


def defaults(function: ast.FunctionDef) -> dict[str, object]:
    args = function.args
    positional = args.args[len(args.args) - len(args.defaults):]
    return {argument.arg: ast.literal_eval(value)
            for argument, value in zip([*positional, *args.kwonlyargs], [*args.defaults, *args.kw_defaults]) if value is not None}


def bound_defaults(function) -> dict[str, object]:
    """Of the same signature; none of them has a comma or a bracket."""
    signature = re.sub(r"\[[^\]]*\]", "", re.match(r"\w+\((.*)\)", function.__doc__.split("\n")[0])[1])
    return {name: ast.literal_eval(value) for name, value in re.findall(r"(\w+): [^,=]+ = ([^,]+)", signature)}


def classes(module) -> dict[str, dict[str, ast.FunctionDef]]:
    return {node.name: {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
            for node in stubs_of(module) if isinstance(node, ast.ClassDef)}


def functions(module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in stubs_of(module) if isinstance(node, ast.FunctionDef)}


def test_every_name_of_the_module_has_a_stub_and_no_stub_is_left_over(module):
    in_module = {name for name in vars(module) if not name.startswith("_")}
    assert in_module == classes(module).keys() | functions(module).keys()
    for name, methods in classes(module).items():
        bound = {key for key in public(vars(getattr(module, name)))}
        assert bound - {"__init__"} == methods.keys() - {"__init__"}, name


def test_arguments_of_stubs_are_those_of_the_bindings(module):
    for name, function in functions(module).items():
        assert arguments(function) == bound_arguments(getattr(module, name)), name
    for name, methods in classes(module).items():
        for method, stub in methods.items():
            bound = inspect.getattr_static(getattr(module, name), method, None)
            if method.startswith("__") or isinstance(bound, property):
                continue
            bound = bound.__func__ if isinstance(bound, staticmethod) else bound
            assert arguments(stub) == bound_arguments(bound), f"{name}.{method}"


@pytest.mark.engine
def test_stubs_of_trainers_name_every_option_with_its_default():
    import torch

    from headrace import _engine

    model = torch.nn.Linear(1, 1)
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters()), lambda m, b: m(b).sum()).options
    stubs = classes(_engine)["Trainer"]
    stub = stubs["__init__"].args
    assert {a.arg for a in stub.kwonlyargs} == trainer.keys() | {"steps"}
    named = dict(zip((a.arg for a in stub.kwonlyargs), (ast.literal_eval(default) for default in stub.kw_defaults)))
    for option in ("epochs", "precision", "gradient_accumulation_steps", "deterministic", "loss_scale", "ema_decay", "ema_warmup"):
        assert named[option] == trainer[option], option
    assert defaults(stubs["fit"]) == bound_defaults(_engine.Trainer.fit)


def test_stubs_of_loaders_name_every_option_with_its_default(tmp_path):
    import struct

    for split, count in (("train", 4), ("t10k", 2)):
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, count, 2, 2) + bytes(4 * count))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(count))
    loader = hr.Loader(f"idx:{tmp_path}").options
    stub = classes(_core)["Loader"]["__init__"].args
    assert {a.arg for a in stub.kwonlyargs} | {"source"} == loader.keys() | {"split", "collate_fn", "worker_init_fn"}
    named = dict(zip((a.arg for a in stub.kwonlyargs), (ast.literal_eval(default) for default in stub.kw_defaults)))
    for option in named.keys() - {"split", "training", "transform", "collate_fn", "worker_init_fn"}:
        assert named[option] == loader[option], option


def test_everything_public_has_a_docstring():
    for name in hr.__all__:
        item = getattr(hr, name)
        assert item.__doc__, name
        if inspect.isclass(item) and item.__module__ in ("headrace._core", "headrace._engine"):
            for method in public(vars(item)):
                if not method.startswith("__"):
                    text = inspect.getattr_static(item, method).__doc__
                    assert text and len(text.split("\n\n")[-1]) > 10, f"{name}.{method}"
