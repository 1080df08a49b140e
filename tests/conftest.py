"""What tests of several files share."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A developer's own torch is not the one that the tests are about.
os.environ.pop("HEADRACE_TORCH", None)


@pytest.fixture(scope="session")
def photos() -> Path:
    """The folder of 3,000 photographs that `make setup JOB=photos` cuts; cut here on the first run, in half a minute."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "make_photos.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ROOT / "photos"


@pytest.fixture
def ctrl_c():
    """Python's own handler of SIGINT, also where the tests run in the background of a script, which ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
