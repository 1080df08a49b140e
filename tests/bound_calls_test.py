"""Every name of the native modules is called 100,000 times by a test that nothing is left behind of, or tests/uncalled_names.txt says why
not. Read from the sources: no module is loaded."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "python" / "headrace"
WITH_MAKERS = ("core_calls_test.py", "core_live_calls_test.py", "engine_calls_test.py")
# Of a with statement, a loop, len() and a call: no name of theirs stands in the code.
BY_SYNTAX = {"__enter__", "__iter__", "__next__", "__len__", "__call__"}


def names_of(stub: str) -> Iterator[str]:
    """Functions, classes that can be made, and what a class has, as CLASS.NAME. The end of a with statement belongs to its beginning."""
    for node in ast.parse((PACKAGE / stub).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name != "__exit__":
                    yield node.name if item.name == "__init__" else f"{node.name}.{item.name}"


def functions_of(file: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}


def words_in(*nodes: ast.AST) -> set[str]:
    """Every name and attribute."""
    inside = [one for node in nodes for one in ast.walk(node)]
    return {one.attr for one in inside if isinstance(one, ast.Attribute)} | {one.id for one in inside if isinstance(one, ast.Name)}


def claims_of_makers() -> Iterator[tuple[str, list[str], set[str]]]:
    """What a function of these files says that it calls, and the words in it."""
    for file in WITH_MAKERS:
        functions = functions_of(file)
        tried = words_in(*functions["test_100000_calls_leave_nothing_behind"].decorator_list)
        for name, function in functions.items():
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "calls":
                    assert name in tried, f"{file}: the test of 100,000 calls does not try {name}"
                    yield f"{file}: {name}", [ast.literal_eval(word) for word in decorator.args], words_in(function)


def claims_of_the_loader() -> tuple[str, list[str], set[str]]:
    tree = ast.parse((TESTS / "core_module_test.py").read_text())
    (table,) = [ast.literal_eval(node.value) for node in tree.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CALLS"]
    parts = [functions_of("core_module_test.py")[name] for name in (
        "calls_of", "recorded", "tell_step", "refused", "test_100000_batches_and_epochs_leave_nothing_behind")]
    return "core_module_test.py", [name for names in table.values() for name in names], words_in(*parts)


def reasons() -> dict[str, str]:
    lines = [line for line in (TESTS / "uncalled_names.txt").read_text().splitlines() if not line.startswith("#")]
    found = dict(line.split(": ", 1) for line in lines)
    assert len(found) == len(lines) and all(found.values())
    return found


def test_every_bound_name_is_called_100000_times_or_has_a_reason():
    claims = [*claims_of_makers(), claims_of_the_loader()]
    called = [name for _, names, _ in claims for name in names]
    bound = {*names_of("_core.pyi"), *names_of("_engine.pyi")}
    assert sorted(set(called) & reasons().keys()) == []
    assert sorted(bound - set(called) - reasons().keys()) == [], "called by no test of 100,000 calls, and no reason says why"
    assert sorted((set(called) | reasons().keys()) - bound) == [], "not in the stubs any more"


def test_what_a_test_says_that_it_calls_stands_in_it():
    for where, names, words in [*claims_of_makers(), claims_of_the_loader()]:
        missing = [name for name in names if (last := name.rpartition(".")[2]) not in words and last not in BY_SYNTAX]
        assert missing == [], where
