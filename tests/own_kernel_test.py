"""A library of kernels that is built outside the tree, examples/cpp/kernel, opened from Python and from C++, and libraries that are
refused before anything of them runs."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import headrace as hr
import pytest
import torch
from cpp_door_test import build, checked, prefix  # noqa: F401
from headrace.errors import CorruptDataError, InvalidArgumentError, NotFoundError, UnsupportedError
from tiny_run import ROOT

NAME = "example::normalise"
VERSION = ".".join(torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def built(prefix, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "source").symlink_to(ROOT / "examples/cpp/kernel")
    build(prefix, folder, tmp_path_factory.getbasetemp(), "g++")
    return folder / "build"


def python(script, *words):
    """In a process of its own: what is opened stays so. From a file, where torch.jit.script finds its functions' source."""
    environment = {**os.environ, "PYTHONPATH": str(Path(hr.__file__).parent.parent)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script)
        return subprocess.run([sys.executable, path, *map(str, words)], capture_output=True, text=True, env=environment)


CALLS = f"""
import sys
import headrace as hr
import torch

normalise = hr.register_kernel("{NAME}", sys.argv[1])
images = torch.randint(0, 256, (4, 3, 9, 11), dtype=torch.uint8)
mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
found = normalise(images, mean, std)
wanted = (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
assert found.is_contiguous(memory_format=torch.channels_last)
assert hr.register_kernel("{NAME}", sys.argv[1]) is normalise and torch.ops.example.normalise is normalise

@torch.jit.script
def scripted(images, mean, std):
    return torch.ops.example.normalise(images, mean, std)

assert torch.equal(scripted(images, mean, std), found)
try:
    normalise(images.float(), mean, std)
except ValueError as error:
    assert "contiguous uint8" in str(error)
else:
    raise AssertionError("accepted")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    normalise(images, mean, std)
assert "{NAME}" in {{event.key for event in profile.key_averages()}}
print("same")
"""


def test_a_kernel_built_outside_the_tree_is_called_from_python_and_in_torchscript(built):
    done = python(CALLS, built / "libnormalise.so")
    assert done.stdout == "same\n", done.stderr


def test_a_kernel_built_outside_the_tree_is_called_from_cpp(built):
    told = checked(built / "use_kernel", built / "libnormalise.so", env={"PATH": "/usr/bin:/bin"})
    difference = float(told.split("operators ")[1].split(",")[0])
    assert told.startswith(f"{NAME}: ") and difference < 1e-6 and told.endswith("channels last: yes\n")


def variant(built, folder, old, new):
    """A copy of the library with other bytes, as many."""
    content = (built / "libnormalise.so").read_bytes()
    assert len(old) == len(new) and old in content
    path = folder / "libvariant.so"
    path.write_bytes(content.replace(old, new))
    return path


REFUSED = """
import sys
import headrace as hr

for library in sys.argv[2:]:
    try:
        hr.register_kernel(sys.argv[1], library)
    except hr.Error as error:
        print(type(error).__name__, error)
    else:
        sys.exit(f"{library} was accepted")
"""


def refusals(program, name, *libraries):
    """What both doors say of each: the class in Python, and both messages. One Python for all of them: nothing refused stays open."""
    done = python(REFUSED, name, *libraries)
    told = done.stdout.splitlines(keepends=True)
    assert done.returncode == 0 and len(told) == len(libraries), done.stdout + done.stderr
    found = []
    for library, line in zip(libraries, told, strict=True):
        kind, _, message = line.partition(" ")
        cpp = subprocess.run([program, library, name], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        assert cpp.returncode == 1 and cpp.stderr.count("\n") == 1, cpp.stdout + cpp.stderr
        found.append((kind, message, cpp.stderr))
    return found


def test_a_library_that_does_not_fit_is_refused_with_the_reason(built, tmp_path):
    mark = f"headrace kernel library, torch {VERSION}".encode()
    other = mark[:-len(VERSION)] + b"9" * VERSION.index(".") + b"." + b"9" * (len(VERSION) - VERSION.index(".") - 1)
    text, empty = tmp_path / "text.so", tmp_path / "empty.so"
    text.write_text("no library")
    empty.write_text("")
    marked = tmp_path / "marked.so"
    marked.write_bytes(mark + b".0\0")
    (tmp_path / "folder.so").mkdir()
    wanted = (
        (tmp_path / "missing.so", NotFoundError, ["missing.so", "cannot be opened: No such file"]),
        (tmp_path / "folder.so", CorruptDataError, ["folder.so", "is no regular file"]),
        (empty, CorruptDataError, ["empty.so", "is empty"]),
        (text, UnsupportedError, ["wanted HEADRACE_KERNEL_LIBRARY"]),
        (marked, UnsupportedError, ["cannot be opened", "marked.so"]),
        (variant(built, tmp_path, mark, other), UnsupportedError, ["built for torch 9", f"found {VERSION}"]))
    found = refusals(built / "use_kernel", NAME, *(library for library, _, _ in wanted))
    for (library, error, words), (kind, *messages) in zip(wanted, found, strict=True):
        assert kind == error.__name__, messages
        if library != marked:  # Of which each door has the system's words.
            assert messages[1] == f"use_kernel: {messages[0]}"
        for message in messages:
            assert all(word in message for word in words), message


def test_an_operator_that_a_library_lacks_is_named_with_those_that_it_has(built):
    ((kind, *messages),) = refusals(built / "use_kernel", "example::normalize", built / "libnormalise.so")
    assert kind == "UnsupportedError"
    for message in messages:
        assert "wanted example::normalize" in message and NAME in message


def test_names_of_another_form_and_taken_namespaces_are_refused(built, tmp_path):
    for name in ("normalise", "example::", "a::b::c", "example::1", "example.normalise"):
        with pytest.raises(InvalidArgumentError, match="namespace::operator"):
            hr.register_kernel(name, tmp_path)
    ((kind, *messages),) = refusals(built / "use_kernel", "aten::add", built / "libnormalise.so")
    assert kind == "InvalidArgumentError" and all("another library" in message for message in messages)
