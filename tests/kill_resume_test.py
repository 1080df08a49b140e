"""A training run that is killed again and again, and goes on each time, ends with the bits of one that never was."""

import collections
import dataclasses
import gzip
import json
import os
import re
import signal
import subprocess
import time

import numpy
import pytest
from safetensors import safe_open

from tiny_run import (HEADRACE, ROOT, assert_one_line_error, disk_of, headrace, newest_checkpoint, resize_disk, tensors_of,
                      write_idx)

# recipe.toml, environment.json and eval_transform.toml pass the fault points too, in one piece each.
WRITES_BEFORE_TRAINING = 3
POINTS = ["write.begin", "write.middle", "write.sync", "write.rename", "write.folder"]


@dataclasses.dataclass
class Job:
    recipe: object
    reference: object  # Folder of the run that nobody disturbed.
    seconds: float  # That it trained.


def finished(folder):
    return json.loads((folder / "result.json").read_text())["training"]


# Of a recipe that fine-tunes: what its optimizer has besides, other tables, and what its training has besides.
FINE_TUNING = (
    "decay_mult_1d = 0.0",
    """
[loss]
label_smoothing = 0.1
[[optimizer.group]]
params = ["conv*", "bn*"]
lr_mult = 0.1
""",
    """
max_grad_norm = 1.0
ema_decay = 0.99
""",
)


# What a run may have to carry on besides: also as FINE_TUNING, for images of which some are too bright for fp16 (overexpose).
LOSS_SCALE = 1 << 24  # Too large for the first updates.
EVERYTHING = (
    "decay_mult_1d = 0.0",
    "",
    f"""
precision = "fp16"
loss_scale = {LOSS_SCALE}
ema_decay = 0.99
max_grad_norm = 1.0
async_checkpoints = true
[train.step_guard]
policy = "rollback"
keep_every = 5
""",
)
IMAGES_IN_FP16 = "mean = [0.02]\nstd = [1.4e-5]"


MILESTONES = """
name = "MultiStepLR"
warmup_steps = 20
milestones = [2, 4]
gamma = 0.5
"""


def overexpose(folder):
    """Makes the images dark, with pixels up to 11 of 255, but for two to train on, which are white. With IMAGES_IN_FP16 a pixel is
    (p / 255 - 0.02) / 1.4e-5: at most 1,700 from 0 in the dark ones, and 70,000 in the white ones, where float16 ends at 65,504. A
    batch with a white image has a loss of NaN."""
    for split, white in (("train", (123, 456)), ("val", ()), ("t10k", ())):
        path = folder / f"{split}-images-idx3-ubyte.gz"
        content = bytearray(gzip.decompress(path.read_bytes()))
        images = numpy.frombuffer(content, numpy.uint8, offset=16).reshape(-1, 8 * 8)
        images //= 20
        for image in white:
            images[image] = 255
        path.write_bytes(gzip.compress(bytes(content), 1))


def make_job(folder, gradient_accumulation_steps, epochs, images, more=("", "", ""), momentum=0.9, schedule=MILESTONES, transform="",
             change_data=None):
    """Everything that must survive a kill is in it: flips and shifts, momentum, running statistics, a schedule. `more` is as
    FINE_TUNING."""
    optimizer, tables, train = more
    (folder / "data").mkdir()
    write_idx(folder / "data", "train", images)
    write_idx(folder / "data", "val", 160)
    write_idx(folder / "data", "t10k", 320)
    if change_data:
        change_data(folder / "data")
    recipe = folder / "tiny.toml"
    recipe.write_text(
        f"""
[data]
source = "idx:{folder}/data"
batch_size = 16
[data.transform]
pad = 1
flip_probability = 0.5
{transform}
[model]
name = "small_cnn"
[optimizer]
name = "sgd"
lr = 2e-3
momentum = {momentum}
weight_decay = 1e-4
{optimizer}
{tables}
[lr_scheduler]
{schedule}
[train]
epochs = {epochs}
gradient_accumulation_steps = {gradient_accumulation_steps}
checkpoint_every_s = 0
{train}
[compute]
intra_op_threads = 1
"""
    )
    reference = folder / "reference"
    result = headrace("train", recipe, "--out", reference)
    assert result.returncode == 0, result.stderr
    return Job(recipe, reference, finished(reference)["seconds"])


