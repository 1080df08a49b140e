#include "core/memory/accounts.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

struct AccountList {
  // Guards `accounts`. Held while the accounts are asked, against the rule never to call out with a lock held: it is
  // what makes a destructor wait until nobody asks its account any more.
  std::mutex mutex;
  std::vector<const Account*> accounts;

  std::vector<AccountBytes> bytes() {
    std::vector<AccountBytes> sums;
    const std::lock_guard lock(mutex);
    for (const Account* account : accounts) {
      const std::int64_t bytes = account->bytes_();
      const auto known = std::find_if(sums.begin(), sums.end(),
                                      [account](const AccountBytes& sum) { return sum.name == account->name_; });
      if (known == sums.end()) {
        sums.push_back({account->name_, bytes});
      } else {
        known->bytes += bytes;
      }
    }
    return sums;
  }
};

namespace {

// Never destroyed: static objects may hold accounts until the very end of the process.
AccountList& account_list() {
  static AccountList& list = *new AccountList;
  return list;
}

}  // namespace

Account::Account(std::string name, std::function<std::int64_t()> bytes)
    : name_(std::move(name)), bytes_(std::move(bytes)) {
  HEADRACE_CHECK(!name_.empty() && name_ != "other" && bytes_, "account \"{}\"", name_);
  AccountList& list = account_list();
  const std::lock_guard lock(list.mutex);
  list.accounts.push_back(this);
}

Account::~Account() {
  AccountList& list = account_list();
  const std::lock_guard lock(list.mutex);
  std::erase(list.accounts, this);
}

std::vector<AccountBytes> account_bytes() {
  return account_list().bytes();
}

}  // namespace headrace
