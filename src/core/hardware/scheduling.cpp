#include "core/hardware/scheduling.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/hardware/detail/system_text.h"

namespace headrace {
namespace {

using detail::kCoresMax;
using detail::numbers_of_list;
using detail::parse_integer;
using detail::read_system_text;
using detail::trimmed;

constexpr std::int64_t kNicenessMin = -20, kNicenessMax = 19;
constexpr std::size_t kTextMax = 4096, kTextShown = 64;
constexpr int kPassesMax = 8;  // Threads that are started meanwhile inherit the old value; each pass finds fewer.
constexpr int kLooksMax = 10000;

using Cores = std::vector<int>;  // Ascending.

std::string list_text(const Cores& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < cores.size() && cores[i + 1] == cores[i] + 1) ++i;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[first]);
    if (i > first) text += fmt::format("-{}", cores[i]);
  }
  return text;
}

// What a thread has of its own: read() gives nullopt of one that has ended, write() errno or 0.
struct Niceness {
  using Value = int;
  static constexpr const char* kName = "niceness";
  static constexpr const char* kBetween = ", ";
  static constexpr const char* kNotPermitted = "not permitted: lowering niceness takes CAP_SYS_NICE or RLIMIT_NICE";

  static std::optional<Value> read(pid_t thread) {
    errno = 0;  // -1 is a niceness, too.
    const int found = ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
    return found == -1 && errno != 0 ? std::nullopt : std::optional(found);
  }
  static int write(pid_t thread, Value value) {
    return ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), value) == 0 ? 0 : errno;
  }
  static std::string text(Value value) { return fmt::format("{}", value); }
};

struct Affinity {
  using Value = Cores;
  static constexpr const char* kName = "affinity";
  static constexpr const char* kBetween = "; ";
  static constexpr const char* kNotPermitted = "not permitted: the system refuses sched_setaffinity()";

  static std::optional<Value> read(pid_t thread) {
    Mask mask{};
    if (::sched_getaffinity(thread, sizeof mask, reinterpret_cast<cpu_set_t*>(mask.data())) != 0) return std::nullopt;
    Cores cores;
    for (int core = 0; core < kCoresMax; ++core) {
      if ((mask[word_of(core)] & bit_of(core)) != 0) cores.push_back(core);
    }
    return cores;
  }
  static int write(pid_t thread, const Value& value) {
    Mask mask{};
    for (const int core : value) mask[word_of(core)] |= bit_of(core);
    const auto* const wanted = reinterpret_cast<const cpu_set_t*>(mask.data());
    return ::sched_setaffinity(thread, sizeof mask, wanted) == 0 ? 0 : errno;
  }
  static std::string text(const Value& value) { return list_text(value); }

 private:
  using Word = unsigned long;  // As in the kernel's masks. A cpu_set_t alone ends at core 1023.
  static constexpr std::size_t kBits = 8 * sizeof(Word);
  using Mask = std::array<Word, static_cast<std::size_t>(kCoresMax) / kBits>;

  static std::size_t word_of(int core) { return static_cast<std::size_t>(core) / kBits; }
  static Word bit_of(int core) { return Word{1} << (static_cast<std::size_t>(core) % kBits); }
};

template <class Kind>
using Values = std::map<pid_t, typename Kind::Value>;  // By thread.

// Of all threads; empty where they cannot be read.
template <class Kind>
Values<Kind> read_all() {
  Values<Kind> values;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/task", error), end; !error && entry != end;
       entry.increment(error)) {
    const auto number = parse_integer(entry->path().filename().native());
    if (!number) continue;
    const auto thread = static_cast<pid_t>(*number);
    if (auto value = Kind::read(thread)) values.emplace(thread, *std::move(value));
  }
  return error ? Values<Kind>{} : values;
}

template <class Kind>
Values<Kind> read_all_or_fail() {
  Values<Kind> values = read_all<Kind>();
  if (values.empty()) {
    fail(ErrorCode::io, "hardware: {}: the threads of this process cannot be read from /proc/self/task", Kind::kName);
  }
  return values;
}

