"""Headrace as a C++ user meets it: installed, its prefix moved, and built against by a project outside the tree."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from safetensors.numpy import load_file

from document_blocks import GUIDES, MIGRATION, snippet
from tiny_run import ROOT, write_idx, write_photos, write_tiny_job

BUILD = ROOT / "build/release"
GUIDE = GUIDES / "cpp.md"
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


def build(prefix, folder, shared, compiler):
    """Configures with torch and builds. `shared`: a folder above this one and those of other runs."""
    ccache = shutil.which("ccache")
    launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []
    made = configure(prefix, folder, f"-DCMAKE_CXX_COMPILER={compiler}", *launcher, torch=TORCH)
    assert made.returncode == 0, made.stderr
    # The folders have other names in each run: relative to what they share, ccache knows them again.
    checked("cmake", "--build", folder / "build", env={**os.environ, "CCACHE_BASEDIR": str(shared)})


def installed_files(prefix):
    return [path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()]


def names_folder(content, folder):
    """Also behind another folder, as ccache writes it: ../../home/me/headrace/src. Not as the beginning of a longer name."""
    return re.search(rb"(?<![\w.-])" + re.escape(str(folder).lstrip("/").encode()) + rb"(?![\w.-])", content) is not None


def test_nothing_installed_names_a_folder_of_the_build(prefix):
    files = installed_files(prefix)
    assert {"libheadrace_torch.so", "libheadrace.so", "headrace", "loader.h", "headraceConfig.cmake"} <= {
        re.sub(r"\.so\..*", ".so", path.name) for path in files}
    for path in files:
        content = path.read_bytes()
        for folder in (ROOT, BUILD, TORCH, TORCH.resolve().parent):
            assert not names_folder(content, folder), f"{path} names {folder}"
        if content.startswith(b"\x7fELF"):
            run_path = re.search(r"R(?:UN)?PATH.*\[(.*)\]", checked("readelf", "-d", path))
            for folder in run_path[1].split(":") if run_path else []:
                assert folder.startswith("$ORIGIN"), f"{path}: {folder}"


def fine_tuned(program, data, folder, *weights, fault=None):
    """A run of the example, by one thread, so that its sums are always the same. `fault`: where it is killed."""
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **({"HEADRACE_FAULT": fault} if fault else {})}
    run = subprocess.run([program, data, folder, "2", *weights], capture_output=True, text=True, env=environment)
    assert run.returncode == (-signal.SIGKILL if fault else 0), run.stderr
    return run.stdout


def check_fine_tuning(program, data, folder):
    """One that is killed goes on and ends with the bits of one that never was."""
    assert re.fullmatch(r"(test accuracy [01]\.\d{4}\n){2}", fine_tuned(program, data, folder / "first"))
    weights = folder / "first/weights.safetensors"
    assert "goes on" not in fine_tuned(program, data, folder / "whole", weights)
    fine_tuned(program, data, folder / "killed", weights, fault="write.begin:3")  # The third checkpoint, after 30 of 40 steps.
    resumed = fine_tuned(program, data, folder / "killed", weights)
    assert resumed.startswith("goes on from checkpoint-000000020.safetensors\n"), resumed
    whole, killed = (folder / name / "weights.safetensors" for name in ("whole", "killed"))
    assert whole.read_bytes() == killed.read_bytes()
    began, ended = load_file(weights), load_file(killed)
    assert {name for name in began if not numpy.array_equal(began[name], ended[name])} == {
        name for name in began if not name.startswith(("conv1.", "bn1."))}


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_examples_build_outside_the_tree_and_run(prefix, data, tmp_path, tmp_path_factory, compiler):
    build(prefix, tmp_path, tmp_path_factory.getbasetemp(), compiler)
    environment = {"PATH": "/usr/bin:/bin"}
    loaded = checked(tmp_path / "build/load_images", data, env=environment)
    first, second = re.search(r"mean (\S+), in another loader that goes on there (\S+)", loaded).groups()
    assert "20 batches of 1 x 64 x 64" in loaded and first == second
    trained = checked(tmp_path / "build/train", data, 6, env=environment)
    losses = [float(loss) for loss in re.findall(r"loss (\S+), test accuracy", trained)]
    assert len(losses) == 6 and losses[5] < losses[0]
    check_fine_tuning(tmp_path / "build/fine_tune", data, tmp_path)
    optimized = checked(tmp_path / "build/optimized_training", data, 2, env=environment)
    assert len(re.findall(r"^epoch \d: loss \S+, test accuracy", optimized, re.MULTILINE)) == 2
    assert "enable_compile: requested true, applied none; " in optimized
    tuned = checked(tmp_path / "build/tune_a_loop", data, 2, env=environment)
    assert re.search(r"^fused optimizer: (kept|refused|inconclusive): ", tuned, re.MULTILINE)
    profiled = checked(tmp_path / "build/profile_steps", tmp_path / "log", env=environment)
    windows = [tmp_path / f"log/trace-{number}{suffix}" for number in (1, 2) for suffix in (".json", ".perfetto-trace")]
    assert profiled.splitlines()[:4] == [str(file) for file in windows] and all(file.stat().st_size > 0 for file in windows)
    steps = [sorted(event["args"]["value"] for event in json.loads(file.read_text())["traceEvents"] if event["name"] == "profiler_step")
             for file in windows[::2]]
    assert steps == [[2, 3, 4], [7, 8, 9]]
    assert len(profiled.splitlines()) == 4 + 1 + 10 and "aten::mm" in profiled


# What stands around the guide's blocks: the rest of a program, and what they leave to their reader.
LOADS = """#include <headrace/loader.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace hr = headrace;

