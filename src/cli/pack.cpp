#include "cli/pack.h"

#include <headrace/error.h>
#include <headrace/source.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "data/index_build.h"
#include "exec/stop.h"
#include "hardware/machine.h"
#include "store/file_name.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kProgressNs = 100'000'000;

const char* name_of(Split split) {
  return split == Split::train ? "train" : "test";
}

// Null: the folder has no such split.
std::unique_ptr<Source> open_split(const std::string& uri, Split split) {
  try {
    return open_source(uri, split);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found || split == Split::train) throw;
    return nullptr;
  }
}

std::string megabytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

double percent(std::int64_t part, std::int64_t whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
}

std::string sentence(Split split, const IndexSummary& summary) {
  return fmt::format(
      "{}: {} pictures, {} indexed ({} known before), {} without, as no index is used for them; {}, {:.2f} % of "
      "the data\n",
      name_of(split), summary.pictures, summary.indexed, summary.known, summary.plain, megabytes(summary.index_bytes),
      percent(summary.index_bytes, summary.data_bytes));
}

Json to_json(const std::filesystem::path& file, const IndexSummary& summary) {
  return {
      {"file", printable_name(file.native())}, {"pictures", summary.pictures},      {"indexed", summary.indexed},
      {"known_before", summary.known},         {"without", summary.plain},          {"unreadable", summary.unreadable},
      {"data_bytes", summary.data_bytes},      {"index_bytes", summary.index_bytes}};
}

std::optional<IndexSummary> build(const Source& source, Split split, std::int64_t threads, Console& console) {
  std::int64_t told_ns = monotonic_ns();
  const auto go_on = [&](std::int64_t done) {
    if (const std::int64_t now_ns = monotonic_ns(); now_ns - told_ns >= kProgressNs) {
      console.progress(fmt::format("Indexing {}: {} of {} pictures", name_of(split), done, source.size()));
      told_ns = now_ns;
    }
    return stop_signal() == 0;
  };
  auto summary = build_entropy_index(source, threads, go_on);
  console.clear_progress();
  return summary;
}

}  // namespace

int run_pack(const Invocation& invocation, Console& console) {
  const bool plain = invocation.source.find(':') == std::string::npos;
  const std::string uri = plain ? "folder:" + invocation.source : invocation.source;
  const std::int64_t threads = invocation.threads.value_or(detect_machine().cores_usable);
  Json document{{"format", "headrace-index"}, {"version", 1}, {"source", printable_name(uri)}};
  for (const Split split : {Split::train, Split::test}) {
    const std::unique_ptr<Source> source = open_split(uri, split);
    if (source == nullptr) continue;
    for (const std::string& remark : source->remarks()) console.warning(remark);
    if (invocation.dry_run) {
      console.info(fmt::format("dry run: {} pictures would be indexed in {}", source->size(),
                               printable_name(source->index_file().native())));
      continue;
    }
    const auto summary = build(*source, split, threads, console);
    if (!summary) {
      console.warning(fmt::format("stopped; the index of {} is as it was", name_of(split)));
      return stop_exit_code(stop_signal());
    }
    if (summary->unreadable > 0) {
      console.warning(
          fmt::format("{} could not be read, the first: {}", summary->unreadable, summary->first_unreadable));
    }
    console.result(sentence(split, *summary));
    document[name_of(split)] = to_json(source->index_file(), *summary);
  }
  console.json(document);
  return kExitDone;
}

}  // namespace headrace
