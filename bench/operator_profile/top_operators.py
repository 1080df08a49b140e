"""What bench/operator_profile tells of two profiles beside each other. Nothing here imports torch or headrace."""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

OURS, THEIRS, OBSERVER = "hr.profile", "torch.profiler", "observer alone"
TOP = 5


def by_most(seconds: dict[str, float]) -> dict[str, float]:
    return dict(sorted(seconds.items(), key=lambda one: -one[1]))


def one_sided(name: str, own: dict[str, dict[str, float]]) -> list[str]:
    """A line for each operator that is on top in one of the profiles alone."""

    def told(profile: str, operator: str) -> str:
        seconds = own[profile].get(operator)
        return f"{profile} {harness.UNAVAILABLE if seconds is None else f'{seconds * 1e6:,.1f} us'}"

    tops = {profile: list(seconds)[:TOP] for profile, seconds in own.items()}
    return [f"{name}: {operator} is on top by {profile} alone: {told(OURS, operator)}, {told(THEIRS, operator)} a step"
            for profile, other in ((THEIRS, OURS), (OURS, THEIRS)) for operator in tops[profile] if operator not in tops[other]]


def observers_share(shares: list[float | None]) -> str:
    """Of hr.profile's overhead, over the scripts where it added something."""
    known = [share for share in shares if share is not None]
    if not known:
        return f"{OBSERVER}: {harness.UNAVAILABLE}: {OURS} added nothing that could be measured"
    return f"{OBSERVER}: {statistics.median(known):.2f} of {OURS}'s overhead (median of {len(known)} scripts, {min(known):.2f} to {max(known):.2f})"
