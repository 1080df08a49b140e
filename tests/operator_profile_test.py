"""hr.profile by headrace's own observer of operators, beside torch.profiler on the same steps: counts, shapes and bytes, never times."""

import json
import time

import pytest
import torch
from torch import nn

import headrace as hr

pytestmark = pytest.mark.engine


class Net(nn.Module):
    """Some convolutions and a linear layer: operators that call others, and a backward."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.head = nn.Linear(8 * 8 * 8, 10)

    def forward(self, images):
        return self.head(self.convolutions(images).flatten(1))


class Loop:
    """Steps that all do the same."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.images, self.labels = torch.randn(16, 3, 12, 12), torch.randint(10, (16,))
        self.step()  # Makes the optimizer's state.

    def step(self):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()


def calls_of(rows) -> dict[str, int]:
    return {row.name: row.calls for row in rows}


def calls_by_torch(profiler) -> dict[str, int]:
    return {row.key: row.count for row in profiler.key_averages() if not row.key.startswith(("ProfilerStep", "[memory]"))}


def largest(sizes: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda one: (-one[1], one[0]))[:5]


def test_calls_of_every_operator_are_those_that_torch_counts_in_the_same_steps():
    loop = Loop()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs, hr.profile(["cpu"]) as ours:
        for _ in range(3):
            loop.step()
    assert ours.source == "engine"
    found = calls_of(ours.key_averages())
    assert found == calls_by_torch(theirs)
    assert found["aten::conv2d"] == 6 and "autograd::engine::evaluate_function: ConvolutionBackward0" in found


def test_shapes_of_arguments_are_those_that_torch_tells():
    loop = Loop()
    names = {"aten::addmm", "aten::mm", "aten::conv2d", "aten::convolution", "aten::convolution_backward", "aten::relu", "aten::linear"}
    with (torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as theirs,
          hr.profile(["cpu"], record_shapes=True) as ours):
        loop.step()
    found = {(row.name, row.input_shapes): row.calls for row in ours.key_averages(group_by_input_shape=True) if row.name in names}
    wanted = {(row.key, json.dumps(row.input_shapes)): row.count for row in theirs.key_averages(group_by_input_shape=True)
              if row.key in names}
    assert found == wanted and len(found) > len({name for name, _ in found})  # Two convolutions of other shapes.


def test_the_five_that_keep_most_memory_are_those_of_torch_with_the_same_bytes():
    loop = Loop()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as theirs:
        loop.step()
    with hr.profile(["cpu"], profile_memory=True) as ours:
        loop.step()
    wanted = largest({row.key: row.self_cpu_memory_usage for row in theirs.key_averages() if row.key != "[memory]"})
    assert largest({row.name: row.self_bytes for row in ours.key_averages()}) == wanted
    assert wanted[0][1] > 0


def test_the_same_script_has_the_same_five_operators_most_often():
    loop = Loop()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        loop.step()
    with hr.profile(["cpu"]) as ours:
        loop.step()
    assert largest(calls_of(ours.key_averages().top(1000, "calls"))) == largest(calls_by_torch(theirs))


def test_self_times_add_up_to_the_operators_that_nothing_calls():
    loop = Loop()
    with hr.profile(["cpu"]) as profile:
        loop.step()
    averages = profile.key_averages()
    assert all(0 <= row.self_s <= row.total_s for row in averages)
    assert averages[0].self_s == max(row.self_s for row in averages)
    # It encloses the operators that it calls, whose own times and its own make up its total.
    step_s = next(one["total_s"] for one in profile.trace.summary()["operations"] if one["name"] == "Optimizer.step#SGD.step")
    assert sum(row.self_s for row in averages) >= step_s


def test_the_largest_allocator_is_on_top_of_the_table_in_ten_rows():
    with hr.profile(["cpu"], profile_memory=True) as profile:
        kept = [torch.empty(2_000_000) for _ in range(3)]
        Loop().step()
    table = profile.key_averages().table(sort_by="cpu_memory_usage", row_limit=10).splitlines()
    assert table[0].startswith("operator") and "memory" in table[0]
    assert table[2].startswith("aten::empty ") and len(kept) == 3
    assert len(table[2:-1]) == 10 and table[-1].endswith("more operators")


def test_a_table_by_cuda_says_that_there_is_none_and_shows_the_cpus():
    with hr.profile(["cpu"], profile_memory=True) as profile:
        kept = torch.empty(3_000_000)
    averages = profile.key_averages()
    lines = averages.table(sort_by="cuda_memory_usage", row_limit=10).splitlines()
    assert lines[0] == "cuda_memory_usage: unavailable, as it was not recorded; sorted by bytes"
    assert lines[3].startswith("aten::empty ") and kept.numel() == 3_000_000
    assert averages[0].bytes == 12_000_000 and averages[0].device_bytes is None


def test_memory_that_was_not_asked_for_is_unavailable_and_not_0():
    with hr.profile(["cpu"]) as profile:
        torch.empty(10)
    row = profile.key_averages()[0]
    assert row.bytes is None and "unavailable" in profile.key_averages().table()


