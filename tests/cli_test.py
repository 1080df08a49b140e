"""The executable as a shell sees it: exit codes, streams, faults of the caller. Needs no LibTorch."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("HEADRACE_BIN", ROOT / "build" / "release" / "bin" / "headrace"))
LIBRARY = next((PROGRAM.parent.parent / "lib").glob("libheadrace.so.*"), Path("libheadrace.so"))
VERBS = ["train", "eval", "profile", "tune", "compare", "explain", "pack", "doctor"]
RECIPE = '[data]\nsource = "idx:/usr/share/datasets/fashion-mnist"\nbatch_size = 64\n'


def headrace(*arguments, **options):
    options.setdefault("capture_output", True)
    return subprocess.run([PROGRAM, *map(str, arguments)], text=True, timeout=60, **options)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


def assert_one_error(run, code, *words):
    assert run.returncode == code, run.stderr
    assert run.stdout == ""
    assert run.stderr.startswith("headrace: error: ") and run.stderr.count("\n") == 1, run.stderr
    for word in words:
        assert word in run.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_on_stdout_and_done(verb):
    run = headrace(verb, "--help")
    assert headrace(verb, "-h").stdout == headrace("help", verb).stdout == run.stdout
    assert (run.returncode, run.stderr) == (0, "")
    for flag in ["--json FILE", "--out DIR", "--dry-run", "--log-level", "--quiet", "Exit codes:"]:
        assert flag in run.stdout


def test_overview_names_every_verb():
    assert headrace("--help").returncode == headrace("-h").returncode == 0
    alone = headrace()
    assert (alone.returncode, alone.stdout) == (2, "")
    for verb in VERBS:
        assert verb in headrace("--help").stdout and verb in alone.stderr


def test_version_names_build_and_torch():
    run = headrace("--version")
    assert run.returncode == 0
    facts = dict(line.split(" ", 1) for line in run.stdout.splitlines()[:5])
    assert set(facts) == {"headrace", "commit", "compiler", "preset", "torch"}
    assert re.fullmatch(r"\d+\.\d+\.\d+ \(loaded on demand\)|not built", facts["torch"])
    assert run.stdout.splitlines()[5].startswith("instruction sets ")


@pytest.mark.parametrize("arguments, words", [
    (["trian"], ["unknown verb trian", "train"]),
    (["train"], ["recipe is required"]),
    (["train", "RECIPE", "--data.batchsize", "3"], ["--data.batchsize", "--data.batch_size"]),
    (["train", "RECIPE", "--data.batch_size", "0"], ["--data.batch_size", "1 to 65536"]),
    (["tune", "RECIPE", "--tune.planted", "[{nme = 'x'}]"], ["tune.planted[0].nme", "tune.planted[0].name"]),
    (["eval", "RECIPE"], ["--checkpoint"]),
    (["profile", "RECIPE", "--steps", "none"], ["--steps"]),
    (["explain", "data.batchsize"], ["data.batch_size"]),
    (["explain", "RECIPE", "nothing.like.it"], ["unknown key nothing.like.it"]),
    (["explain", "RECIPE", "--log-level", "loud"], ["--log-level"]),
    (["doctor", "--bogus"], ["--bogus"]),
])
def test_wrong_use_is_one_line_and_exit_2(recipe, arguments, words):
    run = headrace(*[str(recipe) if word == "RECIPE" else word for word in arguments])
    assert_one_error(run, 2, *words)


@pytest.mark.parametrize("text, words", [
    (RECIPE + "batchsize = 3\n", [":4: unknown key data.batchsize", "data.batch_size"]),
    (RECIPE + "num_workers = 257\n", [':4: data.num_workers must be 0 to 256, or "auto", found 257']),
    (RECIPE + "num_workers = 'two'\n", [':4: data.num_workers must be 0 to 256, or "auto", found "two"']),
    (RECIPE + "batch_size = 3\n", [":4: "]),
    (RECIPE + "[data\n", [":4: "]),
    (RECIPE + "a\0b = 1\n", [":4: byte 0x00"]),
    ("", ["data.source is missing"]),
    ("#" * 1048577, ["1048577 bytes"]),
])
@pytest.mark.parametrize("verb", ["train", "explain"])
def test_fault_of_the_recipe_names_file_and_line(tmp_path, verb, text, words):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert_one_error(headrace(verb, path), 2, "bad.toml", *words)


def test_recipe_that_is_not_text(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(RECIPE.encode() + b"\xff\xfe = 1\n")
    assert_one_error(headrace("explain", path), 2, "bad.toml:4: byte 0xff")


def test_recipe_that_cannot_be_read(tmp_path):
    assert_one_error(headrace("explain", tmp_path / "absent.toml"), 1, "absent.toml")
    assert_one_error(headrace("explain", tmp_path), 2, "is a folder")


def test_explain_shows_origins(recipe):
    run = headrace("explain", recipe, "--data.num_workers", "2")
    assert run.returncode == 0
    lines = run.stdout.splitlines()
    assert any(line.split() == ["data.batch_size", "=", "64", "small.toml:3", "1", "to", "65536"] for line in lines)
    assert any(line.split()[:4] == ["data.num_workers", "=", "2", "flag"] for line in lines)
    assert any(line.split()[:4] == ["train.epochs", "=", "4", "default"] for line in lines)


def test_explain_json_on_stdout_is_alone_there(recipe):
    run = headrace("explain", recipe, "--json", "-")
    keys = {key["key"]: key for key in json.loads(run.stdout)["keys"]}
    assert keys["data.batch_size"]["value"] == 64
    assert "data.batch_size = 64" in run.stderr
    quiet = headrace("explain", recipe, "--json", "-", "--quiet")
    assert quiet.stdout == run.stdout and quiet.stderr == ""


def test_json_file_is_whole_and_unwritable_is_said(recipe, tmp_path):
    assert headrace("explain", recipe, "--json", tmp_path / "a.json").returncode == 0
    assert json.loads((tmp_path / "a.json").read_text())["format"] == "headrace-explain"
    run = headrace("explain", recipe, "--json", tmp_path / "absent" / "a.json", "--quiet")
    assert_one_error(run, 1, "absent/a.json")


def test_doctor_exits_3_with_findings_and_0_without():
    run = headrace("doctor", "--json", "-")
    document = json.loads(run.stdout)
    assert document["format"] == "headrace-doctor"
    assert run.returncode == (3 if document["findings"] else 0)
    assert document["machine"]
    limited = headrace("doctor", "--json", "-", env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert limited.returncode == 3
    assert any("OMP_NUM_THREADS=1" in finding["sentence"] for finding in json.loads(limited.stdout)["findings"])


def test_doctor_tells_nothing_of_other_variables():
    run = headrace("doctor", "--json", "-", env={**os.environ, "MY_TOKEN": "hidden-value"})
    assert "hidden-value" not in run.stdout + run.stderr


def test_doctor_of_a_run(tmp_path):
    assert_one_error(headrace("doctor", tmp_path / "absent"), 1, "absent")
    run = headrace("doctor", tmp_path)
    assert run.returncode == 3
    assert "recipe.toml is missing" in run.stdout


@pytest.mark.parametrize("locale", ["de_DE.UTF-8", "de_DE", "C", "no_such_locale"])
def test_locale_changes_nothing(recipe, locale):
    environment = {**os.environ, "LC_ALL": locale, "LANG": locale, "LC_NUMERIC": locale}
    arguments = ["explain", recipe, "--optimizer.lr", "0.5", "--data.transform.mean", "0.1,0.2"]
    arguments += ["--data.transform.std", "0.25"]
    run = headrace(*arguments, env=environment)
    assert run.returncode == 0, run.stderr
    assert "optimizer.lr = 0.5 " in run.stdout
    assert "data.transform.mean = [0.1, 0.2]" in run.stdout
    assert_one_error(headrace("explain", recipe, "--optimizer.lr", "0,5", env=environment), 2, "optimizer.lr")


def shell(line, **options):
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("verb", ["explain RECIPE", "explain RECIPE --json -", "doctor", "--help", "--version", "train --help"])
def test_closed_stdout_is_said_on_stderr(recipe, verb):
    run = shell(f"{PROGRAM} {verb.replace('RECIPE', str(recipe))} >&-")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "headrace: error: cannot write to stdout: Bad file descriptor"


def test_full_disk_under_stdout_is_said(recipe):
    run = shell(f"{PROGRAM} explain {recipe} >/dev/full")
    assert (run.returncode, run.stderr) == (1, "headrace: error: cannot write to stdout: No space left on device\n")


def test_broken_pipe_is_said_and_kills_nothing(recipe):
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run([PROGRAM, "explain", recipe], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert run.returncode == 1, signal.Signals(-run.returncode) if run.returncode < 0 else run.stderr
    assert run.stderr == "headrace: error: cannot write to stdout: Broken pipe\n"


def test_closed_stdout_does_not_send_words_into_files(recipe, tmp_path):
    target = tmp_path / "a.json"
    run = shell(f"{PROGRAM} explain {recipe} --json {target} >&- 2>&-")
    assert run.returncode == 1
    assert json.loads(target.read_text())["format"] == "headrace-explain"


def test_verb_without_its_library_is_one_line(recipe, tmp_path):
    """As in an installation without LibTorch: the executable and libheadrace.so alone. make is for build trees."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    shutil.copy(PROGRAM, tmp_path / "bin" / "headrace")
    library = shutil.copy(LIBRARY, tmp_path / "lib")
    torch_library = Path(library.replace("libheadrace.so", "libheadrace_torch.so"))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    run = subprocess.run([tmp_path / "bin" / "headrace", "train", recipe], capture_output=True, text=True, env=environment)
    assert_one_error(run, 1, "libheadrace_torch.so", "install one that has")
    torch_library.write_bytes(b"no library")
    run = subprocess.run([tmp_path / "bin" / "headrace", "train", recipe], capture_output=True, text=True, env=environment)
    assert_one_error(run, 1, "libheadrace_torch.so", "install headrace again")
    (tmp_path / "CMakeCache.txt").touch()  # A build tree.
    run = subprocess.run([tmp_path / "bin" / "headrace", "train", recipe], capture_output=True, text=True, env=environment)
    assert_one_error(run, 1, "libheadrace_torch.so", "run make")
    torch_library.unlink()
    run = subprocess.run([tmp_path / "bin" / "headrace", "train", recipe], capture_output=True, text=True, env=environment)
    assert_one_error(run, 1, "libheadrace_torch.so", "run make")


