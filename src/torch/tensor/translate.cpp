#include "torch/tensor/translate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

// Below the first line LibTorch explains itself or prints C++ frames; neither is for a user.
std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// The allocator of the CPU throws a plain c10::Error, so that only its words tell it from others.
bool says_out_of_memory(std::string_view message) {
  return message.find("can't allocate memory") != std::string_view::npos ||
         message.find("not enough memory") != std::string_view::npos ||
         message.find("out of memory") != std::string_view::npos;
}

// What TorchScript's interpreter wraps: a sentence of its own, the script's stack, and then "RuntimeError: the reason".
// nullopt: no message of the interpreter.
bool is_class_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

// Of an exception of Python's, "ValueError: the reason", whose class says that it is not about memory.
bool is_of_another_class(std::string_view line) {
  constexpr std::array<std::string_view, 4> of_memory{"OutOfMemoryError", "torch.OutOfMemoryError", "MemoryError",
                                                      "RuntimeError"};
  const std::size_t colon = line.find(": ");
  const std::string_view name = line.substr(0, colon);
  return colon != std::string_view::npos && is_class_name(name) && name.ends_with("Error") &&
         std::find(of_memory.begin(), of_memory.end(), name) == of_memory.end();
}

std::optional<std::string> reason_in_script(std::string_view text) {
  constexpr std::string_view sentence = "The following operation failed in the TorchScript interpreter.";
  constexpr std::string_view place = "<--- HERE\n";
  if (text.substr(0, sentence.size()) != sentence) return std::nullopt;
  const std::size_t last = text.rfind(place);
  text.remove_prefix(last == std::string_view::npos ? sentence.size() : last + place.size());
  // Lines of the script may follow its place; the reason's begins with a Python class, "builtins.ValueError: ".
  while (!text.empty()) {
    const std::size_t colon = text.find(':');
    const std::string_view name = text.substr(0, colon);
    if (is_class_name(name) && colon != std::string_view::npos)
      return first_line(text.substr(std::min(colon + 2, text.size())));
    const std::size_t end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return std::string(sentence);
}

Error translate_script(const std::string& reason) {
  return {says_out_of_memory(reason) ? ErrorCode::out_of_memory : ErrorCode::internal, "torch: " + reason};
}

Error translate_torch(const c10::Error& error) {
  const std::string message = "torch: " + first_line(error.what_without_backtrace());
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr || says_out_of_memory(message)) {
    return {ErrorCode::out_of_memory, message};
  }
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return {ErrorCode::unsupported, message};
  if (dynamic_cast<const c10::ValueError*>(&error) != nullptr ||
      dynamic_cast<const c10::IndexError*>(&error) != nullptr ||
      dynamic_cast<const c10::TypeError*>(&error) != nullptr) {
    return {ErrorCode::invalid_argument, message};
  }
  return {ErrorCode::internal, message};
}

}  // namespace

Error translate(std::exception_ptr exception) {
  try {
    std::rethrow_exception(std::move(exception));
  } catch (const Error& error) {
    return error;
  } catch (const c10::Error& error) {
    return translate_torch(error);
  } catch (const std::bad_alloc&) {
    return {ErrorCode::out_of_memory, "system: the process's memory is used up"};
  } catch (const std::invalid_argument& error) {
    return {ErrorCode::invalid_argument, "system: " + first_line(error.what())};
  } catch (const std::exception& error) {
    if (const auto reason = reason_in_script(error.what())) return translate_script(*reason);
    // As Python's torch.OutOfMemoryError, which has passed through its interpreter.
    const std::string line = first_line(error.what());
    const bool ran_out = says_out_of_memory(line) && !is_of_another_class(line);
    return {ran_out ? ErrorCode::out_of_memory : ErrorCode::internal, "system: " + line};
  } catch (...) {
    return {ErrorCode::internal, "system: an exception that is no std::exception"};
  }
}

}  // namespace headrace
