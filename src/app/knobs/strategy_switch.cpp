#include <headrace/strategy_switch.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "app/knobs/strategy_name.h"
#include "core/base/fail.h"
#include "insight/tune/comparison.h"

namespace headrace {
namespace {

struct Known {
  std::shared_ptr<Strategy> strategy;
  std::string key;
  bool is_verified = false;
};

// Whoever shows it adds the full stop.
std::string without_stop(std::string text) {
  text.erase(std::min(text.find('\n'), text.size()));
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

// What a function of a strategy threw, which is an outcome of the trial. A cancellation passes.
std::optional<Fault> fault_of(const char* function, const std::function<void()>& work) {
  std::optional<Fault> fault = attempt(work);
  if (!fault) return std::nullopt;
  if (fault->code == ErrorCode::cancelled) std::rethrow_exception(fault->exception);
  fault->message = fmt::format("{}: {}", function, without_stop(std::move(fault->message)));
  return fault;
}

// Of apply(), then of the first verify().
std::optional<Fault> fault_of_applying(Known& known, const StrategyContext& context) {
  std::optional<Fault> fault = fault_of("apply", [&] { known.strategy->apply(context); });
  if (fault || known.is_verified) return fault;
  std::string wrong;
  fault = fault_of("verify", [&] { wrong = without_stop(known.strategy->verify(context)); });
  if (!fault && !wrong.empty()) fault = Fault{ErrorCode::numerics, "verify: " + wrong, nullptr};
  known.is_verified = !fault;
  return fault;
}

}  // namespace

struct StrategySwitch::Impl {
  using Wanted = std::vector<bool>;  // As long as `known`.

  Wanted wanted_in(const Settings& settings, Settings& others) const;
  void undo_all_but(const Wanted& wanted, const StrategyContext& context);
  void put_back(const std::vector<std::size_t>& before, const StrategyContext& context);
  bool is_on(std::size_t index) const { return std::find(on.begin(), on.end(), index) != on.end(); }
  std::optional<Fault> apply(std::size_t index, const StrategyContext& context);
  void undo(std::size_t index, const StrategyContext& context);

