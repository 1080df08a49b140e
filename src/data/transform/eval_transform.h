// What evaluation makes of the images of a run, as the run's folder keeps it.
#pragma once

#include <headrace/field.h>
#include <headrace/options/data.h>

#include <filesystem>

namespace headrace::transform {

inline constexpr const char* kEvalTransformFile = "eval_transform.toml";

struct EvalTransform {
  Schema samples{};  // Of the source.
  DataOptions
      data{};  // `transforms` are the operations in force; beside them the layout and what decides how is decoded.
};

// Of a loader with these options over samples of this schema.
EvalTransform eval_transform_of(const DataOptions& options, const Schema& samples);

// `run`: the run's folder. Every parameter is written, so that another version with other defaults makes the same.
void write_eval_transform(const EvalTransform& made, const std::filesystem::path& run);
// Error names the file, and line or key: not_found; unsupported, it is of another format; corrupt_data, its end is
// missing; invalid_argument, a key that is missing or unknown, an unknown operation, a value that there is not.
EvalTransform read_eval_transform(const std::filesystem::path& run);

}  // namespace headrace::transform