%s
int main() {
  hr::Loader boards{std::make_shared<Checkerboards>(), {.batch_size = 12}, /*seed=*/1, /*training=*/false};
  hr::Epoch epoch = boards.epoch(0);
  const auto batch = epoch.next();
  std::printf("%%d boards\\n", static_cast<int>(batch->size()));
}
"""
WATCHES = """#include <headrace/duration_histogram.h>
#include <headrace/flight_recorder.h>
#include <headrace/monitor.h>
#include <headrace/stages.h>
#include <headrace/trace.h>

#include <chrono>
#include <cstdint>
#include <cstdio>

namespace hr = headrace;

void load() {}
void compute() {}

%s
int main() { train(100); }
"""
TRAINS = """#include <headrace/trainer.h>
#include <torch/torch.h>

#include <cstdio>

namespace hr = headrace;

int main() {
  torch::nn::Sequential net{torch::nn::Flatten(), torch::nn::Linear(3 * 64 * 64, 2)};
  const hr::Forward forward = [net](const hr::TensorBatch& batch) mutable -> hr::Output {
    return {torch::nn::functional::cross_entropy(net->forward(batch["image"]), batch["labels"]), {}};
  };
%s
  std::printf("%%d steps\\n", static_cast<int>(trainer.progress().optimizer_steps));
}
"""
LOOPS = """#include <headrace/activation_checkpointing.h>
#include <headrace/autocast.h>
#include <headrace/checkpoint.h>
#include <headrace/clip_gradients.h>
#include <headrace/grad_scaler.h>
#include <headrace/lr_scheduler.h>
#include <headrace/step_guard.h>
#include <headrace/trainer.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

namespace hr = headrace;

