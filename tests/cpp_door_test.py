"""Headrace as a C++ user meets it: installed, its prefix moved, and built against by a project outside the tree."""

import os
import re
import shutil
import subprocess

import pytest

from tiny_run import ROOT, write_idx, write_tiny_job

BUILD = ROOT / "build/release"
TORCH = next((ROOT / ".venv/lib").glob("python3*/site-packages/torch"))


def checked(*command, **more):
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An installation that was moved to another folder, its first one gone."""
    folder = tmp_path_factory.mktemp("door")
    checked("cmake", "--install", BUILD, "--prefix", folder / "first", "--component", "cpp")
    return (folder / "first").rename(folder / "moved")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_idx(folder, "train", 1280)
    write_idx(folder, "t10k", 320)
    return f"idx:{folder}"


def configure(prefix, folder, *settings, torch=None, path=os.environ["PATH"]):
    """CMake over folder/source, by default a copy of the examples, with no word of ours in the environment but HEADRACE_TORCH."""
    if not (folder / "source").exists():
        shutil.copytree(ROOT / "examples/cpp", folder / "source")
    environment = {"PATH": path, "HOME": str(folder), **({"HEADRACE_TORCH": str(torch)} if torch else {})}
    return subprocess.run(["cmake", "-G", "Ninja", "-S", folder / "source", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
                           "-DCMAKE_CXX_FLAGS=-O0 -Wall -Wextra -Werror", *settings],
                          capture_output=True, text=True, env=environment)


def installed_files(prefix):
    return [path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()]


def test_nothing_installed_names_a_folder_of_the_build(prefix):
    files = installed_files(prefix)
    assert {"libheadrace_torch.so", "libheadrace.so", "headrace", "loader.h", "headraceConfig.cmake"} <= {
        re.sub(r"\.so\..*", ".so", path.name) for path in files}
    for path in files:
        content = path.read_bytes()
        for folder in (ROOT, BUILD, TORCH, TORCH.resolve().parent):
            assert str(folder).encode() not in content, f"{path} names {folder}"
        if content.startswith(b"\x7fELF"):
            run_path = re.search(r"R(?:UN)?PATH.*\[(.*)\]", checked("readelf", "-d", path))
            for folder in run_path[1].split(":") if run_path else []:
                assert folder.startswith("$ORIGIN"), f"{path}: {folder}"


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_examples_build_outside_the_tree_and_run(prefix, data, tmp_path, compiler):
    made = configure(prefix, tmp_path, f"-DCMAKE_CXX_COMPILER={compiler}", torch=TORCH)
    assert made.returncode == 0, made.stderr
    checked("cmake", "--build", tmp_path / "build")
    environment = {"PATH": "/usr/bin:/bin"}
    loaded = checked(tmp_path / "build/load_images", data, env=environment)
    first, second = re.search(r"mean (\S+), in another loader that goes on there (\S+)", loaded).groups()
    assert "20 batches of 1 x 64 x 64" in loaded and first == second
    trained = checked(tmp_path / "build/train", data, 6, env=environment)
    losses = [float(loss) for loss in re.findall(r"loss (\S+), test accuracy", trained)]
    assert len(losses) == 6 and losses[5] < losses[0]
    tuned = checked(tmp_path / "build/tune_a_loop", data, 2, env=environment)
    assert re.search(r"^fused optimizer: (kept|refused|inconclusive): ", tuned, re.MULTILINE)


def test_loading_needs_no_torch(prefix, data, tmp_path):
    """Of the folder that is named as torch nothing is read."""
    made = configure(prefix, tmp_path, "-DWITH_TORCH=OFF", torch=tmp_path / "none")
    assert made.returncode == 0, made.stderr
    checked("cmake", "--build", tmp_path / "build")
    program = tmp_path / "build/load_images"
    assert "batch 1: mean" in checked(program, data, env={})
    assert "torch" not in checked("ldd", program)


def test_the_build_tree_s_program_looks_for_no_library_in_the_current_folder():
    for path in (BUILD / "bin/headrace", BUILD / "lib/libheadrace.so"):
        run_path = re.search(r"R(?:UN)?PATH.*\[(.*)\]", checked("readelf", "-d", path))[1]
        assert all(folder.startswith("$ORIGIN") for folder in run_path.split(":")), run_path


def found(prefix, folder, words, torch):
    """What find_package(headrace WORDS) says in a project of its own."""
    (folder / "source").mkdir(parents=True)
    (folder / "source/CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.13)\nproject(p LANGUAGES CXX)\nfind_package(headrace {words})\n"
        'message("found=${headrace_FOUND} loader=${headrace_loader_FOUND} torch=${headrace_torch_FOUND}")\n')
    return configure(prefix, folder, torch=torch)


def test_a_component_that_is_optional_may_be_missing_and_all_faults_are_told(prefix, tmp_path):
    none = tmp_path / "none"
    optional = found(prefix, tmp_path / "optional", "0.1 REQUIRED COMPONENTS loader OPTIONAL_COMPONENTS torch", none)
    assert optional.returncode == 0 and "found=1 loader=TRUE torch=FALSE" in optional.stderr, optional.stderr
    both = found(prefix, tmp_path / "both", "0.1.0 COMPONENTS torch", TORCH)
    assert "found=1 loader= torch=TRUE" in both.stderr, both.stderr
    wrong = " ".join(found(prefix, tmp_path / "wrong", "REQUIRED COMPONENTS torch bogus", none).stderr.split())
    assert "wanted torch==2.11.0" in wrong and "there is no component bogus" in wrong, wrong
    assert found(prefix, tmp_path / "later", "0.2 REQUIRED", None).returncode != 0


def fake_torch(folder, version):
    (folder / "lib").mkdir(parents=True)
    (folder / "version.py").write_text(f"__version__ = '{version}'\n")
    return folder


def test_torch_of_another_version_is_refused_with_both(prefix, tmp_path):
    torch = fake_torch(tmp_path / "torch", "2.10.0+cpu")
    made = configure(prefix, tmp_path, torch=torch)
    assert made.returncode != 0
    assert f"wanted torch==2.11.0, found 2.10.0+cpu in {torch}" in " ".join(made.stderr.split())


def test_torch_that_is_missing_is_said_and_how_to_name_one(prefix, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to("/bin/false")
    made = configure(prefix, tmp_path, path=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert made.returncode != 0
    words = " ".join(made.stderr.split())
    assert "wanted torch==2.11.0, found none" in words and "Set HEADRACE_TORCH" in words


def test_the_installed_program_takes_the_torch_that_is_named_or_of_python(prefix, tmp_path):
    recipe = write_tiny_job(tmp_path, epochs=1)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text(f"#!/bin/sh\necho {TORCH}\n")
    (tmp_path / "bin/python3").chmod(0o755)
    command = [prefix / "bin/headrace", "train", recipe, "--out", tmp_path / "out"]
    of_python = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    checked(*command, env=of_python)
    named = {"PATH": "/nowhere", "HEADRACE_TORCH": str(TORCH)}
    checked(*command[:-1], tmp_path / "named", env=named)
    other = fake_torch(tmp_path / "torch", "2.10.0")
    refused = subprocess.run(command, capture_output=True, text=True, env={**of_python, "HEADRACE_TORCH": str(other)})
    assert refused.returncode == 1
    assert f"wanted torch==2.11.0, found 2.10.0 in {other}" in refused.stderr