  std::vector<Known> known;
  std::vector<std::size_t> on;  // Of `known`, in the order in which they were applied.
  Settings ended;
};

StrategySwitch::StrategySwitch(std::vector<std::shared_ptr<Strategy>> strategies) : impl_(std::make_unique<Impl>()) {
  for (std::shared_ptr<Strategy>& strategy : strategies) {
    if (strategy == nullptr) fail(ErrorCode::invalid_argument, "strategy: wanted strategies, found null");
    std::string key = std::string(kStrategyPrefix).append(strategy->name());
    const auto has_key = [&](const Known& known) { return known.key == key; };
    if (std::any_of(impl_->known.begin(), impl_->known.end(), has_key)) {
      fail(ErrorCode::invalid_argument, "strategy: name: wanted another one for each, found \"{}\" twice",
           strategy->name());
    }
    impl_->known.push_back({std::move(strategy), std::move(key)});
  }
}

StrategySwitch::StrategySwitch(StrategySwitch&&) noexcept = default;
StrategySwitch::~StrategySwitch() = default;

std::vector<std::string> StrategySwitch::keys() const {
  std::vector<std::string> keys;
  for (const Known& known : impl_->known) keys.push_back(known.key);
  return keys;
}

std::vector<Candidate> StrategySwitch::candidates(const StrategyContext& context,
                                                  std::vector<Report::NotTried>& not_tried) const {
  std::vector<Candidate> candidates;
  for (const Known& known : impl_->known) {
    const Strategy& strategy = *known.strategy;
    std::string reason, sentence;
    auto fault = fault_of("why_not", [&] { reason = without_stop(strategy.why_not(context)); });
    if (!fault) fault = fault_of("sentence", [&] { sentence = strategy.sentence(); });
    if (fault) reason = fault->message;
    if (!reason.empty()) {
      not_tried.push_back({std::string(strategy.name()), known.key, std::move(reason)});
      continue;
    }
    Candidate candidate;
    candidate.name = strategy.name();
    candidate.sentence = std::move(sentence);
    candidate.changes = {{known.key, "true"}};
    candidate.numerics = strategy.numerics();
    candidate.key = known.key;
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

Settings StrategySwitch::set(const Settings& settings, const StrategyContext& context) {
  Settings others;
  const Impl::Wanted wanted = impl_->wanted_in(settings, others);
  const std::vector<std::size_t> before = impl_->on;
  try {
    impl_->undo_all_but(wanted, context);
    for (std::size_t index = 0; index < wanted.size(); ++index) {
      if (!wanted[index] || impl_->is_on(index)) continue;
      const auto fault = impl_->apply(index, context);
      if (fault) fail(fault->code, "{}: {}", impl_->known[index].key, fault->message);
    }
  } catch (...) {
    impl_->put_back(before, context);
    throw;
  }
  return others;
}

const Settings& StrategySwitch::ended() const noexcept {
  return impl_->ended;
}

StrategySwitch::Impl::Wanted StrategySwitch::Impl::wanted_in(const Settings& settings, Settings& others) const {
  Wanted wanted(known.size(), false);
  for (const auto& setting : settings) {
    const auto& [key, value] = setting;
    if (!key.starts_with(kStrategyPrefix)) {
      others.insert(setting);
      continue;
    }
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const Known& one) { return one.key == setting.first; });
    if (found == known.end()) {
      fail(ErrorCode::invalid_argument, "strategy: wanted one that was registered when the tuning began, found {}",
           key);
    }
    if (value != "true" && value != "false") {
      fail(ErrorCode::invalid_argument, "strategy: {}: wanted true or false, found {}", key, value);
    }
    if (value == "false") continue;
    if (const auto why = ended.find(key); why != ended.end()) {
      fail(ErrorCode::unsupported, "{}: {}", key, why->second);
    }
    wanted[static_cast<std::size_t>(found - known.begin())] = true;
  }
  return wanted;
}

void StrategySwitch::Impl::undo_all_but(const Wanted& wanted, const StrategyContext& context) {
  const std::vector<std::size_t> newest_first(on.rbegin(), on.rend());
  for (const std::size_t index : newest_first) {
    if (!wanted[index]) undo(index, context);
  }
}

// Behind a change that failed, which is what is told; of the others, one that fails here has ended.
void StrategySwitch::Impl::put_back(const std::vector<std::size_t>& before, const StrategyContext& context) {
  Wanted wanted(known.size(), false);
  for (const std::size_t index : before) wanted[index] = !ended.contains(known[index].key);
  undo_all_but(wanted, context);
  for (const std::size_t index : before) {
    if (!wanted[index] || is_on(index)) continue;
    const auto fault = apply(index, context);
    if (fault) ended.try_emplace(known[index].key, fault->message);
  }
}

// What is wrong; it is undone then.
std::optional<Fault> StrategySwitch::Impl::apply(std::size_t index, const StrategyContext& context) {
  std::optional<Fault> fault;
  on.push_back(index);
  try {
    fault = fault_of_applying(known[index], context);
  } catch (...) {  // A cancellation.
    undo(index, context);
    throw;
  }
  if (!fault) return std::nullopt;
  undo(index, context);
  if (const auto left = ended.find(known[index].key); left != ended.end()) fault->message += "; " + left->second;
  return fault;
}

// Whatever comes of it, it is not asked for a second time.
void StrategySwitch::Impl::undo(std::size_t index, const StrategyContext& context) {
  std::erase(on, index);
  const auto fault = fault_of("undo", [&] { known[index].strategy->undo(context); });
  if (fault) ended[known[index].key] = fault->message + "; what it changed may still hold";
}

}  // namespace headrace
