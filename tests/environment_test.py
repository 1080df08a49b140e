"""tools/environment.sh makes an environment beside the project's own and never takes a half-installed one for whole; the tests
that run in it are no part of an ordinary run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from setup_test import make_wheel

ROOT = Path(__file__).resolve().parent.parent


class Tree:
    """A checkout with the real script, one tiny wheel to install, and a cache of its own. Its .venv is that of these tests."""

    def __init__(self, folder: Path):
        self.root, self.cache = folder / "checkout", folder / "cache" / "headrace"
        (self.root / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "environment.sh", self.root / "tools")
        (self.root / ".venv").symlink_to(sys.prefix)
        self.wheel = make_wheel(folder, "rival")
        self.require(f"rival @ file://{self.wheel}")

    def require(self, *lines: str) -> None:
        (self.root / "wanted.txt").write_text("".join(f"{line}\n" for line in lines))

    def run(self, *words: str) -> subprocess.CompletedProcess:
        variables = {**os.environ, "XDG_CACHE_HOME": str(self.cache.parent), "PIP_NO_INDEX": "1"}
        return subprocess.run(["bash", "tools/environment.sh", *words], cwd=self.root, env=variables, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=600)

    def environments(self) -> list[Path]:
        return sorted(path for path in self.cache.glob("rivals-*") if path.is_dir())


@pytest.fixture(scope="module")
def tree_made(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("environment"))
    first = tree.run("rivals", "wanted.txt")
    assert first.returncode == 0, first.stderr
    return tree


def test_what_is_printed_is_an_environment_that_has_both_its_own_packages_and_the_projects(tree_made):
    (environment,) = tree_made.environments()
    again = tree_made.run("rivals", "wanted.txt")
    assert (again.returncode, again.stdout, again.stderr) == (0, f"{environment}\n", "")
    done = subprocess.run([environment / "bin" / "python", "-c", "import rival, pytest; print(rival.__file__, pytest.__file__)"],
                          capture_output=True, text=True, check=True)
    own, project = done.stdout.split()
    assert own.startswith(str(environment)) and Path(project).samefile(pytest.__file__)
    assert "partial" not in (environment / "bin" / "pip").read_text()


def test_half_installed_environment_is_built_anew(tree_made):
    (environment,) = tree_made.environments()
    (environment / "whole").unlink()
    next(environment.glob("lib/python*/site-packages/rival.py")).unlink()
    assert tree_made.run("rivals", "wanted.txt").returncode == 0
    assert (environment / "whole").exists() and list(environment.glob("lib/python*/site-packages/rival.py"))
    assert tree_made.environments() == [environment]


def test_other_requirements_get_another_environment_and_failed_ones_none(tmp_path):
    tree = Tree(tmp_path)
    tree.require("rival @ file:///nowhere/rival-1.0-py3-none-any.whl")
    failed = tree.run("rivals", "wanted.txt")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.splitlines()[-1].startswith("environment: wanted.txt could not be installed")
    (partial,) = tree.environments()
    assert partial.name.endswith(".partial") and not (partial / "whole").exists()
    tree.require(f"rival @ file://{tree.wheel}")
    done = tree.run("rivals", "wanted.txt")
    assert done.returncode == 0 and f"{Path(done.stdout.strip()).name}.partial" != partial.name


@pytest.mark.parametrize("words, said", [
    ((), "wanted NAME REQUIREMENTS, found nothing"), (("rivals",), "wanted NAME REQUIREMENTS, found rivals"),
    (("rivals", "unwanted.txt"), "there is no unwanted.txt")])
def test_words_that_make_no_sense_are_named(tree_made, words, said):
    refused = tree_made.run(*words)
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", f"environment: {said}\n")


def test_without_the_projects_environment_it_says_what_to_run(tmp_path):
    tree = Tree(tmp_path)
    (tree.root / ".venv").unlink()
    refused = tree.run("rivals", "wanted.txt")
    assert (refused.returncode, refused.stderr) == (1, "environment: no .venv: run make setup\n")


def test_tests_of_frameworks_are_collected_only_where_their_folder_is_named(tmp_path):
    (tmp_path / "tests" / "frameworks").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text((ROOT / "pytest.ini").read_text())
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "plain_test.py").write_text("def test_plain(): pass\n")
    (tmp_path / "tests" / "frameworks" / "other_test.py").write_text("def test_other(): pass\n")

    def collected(*words: str) -> list[str]:
        done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", *words], cwd=tmp_path, capture_output=True,
                              text=True, check=True)
        return [line for line in done.stdout.splitlines() if "::" in line]

    assert collected() == ["tests/plain_test.py::test_plain"]
    assert collected("tests/frameworks") == ["tests/frameworks/other_test.py::test_other"]


def test_every_version_for_frameworks_is_fixed_and_none_is_the_projects_own():
    def names_of(path: Path) -> list[str]:
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert all(line.count("==") == 1 for line in lines)
        return [line.split("==")[0].lower() for line in lines]

    added = names_of(ROOT / "tests" / "frameworks_requirements.txt")
    assert {"lightning", "pytorch-lightning", "transformers", "accelerate"} <= set(added)
    assert not set(added) & set(names_of(ROOT / "requirements.txt"))
