// Tensors in the files of torch.save, found without running anything.
#pragma once

#include <headrace/dtype.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/zip_records.h"

namespace headrace {

// A tensor as the file describes it. Its elements lie within the file: the one at (i, j, ...) at
// begin + bytes_of(dtype) * (i * strides[0] + j * strides[1] + ...). Tensors may share elements.
struct PtEntry {
  std::string name;
  DType dtype{};
  Shape shape;
  Shape strides;            // In elements, none negative; as many as `shape` has.
  std::uint64_t begin = 0;  // Of the first element.
  std::uint64_t bytes = 0;  // From there to the end of the last one; 0: the tensor has no elements.
};

// The tensors of a state_dict, in its order: `file` is the content of what torch.save(state_dict, FILE) wrote since
// torch 1.6, a zip archive of a pickle and the storages. Taken is the dict itself, or where it has no tensors what it
// has under "state_dict", "model_state_dict" or "model", the first of them that is a dict. Every place is compared with
// the record's size, every size with the file's; storages that the file does not hold, or that are shorter than the
// tensors in them, are refused. The tensors' bytes are not read, and no memory is taken for them.
//
// Source: "Serialization semantics" of PyTorch's documents, and Python's Lib/pickletools.py.
//
// Every Error begins with `what`. {unsupported}: the format of before torch 1.6, a TorchScript or .pt2 archive,
// big-endian, or a pickle that asks for more than tensors, dicts, lists, tuples, text and numbers: the message names
// what. {corrupt_data}: no such archive, cut off, or numbers that do not fit each other. {invalid_argument}: no dict of
// tensors by name. {out_of_memory}: more than 262,144 tensors, or a pickle beyond the limits of read_pickle().
// Thread-safe.
std::vector<PtEntry> pt_entries(std::string_view file, const std::string& what);

// What the archive of these files is if it is a .pt2 one, whose code runs when it is loaded: "a program of
// torch.export" or "a compiled package of AOTInductor". Empty: it is none. Thread-safe. Source:
// torch/csrc/export/pt2_archive_constants.h; and torch.export.save of before torch 2.7, without a folder.
std::string_view pt2_kind(const std::vector<ZipRecord>& records);

}  // namespace headrace