def fine_tuning_job(folder):
    """examples/photos_fine_tuning.toml over six classes of small photographs of noise, from weights that a run has left: but for data,
    sizes and lengths every line is as it is written there."""
    from PIL import Image

    random = numpy.random.default_rng(1)
    for split, count in (("train", 7), ("val", 2), ("test", 2)):
        for name in ("a", "b", "c", "d", "e", "f"):
            (folder / "photos" / split / name).mkdir(parents=True)
            for i in range(count):
                image = Image.fromarray(random.integers(0, 255, (40, 44, 3), dtype=numpy.uint8))
                image.save(folder / "photos" / split / name / f"{i}.jpg")

    def run(name, **values):
        text = (ROOT / "examples/photos_fine_tuning.toml").read_text()
        for key, value in values.items():
            text, count = re.subn(rf"(?m)^{key} = .*$", "" if value is None else f"{key} = {value}", text)
            assert count == 1, key
        recipe = folder / f"{name}.toml"
        recipe.write_text(f"{text}\n[compute]\nintra_op_threads = 1\n")
        result = headrace("train", recipe, "--out", folder / name)
        assert result.returncode == 0, result.stderr
        return recipe

    sizes = {"source": f'"folder:{folder}/photos"', "batch_size": 4, "size": 32, "num_classes": 6, "warmup_steps": 4}
    run("weights", **sizes, weights=None, weights_except=None, epochs=1)
    recipe = run("reference", **sizes, weights=f'"{folder}/weights/model.safetensors"', epochs="3\nkeep_checkpoints = 1")
    return Job(recipe, folder / "reference", finished(folder / "reference")["seconds"])


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"), gradient_accumulation_steps=1, epochs=8, images=4000)


def leftovers(folder):
    return list(folder.glob(".*.headrace-tmp"))


# Of a checkpoint's header, where ReduceLROnPlateau has been told a metric.
PLATEAU = ("plateau_best", "plateau_num_bad_epochs", "plateau_cooldown_counter", "plateau_reductions")
# Likewise, of loss scale, clipping and step guard, where these have found something.
FOUND = ("loss_scale", "scale_good_updates", "skipped_updates", "clipped_updates", "guard_losses", "guard_gradients", "guard_weights",
         "guard_activations", "guard_skipped", "guard_rolled_back", "guard_in_a_row")


def assert_ends_as_the_reference(job, folder):
    a, b = newest_checkpoint(job.reference), newest_checkpoint(folder)
    for name in ("model.safetensors", "checkpoint-best.safetensors", a.name):
        wanted, found = tensors_of(job.reference / name), tensors_of(folder / name)
        assert wanted.keys() == found.keys()
        for key in wanted:
            assert wanted[key].tobytes() == found[key].tobytes(), f"{name}: {key}"
    assert a.name == b.name
    with safe_open(a, "np") as wanted, safe_open(b, "np") as found:
        for key in ("epoch", "batch", "optimizer_steps", "loss_sum", "loss_samples", "evaluation_due", "data"):
            assert wanted.metadata()[key] == found.metadata()[key], key
        for key in PLATEAU + FOUND:
            assert wanted.metadata().get(key) == found.metadata().get(key), key
    keys = ("epoch", "loss", "val_loss", "val_accuracy", "val_top5_accuracy")
    histories = [[{key: epoch[key] for key in keys} for epoch in finished(run)["epochs"]]
                 for run in (job.reference, folder)]
    assert histories[0] == histories[1]
    keys = ("epoch", "chosen_by", "val_loss", "val_accuracy", "test_loss", "test_accuracy", "test_top5_accuracy")
    results = [{key: finished(run)["result"][key] for key in keys} for run in (job.reference, folder)]
    assert results[0] == results[1]
    assert not leftovers(folder)