template <class Kind>
std::string text_of(const Values<Kind>& values) {
  std::set<typename Kind::Value> each;
  for (const auto& [thread, value] : values) each.insert(value);
  std::string text;
  for (const auto& value : each) text += (text.empty() ? "" : Kind::kBetween) + Kind::text(value);
  return text.empty() ? "unavailable" : text;
}

template <class Kind>
std::string reason_of(int refused) {
  if (refused == EPERM || refused == EACCES) return Kind::kNotPermitted;
  return std::generic_category().message(refused);
}

// Gives each thread what `wanted` says of it. 0, or errno of the first that the system refused.
template <class Kind, class Wanted>
int set_all(const Wanted& wanted) {
  for (int pass = 0; pass < kPassesMax; ++pass) {
    bool has_changed = false;
    for (const auto& [thread, value] : read_all<Kind>()) {
      const typename Kind::Value& target = wanted(thread);
      if (value == target) continue;
      const int refused = Kind::write(thread, target);
      if (refused != 0 && refused != ESRCH) return refused;
      has_changed = true;
    }
    if (!has_changed) break;
  }
  return 0;
}

template <class Kind>
HardwareSetting restore(const Values<Kind>& before) {
  HardwareSetting undone{.name = Kind::kName,
                         .requested = text_of<Kind>(before),
                         .before = text_of<Kind>(read_all<Kind>()),
                         .now = {},
                         .how = SettingHow::by_call,
                         .reason = {}};
  const auto main_thread = before.find(::getpid());
  const auto& others = main_thread == before.end() ? before.begin()->second : main_thread->second;
  const int refused = set_all<Kind>([&](pid_t thread) -> const typename Kind::Value& {
    const auto own = before.find(thread);
    return own == before.end() ? others : own->second;
  });
  const Values<Kind> now = read_all<Kind>();
  undone.now = text_of<Kind>(now);
  const bool holds = !now.empty() && std::all_of(now.begin(), now.end(), [&](const auto& found) {
    const auto own = before.find(found.first);
    return own == before.end() || own->second == found.second;
  });
  if (refused == 0 && holds) return undone;
  undone.how = SettingHow::not_applied;
  undone.reason = refused != 0 ? reason_of<Kind>(refused) : "the system made it " + undone.now;
  return undone;
}

// What is not applied leaves all as it was. `refused` is errno of what is known to be refused, so that it is not tried.
template <class Kind>
HardwareChange change(const std::string& requested, const Values<Kind>& before, const typename Kind::Value& wanted,
                      int refused) {
  HardwareSetting setting{.name = Kind::kName,
                          .requested = requested,
                          .before = text_of<Kind>(before),
                          .now = {},
                          .how = SettingHow::by_call,
                          .reason = {}};
  const auto undo = [before] { return restore<Kind>(before); };
  if (refused == 0) {
    refused = set_all<Kind>([&](pid_t) -> const typename Kind::Value& { return wanted; });
    const Values<Kind> now = read_all<Kind>();
    setting.now = text_of<Kind>(now);
    const bool holds =
        !now.empty() && std::all_of(now.begin(), now.end(), [&](const auto& found) { return found.second == wanted; });
    if (refused == 0 && holds) return {std::move(setting), undo};
    setting.reason = "the system made it " + setting.now;
    restore<Kind>(before);
  }
  if (refused != 0) setting.reason = reason_of<Kind>(refused);
  setting.how = SettingHow::not_applied;
  setting.now = text_of<Kind>(read_all<Kind>());
  return {std::move(setting), undo};
}

// By a thread that tries: what a capability is worth in a container, no file tells. `from` is at least the caller's.
bool may_lower_niceness(int from, int to) {
  bool may = false;
  pid_t self = 0;
  std::jthread([&] {
    self = ::gettid();
    may = Niceness::write(self, from) == 0 && Niceness::write(self, to) == 0;
  }).join();
  // The kernel lists a thread for a moment after it was joined, and its niceness would pass for one of the process's.
  for (int i = 0; i < kLooksMax && Niceness::read(self); ++i) std::this_thread::yield();
  return may;
}

