"""A job for headrace compare: about a second of steps of one core, each with so many rounds of the same work.

usage: job.py ROUNDS; the steps' seconds go to HEADRACE_RESULT as JSON lines.
"""

import hashlib
import json
import os
import sys
import time

STEPS = 25
BLOCK = bytes(1 << 16)


def step(rounds: int) -> str:
    digest = hashlib.sha256()
    for _ in range(rounds):
        digest.update(BLOCK)
    return digest.hexdigest()


def main() -> None:
    rounds = int(sys.argv[1])
    lines = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step(rounds)
        lines.append(json.dumps({"step_s": time.perf_counter() - begin}))
    with open(os.environ["HEADRACE_RESULT"], "w") as result:
        result.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