class Chain:
    """One run, killed and resumed; remembers where it went on each time."""

    def __init__(self, job, folder, random, writes):
        self.job, self.folder, self.random = job, folder, random
        self.writes = writes  # The most that are done between a start and a kill.
        self.places = []  # "epoch 2" of each resume.
        self.started = False

    def start(self, fault=None):
        # A checkpoint after each step, where there is one to die at: how far a run gets is bounded by what it has written,
        # however late this process is with its kill.
        command = [HEADRACE, "train", str(self.job.recipe), "--out", str(self.folder),
                   "--train.checkpoint_every_s", "1e-6" if fault else "0", *(["--resume"] if self.started else [])]
        environment = dict(os.environ, **({"HEADRACE_FAULT": fault} if fault else {}))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=environment)
        resumes, self.started = self.started, True
        while resumes:
            line = process.stderr.readline()
            assert line, f"ended before it resumed: {process.wait()}"
            assert "left out" not in line, line  # No kill may leave a checkpoint that does not load.
            if "starting from the beginning" in line:
                self.places.append("beginning")
                break
            if "resuming" in line:
                place = re.search(r"(end of |after )?epoch \d+", line)
                assert place, line
                self.places.append(place.group())
                break
        return process

    def end(self, process):
        _, stderr = process.communicate(timeout=120)
        return process.returncode, stderr

    def kill_at_a_random_moment(self):
        process = self.start(f"write.begin:{WRITES_BEFORE_TRAINING + self.writes}")  # If the kill from here comes late.
        time.sleep(self.random.uniform(0, self.job.seconds / 40))
        process.send_signal(signal.SIGKILL)
        code, stderr = self.end(process)
        assert code == -signal.SIGKILL, stderr

    def kill_within_a_write(self, point):
        if point == "write.middle":  # A checkpoint has a piece for its header and each of its tensors, at least 25.
            passage = int(self.random.integers(1, 120))
        else:
            passage = WRITES_BEFORE_TRAINING + int(self.random.integers(1, self.writes + 1))
        process = self.start(f"{point}:{passage}")
        code, stderr = self.end(process)
        assert code == -signal.SIGKILL, stderr
        left = leftovers(self.folder)
        if point == "write.folder":
            assert not left
            tensors_of(newest_checkpoint(self.folder))
        else:
            assert len(left) == 1, "one of this kill, and none of an earlier one"
            assert (left[0].stat().st_size == 0) == (point == "write.begin")
        if point in ("write.sync", "write.rename"):
            tensors_of(left[0])  # A whole checkpoint that has no name yet.


