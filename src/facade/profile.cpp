#include <headrace/error.h>
#include <headrace/facade/profile.h>
#include <headrace/profile_summary.h>
#include <headrace/time_split.h>
#include <headrace/trace.h>
#include <headrace/trace_export.h>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/files.h"
#include "core/memory/sampler.h"
#include "insight/diagnose/json.h"

namespace headrace::facade {

struct Profile::Impl {
  std::filesystem::path logdir;
  Trace trace{};
  MemorySampler sampler{};
  bool is_over = false;
};

namespace {

nlohmann::ordered_json statistics_of(const TraceRecord& record, const MemoryTimeline& memory) {
  nlohmann::ordered_json statistics{{"time_split", nullptr}, {"reason", ""}};
  try {
    statistics["time_split"] = to_json(split_time(record));
  } catch (const Error& error) {  // As where the scope has no training step.
    statistics["reason"] = error.what();
  }
  statistics["spans"] = to_json(get_profile_summary(record));
  statistics["memory"] = to_json(memory);
  statistics["dropped_events"] = record.dropped;
  return statistics;
}

}  // namespace

Profile::Profile(std::filesystem::path logdir) {
  std::filesystem::create_directories(logdir);
  impl_.reset(new Impl{std::move(logdir)});
}

Profile::~Profile() {
  try {
    stop();
  } catch (const std::exception& error) {  // A destructor has nobody to throw to.
    std::fprintf(stderr, "headrace: facade: profile: %s\n", error.what());
  }
}

void Profile::stop() {
  if (std::exchange(impl_->is_over, true)) return;
  const MemoryTimeline memory = impl_->sampler.timeline();
  const TraceRecord record = impl_->trace.stop();
  export_trace(record, impl_->logdir / "trace.json", TraceForm::chrome);
  write_file(impl_->logdir / "pipeline_statistics.json", statistics_of(record, memory).dump(2) + "\n");
}

}  // namespace headrace::facade
