#include "data/transform/operation_error.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <exception>
#include <new>
#include <string>

namespace headrace::transform {
namespace {

std::string text_of(const Operation& operation, std::string_view where, std::string_view text) {
  constexpr std::string_view kModule = "transform: ";
  const std::string_view name = operation.name();
  if (text.starts_with(kModule)) text.remove_prefix(kModule.size());
  const std::string_view behind = text.starts_with(name) ? text.substr(name.size()) : std::string_view{};
  if (behind.starts_with(' ') || behind.starts_with(':')) return fmt::format("transform: {}{}{}", name, where, behind);
  return fmt::format("transform: {}{}: {}", name, where, text);
}

}  // namespace

void rethrow_of(const Operation& operation, std::string_view where) {
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), text_of(operation, where, error.what()));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::internal, text_of(operation, where, error.what()));
  } catch (...) {
    throw Error(ErrorCode::internal, text_of(operation, where, "unknown exception"));
  }
}

}  // namespace headrace::transform