def test_fifteen_steps_give_two_traces_of_steps_2_to_4_and_7_to_9_with_shapes_and_memory(tmp_path):
    loop = Loop()
    with hr.profile(["cpu"], hr.schedule(wait=1, warmup=1, active=3, repeat=2), hr.write_traces(tmp_path / "log" / "profile"),
                    record_shapes=True, profile_memory=True) as profile:
        for _ in range(15):
            loop.step()
            profile.step()
    files = sorted((tmp_path / "log" / "profile").iterdir(), key=lambda path: path.name)
    assert len(files) == profile.windows == 2
    for file, steps in zip(files, ([2, 3, 4], [7, 8, 9])):
        events = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] != "M"]
        assert sorted(event["args"]["value"] for event in events if event["name"] == "profiler_step") == steps
        assert sum(event["name"] == "aten::conv2d" for event in events) == 3 * 2
        assert any("[[16, 3, 12, 12], " in event["cat"] for event in events if event["name"] == "aten::conv2d")
        assert any(event["name"] == "operator_memory" for event in events)
    assert calls_of(profile.key_averages())["aten::conv2d"] == 6  # Of the last window.


def test_functions_of_torchs_for_schedules_and_traces_serve_too(tmp_path):
    with hr.profile([torch.profiler.ProfilerActivity.CPU], torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
                    torch.profiler.tensorboard_trace_handler(str(tmp_path))) as profile:
        for _ in range(4):
            torch.ones(3)
            profile.step()
    (file,) = tmp_path.iterdir()
    assert sum(event["name"] == "aten::ones" for event in json.loads(file.read_text())["traceEvents"]) == 1


def test_what_runs_after_its_end_and_in_other_threads_is_not_recorded():
    import threading

    with hr.profile(["cpu"]) as profile:
        thread = threading.Thread(target=torch.ones, args=(5,))
        thread.start()
        thread.join()
        torch.zeros(3)
    torch.eye(2)
    found = calls_of(profile.key_averages())
    assert found["aten::zeros"] == 1 and "aten::eye" not in found and "aten::ones" not in found


def test_a_block_that_raises_leaves_its_profile_and_the_place_to_the_next_one():
    with pytest.raises(KeyError):
        with hr.profile(["cpu"], profile_memory=True) as profile:
            torch.ones(3)
            raise KeyError
    assert calls_of(profile.key_averages())["aten::ones"] == 1
    with hr.profile(["cpu"], profile_memory=True) as again:
        torch.zeros(3)
    assert "aten::ones" not in calls_of(again.key_averages())


def test_memory_beside_a_profiler_of_torch_is_refused_and_leaves_that_alone():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        with pytest.raises(hr.errors.UnsupportedError, match="a PyTorch profiler has them"):
            hr.profile(["cpu"], profile_memory=True).start()
        torch.ones(3)
    assert calls_by_torch(theirs)["aten::ones"] == 1
    with hr.Trace():  # Nothing is left of it.
        pass


def test_beside_a_trace_it_is_refused_and_the_operators_are_observed_no_more():
    with hr.Trace() as trace:
        with pytest.raises(hr.errors.InvalidArgumentError, match="one at a time"):
            hr.profile(["cpu"]).start()
        torch.ones(3)
    assert all(one["name"] != "aten::ones" for one in trace.summary()["operations"])


def test_explain_tells_what_is_in_force():
    told = hr.profile(["cpu"], record_shapes=True).explain()
    assert told["source"] == {"requested": "auto", "applied": "engine", "reason": ""}
    assert told["record_shapes"]["applied"] == "true" and told["profile_memory"]["applied"] == "false"
    stacks = hr.profile(["cpu"], with_stack=True)
    assert stacks.source == "torch" and "with_stack" in stacks.explain()["source"]["reason"]
    with pytest.raises(hr.errors.UnsupportedError, match="wanted engine: not applicable: with_stack"):
        hr.profile(["cpu"], with_stack=True, source="engine")


def test_a_plain_loop_is_diagnosed_by_the_operators_of_its_steps_and_again_from_its_file(tmp_path):
    loop = Loop()
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(loop.images, loop.labels), 4)
    with hr.profile(["cpu"]) as profile:
        for _ in batches:
            loop.step()
            profile.step()
    found = profile.diagnose(4, skip=1)
    assert found.time_split["steps"] == 3
    assert all(found.time_split[f"{part}_s"] > 0 for part in ("data_wait", "forward", "backward", "optimizer"))
    assert found.time_split == profile.trace.time_split(skip=1)
    verdict = found["resources"]
    assert verdict["peak_share"] is None and verdict["shares"] is None
    assert any(reason.startswith("the loop's own code, synchronisation, memory:") for reason in verdict["unavailable"])
    profile.export(tmp_path / "trace.json")
    again = hr.diagnose(tmp_path / "trace.json", 4, skip=1)
    assert again.time_split == found.time_split and again["resources"] == verdict


def test_a_stage_of_loading_that_a_span_names_is_what_the_loop_waits_for():
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        @hr.profile_operation("read")
        def __getitem__(self, index):
            time.sleep(0.02)
            return torch.zeros(1)

    loop = Loop()
    with hr.profile(["cpu"]) as profile:
        for _ in torch.utils.data.DataLoader(Slow(), 4):
            loop.step()
            profile.step()
    assert profile.diagnose(4)["resources"]["first"] == "storage", profile.diagnose(4)["resources"]["sentence"]


def test_a_window_of_torch_profiler_is_not_diagnosed():
    with hr.profile(["cpu"], source="torch") as profile:
        Loop().step()
    with pytest.raises(hr.errors.InvalidArgumentError, match="profile: diagnose: wanted a window that headrace's engine recorded"):
        profile.diagnose(4)
    with pytest.raises(hr.errors.InvalidArgumentError, match="profile: diagnose: wanted a window that was recorded, found none"):
        hr.profile(["cpu"]).diagnose(4)