def run_chain(job, folder, kills, writes, random):
    chain = Chain(job, folder, random, writes)
    plan = ["moment"] * (kills - kills // 2) + [POINTS[i % len(POINTS)] for i in range(kills // 2)]
    random.shuffle(plan)
    for kind in plan:
        if kind == "moment" and chain.started:
            chain.kill_at_a_random_moment()
        else:
            chain.kill_within_a_write(kind if kind != "moment" else "write.rename")
    code, stderr = chain.end(chain.start())
    assert code == 0, stderr
    places = collections.Counter(chain.places)
    print(f"\n{kills} kills: {dict(collections.Counter(plan))}; went on in {dict(places)}")
    return places


def test_after_50_kills_the_run_ends_with_the_same_bits(job, tmp_path):
    # 2,000 steps in 8 epochs: 50 times 32 are not all of them, and the kills within writes alone are in more than one epoch.
    places = run_chain(job, tmp_path / "run", kills=50, writes=32, random=numpy.random.default_rng(20261120))
    assert places.most_common(1)[0][1] >= 2, "twice in one epoch"
    assert len(places) >= 2, "in more than one epoch"
    assert_ends_as_the_reference(job, tmp_path / "run")


def test_windows_of_two_batches_groups_and_averages_survive_kills_too(tmp_path):
    job = make_job(tmp_path, gradient_accumulation_steps=2, epochs=3, images=1600, more=FINE_TUNING)
    run_chain(job, tmp_path / "run", kills=10, writes=10, random=numpy.random.default_rng(7))  # Of 150 updates.
    assert_ends_as_the_reference(job, tmp_path / "run")
    # What was compared is there, and the averages are the result and no copy of the weights.
    best, result = tensors_of(tmp_path / "run/checkpoint-best.safetensors"), tensors_of(tmp_path / "run/model.safetensors")
    for name, tensor in result.items():
        assert tensor.tobytes() == best[f"ema/{name}"].tobytes(), name
    assert result["fc1.weight"].tobytes() != best["model/fc1.weight"].tobytes()


def test_the_fine_tuning_recipe_ends_with_the_same_bits_after_kills(tmp_path):
    job = fine_tuning_job(tmp_path)
    run_chain(job, tmp_path / "run", kills=4, writes=4, random=numpy.random.default_rng(5))  # Of 30 updates.
    assert_ends_as_the_reference(job, tmp_path / "run")
    # What was compared is there: the head has moved from where it was drawn, and the averages are no copy of the weights.
    best = tensors_of(tmp_path / "run/checkpoint-best.safetensors")
    for name in ("fc.weight", "layer4.1.conv2.weight"):
        assert best[f"ema/{name}"].tobytes() != best[f"model/{name}"].tobytes(), name
        assert best[f"optimizer/{name}/exp_avg"].any(), name


def test_after_50_kills_a_run_with_averages_loss_scale_windows_and_rollbacks_ends_with_the_same_bits(tmp_path):
    # 300 windows in 12 epochs of 25: 50 times 5 are not all of them. In each epoch one or two batches have a white image, whose loss
    # is rolled back to a state of up to five updates before, which most often an earlier process has kept: from its checkpoint alone
    # this one knows it.
    epochs = 12
    job = make_job(tmp_path, gradient_accumulation_steps=2, epochs=epochs, images=800, more=EVERYTHING, transform=IMAGES_IN_FP16,
                   change_data=overexpose)
    with safe_open(newest_checkpoint(job.reference), "np") as end:
        found = end.metadata()
    assert epochs <= int(found["guard_rolled_back"]) == int(found["guard_losses"]) <= 2 * epochs
    assert int(found["skipped_updates"]) > int(found["guard_rolled_back"]), "the loss scale has left some out, too"
    assert 0 < float(found["loss_scale"]) < LOSS_SCALE
    with safe_open(job.reference / "checkpoint-best.safetensors", "np") as best:  # After its end a run has nothing to go back to.
        names = set(best.keys())
    for name in ("model/bn1.running_mean", "ema/bn1.running_mean", "generator/cpu"):
        assert {name, f"last_good/{name}"} <= names
    places = run_chain(job, tmp_path / "run", kills=50, writes=5, random=numpy.random.default_rng(17))
    assert places.most_common(1)[0][1] >= 2, "twice in one epoch"
    assert len(places) >= 2, "in more than one epoch"
    assert_ends_as_the_reference(job, tmp_path / "run")
    # The averages, of which all tensors were compared, are the result and no copy of the weights.
    best, result = tensors_of(tmp_path / "run/checkpoint-best.safetensors"), tensors_of(tmp_path / "run/model.safetensors")
    for name, tensor in result.items():
        assert tensor.tobytes() == best[f"ema/{name}"].tobytes() and numpy.isfinite(tensor).all(), name
    assert result["fc1.weight"].tobytes() != best["model/fc1.weight"].tobytes()


def test_a_plateau_is_found_at_the_same_epochs_after_kills(tmp_path):
    # The loss does not halve in each epoch, and the learning rate falls at the end of some, on which all later bits depend.
    schedule = 'name = "ReduceLROnPlateau"\npatience = 0\nthreshold = 0.5\nfactor = 0.5'
    job = make_job(tmp_path, gradient_accumulation_steps=1, epochs=5, images=640, schedule=schedule)
    with safe_open(newest_checkpoint(job.reference), "np") as end:
        assert int(end.metadata()["plateau_reductions"]) >= 2 and float(end.metadata()["plateau_best"]) > 0
    run_chain(job, tmp_path / "run", kills=10, writes=12, random=numpy.random.default_rng(11))  # Of 200 updates.
    assert_ends_as_the_reference(job, tmp_path / "run")
    # Killed within the evaluation of the first epoch, and again two writes after its own: no metric is told twice, or lost.
    out = interrupted(job, tmp_path / "evaluated", every=0, fault="write.begin:5")
    result = headrace("train", job.recipe, "--out", out, "--resume", env=dict(os.environ, HEADRACE_FAULT="write.begin:6"))
    assert result.returncode == -signal.SIGKILL, result.stderr
    resumed(job, out)
    assert_ends_as_the_reference(job, out)


@pytest.mark.parametrize("schedule", [
    'name = "OneCycleLR"\nmax_lr = 4e-3',
    """name = "SequentialLR"
interval = "step"
milestones = [6]
[[lr_scheduler.schedulers]]
name = "OneCycleLR"
max_lr = 4e-3
three_phase = true
base_momentum = 0.5
[[lr_scheduler.schedulers]]
name = "ExponentialLR"
gamma = 0.995
""",
], ids=["the whole run", "then another"])
def test_a_cycle_of_the_momentum_goes_on_after_kills(schedule, tmp_path):
    job = make_job(tmp_path, gradient_accumulation_steps=1, epochs=3, images=640, momentum=0.0, schedule=schedule)
    assert any(name.endswith("momentum_buffer") for name in tensors_of(newest_checkpoint(job.reference)))
    run_chain(job, tmp_path / "run", kills=6, writes=10, random=numpy.random.default_rng(13))  # Of 120 updates.
    assert_ends_as_the_reference(job, tmp_path / "run")


def interrupted(job, folder, *flags, every="1e-6", fault="write.folder:7"):
    """A run that died right after its fourth checkpoint was renamed, within its first epoch."""
    result = headrace("train", job.recipe, "--out", folder, "--train.checkpoint_every_s", every, *flags,
                      env=dict(os.environ, HEADRACE_FAULT=fault))
    assert result.returncode == -signal.SIGKILL, result.stderr
    return folder


def resumed(job, folder, *flags, **variables):
    result = headrace("train", job.recipe, "--out", folder, "--resume", *flags, env=dict(os.environ, **variables))
    assert result.returncode == 0, result.stderr
    return result


def test_a_kill_during_the_evaluation_of_an_epoch_loses_no_result(job, tmp_path):
    out = tmp_path / "run"
    # The fourth write of the run is the first epoch's checkpoint; the fifth, after its evaluation, the best.
    interrupted(job, out, every=0, fault="write.begin:5")
    result = resumed(job, out)
    assert "at the end of epoch 1" in result.stderr
    assert_ends_as_the_reference(job, out)


def test_a_damaged_newest_checkpoint_is_left_out_with_a_warning_and_the_end_is_the_same(job, tmp_path):
    out = interrupted(job, tmp_path / "run")
    newest = newest_checkpoint(out)
    content = bytearray(newest.read_bytes())
    content[-1000] ^= 4
    newest.write_bytes(content)
    result = resumed(job, out)
    warnings = [line for line in result.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1 and newest.name in warnings[0] and "checksum" in warnings[0], result.stderr
    assert_ends_as_the_reference(job, out)


def test_an_error_while_a_checkpoint_is_written_leaves_the_one_before(job, tmp_path):
    out = tmp_path / "run"
    result = headrace("train", job.recipe, "--out", out, "--train.checkpoint_every_s", "1e-6",
                      env=dict(os.environ, HEADRACE_FAULT="write.rename:6:error"))
    assert_one_line_error(result, 1, "write.rename")
    assert len(list(out.glob("checkpoint-*"))) == 2 and not leftovers(out)
    resumed(job, out)
    assert_ends_as_the_reference(job, out)


def test_a_disk_that_is_full_within_an_epoch_costs_one_checkpoint(job, tmp_path):
    with disk_of("2m", tmp_path / "disk") as disk:
        result = headrace("train", job.recipe, "--out", disk / "run", "--train.keep_checkpoints", 1000,
                          "--train.checkpoint_every_s", "1e-6")
        assert_one_line_error(result, 1, "checkpoint-", "No space left on device")
        assert len(list((disk / "run").glob("checkpoint-*"))) >= 1 and not leftovers(disk / "run")
        for path in sorted((disk / "run").glob("checkpoint-*"))[:-1]:
            path.unlink()  # Somebody makes room.
        resize_disk(disk, "64m")
        resumed(job, disk / "run")
        assert_ends_as_the_reference(job, disk / "run")


def held_in_training(job, out):
    """The command of a run, and its process, which has gone on from a checkpoint and stands still: it does not end before another
    one has started, however long that takes. None where it has ended before it could be held."""
    command = [HEADRACE, "train", str(job.recipe), "--out", str(out), "--resume"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while "resuming" not in (line := process.stderr.readline()):
        assert line, process.wait()
    process.send_signal(signal.SIGSTOP)
    if process.poll() is None and os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT).si_code == os.CLD_STOPPED:
        return command, process
    process.communicate()
    return None


def test_a_second_process_in_the_folder_is_refused_and_the_first_ends_undisturbed(job, tmp_path):
    held = None
    for place in range(10):
        out = interrupted(job, tmp_path / f"run{place}")
        if held := held_in_training(job, out):
            break
    command, first = held
    try:
        assert_one_line_error(headrace(*command[1:]), 1, out, f"in use by process {first.pid}")
    finally:
        first.send_signal(signal.SIGCONT)
    _, stderr = first.communicate(timeout=120)
    assert first.returncode == 0, stderr
    assert_ends_as_the_reference(job, out)


def test_what_keeps_a_resumed_run_from_the_same_end_is_said(job, tmp_path):
    out = interrupted(job, tmp_path / "run")
    data = tmp_path / "other"
    data.mkdir()
    write_idx(data, "train", 4032)
    write_idx(data, "t10k", 320)
    # Two threads that spin beside other tests take each other's core.
    result = resumed(job, out, "--data.source", f"idx:{data}", "--compute.intra_op_threads", 2, "--seed", 5, "--train.epochs", 1,
                     OMP_WAIT_POLICY="passive")
    warnings = [line for line in result.stderr.splitlines() if "warning" in line]
    for words in ("1 compute threads, this run has 2", "seed 1, this run has 5", "other data",
                  "250 batches an epoch, this run has 252"):
        assert sum(words in line for line in warnings) == 1, result.stderr


def test_a_resumed_run_that_had_ended_trains_nothing_and_knows_its_history(job, tmp_path):
    out = interrupted(job, tmp_path / "run", "--train.epochs", 2)
    resumed(job, out, "--train.epochs", 2)
    before = finished(out)["epochs"]
    result = resumed(job, out, "--train.epochs", 2)
    assert "nothing is left to train" in result.stderr
    assert finished(out)["epochs"] == before and len(before) == 2
    assert finished(out)["checkpoints"] == 0


def test_the_best_checkpoint_and_the_weights_are_tested_like_any_other(job):
    epochs = finished(job.reference)["epochs"]
    best = max(epoch["val_accuracy"] for epoch in epochs)
    for name, wanted in (("checkpoint-best.safetensors", best), ("model.safetensors", best),
                         ("", epochs[-1]["val_accuracy"])):
        result = headrace("eval", job.recipe, "--checkpoint", job.reference / name, "--eval.split", "val", "--json", "-")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["val_accuracy"] == wanted, name


def test_another_optimizers_checkpoint_is_refused_by_both_names_but_can_be_tested(job, tmp_path):
    out = interrupted(job, tmp_path / "run")
    other = ("--optimizer.name", "adamw", "--optimizer.weight_decay", "1e-2")
    assert_one_line_error(headrace("train", job.recipe, "--out", out, "--resume", *other), 2, "sgd", "adamw")
    assert headrace("eval", job.recipe, "--checkpoint", out, *other).returncode == 0