int main() {
  torch::nn::Sequential net{torch::nn::Flatten(), torch::nn::Linear(48, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                            torch::nn::Linear(8, 2)};
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int i = 0; i < 4; ++i) batches.emplace_back(torch::randn({6, 3, 4, 4}), torch::randint(2, {6}, torch::kLong));
  {
%s  }
%s%s
  std::printf("%%d steps, %%d updates\\n", static_cast<int>(step), static_cast<int>(training.progress().optimizer_steps));
}
"""


def test_the_guides_cpp_builds_outside_the_tree_and_runs(prefix, tmp_path, tmp_path_factory):
    source = tmp_path / "source"
    source.mkdir()
    (source / "loads.cpp").write_text(LOADS % snippet(GUIDE, "cpp", "class Checkerboards"))
    (source / "watches.cpp").write_text(WATCHES % snippet(GUIDE, "cpp", "hr::FlightRecorder"))
    (source / "trains.cpp").write_text(TRAINS % snippet(GUIDE, "cpp", "hr::Trainer"))
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(readme LANGUAGES CXX)\nadd_executable(loads loads.cpp)\n"
        "add_executable(trains trains.cpp)\nadd_executable(watches watches.cpp)\n" + snippet(GUIDE, "cmake", "find_package")
        + "target_link_libraries(watches PRIVATE headrace::headrace)\n")
    build(prefix, tmp_path, tmp_path_factory.getbasetemp(), "g++")
    write_photos(tmp_path / "photos", train=40)
    environment = {"PATH": "/usr/bin:/bin"}
    assert checked(tmp_path / "build/loads", env=environment) == "12 boards\n"
    assert re.fullmatch(r"median \d+ ns, 99 of 100 below \d+ ns\n", checked(tmp_path / "build/watches", env=environment, cwd=tmp_path))
    assert [path.name[:6] for path in (tmp_path / "runs/first").iterdir()] == ["events"]
    assert checked(tmp_path / "build/trains", env=environment, cwd=tmp_path) == "2 steps\n"  # Of 64 images and of 16.


def test_the_pages_loops_of_libtorch_build_and_run(prefix, tmp_path, tmp_path_factory):
    source = tmp_path / "source"
    source.mkdir()
    page = MIGRATION / "from_libtorch.md"
    loops = [snippet(page, "cpp", word) for word in ("torch::optim::AdamW adamw", "torch::optim::AdamW optimizer", "hr::Trainer training")]
    (source / "loops.cpp").write_text(LOOPS % tuple(loops))
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(loops LANGUAGES CXX)\nfind_package(headrace REQUIRED COMPONENTS torch)\n"
        "add_executable(loops loops.cpp)\ntarget_link_libraries(loops PRIVATE headrace::torch)\n")
    build(prefix, tmp_path, tmp_path_factory.getbasetemp(), "g++")
    assert checked(tmp_path / "build/loops", env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path) == "4 steps, 4 updates\n"
    assert [path.name for path in (tmp_path / "runs/mine").iterdir()] == ["checkpoint-000000004.safetensors"]


@pytest.mark.parametrize("example", sorted((ROOT / "examples/cpp").glob("*.cpp")), ids=lambda path: path.stem)
def test_main_of_an_example_has_at_most_25_lines(example):
    (main,) = re.findall(r"^int main\(.*?^}$", example.read_text(), re.MULTILINE | re.DOTALL)
    assert len(main.splitlines()) <= 25


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
    assert f"train: not applicable: built for torch 2.11, found 2.10.0 in {other}" in refused.stderr


def refused_words(prefix, folder, **environment):
    """What the installed program says on stderr where it finds no torch to train with."""
    recipe = write_tiny_job(folder, epochs=1)
    run = subprocess.run([prefix / "bin/headrace", "train", recipe, "--out", folder / "out"], capture_output=True, text=True,
                         env={"PATH": "/usr/bin:/bin", **{name: str(value) for name, value in environment.items()}})
    assert run.returncode == 1 and run.stderr.count("\n") == 1, run.stderr
    return run.stderr


def test_a_torch_that_is_named_by_a_relative_path_is_refused(prefix, tmp_path):
    """It would be another folder for each current folder, and for CMake another one again."""
    wanted = "wanted an absolute path in HEADRACE_TORCH, found some/torch"
    assert wanted in refused_words(prefix, tmp_path, HEADRACE_TORCH="some/torch")
    made = configure(prefix, tmp_path, torch="some/torch")
    assert made.returncode != 0 and wanted in " ".join(made.stderr.split()), made.stderr


def test_where_the_python_of_the_command_has_no_torch_that_of_another_is_not_taken(prefix, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text(f"#!/bin/sh\necho {TORCH}\n")
    (tmp_path / "bin/python3").chmod(0o755)
    assert refused_words(prefix, tmp_path, HEADRACE_TORCH="", PATH=tmp_path / "bin") == (
        "headrace: error: train: not applicable: built for torch 2.11, found none: the Python that runs this command has no torch; "
        "install it there, or set HEADRACE_TORCH to the folder of the torch package\n")


def test_a_python3_that_hangs_is_given_ten_seconds(prefix, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "bin/python3").chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    wanted = "the python3 on the path did not say within 10 seconds where its torch is"
    with ThreadPoolExecutor() as both:
        words = both.submit(refused_words, prefix, tmp_path, PATH=path)
        made = both.submit(configure, prefix, tmp_path, path=path).result()
    assert wanted in words.result() and "set HEADRACE_TORCH" in words.result()
    assert made.returncode != 0 and wanted in " ".join(made.stderr.split()), made.stderr


def test_doctor_tells_of_a_torch_that_cannot_be_read_and_that_one_is_named(prefix, tmp_path):
    (tmp_path / "torch/version.py").mkdir(parents=True)
    document = tmp_path / "doctor.json"
    subprocess.run([prefix / "bin/headrace", "doctor", "--json", document], env={"HEADRACE_TORCH": str(tmp_path / "torch")})
    findings = {finding["code"]: finding["sentence"] for finding in json.loads(document.read_text())["findings"]}
    assert "version.py: Is a directory" in findings["no_torch"]
    assert json.loads(document.read_text())["variables"]["HEADRACE_TORCH"] == str(tmp_path / "torch")
    made = configure(prefix, tmp_path, torch=tmp_path / "torch")
    assert f"wanted torch==2.11.0, found no {tmp_path}/torch/version.py" in " ".join(made.stderr.split())


@pytest.mark.parametrize("opens", [True, False])
def test_torch_of_another_version_on_the_library_path_is_refused_with_both(prefix, tmp_path, opens):
    """Whether or not the loader can open our library with it. Empty libraries stand in for torch's, and one for ours."""
    torch = fake_torch(tmp_path / "torch", "2.10.0")
    for name in ("c10", "torch_cpu"):
        checked("gcc", "-shared", "-o", torch / f"lib/lib{name}.so", f"-Wl,-soname,lib{name}.so", "-x", "c", "/dev/null")
    for folder in ("bin", "lib"):
        shutil.copytree(prefix / folder, tmp_path / "own" / folder, symlinks=True)
    if opens:
        verb = "int headrace_run_verb(const void* invocation) { return invocation == 0; }\n"
        checked("gcc", "-shared", "-fPIC", "-o", tmp_path / "own/lib/libheadrace_torch.so.0.1.0", "-x", "c", "-", f"-L{torch}/lib",
                "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10", input=verb)
    words = refused_words(tmp_path / "own", tmp_path, LD_LIBRARY_PATH=torch / "lib")
    assert f"built for torch 2.11, found 2.10.0 in {torch}, which the loader finds by LD_LIBRARY_PATH" in words
    if opens:
        (torch / "version.py").write_text("__version__ = '2.11.0+cu128'\n")
        checked(tmp_path / "own/bin/headrace", "train", tmp_path / "tiny.toml", env={"LD_LIBRARY_PATH": str(torch / "lib")})


