"""Files of torch.save as our restricted reader has them, compared with what torch.load gives, and those that it refuses without
running them."""

import collections
import io
import os
import pickle
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import ROOT, assert_one_line_error, headrace, write_tiny_job
from torch.export.pt2_archive._package import PT2ArchiveWriter

PROBE = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin")) / "pt_probe"
TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
         torch.bool]


def probed(path):
    return subprocess.run([PROBE, path, path.with_suffix(".safetensors")], capture_output=True, text=True)


def read(path):
    done = probed(path)
    assert done.returncode == 0, done.stdout + done.stderr
    return load_file(path.with_suffix(".safetensors"))


def refused(path):
    """Kind and message, one line."""
    done = probed(path)
    assert done.returncode == 1 and done.stdout.count("\n") == 1, done.stdout + done.stderr
    kind, _, message = done.stdout.partition(": ")
    assert str(path) in message
    return kind, message


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor.detach()), name


def saved(value, path, **settings):
    torch.save(value, path, **settings)
    return path


def module():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8, 10))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_state_dict_is_what_torch_load_gives(protocol, tmp_path):
    path = saved(module().state_dict(), tmp_path / "w.pt", pickle_protocol=protocol)
    same(read(path), torch.load(path, weights_only=protocol < 4))  # torch's own restricted reader knows protocols 2 and 3 alone.


def test_every_type_of_elements_comes_back(tmp_path):
    tensors = {str(dtype): (torch.arange(-6, 6) % 2 if dtype == torch.bool else torch.arange(12)).to(dtype).view(3, 4) for dtype in TYPES}
    path = saved(tensors, tmp_path / "w.pt")
    same(read(path), torch.load(path, weights_only=True))


def test_views_parameters_and_empty_tensors_come_back(tmp_path):
    whole = torch.randn(6, 8)
    tensors = collections.OrderedDict(
        whole=whole, row=whole[2], columns=whole[:, 3:5], transposed=whole.t(), repeated=torch.ones(1).expand(5), scalar=torch.tensor(7.0),
        empty=torch.empty(0, 3), last=torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), parameter=torch.nn.Parameter(whole[1]))
    path = saved(tensors, tmp_path / "w.pt")
    same(read(path), torch.load(path, weights_only=True))


@pytest.mark.parametrize("name", ["state_dict", "model_state_dict", "model"])
def test_a_checkpoint_s_state_dict_is_found(name, tmp_path):
    model = module()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 3, 3)).sum().backward()
    optimizer.step()
    path = saved({"epoch": 3, "best": 0.5, "note": None, name: model.state_dict(), "optimizer": optimizer.state_dict()},
                 tmp_path / "w.ckpt")
    same(read(path), model.state_dict())


def test_large_storages_and_names_with_any_characters_come_back(tmp_path):
    tensors = {"layer.0.weight": torch.randn(1 << 20), "größe\n\"'": torch.ones(3)}
    path = saved(tensors, tmp_path / "w.pt")
    same(read(path), tensors)


