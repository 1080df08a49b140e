"""hr.tune on a real GPU: its steps' times against the host's clock where the device is waited for, what it keeps, and the
objects given back. Needs a CUDA device, so that no other run of pytest collects it: make check ON=gpu names the folder and the
form of the name."""

import statistics
import time

import headrace as hr
import torch
from headrace._subject import Subject
from torch import nn

STEPS = 20  # Of a block.
CHANGES = ["bf16 autocast", "channels-last"]


def objects():
    torch.manual_seed(1)
    width = 256
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                          nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    batches = [(torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,))) for _ in range(7)]
    return model, batches, optimizer


def forward(model, batch):
    images, labels = (tensor.cuda() for tensor in batch)
    return nn.functional.cross_entropy(model(images), labels)


def test_blocks_take_by_events_what_they_take_by_the_clock_within_3_percent_and_nothing_waits_within_them():
    model, batches, optimizer = objects()
    on_device = [tuple(tensor.cuda() for tensor in batch) for batch in batches]
    subject = Subject(model, on_device, optimizer, forward, run_steps=None, budget_s=60, on_cuda=True)
    times, ratios = subject.block_times, []
    for _ in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        times.begin()
        torch.cuda.set_sync_debug_mode("error")  # Whatever waits raises from here on.
        try:
            for step in range(STEPS):
                times.stepped(subject.step(on_device[step % 7]), 0.0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        seconds = times.seconds()
        took = time.perf_counter() - begin
        assert len(seconds) == STEPS and all(each > 0 for each in seconds)
        ratios.append(sum(seconds) / took)
    assert abs(statistics.median(ratios[1:]) - 1) <= 0.03, ratios


def test_changes_are_judged_on_the_gpu_settings_of_the_cpu_are_not_tried_and_the_objects_come_back():
    model, batches, optimizer = objects()
    for batch in batches[:3]:  # The optimizer has its state.
        forward(model, batch).backward()
        optimizer.step()
    held = {name: value.clone() for name, value in model.state_dict().items()}
    momentum = [optimizer.state[parameter]["momentum_buffer"].clone() for parameter in model.parameters()]
    generators = torch.get_rng_state(), torch.cuda.get_rng_state()
    tuned = hr.tune(model, batches, optimizer, forward, budget_s=30, only=[*CHANGES, "compute threads 1"], apply=False,
                    on_progress=lambda *told: None)
    assert {trial.name for trial in tuned.trials} == set(CHANGES)
    assert any(trial.pairs > 0 for trial in tuned.trials) and all(trial.verdict != "failed" for trial in tuned.trials)
    assert any(one.key == "compute.intra_op_threads" and "the setting is one of the CPU" in one.reason
               for one in tuned.not_applicable)
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(optimizer.state[parameter]["momentum_buffer"], kept)
               for parameter, kept in zip(model.parameters(), momentum))
    assert torch.equal(torch.get_rng_state(), generators[0]) and torch.equal(torch.cuda.get_rng_state(), generators[1])
    assert tuned.ledger["settings"][0]["key"] == "tune.step_times"
