#include <headrace/trace_export.h>

#include <cstdint>
#include <set>
#include <utility>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "core/trace/chrome.h"
#include "core/trace/flows.h"
#include "insight/export/event_table.h"
#include "insight/export/folded_stacks.h"
#include "insight/export/perfetto.h"

namespace headrace {
namespace {

std::vector<TraceFlow> with_loader_flows(const TraceRecord& record, std::span<const TraceFlow> flows) {
  std::vector<TraceFlow> all(flows.begin(), flows.end());
  std::set<std::pair<std::uint32_t, std::uint32_t>> given;
  for (const TraceFlow& flow : flows) given.emplace(flow.source, flow.target);
  for (const TraceFlow& own : loader_flows(record)) {
    if (!given.contains({own.source, own.target})) all.push_back(own);
  }
  return all;
}

}  // namespace

const char* to_string(TraceForm form) {
  switch (form) {
    case TraceForm::chrome:
      return "chrome";
    case TraceForm::perfetto:
      return "perfetto";
    case TraceForm::folded:
      return "folded";
    case TraceForm::csv:
      return "csv";
    case TraceForm::jsonl:
      return "jsonl";
  }
  return "";
}

TraceForm trace_form_of(std::string_view text) {
  using enum TraceForm;
  std::vector<std::string> names;
  for (const TraceForm form : {chrome, perfetto, folded, csv, jsonl}) {
    if (text == to_string(form)) return form;
    names.emplace_back(to_string(form));
  }
  const std::string nearest = nearest_name(names, text);
  fail(ErrorCode::invalid_argument, "trace: form: wanted chrome, perfetto, folded, csv or jsonl, found \"{}\"{}", text,
       nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

const char* suffix_of(TraceForm form) {
  switch (form) {
    case TraceForm::chrome:
      return ".json";
    case TraceForm::perfetto:
      return ".perfetto-trace";
    case TraceForm::folded:
      return ".folded";
    case TraceForm::csv:
      return ".csv";
    case TraceForm::jsonl:
      return ".jsonl";
  }
  return "";
}

std::vector<std::filesystem::path> export_trace(const TraceRecord& record, const std::filesystem::path& path,
                                                TraceForm form, std::span<const TraceFlow> flows) {
  check_flows(record, flows);
  switch (form) {
    case TraceForm::chrome:
      return write_chrome_parts(record, path, with_loader_flows(record, flows));
    case TraceForm::perfetto:
      write_perfetto_trace(record, path, with_loader_flows(record, flows));
      break;
    case TraceForm::folded:
      write_folded_stacks(record, path);
      break;
    case TraceForm::csv:
      write_trace_csv(record, path);
      break;
    case TraceForm::jsonl:
      write_trace_jsonl(record, path);
      break;
  }
  return {path};
}

std::vector<TraceFlow> loader_flows(const TraceRecord& record) {
  return flows_by_value(record, "load_chunk", "take_batch");
}

}  // namespace headrace
