#include "app/cli/pack.h"

#include <headrace/source.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/exec/stop.h"
#include "core/hardware/machine.h"
#include "data/pack/index_build.h"
#include "data/pack/pack_build.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kProgressNs = 100'000'000;

// Says now and then how far the work is, and whether a signal asked to stop it.
class Progress {
 public:
  Progress(Console& console, std::string doing) : console_(console), doing_(std::move(doing)) {}
  ~Progress() { console_.clear_progress(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool operator()(std::int64_t done, std::int64_t total) {
    if (const std::int64_t now_ns = monotonic_ns(); now_ns - told_ns_ >= kProgressNs) {
      console_.progress(fmt::format("{}: {} of {} samples", doing_, done, total));
      told_ns_ = now_ns;
    }
    return stop_signal() == 0;
  }

 private:
  Console& console_;
  const std::string doing_;
  std::int64_t told_ns_ = monotonic_ns();
};

// Null: the data has no such split. There is always one to train on.
std::unique_ptr<Source> open_split(const std::string& uri, Split split) {
  return split == Split::train ? open_source(uri, split) : find_source(uri, split);
}

std::string megabytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

double percent(std::int64_t part, std::int64_t whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
}

int stopped(Console& console, const std::string& left) {
  console.warning("stopped; " + left);
  return stop_exit_code(stop_signal());
}

std::string sentence(Split split, const IndexSummary& summary) {
  return fmt::format(
      "{}: {} images, {} indexed ({} known before), {} without, as no index is used for them; {}, {:.2f} % of the "
      "data\n",
      choice_name(split), summary.images, summary.indexed, summary.known, summary.plain, megabytes(summary.index_bytes),
      percent(summary.index_bytes, summary.data_bytes));
}

Json to_json(const std::filesystem::path& file, const IndexSummary& summary) {
  return {
      {"file", printable_name(file.native())}, {"image", summary.images},           {"indexed", summary.indexed},
      {"known_before", summary.known},         {"without", summary.plain},          {"unreadable", summary.unreadable},
      {"data_bytes", summary.data_bytes},      {"index_bytes", summary.index_bytes}};
}

int run_index(const Invocation& invocation, const std::string& uri, std::int64_t threads, Console& console) {
  Json document{{"format", "headrace-index"}, {"version", 1}, {"source", printable_name(uri)}};
  for (const auto& [split, name] : choices(Split{})) {
    const std::unique_ptr<Source> source = open_split(uri, split);
    if (source == nullptr) continue;
    for (const std::string& remark : source->info().remarks) console.warning(remark);
    if (invocation.dry_run) {
      console.info(fmt::format("dry run: {} images would be indexed in {}", source->size(),
                               printable_name(source->info().index_file.native())));
      continue;
    }
    Progress progress{console, fmt::format("Indexing {}", name)};
    const auto summary =
        build_entropy_index(*source, threads, [&](std::int64_t done) { return progress(done, source->size()); });
    if (!summary) return stopped(console, fmt::format("the index of {} is as it was", name));
    if (summary->unreadable > 0) {
      console.warning(
          fmt::format("{} could not be read, the first: {}", summary->unreadable, summary->first_unreadable));
    }
    console.result(sentence(split, *summary));
    document[std::string(name)] = to_json(source->info().index_file, *summary);
  }
  console.json(document);
  return kExitDone;
}

int run_write(const Invocation& invocation, const std::string& uri, std::int64_t threads, Console& console) {
  const PackArguments& pack = invocation.pack;
  for (const auto& [split, name] : choices(Split{})) {
    const std::unique_ptr<Source> source = open_split(uri, split);
    if (source == nullptr) continue;
    for (const std::string& remark : source->info().remarks) console.warning(remark);
    if (invocation.dry_run) {
      console.info(fmt::format("dry run: {} samples of {} would be packed", source->size(), name));
    }
  }
  if (invocation.dry_run) return kExitDone;
  Progress progress{console, "Packing"};
  const PackPlan plan{.source = uri,
                      .out = pack.target,
                      .shard_bytes = pack.shard_mib << 20,
                      .form = pack.form,
                      .short_side = pack.short_side,
                      .append = pack.append,
                      .threads = threads};
  const auto summary = write_pack(plan, std::ref(progress));
  if (!summary) return stopped(console, "the same command goes on with what is there");
  const std::string target = printable_name(pack.target);
  console.result(fmt::format("{}: {} samples in {} {}, {} of them added ({} with an entropy index), {}\n", target,
                             summary->samples, summary->files, summary->files == 1 ? "file" : "files", summary->added,
                             summary->indexed, megabytes(summary->bytes)));
  console.json({{"format", "headrace-pack"},
                {"version", 1},
                {"pack", target},
                {"form", choice_name(pack.form)},
                {"short_side", pack.short_side},
                {"samples", summary->samples},
                {"added", summary->added},
                {"indexed", summary->indexed},
                {"bytes", summary->bytes},
                {"files", summary->files}});
  return kExitDone;
}

int run_verify(const Invocation& invocation, Console& console) {
  Progress progress{console, "Verifying"};
  const auto check = verify_pack(invocation.pack.source, std::ref(progress));
  if (!check) return stopped(console, "nothing is said of the rest");
  const std::string pack = printable_name(invocation.pack.source);
  console.json({{"format", "headrace-pack-check"},
                {"version", 1},
                {"pack", pack},
                {"form", choice_name(check->form)},
                {"short_side", check->short_side},
                {"samples", check->samples},
                {"damaged", check->damaged},
                {"damaged_indices", check->unindexed}});
  if (check->unindexed > 0) console.warning(fmt::format("{} entropy indices are damaged", check->unindexed));
  if (check->damaged > 0) {
    fail(ErrorCode::corrupt_data, "{} of {} samples are damaged, the first: {}", check->damaged, check->samples,
         check->first);
  }
  console.result(fmt::format("{}: {} samples, all as they were packed\n", pack, check->samples));
  return kExitDone;
}

int run_unpack(const Invocation& invocation, Console& console) {
  if (invocation.dry_run) return kExitDone;
  Progress progress{console, "Unpacking"};
  const auto samples = unpack(invocation.pack.source, invocation.pack.target, std::ref(progress));
  const std::string target = printable_name(invocation.pack.target);
  if (!samples) return stopped(console, fmt::format("{}.partial can be removed", target));
  console.result(fmt::format("{}: {} samples\n", target, *samples));
  console.json({{"format", "headrace-unpack"}, {"version", 1}, {"folder", target}, {"samples", *samples}});
  return kExitDone;
}

}  // namespace

int run_pack(const Invocation& invocation, Console& console) {
  const std::string& source = invocation.pack.source;
  const std::string uri = source.find(':') == std::string::npos ? "folder:" + source : source;
  const std::int64_t threads = invocation.pack.threads.value_or(detect_machine().cores_usable);
  switch (invocation.pack.action) {
    case PackAction::index:
      return run_index(invocation, uri, threads, console);
    case PackAction::verify:
      return run_verify(invocation, console);
    case PackAction::unpack:
      return run_unpack(invocation, console);
    case PackAction::write:
      break;
  }
  return run_write(invocation, uri, threads, console);
}

}  // namespace headrace
