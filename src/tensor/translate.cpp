#include "tensor/translate.h"

#include <c10/util/Exception.h>

#include <new>
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
    return {ErrorCode::internal, "system: " + first_line(error.what())};
  } catch (...) {
    return {ErrorCode::internal, "system: an exception that is no std::exception"};
  }
}

}  // namespace headrace
