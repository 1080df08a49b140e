"""tools/setup.sh never takes a half-installed environment for whole, and says in one line what it lacks."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def make_wheel(folder: Path, name: str) -> Path:
    """A wheel with one empty module, so that set-up needs no network."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


class Tree:
    """A checkout with the real set-up script, two tiny wheels as its requirements, and a cache of its own."""

    def __init__(self, folder: Path):
        self.root = folder / "checkout"
        self.cache = folder / "cache" / "headrace"
        (self.root / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "setup.sh", self.root / "tools")
        (self.root / "tools" / "apt-packages.txt").write_text("# one that every Debian has\ndpkg\n")
        (self.root / "tools" / "apt-packages-photos.txt").write_text("# one more\napt\n")
        self.wheels = [make_wheel(folder, name) for name in ("torch", "torchvision")]
        self.require(*self.lines())

    def lines(self) -> list[str]:
        return [f"{wheel.name.split('-')[0]} @ file://{wheel}" for wheel in self.wheels]

    def require(self, *lines: str) -> None:
        (self.root / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))

    def set_up(self, *sets: str, **environment: str) -> subprocess.CompletedProcess:
        variables = {**os.environ, "XDG_CACHE_HOME": str(self.cache.parent), "PIP_NO_INDEX": "1", **environment}
        return subprocess.run(["bash", "tools/setup.sh", *sets], cwd=self.root, env=variables, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=600)

    def environments(self) -> list[Path]:
        return sorted(path for path in self.cache.glob("venv-*") if path.is_dir())


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.fixture(scope="module")
def tree_set_up(tmp_path_factory):
    """Set-up takes seconds: its tests leave the tree set up, with one environment."""
    tree = Tree(tmp_path_factory.mktemp("set_up"))
    first = tree.set_up()
    assert first.returncode == 0, first.stderr
    return tree


def test_second_set_up_finds_the_first_whole(tree_set_up):
    tree = tree_set_up
    assert (tree.root / ".venv").resolve() == tree.environments()[0]
    python = tree.root / ".venv" / "bin" / "python"
    assert subprocess.run([python, "-c", "import torch, torchvision"]).returncode == 0
    installed = (tree.environments()[0] / "whole").stat().st_mtime_ns
    second = tree.set_up()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert (tree.environments()[0] / "whole").stat().st_mtime_ns == installed


def test_scripts_name_the_final_place(tree_set_up):
    pip = tree_set_up.root / ".venv" / "bin" / "pip"
    assert subprocess.run([pip, "--version"], capture_output=True).returncode == 0
    assert "partial" not in pip.read_text()


def test_half_installed_environment_is_built_anew(tree_set_up):
    tree = tree_set_up
    (environment,) = tree.environments()
    (environment / "whole").unlink()
    shutil.rmtree(environment / "lib")
    leftover = environment.with_name(environment.name + ".partial")
    leftover.mkdir()
    (leftover / "torn").touch()
    assert tree.set_up().returncode == 0
    assert (environment / "whole").exists() and list(environment.glob("lib/python*/site-packages/torch.py"))
    assert tree.environments() == [environment]


def test_failed_install_leaves_nothing_that_looks_whole(tree):
    tree.require("torch @ file:///nowhere/torch-1.0-py3-none-any.whl")
    failed = tree.set_up()
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("setup: the Python environment could not be installed")
    assert not (tree.root / ".venv").exists()
    assert all(path.name.endswith(".partial") for path in tree.environments())


def test_other_requirements_get_another_environment(tree_set_up):
    tree = tree_set_up
    before = (tree.root / ".venv").resolve()
    tree.require(*reversed(tree.lines()))
    assert tree.set_up().returncode == 0
    other = (tree.root / ".venv").resolve()
    assert other != before and before.exists()
    shutil.rmtree(other)
    tree.require(*tree.lines())
    assert tree.set_up().returncode == 0
    assert (tree.root / ".venv").resolve() == before and (before / "whole").exists()


def test_folder_named_venv_is_not_touched(tree):
    (tree.root / ".venv").mkdir()
    (tree.root / ".venv" / "mine").touch()
    refused = tree.set_up()
    assert refused.returncode == 1
    assert "setup: .venv is a folder of its own" in refused.stderr
    assert (tree.root / ".venv" / "mine").exists()


def restricted_path(folder: Path, **programs: str) -> str:
    """A PATH with the plain tools that set-up uses, and the given programs as shell scripts."""
    folder.mkdir()
    for name in ("bash", "awk", "comm", "cut", "dirname", "echo", "env", "grep", "sed", "sort", "xargs", "mktemp", "rm", "tail"):
        (folder / name).symlink_to(shutil.which(name))
    for name, script in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        program.chmod(0o755)
    return str(folder)


def test_neither_root_nor_sudo_says_what_to_install(tree, tmp_path):
    path = restricted_path(tmp_path / "bin", dpkg_query="exit 1", id="echo 1000")
    refused = tree.set_up(PATH=path)
    assert refused.returncode == 1
    assert refused.stderr == ("setup: missing Debian packages and neither root nor sudo; "
                              "as root: apt-get install dpkg\n")


def test_packages_of_a_set_are_wanted_only_when_it_is_named(tree, tmp_path):
    path = restricted_path(tmp_path / "bin", dpkg_query="echo 'installed dpkg'", id="echo 1000")
    refused = tree.set_up("photos", PATH=path)
    assert refused.returncode == 1
    assert refused.stderr.endswith("as root: apt-get install apt\n")
    assert "apt-get install" not in tree.set_up(PATH=path).stderr


def test_set_that_does_not_exist_is_named(tree):
    refused = tree.set_up("photoes")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == ("setup: no set of packages named photoes: there is no tools/apt-packages-photoes.txt\n")


def test_apt_without_network_says_which_packages_are_missing(tree, tmp_path):
    path = restricted_path(tmp_path / "bin", dpkg_query="exit 1", id="echo 0",
                           apt_get="echo 'Could not resolve host'; exit 100")
    failed = tree.set_up(PATH=path)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-2:] == [
        "Could not resolve host", "setup: apt-get could not install: dpkg (its last lines are above; is there a network?)"]


def test_other_systems_are_named_as_unsupported(tree, tmp_path):
    refused = tree.set_up(PATH=restricted_path(tmp_path / "bin"))
    assert refused.returncode == 1
    assert "only Debian 12 is supported" in refused.stderr


def test_apt_runs_by_sudo_and_asks_nothing(tree, tmp_path):
    record = tmp_path / "record"
    path = restricted_path(tmp_path / "bin", dpkg_query="exit 1", id="echo 1000",
                           sudo=f'[ "$1" = -n ] && exit 0; echo "$*" >>{record}; exit 100')
    assert tree.set_up(PATH=path).returncode == 1
    assert record.read_text().startswith("env DEBIAN_FRONTEND=noninteractive apt-get -q -y ")
