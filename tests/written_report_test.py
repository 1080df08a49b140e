"""Reports of what ran in Python: the parts of the page, and the operators and commands that are in them. report_page_test.py has the page
of a recorded run, read to its last element."""

import re

import headrace as hr
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PARTS = ["split", "steps", "step", "flame", "cache", "memory", "next", "settings", "again", "environment"]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(96, 64), torch.randint(0, 4, (96,))), 16)


def parts_of(page: str) -> list[str]:
    return re.findall(r'<h2 id="h-(\w+)">', page)


def section(page: str, part: str) -> str:
    begin = page.index(f'<h2 id="h-{part}">')
    return page[begin:page.index("</section>", begin)]


@pytest.mark.engine
def test_a_trace_of_a_trainer_under_a_profile_is_a_report_with_operators_below_the_parts_of_its_steps(tmp_path):
    model = network()
    trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters()), lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1]))
    with hr.profile(["cpu"], source="engine") as profile:
        trainer.fit(loader(), 2)
    hr.write_report(tmp_path / "report.html", profile.trace, 16, title="operators", skip=2, command="python train.py --token <b>")
    page = (tmp_path / "report.html").read_text()
    assert [part for part in parts_of(page) if part in PARTS] == PARTS
    assert "Step " in section(page, "step") and " of 10, the one of the middle duration" in section(page, "step")
    for part in ("step", "flame"):
        assert "aten::" in section(page, part) and "forward" in section(page, part)
    assert "<span>--token</span> <span>&lt;b&gt;</span>" in section(page, "again")
    assert "LibTorch" in section(page, "environment")


def test_a_report_without_a_command_says_that_there_is_none(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hr.watch() as seen:
        for inputs, labels in loader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    seen.write_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert [part for part in parts_of(page) if part in PARTS] == PARTS
    assert "wall" in parts_of(page)
    assert "6 steps: half of them" in section(page, "steps")
    assert "backward" in section(page, "flame")
    assert "The command is unavailable." in section(page, "again")
    assert "Unavailable: only the loader of headrace counts a cache" in section(page, "cache")
    text = seen.summary()
    assert all(f"\n{heading}\n" in text for heading in ("How long steps take", "One step over time", "Stacks by time", "Cache"))
