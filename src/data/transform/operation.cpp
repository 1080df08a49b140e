#include <headrace/operation.h>
#include <headrace/option_fields.h>

#include "core/base/fail.h"

namespace headrace {
namespace {

std::unique_ptr<const Operation> make_one(const std::monostate&) {
  fail(ErrorCode::invalid_argument, "transform: an operation without a name");
}

template <class Parameters>
std::unique_ptr<const Operation> make_one(const Parameters& parameters) {
  return make_operation(parameters);
}

}  // namespace

void Operation::apply(const OperationInput&, const Drawn&, OperationOutput&) const {
  fail(ErrorCode::internal, "transform: {} is no operation over samples", name());
}

void Operation::apply_batch(const BatchView&, SampleRandom&) const {
  fail(ErrorCode::internal, "transform: {} is no operation over batches", name());
}

std::unique_ptr<const Operation> make_operation(const TransformSpec& spec) {
  return std::visit([](const auto& parameters) { return make_one(parameters); }, spec);
}

std::vector<OperationParameter> parameters_of(TransformSpec spec) {
  std::vector<OperationParameter> parameters;
  for (const Field& field : fields_of(spec)) parameters.push_back({field.key, to_toml(field.get())});
  parameters.erase(parameters.begin());  // Its name.
  return parameters;
}

}  // namespace headrace
