"""`headrace pack`: indices and packs, and what kills, full disks, damage and odd folders do to them."""

import fcntl
import io
import json
import os
import shutil
import signal
import subprocess

import pytest

from tiny_run import ANY_USER, HEADRACE, assert_one_line_error, disk_of, headrace, resize_disk, write_photos


@pytest.fixture
def photos(tmp_path):
    write_photos(tmp_path / "data", train=10, val=5)
    return tmp_path / "data"


def index_of(photos, split="train"):
    return photos / ".headrace-index" / split / "entropy.records"


def leftovers(photos):
    return [path.name for path in (photos / ".headrace-index").rglob("*") if path.is_file() and path.name != "lock"
            and path.name != "entropy.records"]


def indexed(photos, *arguments):
    result = headrace("pack", "--index", photos, "--json", "-", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def weights_trained(out, source, *arguments):
    """Of two epochs on photographs of two classes."""
    recipe = out.with_suffix(".toml")
    recipe.write_text(
        f'[data]\nsource = "{source}"\nbatch_size = 10\n[data.transform]\nsize = 32\ncrop = "random_resized"\n'
        'mean = [0.5]\nstd = [0.25]\n[model]\nname = "strided_cnn"\nnum_classes = 2\n[train]\nepochs = 2\n'
        "[compute]\nintra_op_threads = 1\n"
    )
    result = headrace("train", recipe, "--out", out, *arguments)
    assert result.returncode == 0, result.stderr
    return (out / "model.safetensors").read_bytes()


def test_both_splits_are_indexed_and_told(photos):
    result = headrace("pack", "--index", f"folder:{photos}")
    assert result.returncode == 0, result.stderr
    train, val = result.stdout.splitlines()
    assert train.startswith("train: 20 images, 20 indexed (0 known before), 0 without") and "% of the data" in train
    assert val.startswith("val: 10 images, 10 indexed")
    document = indexed(photos)
    assert document["format"] == "headrace-index"
    assert document["train"]["known_before"] == 20 and document["val"]["known_before"] == 10
    assert document["train"]["index_bytes"] == index_of(photos).stat().st_size
    assert document["train"]["data_bytes"] == sum(path.stat().st_size for path in photos.glob("train/*/*.jpg"))


def test_a_run_uses_the_index_and_trains_to_the_same_bits(photos, tmp_path):
    weights = set()
    for name, use in [("plain", "none"), ("built", "build"), ("used", "use")]:
        weights.add(weights_trained(tmp_path / name, f"folder:{photos}", "--data.index", use))
        assert index_of(photos).exists() == (use != "none") and index_of(photos, "val").exists() == (use != "none")
    assert len(weights) == 1


@pytest.mark.parametrize("point", ["write.begin:1", "write.middle:9", "write.sync:1", "write.rename:1", "write.folder:1"])
def test_killed_anywhere_it_leaves_a_whole_index_or_none_and_goes_on(photos, point):
    result = headrace("pack", "--index", photos, env=dict(os.environ, HEADRACE_FAULT=point))
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert index_of(photos).exists() == (point == "write.folder:1")
    assert bool(leftovers(photos)) == (point != "write.folder:1")
    assert indexed(photos)["train"]["known_before"] == (20 if point == "write.folder:1" else 0)
    assert leftovers(photos) == []


def test_a_kill_leaves_the_old_index_as_it_was(photos):
    indexed(photos)
    before = index_of(photos).read_bytes()
    result = headrace("pack", "--index", photos, env=dict(os.environ, HEADRACE_FAULT="write.rename:1"))
    assert result.returncode == -signal.SIGKILL
    assert index_of(photos).read_bytes() == before


def test_a_full_disk_is_one_line_and_nothing_is_left(photos, tmp_path):
    with disk_of("4k", tmp_path / "disk") as disk:
        (photos / ".headrace-index").symlink_to(disk)
        assert_one_line_error(headrace("pack", "--index", photos), 1, "entropy.records", "No space left on device")
        assert not index_of(photos).exists() and leftovers(photos) == []


def test_while_another_process_writes_the_index_a_second_one_names_it(photos):
    folder = index_of(photos).parent
    folder.mkdir(parents=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        assert_one_line_error(headrace("pack", "--index", photos), 1, "is in use by process", os.getpid())
        assert not index_of(photos).exists()
    assert indexed(photos)["train"]["indexed"] == 20


def test_a_folder_that_may_not_be_written_is_named(photos):
    photos.chmod(0o555)
    try:
        result = subprocess.run([*ANY_USER, HEADRACE, "pack", "--index", photos], capture_output=True, text=True, timeout=60)
        assert_one_line_error(result, 1, photos, "Permission denied")
    finally:
        photos.chmod(0o755)


def test_names_that_are_not_text_are_indexed(photos):
    os.rename(os.fsencode(photos) + b"/train/cat/00.jpg", os.fsencode(photos) + b"/train/cat/caf\xe9.jpg")
    assert indexed(photos)["train"]["indexed"] == 20


def test_images_without_an_index_and_unreadable_ones_are_counted(photos):
    (photos / "train/cat/00.jpg").write_bytes(b"no image")
    (photos / "train/cat/01.jpg").write_bytes(b"")
    result = headrace("pack", "--index", photos, "--json", "-")
    assert result.returncode == 0
    train = json.loads(result.stdout)["train"]
    assert (train["indexed"], train["without"], train["unreadable"]) == (18, 1, 1)
    assert "1 could not be read, the first: " in result.stderr and "01.jpg" in result.stderr


def test_what_cannot_be_packed_is_one_line(photos, tmp_path):
    assert_one_line_error(headrace("pack", "--index", tmp_path / "absent"), 1, "absent")
    assert_one_line_error(headrace("pack", "--index", "idx:/usr/share/datasets/fashion-mnist"), 2, "folder:DIR")
    assert_one_line_error(headrace("pack", photos), 2, "a target is required")
    assert_one_line_error(headrace("pack", photos, tmp_path / "p", "--unpack", "--append"), 2, "--append")
    assert_one_line_error(headrace("pack", "--index", photos, tmp_path / "p"), 2, "is one too many")
    assert_one_line_error(headrace("pack", tmp_path / "absent", tmp_path / "p"), 1, "absent")
    (tmp_path / "empty/train").mkdir(parents=True)
    assert_one_line_error(headrace("pack", "--index", tmp_path / "empty"), 1, "has no class folders")


def test_a_dry_run_writes_nothing(photos):
    assert headrace("pack", "--index", photos, "--dry-run").returncode == 0
    assert not (photos / ".headrace-index").exists()


def packed(source, target, *arguments):
    result = headrace("pack", source, target, "--json", "-", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.jpg")}


def test_a_folder_becomes_a_pack_and_a_folder_again(photos, tmp_path):
    document = packed(photos, tmp_path / "p.pack")
    assert (document["samples"], document["added"], document["indexed"], document["files"]) == (30, 30, 30, 1)
    result = headrace("pack", "--verify", tmp_path / "p.pack")
    assert result.stdout == f"{tmp_path}/p.pack: 30 samples, all as they were packed\n"
    assert headrace("pack", "--unpack", tmp_path / "p.pack", tmp_path / "again").returncode == 0
    assert files_of(tmp_path / "again") == files_of(photos)


def test_a_run_on_a_pack_trains_to_the_bits_of_the_folder(photos, tmp_path):
    packed(photos, tmp_path / "p.pack")
    packed(photos, tmp_path / "shards", "--shard-mib", 1)
    sources = [f"folder:{photos}", f"pack:{tmp_path}/p.pack", f"pack:{tmp_path}/shards"]
    assert len({weights_trained(tmp_path / f"run{i}", source) for i, source in enumerate(sources)}) == 1


@pytest.mark.parametrize("point", ["pack.sample:1", "pack.sample:17", "pack.table:1", "write.sync:1", "write.rename:1",
                                   "write.folder:1"])
def test_a_pack_killed_anywhere_is_gone_on_with(photos, tmp_path, point):
    reference = tmp_path / "reference.pack"
    packed(photos, reference)
    target = tmp_path / "p.pack"
    result = headrace("pack", photos, target, env=dict(os.environ, HEADRACE_FAULT=point))
    assert result.returncode == -signal.SIGKILL, result.stderr
    if point == "write.folder:1":
        assert target.read_bytes() == reference.read_bytes()
        return
    assert not target.exists()
    assert_one_line_error(headrace("pack", "--verify", target), 1, "it is not finished")
    packed(photos, target)
    assert target.read_bytes() == reference.read_bytes()


def test_a_sharded_pack_killed_is_gone_on_with(photos, tmp_path):
    target = tmp_path / "shards"
    for path in photos.rglob("*.jpg"):  # What follows an image's end is nobody's.
        path.write_bytes(path.read_bytes() + bytes(200_000))
    result = headrace("pack", photos, target, "--shard-mib", 1, env=dict(os.environ, HEADRACE_FAULT="pack.sample:14"))
    assert result.returncode == -signal.SIGKILL, result.stderr
    before = {path.name for path in target.glob("*.pack")}
    assert before and (target / f"{len(before):05}.pack.partial").exists()
    document = packed(photos, target, "--shard-mib", 1)
    assert document["samples"] == 30 and document["added"] == 30 - 13
    assert headrace("pack", "--unpack", target, tmp_path / "again").returncode == 0
    assert files_of(tmp_path / "again") == files_of(photos)


def test_a_full_disk_loses_nothing_of_a_pack(photos, tmp_path):
    with disk_of("32k", tmp_path / "disk") as disk:
        assert_one_line_error(headrace("pack", photos, disk / "p.pack"), 1, "p.pack.partial", "No space left on device")
        assert not (disk / "p.pack").exists()
        resize_disk(disk, "4m")
        document = packed(photos, disk / "p.pack")
        assert 0 < document["added"] < 30 and document["samples"] == 30
        assert headrace("pack", "--verify", disk / "p.pack").returncode == 0


def test_of_two_packers_on_one_file_the_second_is_refused(photos, tmp_path):
    target = tmp_path / "p.pack"
    with open(f"{target}.partial", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_one_line_error(headrace("pack", photos, target), 1, "is being written by another process")
    packed(photos, target)


def test_two_packers_that_start_at_once_leave_one_whole_pack(photos, tmp_path):
    command = [HEADRACE, "pack", str(photos), str(tmp_path / "p.pack")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    messages = [process.communicate(timeout=120)[1] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes
    for code, message in zip(codes, messages):
        assert code == 0 or "is being written by another process" in message or "exists already" in message, message
    assert headrace("pack", "--verify", tmp_path / "p.pack").returncode == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("p.pack")] == ["p.pack"]


def test_damaged_and_cut_packs_are_one_line(photos, tmp_path):
    target = tmp_path / "p.pack"
    packed(photos, target)
    whole = target.read_bytes()
    target.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    assert_one_line_error(headrace("pack", "--verify", target), 1, "1 of 30 samples are damaged", "p.pack:cat/00.jpg")
    target.write_bytes(whole[: len(whole) // 2])
    assert_one_line_error(headrace("pack", "--verify", target), 1, "p.pack is cut off or damaged at its end")
    target.write_bytes(b"x" * 1000)
    assert_one_line_error(headrace("pack", "--verify", target), 1, "p.pack is not a pack")
    assert_one_line_error(headrace("pack", "--unpack", target, tmp_path / "out"), 1, "p.pack is not a pack")
    assert not (tmp_path / "out").exists()


def test_twenty_thousand_small_files_are_packed_verified_and_given_back_bit_by_bit(tmp_path):
    from PIL import Image

    count, image = 20_000, io.BytesIO()
    Image.linear_gradient("L").resize((16, 16)).save(image, "JPEG")
    # In memory: unpacking syncs its whole file system, which would wait for what others have written to the disk.
    with disk_of("1g", tmp_path / "disk") as disk:
        data, again, shards = (disk / name for name in ("data", "again", "shards"))
        for kind in range(10):
            (data / "train" / str(kind)).mkdir(parents=True)
        files = {f"train/{number % 10}/{number:05}.jpg": image.getvalue() + number.to_bytes(4, "little") * (1 + number % 300)
                 for number in range(count)}  # What follows an image's end is nobody's.
        for name, content in files.items():
            (data / name).write_bytes(content)
        document = packed(data, shards, "--shard-mib", 4)
        assert document["samples"] == document["added"] == count and document["files"] > 2
        result = headrace("pack", "--verify", shards)
        assert result.returncode == 0 and f"{count} samples, all as they were packed" in result.stdout
        assert headrace("pack", "--unpack", shards, again).returncode == 0
        assert {path.relative_to(again).as_posix(): path.read_bytes() for path in again.rglob("*.jpg")} == files
        second = shards / "00001.pack"
        os.truncate(second, second.stat().st_size // 2)
        assert_one_line_error(headrace("pack", "--verify", shards), 1, f"{second} is cut off or damaged at its end")


def test_packing_over_a_pack_needs_append_and_adds_what_is_missing(photos, tmp_path):
    target = tmp_path / "p.pack"
    packed(photos, target)
    assert_one_line_error(headrace("pack", photos, target), 2, "exists already; --append adds to it")
    (photos / "train/dog/new.jpg").write_bytes((photos / "train/cat/00.jpg").read_bytes())
    assert packed(photos, target, "--append")["added"] == 1
    (photos / "train/bird").mkdir()
    (photos / "train/bird/1.jpg").write_bytes((photos / "train/cat/00.jpg").read_bytes())
    (photos / "val/bird").mkdir()
    (photos / "val/bird/1.jpg").write_bytes((photos / "train/cat/00.jpg").read_bytes())
    assert_one_line_error(headrace("pack", photos, target, "--append"), 2, "has other classes")
    assert headrace("pack", "--verify", target).returncode == 0


def test_one_class_and_names_that_are_not_text_are_packed(tmp_path):
    write_photos(tmp_path / "data", train=2)
    shutil.rmtree(tmp_path / "data/train/dog")
    os.rename(os.fsencode(tmp_path) + b"/data/train/cat/00.jpg", os.fsencode(tmp_path) + b"/data/train/cat/caf\xe9.jpg")
    assert packed(tmp_path / "data", tmp_path / "p.pack")["samples"] == 2
    assert headrace("pack", "--unpack", tmp_path / "p.pack", tmp_path / "again").returncode == 0
    assert os.path.exists(os.fsencode(tmp_path) + b"/again/train/cat/caf\xe9.jpg")


@pytest.mark.parametrize("form", ["raw", "lz4"])
def test_a_run_on_decoded_images_trains_to_the_bits_of_the_folder(photos, tmp_path, form):
    document = packed(photos, tmp_path / "p.pack", "--form", form)
    assert (document["form"], document["short_side"], document["samples"], document["indexed"]) == (form, 0, 30, 0)
    sources = [f"folder:{photos}", f"pack:{tmp_path}/p.pack"]
    assert len({weights_trained(tmp_path / f"run{i}", source) for i, source in enumerate(sources)}) == 1


@pytest.mark.parametrize("form", ["raw", "lz4"])
def test_images_are_resized_as_torchvision_does_it(photos, tmp_path, form):
    import numpy
    from PIL import Image
    from torchvision.transforms import Resize

    Image.fromarray(numpy.random.default_rng(2).integers(0, 255, (301, 203, 3), dtype=numpy.uint8)).save(
        photos / "train/cat/tall.png")
    packed(photos, tmp_path / "p.pack", "--form", form, "--short-side", 28)
    result = headrace("pack", "--verify", tmp_path / "p.pack", "--json", "-")
    assert json.loads(result.stdout)["form"] == form and json.loads(result.stdout)["short_side"] == 28
    assert headrace("pack", "--unpack", tmp_path / "p.pack", tmp_path / "again").returncode == 0
    for path in photos.glob("train/*/*"):
        found = Image.open(tmp_path / "again" / path.relative_to(photos).with_name(
            path.name if path.suffix == ".png" else path.name + ".png"))
        wanted = Resize(28)(Image.open(path).convert("RGB"))
        difference = numpy.abs(numpy.asarray(found).astype(int) - numpy.asarray(wanted))
        assert found.size == wanted.size and difference.max() <= 1


@pytest.mark.parametrize("point", ["pack.sample:17", "pack.table:1", "write.rename:1"])
def test_a_pack_of_decoded_images_killed_is_gone_on_with(photos, tmp_path, point):
    options = ["--form", "lz4", "--short-side", 32]
    packed(photos, tmp_path / "reference.pack", *options)
    result = headrace("pack", photos, tmp_path / "p.pack", *options, env=dict(os.environ, HEADRACE_FAULT=point))
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert_one_line_error(headrace("pack", photos, tmp_path / "p.pack", "--form", "raw"), 2, "in another form")
    packed(photos, tmp_path / "p.pack", *options)
    assert (tmp_path / "p.pack").read_bytes() == (tmp_path / "reference.pack").read_bytes()


def test_forms_that_are_not_meant_are_one_line(photos, tmp_path):
    target = tmp_path / "p.pack"
    assert_one_line_error(headrace("pack", photos, target, "--form", "jpeg"), 2, "--form")
    assert_one_line_error(headrace("pack", photos, target, "--short-side", 256), 2, "needs --form raw or --form lz4")
    assert_one_line_error(headrace("pack", photos, target, "--form", "raw", "--short-side", 0), 2, "--short-side must be 1 to")
    assert_one_line_error(headrace("pack", "--verify", target, "--form", "raw"), 2, "--form are for writing")
    packed(photos, target, "--form", "raw")
    assert_one_line_error(headrace("pack", photos, target, "--append"), 2, "holds images as --form raw, not stored")
    assert headrace("pack", "--verify", target).returncode == 0
    (photos / "train/cat/00.jpg").write_bytes(b"no image")
    assert_one_line_error(headrace("pack", photos, tmp_path / "q.pack", "--form", "raw"), 1, "train/cat/00.jpg")


def test_a_list_of_paths_is_packed_and_its_bad_lines_are_named(photos, tmp_path):
    paths = sorted(photos.glob("train/*/*.jpg"))
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in paths]
    listed = tmp_path / "list.csv"
    listed.write_text("\n".join(["path,label", *lines]))
    assert packed(f"list:{listed}", tmp_path / "list.pack")["samples"] == 20
    assert headrace("pack", "--unpack", tmp_path / "list.pack", tmp_path / "again").returncode == 0
    assert sorted(files_of(tmp_path / "again").values()) == sorted(path.read_bytes() for path in paths)
    listed.write_text("\n".join(["path,label", *lines, "no/such.jpg,cat", "no label"]))
    assert_one_line_error(headrace("pack", f"list:{listed}", tmp_path / "q.pack"), 1, "list.csv: line 22: ",
                          "no/such.jpg: No such file", "also bad: line 23")
