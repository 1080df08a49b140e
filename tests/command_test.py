"""The command headrace as an installed package has it: a Python that becomes the program. What the program itself says and does is in
cli_test.py; here it is the same by way of Python."""

import errno
import os
import pty
import re
import select
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import headrace as hr
import pytest
from tiny_run import write_idx

PACKAGE = Path(hr.__file__).parent
PROGRAM = PACKAGE / "bin" / "headrace"
BY_PYTHON = [sys.executable, "-m", "headrace"]
VERBS = ["train", "eval", "profile", "tune", "compare", "explain", "pack", "doctor"]


def environment(*path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, PACKAGE.parent))), **more}


def run(command, *words, **options):
    options.setdefault("env", environment())
    return subprocess.run([*command, *map(str, words)], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(f'[data]\nsource = "idx:{tmp_path}/data"\n')
    return path


@pytest.mark.parametrize("words", [
    [], ["--help"], ["-h"], ["--version"], *([verb, flag] for verb in VERBS for flag in ("--help", "-h")), ["trian"], ["train"],
    ["explain", "data.batch_size"], ["explain", "--json", "-"], ["explain", "data.batch_size", "--quiet"], ["doctor", "/nowhere"],
    ["explain", "RECIPE", "--data.batch_size", "0"]], ids=" ".join)
def test_it_says_and_returns_what_the_program_does(recipe, words):
    words = [str(recipe) if word == "RECIPE" else word for word in words]
    direct, by_python = run([PROGRAM], *words), run(BY_PYTHON, *words)
    assert (by_python.returncode, by_python.stdout, by_python.stderr) == (direct.returncode, direct.stdout, direct.stderr)


def test_a_script_of_an_environment_is_the_same_command(tmp_path):
    """As pip writes one, of what pyproject.toml calls the command."""
    (entry,) = re.findall(r'^headrace = "(\S+):main"$', (Path(__file__).parent.parent / "pyproject.toml").read_text(), re.MULTILINE)
    script = tmp_path / "headrace"
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom {entry} import main\nsys.exit(main())\n")
    script.chmod(0o755)
    assert run([script], "--version").stdout == run([PROGRAM], "--version").stdout != ""


def test_no_torch_and_no_numpy_is_imported_for_it():
    done = run([sys.executable, "-X", "importtime", "-m", "headrace"], "--help")
    imported = re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE)
    assert done.returncode == 0 and "headrace" in imported
    assert [name for name in imported if name.partition(".")[0] in ("torch", "numpy")] == []


def test_ctrl_c_ends_it_with_130(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for split, count in (("train", 40), ("t10k", 10)):
        write_idx(data, split, count)
    for number, code in (("sigint", 130), ("sigterm", 143)):
        done = run(BY_PYTHON, "pack", f"idx:{data}", tmp_path / f"{number}.pack",
                   env=environment(HEADRACE_FAULT=f"pack.sample:7:{number}"))
        assert done.returncode == code, done.stderr


def on_a_terminal(command) -> bytes:
    screen, terminal = pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
                          env=environment(TERM="xterm")) as process:
        os.close(terminal)
        shown = b""
        try:
            while select.select([screen], [], [], 60)[0]:
                shown += os.read(screen, 65536)
            raise TimeoutError(f"nothing for 60 s after {shown!r}")
        except OSError as error:
            if error.errno != errno.EIO:  # Its last writer has gone.
                raise
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(screen)
    return shown


def test_on_a_terminal_it_is_the_program(recipe):
    shown = on_a_terminal([PROGRAM, "explain", recipe])
    assert b"data.source" in shown and on_a_terminal([*BY_PYTHON, "explain", recipe]) == shown


@pytest.mark.parametrize("closed, words", [(">&-", "cannot write to stdout: Bad file descriptor"),
                                           (">/dev/full", "cannot write to stdout: No space left on device")])
def test_output_that_nobody_takes_is_said(closed, words):
    done = run(["bash", "-c", f'"$@" {closed}', "bash"], *BY_PYTHON, "explain")
    assert (done.returncode, done.stderr) == (1, f"headrace: error: {words}\n")


BECOMES = """
import sys
import headrace.__main__ as command
command.PROGRAM = sys.argv.pop(1)
command.main()
"""


def becomes(program: str, *words, **options):
    """A shell or another program in the place of ours, as the command starts it."""
    return run([sys.executable, "-c", BECOMES, program], *words, **options)


def test_signals_that_python_ignores_are_not_ignored_by_the_program():
    for name in ("PIPE", "XFSZ"):
        assert becomes("/bin/sh", "-c", f"kill -{name} $$; echo goes on").stdout == ""


