// Which torch package an installed executable computes with. A library that is installed names no folder of a machine.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace headrace {

// The version of torch that libheadrace_torch.so was compiled against, as "2.11.0"; empty: this build has no LibTorch.
// Versions that differ in the last number alone have the same interface in C++, and are taken.
std::string_view torch_built_for() noexcept;

// The folder of the torch package to compute with, an absolute path. Set and empty, as the command of a Python package
// sets it (python/headrace/__main__.py): the Python that runs the command has no torch, and no other one is asked.
inline constexpr const char* kTorchVariable = "HEADRACE_TORCH";

// Opens libc10 and libtorch_cpu of a torch package, so that a library opened later finds them in the process: the
// package in the folder that HEADRACE_TORCH names, else the one that the python3 on the path would import. Returns what
// is in the way, for a person: there is none, it is of another version than this program was built for, its
// libraries cannot be opened, HEADRACE_TORCH is a relative path, python3 hangs; empty: nothing. Costs about 30 ms where
// Python is asked, 10 s at the most. They stay open until the process ends.
std::string open_torch();

// Whether HEADRACE_TORCH names a folder, which goes before the folder that a build tree's library names.
bool torch_is_named();

// Why the torch package that the loader found without us (LD_LIBRARY_PATH, a run path) is of another version
// than this program was built for; empty: it is of the same, there is none, or it has no version.py.
std::string loaded_torch_fault();

// Why a folder is no torch package that a library built for that version may use, as "built for torch 2.11,
// found 2.15.0 in FOLDER"; empty: it is one. Error{io} where its version.py cannot be read.
std::string torch_fault_in(const std::filesystem::path& folder, std::string_view version);

}  // namespace headrace