// Of any length and content, for a message of one line.
std::string shown(std::string_view text) {
  std::string line(text.substr(0, kTextShown));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > kTextShown ? line + "..." : line;
}

Cores cores_of_node(std::int64_t node, const Cores& usable, const std::string& root) {
  const std::string nodes = root + "/sys/devices/system/node";
  const auto text = read_system_text(fmt::format("{}/node{}/cpulist", nodes, node));
  if (!text) {
    const std::string online(trimmed(read_system_text(nodes + "/online").value_or("")));
    fail(ErrorCode::invalid_argument, "hardware: affinity: wanted a NUMA node of this machine, {}, found node{}",
         online.empty() ? "which tells of none" : "which has " + online, node);
  }
  const Cores of_node = numbers_of_list(*text, kCoresMax).value_or(Cores{});  // One of memory alone has none.
  Cores cores;
  std::set_intersection(of_node.begin(), of_node.end(), usable.begin(), usable.end(), std::back_inserter(cores));
  if (cores.empty()) {
    fail(ErrorCode::invalid_argument,
         "hardware: affinity: wanted a NUMA node with cores of this process, which has {}; found node{} with {}",
         list_text(usable), node, of_node.empty() ? "none" : list_text(of_node));
  }
  return cores;
}

Cores cores_named(std::string_view text, const Cores& usable, const std::string& root) {
  constexpr std::string_view kNode = "node";
  if (text.substr(0, kNode.size()) == kNode) {
    const auto node = parse_integer(text.substr(kNode.size()));
    if (node && *node >= 0 && *node < kCoresMax) return cores_of_node(*node, usable, root);
  }
  const auto named = text.size() <= kTextMax ? numbers_of_list(text, kCoresMax) : std::nullopt;
  if (!named) {
    fail(ErrorCode::invalid_argument,
         "hardware: affinity: wanted a list of cores such as \"0-3,6\", or a NUMA node such as \"node0\"; found \"{}\"",
         shown(text));
  }
  Cores missing;
  std::set_difference(named->begin(), named->end(), usable.begin(), usable.end(), std::back_inserter(missing));
  if (!missing.empty()) {
    fail(ErrorCode::invalid_argument, "hardware: affinity: wanted cores of this process, which has {}; found {} in {}",
         list_text(usable), list_text(missing), shown(text));
  }
  return *named;
}

}  // namespace

HardwareChange set_niceness(std::int64_t niceness) {
  if (niceness < kNicenessMin || niceness > kNicenessMax) {
    fail(ErrorCode::invalid_argument, "hardware: niceness: wanted {} to {}, found {}", kNicenessMin, kNicenessMax,
         niceness);
  }
  const int wanted = static_cast<int>(niceness);
  const Values<Niceness> before = read_all_or_fail<Niceness>();
  const auto [least, most] = std::minmax_element(before.begin(), before.end(),
                                                 [](const auto& a, const auto& b) { return a.second < b.second; });
  const int lowest = least->second, highest = most->second;
  const bool is_refused = highest > wanted && !may_lower_niceness(highest, wanted);
  HardwareChange changed = change<Niceness>(Niceness::text(wanted), before, wanted, is_refused ? EACCES : 0);
  HardwareSetting setting = changed.setting();
  const bool is_raised = setting.how == SettingHow::by_call && lowest < wanted;
  if (!is_raised || may_lower_niceness(wanted, lowest)) return changed;
  setting.reason = "cannot be undone without CAP_SYS_NICE";
  return {std::move(setting), [before] { return restore<Niceness>(before); }};
}

HardwareChange set_affinity(const std::string& cores, const std::string& root) {
  const Values<Affinity> before = read_all_or_fail<Affinity>();
  std::set<int> usable;
  for (const auto& [thread, mask] : before) usable.insert(mask.begin(), mask.end());
  const Cores wanted = cores_named(trimmed(cores), Cores(usable.begin(), usable.end()), root);
  return change<Affinity>(cores, before, wanted, /*refused=*/0);
}

}  // namespace headrace
