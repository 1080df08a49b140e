"""hr.doctor: what is missing of what Python finds, and what a summary tells. Each fault is staged; nothing here needs a GPU."""

import json
import shutil
import sys

import headrace as hr
import pytest
import torch
from headrace import _core, _doctor
from performance_optimization_system import PerformanceOptimizer

# What hr.doctor() finds by itself, beside the machine's own findings.
OF_PYTHON = {"no_torch", "no_engine", "no_compiler", "torch_without_cuda", "no_cuda", "two_copies"}


def found(*args) -> dict[str, dict]:
    return {one["code"]: one for one in hr.doctor(*args)}


@pytest.fixture
def all_is_there(monkeypatch, tmp_path):
    """An engine, a compiler, and a machine without a GPU, whatever this one has."""
    monkeypatch.setattr(_doctor._engine_door, "why_not", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(_doctor, "_KERNEL_DRIVER", str(tmp_path / "nothing"))
    monkeypatch.setattr(_core, "doctor", lambda run=None: [])
    return tmp_path


@pytest.fixture
def gpu(all_is_there, monkeypatch):
    """One of NVIDIA, with its driver in the kernel and a torch that can use it."""
    driver = all_is_there / "version"
    driver.write_text("NVRM version\n")
    monkeypatch.setattr(_doctor, "_KERNEL_DRIVER", str(driver))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_where_all_is_there_nothing_is_found(all_is_there):
    assert OF_PYTHON.isdisjoint(found())


def test_where_a_gpu_can_be_used_nothing_is_found(gpu):
    assert OF_PYTHON.isdisjoint(found())


@pytest.mark.parametrize("reason, advice", [
    ("built for torch 2.11, found 2.15", "pip install 'torch==2.11.*'"), ("not built: in a checkout, run make build", "Install headrace for this"),
    ("built for Python 3.11, found 3.13", "Install headrace for this Python"), ("cannot be loaded: no libc10.so", "Install headrace for this")])
def test_an_engine_that_cannot_be_had_is_named_with_what_to_install(all_is_there, monkeypatch, reason, advice):
    monkeypatch.setattr(_doctor._engine_door, "why_not", lambda: reason)
    finding = found()["no_engine"]
    assert finding["sentence"].endswith(reason) and finding["advice"].startswith(advice)


def test_a_torch_that_is_not_there_is_named_and_what_needs_it_is_not_told_again(all_is_there, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(_doctor._engine_door, "why_not", lambda: "built for torch 2.11, found none")
    assert OF_PYTHON & set(findings := found()) == {"no_torch"}
    assert findings["no_torch"]["sentence"].startswith("torch cannot be imported: ")
    assert findings["no_torch"]["advice"].startswith("pip install torch")


def test_a_missing_compiler_is_named(all_is_there, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    finding = found()["no_compiler"]
    assert "there is no C++ compiler" in finding["sentence"] and "g++" in finding["advice"]


def test_a_torch_without_cuda_beside_a_gpu_is_named(gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    finding = found()["torch_without_cuda"]
    assert torch.__version__ in finding["sentence"] and "wheel with CUDA" in finding["advice"]


def test_a_driver_that_torch_cannot_use_is_named_in_torchs_words_and_a_hidden_device_is_no_fault(gpu, monkeypatch):
    def refuse():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nUpdate it.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    finding = found()["no_cuda"]
    assert finding["sentence"].endswith("The NVIDIA driver on your system is too old (found version 11040).")
    assert "CUDA 13.0" in finding["advice"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "no_cuda" not in found()


def test_a_gpu_that_the_process_cannot_reach_is_told_once(gpu, monkeypatch):
    monkeypatch.setattr(_core, "doctor", lambda run=None: [{"code": "gpu_not_reachable", "sentence": "s", "advice": "a"}])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert set(found()) & {"gpu_not_reachable", "no_cuda", "torch_without_cuda"} == {"gpu_not_reachable"}


# ---- Summaries ----


def test_a_summary_is_read_as_it_is_and_as_a_file(tmp_path):
    with PerformanceOptimizer() as optimizer:
        summary = optimizer.get_performance_summary()
    assert hr.doctor(summary) == []
    summary["compilation"] = {"applied": "eager", "attempts": [
        {"mode": "default", "tried": True, "applied": False, "reason": "there is no C++ compiler, which torch.compile needs"}]}
    (finding,) = hr.doctor(summary)
    assert finding["code"] == "compile_failed"
    assert "default: there is no C++ compiler, which torch.compile needs" in finding["sentence"]
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(summary, indent=2))
    assert hr.doctor(file) == [finding]


def test_other_documents_are_refused(tmp_path):
    with pytest.raises(hr.errors.CorruptDataError, match="get_performance_summary"):
        hr.doctor({"config": {}})
    with pytest.raises(hr.errors.NotFoundError, match="absent.json"):
        hr.doctor(tmp_path / "absent.json")
