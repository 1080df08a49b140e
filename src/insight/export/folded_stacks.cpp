#include "insight/export/folded_stacks.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <vector>

#include "core/base/files.h"
#include "core/trace/stack_tree.h"

namespace headrace {
namespace {

std::string frame(std::string name) {
  for (char& letter : name) {
    if (letter == ';') letter = ':';
    if (letter == '\n' || letter == '\r') letter = ' ';
  }
  return name;
}

}  // namespace

std::string folded_stacks(const TraceRecord& record) {
  const StackTree tree = stack_tree(record);
  std::vector<std::string> paths;  // A parent stands before its children.
  paths.reserve(tree.nodes.size());
  std::string lines;
  for (const StackTree::Node& node : tree.nodes) {
    if (node.parent == StackTree::kNone) {
      paths.push_back(frame(tree.tracks[node.name]));
      continue;
    }
    paths.push_back(paths[node.parent] + ';' + frame(record.names[node.name].text));
    if (node.self_ns > 0) fmt::format_to(std::back_inserter(lines), "{} {}\n", paths.back(), node.self_ns);
  }
  return lines;
}

void write_folded_stacks(const TraceRecord& record, const std::filesystem::path& path) {
  write_file(path, folded_stacks(record));
}

}  // namespace headrace