def test_torch_s_headers_are_for_cpp_sources_alone(prefix, tmp_path):
    """nvcc, for one, refuses -idirafter. The package's path may have a space."""
    torch = tmp_path / "a torch"
    torch.symlink_to(TORCH)
    (tmp_path / "source").mkdir()
    for name in ("one.c", "two.cpp"):
        (tmp_path / "source" / name).touch()
    (tmp_path / "source/CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(p LANGUAGES C CXX)\nfind_package(headrace REQUIRED COMPONENTS torch)\n"
        "add_library(both one.c two.cpp)\ntarget_link_libraries(both PRIVATE headrace::torch)\n")
    made = configure(prefix, tmp_path, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", torch=torch)
    assert made.returncode == 0, made.stderr
    commands = {entry["file"].rsplit("/", 1)[1]: shlex.split(entry["command"])
                for entry in json.loads((tmp_path / "build/compile_commands.json").read_text())}
    after = [word for flag, word in zip(commands["two.cpp"], commands["two.cpp"][1:]) if flag == "-idirafter"]
    assert after == [f"{torch}/include", f"{torch}/include/torch/csrc/api/include"]
    assert not any(str(torch) in word for word in commands["one.c"])


def configure_headrace(build, *settings):
    checked("cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -g1",
            "-DHEADRACE_TESTS=OFF", "-DHEADRACE_BENCHES=OFF", *settings)


def test_no_object_names_a_build_folder_or_a_torch_outside_the_tree(tmp_path):
    build, environment = tmp_path / "out", (ROOT / ".venv").resolve()
    configure_headrace(build, f"-DHEADRACE_VENV={environment}")
    for source in ("core/base/build_info", "torch/numerics/grad_scaler"):
        name = f"CMakeFiles/headrace_{source.split('/')[1]}.dir/src/{source}.cpp.o"
        checked("ninja", "-C", build, name)
        content = (build / name).read_bytes()
        for folder in (ROOT, build, environment):
            assert not names_folder(content, folder), f"{name} names {folder}"


def test_without_torch_no_header_that_needs_it_is_installed(tmp_path):
    configure_headrace(tmp_path / "out", "-DHEADRACE_TORCH=OFF")
    install = (tmp_path / "out/cmake_install.cmake").read_text()
    needing = {path.name for path in (ROOT / "include/headrace").rglob("*.h")
               if re.search(r"^#include <(ATen/|headrace/(model_state|optimizer|trainer)\.h)", path.read_text(), re.MULTILINE)}
    assert {"trainer.h", "optimizer.h"} <= needing
    installed = set(re.findall(r"/include/headrace/([\w/]+\.h)", install))
    assert {"loader.h", "options/optimizer.h"} <= installed and not installed & needing


def test_make_install_takes_a_prefix_with_a_space_below_destdir_and_sets_nothing_up(tmp_path):
    words = ("PREFIX=/opt/head race", f"DESTDIR={tmp_path}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    assert "setup" not in checked("make", "-n", "install", *words, cwd=ROOT, env=environment)
    checked("make", "install", *words, cwd=ROOT, env=environment)
    assert "headrace 0.1.0" in checked(tmp_path / "opt/head race/bin/headrace", "--version")
    for header in ("data.h", "transforms.inc"):
        assert (tmp_path / "opt/head race/include/headrace/options" / header).exists()