def test_wait_policy_runs_the_executable_again_once(recipe, tmp_path):
    """A torch library that prints what it was started with stands in for the real one."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    shutil.copy(PROGRAM, tmp_path / "bin" / "headrace")
    library = shutil.copy(LIBRARY, tmp_path / "lib")
    source = tmp_path / "stand_in.c"
    source.write_text(
        '#include <stdio.h>\n#include <stdlib.h>\n'
        'int headrace_run_verb(const void* invocation) {\n'
        '  const char* policy = getenv("OMP_WAIT_POLICY"); const char* mark = getenv("HEADRACE_RUN_AGAIN");\n'
        '  printf("%s %s\\n", policy ? policy : "unset", mark ? mark : "unmarked");\n  return 0;\n}\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library.replace("libheadrace.so", "libheadrace_torch.so"), source], check=True)
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    environment["LD_LIBRARY_PATH"] = str(tmp_path / "lib")

    def printed(*flags, **more):
        run = subprocess.run([tmp_path / "bin" / "headrace", "train", recipe, *flags], capture_output=True, text=True,
                             env={**environment, **more}, timeout=60)
        assert run.returncode == 0, run.stderr
        return run.stdout.strip(), run.stderr.strip()

    assert printed() == ("unset unmarked", "")
    assert printed("--compute.wait_policy", "passive") == ("PASSIVE unmarked", "")
    assert printed("--compute.wait_policy", "active", OMP_WAIT_POLICY="passive") == ("ACTIVE unmarked", "")
    assert printed("--compute.wait_policy", "active", OMP_WAIT_POLICY="active") == ("active unmarked", "")
    words = printed("--compute.wait_policy", "active", HEADRACE_RUN_AGAIN="1")
    assert words[0] == "unset unmarked" and "not applied" in words[1]
