"""The command headrace: `headrace` on the path of an environment that has the package, and `python -m headrace`.

It becomes the program that lies in the package, which is C++: exit codes, Ctrl-C and what it does on a terminal are the program's
own, and no verb imports torch. This Python tells it one thing: in which folder torch lies here, or that there is none. Alone
`headrace profile SCRIPT.py` stays in this Python, as the script is run by it; `compare` is told which Python this is.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from typing import NoReturn

PROGRAM = os.path.join(os.path.dirname(__file__), "bin", "headrace")
_TORCH = "HEADRACE_TORCH"  # As src/app/cli/torch_folder.h has it.


def main() -> NoReturn:
    if sys.argv[1:2] == ["profile"]:
        from headrace._profile_script import is_script, profile_script

        if is_script(sys.argv[1:]):
            sys.exit(profile_script(sys.argv[1:]))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # By Python, and else by what it becomes.
        signal.signal(ignored, signal.SIG_DFL)
    words = sys.argv[1:]
    if words[:1] == ["compare"]:  # Scripts run in this Python, unless a later --python says otherwise.
        words = ["compare", "--python", sys.executable, *words[1:]]
    try:
        os.execve(PROGRAM, ["headrace", *words], _environment())
    except OSError as error:
        sys.exit(f"headrace: error: cannot run {PROGRAM}: {error.strerror}; {_advice(error)}")


def _environment() -> dict[str, str]:
    """As it is; where nobody names a torch, with the one of this Python, or empty: it has none."""
    environment = dict(os.environ)
    if not environment.get(_TORCH):
        environment[_TORCH] = _torch_folder()
    return environment


def _torch_folder() -> str:
    """Empty: there is none. The current folder is no place to look, as for the program: it may be a checkout of PyTorch."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or not found.submodule_search_locations:  # A mere folder, or a file torch.py.
        return ""
    return os.path.abspath(found.submodule_search_locations[0])


def _advice(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "unpacked by hand it may lack its permission; install the wheel with pip"
    return "install the wheel with pip, or in a checkout run make build"


if __name__ == "__main__":
    main()