class Attack:
    """Which Python's pickle would run."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def rewritten(path, pickled):
    """The archive with another data.pkl."""
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in records.items():
            archive.writestr(name, pickled if name.endswith("/data.pkl") else content)
    return path


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_that_a_pickle_asks_for_is_run(protocol, tmp_path):
    import builtins

    trace = tmp_path / "was_run"
    for function, arguments in ((os.system, (f"touch {trace}",)), (builtins.eval, (f"open({str(trace)!r}, 'w')",)),
                                (builtins.exec, ("1",)), (subprocess.Popen, (["touch", str(trace)],))):
        attack = pickle.dumps({"w": Attack(function, *arguments)}, protocol)
        kind, message = refused(rewritten(saved({"w": torch.ones(2)}, tmp_path / "w.pt"), attack))
        assert kind == "unsupported" and function.__name__ in message, message
    assert not trace.exists()


def test_an_archive_of_another_writer_is_read_where_it_is_stored(tmp_path):
    path = saved({"w": torch.arange(5.0)}, tmp_path / "w.pt")
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    same(read(rewritten(path, pickled)), {"w": torch.arange(5.0)})  # Whose tensors are aligned nowhere.
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    assert refused(path)[0] == "unsupported"


@pytest.mark.parametrize("value, word", [
    (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"), ({"w": torch.ones(2, dtype=torch.complex64)}, "ComplexFloatStorage"),
    ({"w": torch.ones(2).to_sparse()}, "_rebuild_sparse_tensor"), ({"w": torch.float32}, "torch.float32"), ({"w": {1, 2}}, "builtin__.set"),
], ids=["module", "complex", "sparse", "dtype", "set"])
def test_what_is_no_plain_tensor_is_named(value, word, tmp_path):
    kind, message = refused(saved(value, tmp_path / "w.pt"))
    assert kind == "unsupported" and word in message


@pytest.mark.parametrize("value, word", [
    (torch.ones(2), "holds a tensor"), ([torch.ones(2)], "holds a list"), ({"w": torch.ones(2), "epoch": 3}, '"epoch" is an int'),
    ({"epoch": 3}, "without tensors"), ({0: torch.ones(2)}, "an int among the names"),
    ({"w": [torch.ones(2)], "v": torch.ones(1)}, "a list"),
], ids=["tensor", "list", "number", "no_tensor", "key", "nested"])
def test_what_is_no_dict_of_tensors_is_named(value, word, tmp_path):
    kind, message = refused(saved(value, tmp_path / "w.pt"))
    assert kind == "invalid_argument" and word in message


def test_files_of_other_kinds_say_what_they_are(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    kind, message = refused(tmp_path / "script.pt")
    assert kind == "unsupported" and "torchscript:FILE" in message and "code runs" in message
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "program.pt2")
    kind, message = refused(tmp_path / "program.pt2")
    assert kind == "unsupported" and "torch.export" in message and "code runs" in message
    kind, message = refused(saved({"w": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False))
    assert kind == "unsupported" and "before 1.6" in message and "torch.load" in message
    for name, content, word in (("empty", b"", "is empty"), ("text", b"no tensors", "zip archive"),
                                ("pickle", pickle.dumps({"w": 1}), "zip archive")):
        path = tmp_path / f"{name}.pt"
        path.write_bytes(content)
        kind, message = refused(path)
        assert kind == "corrupt_data" and word in message
    kind, message = refused(tmp_path / "missing.pt")
    assert kind == "not_found"
    (tmp_path / "folder.pt").mkdir()
    assert refused(tmp_path / "folder.pt")[0] == "corrupt_data"


def test_a_file_cut_anywhere_is_refused(tmp_path):
    content = io.BytesIO()
    torch.save({"w": torch.ones(3)}, content)
    whole, path = content.getvalue(), tmp_path / "w.pt"
    for size in range(1, len(whole), 37):
        path.write_bytes(whole[:size])
        assert refused(path)[0] == "corrupt_data"


# 1 TiB as the pickle says: nothing is taken on its word.
def test_sizes_beyond_the_file_are_refused_before_they_take_memory(tmp_path):
    path = saved({"w": torch.arange(4.0)}, tmp_path / "w.pt", pickle_protocol=2)
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    assert pickled.count(b"K\x04") == 2  # Of the storage and of the tensor.
    huge = b"\x8a\x06" + (1 << 40).to_bytes(6, "little")
    assert "the file has 16 bytes" in refused(rewritten(path, pickled.replace(b"K\x04", huge)))[1]
    storage, tensor = pickled.index(b"K\x04"), pickled.rindex(b"K\x04")
    assert storage != tensor
    kind, message = refused(rewritten(path, pickled[:tensor] + huge + pickled[tensor + 2:]))
    assert kind == "corrupt_data" and "of a storage that has 4" in message


def test_a_recipe_begins_with_the_weights_of_a_pt_file(tmp_path):
    trained = write_tiny_job(tmp_path, 1)
    assert headrace("train", trained, "--out", tmp_path / "run").returncode == 0
    weights = load_file(tmp_path / "run/model.safetensors")
    torch.save(collections.OrderedDict(weights), tmp_path / "w.pt")
    text = trained.read_text().replace('name = "mlp"', f'name = "mlp"\nweights = "{tmp_path}/w.pt"')
    (tmp_path / "same.toml").write_text(f"{text}\n[optimizer]\nlr = 0.0\n")
    done = headrace("train", tmp_path / "same.toml", "--out", tmp_path / "same")
    assert done.returncode == 0, done.stderr
    same(load_file(tmp_path / "same/model.safetensors"), weights)

    with PT2ArchiveWriter(str(tmp_path / "package.pt2")) as archive:  # As AOTInductor's packages are written.
        archive.write_bytes("data/aotinductor/model/net.wrapper.so", b"no library")
    shutil.copy(tmp_path / "package.pt2", tmp_path / "package.safetensors")
    for package in ("package.pt2", "package.safetensors"):
        (tmp_path / "package.toml").write_text(text.replace("/w.pt", f"/{package}"))
        assert_one_line_error(headrace("train", tmp_path / "package.toml", "--out", tmp_path / "other"), 1, package,
                              "a compiled package of AOTInductor (.pt2), whose code runs when it is loaded")

    name = next(iter(weights))
    torch.save({**{key: value for key, value in weights.items() if key != name}, "surplus": torch.ones(1)}, tmp_path / "w.pt")
    assert_one_line_error(headrace("train", tmp_path / "same.toml", "--out", tmp_path / "other"), 2, "w.pt", "1 missing", name, "1 surplus")
