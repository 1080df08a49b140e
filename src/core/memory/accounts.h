// Classes of memory by name, and the bytes that each holds now: "parameters", "batches", "cache", ...
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headrace {

// Registers a share of a class from construction to destruction; a class may have several, which are added up.
//
// Any thread may make and destroy accounts. `bytes` is called by any thread, one call at a time over all accounts, and
// never once the destructor has returned; it returns the bytes held now, 0 or more, within microseconds (an atomic, a
// size under a short lock), throws nothing and neither makes nor destroys an account. An account costs nothing until
// somebody asks.
class Account {
 public:
  // `name` must be neither empty nor "other", which is what is in no account.
  Account(std::string name, std::function<std::int64_t()> bytes);
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

 private:
  friend struct AccountList;
  const std::string name_;
  const std::function<std::int64_t()> bytes_;
};

struct AccountBytes {
  std::string name;
  std::int64_t bytes;
};

// All classes that have an account now, the oldest first. Any thread.
std::vector<AccountBytes> account_bytes();

}  // namespace headrace
