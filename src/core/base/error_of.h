// What a call throws, for tests of any module.
#pragma once

#include <gtest/gtest.h>
#include <headrace/error.h>

#include <string>

namespace headrace {

// The message of the Error that `call` throws, which must have this code; fails the test when it throws none.
template <class Call>
std::string error_of(ErrorCode code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(to_string(error.code())), to_string(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace headrace