def test_a_program_that_is_not_there_or_may_not_be_run_is_one_line(tmp_path):
    missing = becomes(str(tmp_path / "headrace"), "--help")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == (f"headrace: error: cannot run {tmp_path}/headrace: No such file or directory; install the wheel with pip, or in "
                              "a checkout run make build\n")
    (tmp_path / "headrace").write_bytes(PROGRAM.read_bytes())
    (tmp_path / "headrace").chmod(stat.S_IRUSR)
    forbidden = becomes(str(tmp_path / "headrace"), "--help")
    assert forbidden.returncode == 1
    assert forbidden.stderr == (f"headrace: error: cannot run {tmp_path}/headrace: Permission denied; unpacked by hand it may lack its "
                                "permission; install the wheel with pip\n")


@pytest.mark.parametrize("core, words", [(None, "headrace's Python module is not built: no _core for "), (b"no library", "_core.abi3.so: ")],
                         ids=["missing", "broken"])
def test_a_package_that_cannot_be_imported_is_one_line(tmp_path, core, words):
    package = tmp_path / "headrace"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so*", "bin", "__pycache__"))
    if core is not None:
        (package / "_core.abi3.so").write_bytes(core)
    script = tmp_path / "bin" / "headrace"  # As pip writes one.
    script.parent.mkdir()
    script.write_text("from headrace.__main__ import main\nmain()\n")
    for command in (BY_PYTHON, [sys.executable, script]):
        done = run(command, "--help", env=environment(tmp_path))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert done.stderr.startswith("headrace: error: ") and words in done.stderr


# ---- The torch that it computes with ----


def fake_torch(folder: Path, version: str) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    return folder / "torch"


def named_torch(*path: Path, cwd: Path | None = None, **more: str) -> str | None:
    shown = becomes("/usr/bin/env", env=environment(*path, **more), cwd=cwd).stdout
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line).get("HEADRACE_TORCH")


def test_it_is_told_the_torch_of_this_python_unless_one_is_named(tmp_path):
    torch = fake_torch(tmp_path, "2.11.0")
    assert named_torch(tmp_path) == str(torch)
    assert named_torch(tmp_path, HEADRACE_TORCH="") == str(torch)
    assert named_torch(tmp_path, HEADRACE_TORCH="/another/torch") == "/another/torch"


WITHOUT_TORCH = "import os, sys; sys.path[:] = [folder for folder in sys.path if not os.path.isfile(f'{folder}/torch/__init__.py')]"


def test_a_folder_or_a_file_called_torch_is_none(tmp_path):
    (tmp_path / "folder" / "torch").mkdir(parents=True)
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "torch.py").touch()
    assert named_torch(tmp_path / "folder") != str(tmp_path / "folder" / "torch")
    assert named_torch(tmp_path / "file") == ""


def test_a_torch_in_the_current_folder_is_not_taken(tmp_path):
    checkout = fake_torch(tmp_path, "2.99.1").parent
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert named_torch(cwd=checkout) == named_torch(cwd=elsewhere) != str(checkout / "torch")
    assert named_torch(checkout, cwd=elsewhere) == str(checkout / "torch")


def test_a_current_folder_that_is_gone_changes_nothing(tmp_path):
    (tmp_path / "gone").mkdir()
    gone = f'cd {tmp_path}/gone && rmdir ../gone && exec "$@"'
    done = run(["bash", "-c", gone, "bash"], *BY_PYTHON, "--version")
    assert (done.returncode, done.stdout) == (0, run([PROGRAM], "--version").stdout), done.stderr


def test_a_python_without_torch_says_that_it_has_none_unless_one_is_named():
    for named in ("", "/another/torch"):
        done = run([sys.executable, "-c", f"import headrace; {WITHOUT_TORCH}{BECOMES}", "/usr/bin/env"],
                   env=environment(HEADRACE_TORCH=named))
        assert f"HEADRACE_TORCH={named}" in done.stdout.splitlines()


@pytest.mark.parametrize("verb", [["train"], ["profile"], ["tune"], ["eval", "--checkpoint", "none"]], ids=lambda words: words[0])
def test_with_another_torch_what_trains_is_not_applicable(recipe, tmp_path, verb):
    torch = fake_torch(tmp_path, "2.99.1+cpu")
    done = run(BY_PYTHON, verb[0], recipe, *verb[1:], env=environment(tmp_path))
    built_for = ".".join(hr._core.torch_built_for().split(".")[:2])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"headrace: error: {verb[0]}: not applicable: built for torch {built_for}, found 2.99.1+cpu in {torch}\n"
