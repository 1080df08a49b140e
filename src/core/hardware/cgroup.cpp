#include "core/hardware/cgroup.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/hardware/detail/system_text.h"

namespace headrace {
namespace {

using detail::parse_integer;
using detail::read_system_text;
using detail::split;
using detail::trimmed;
using detail::value_of;

enum class Version { v1, v2 };

// A mounted hierarchy and the group of this process in it.
struct Hierarchy {
  Version version;
  std::vector<std::string> controllers;  // Of version 1; version 2 has one hierarchy for all.
  std::string mount_point;
  std::string group;  // Below the mount point: "" or "/a/b".

  bool controls(std::string_view controller) const {
    return version == Version::v2 || std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
  }
};

std::vector<std::string> to_strings(const std::vector<std::string_view>& parts) {
  return {parts.begin(), parts.end()};
}

// mountinfo writes a blank in a path as \040.
std::string unescaped(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool is_escape = path[i] == '\\' && i + 3 < path.size();
    if (is_escape) {
      out += static_cast<char>((path[i + 1] - '0') * 64 + (path[i + 2] - '0') * 8 + (path[i + 3] - '0'));
      i += 3;
    } else {
      out += path[i];
    }
  }
  return out;
}

// /proc/self/mountinfo: "31 23 0:28 ROOT MOUNT_POINT OPTIONS [tags] - TYPE SOURCE SUPER_OPTIONS". ROOT is the group
// that is mounted: a container often sees its own group there as the top.
struct Mount {
  Version version;
  std::string root;
  std::string mount_point;
  std::vector<std::string> controllers;
};

std::vector<Mount> read_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  const std::string text = read_system_text(root + "/proc/self/mountinfo").value_or("");
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto place = split(line.substr(0, dash), ' '), kind = split(line.substr(dash + 3), ' ');
    if (place.size() < 5 || kind.size() < 3) continue;
    if (kind[0] != "cgroup" && kind[0] != "cgroup2") continue;
    mounts.push_back({kind[0] == "cgroup2" ? Version::v2 : Version::v1, unescaped(place[3]), unescaped(place[4]),
                      to_strings(split(kind[2], ','))});
  }
  return mounts;
}

// The group as seen from the mount point. A group outside of what is mounted leaves the mounted one as the best guess.
std::string below_mount(const std::string& group, const std::string& mounted) {
  if (mounted == "/") return group == "/" || group.rfind("/..", 0) == 0 ? "" : group;
  if (group.rfind(mounted, 0) != 0) return "";
  const std::string rest = group.substr(mounted.size());
  return rest.empty() || rest[0] == '/' ? rest : "";
}

// /proc/self/cgroup: "4:memory:/docker/x" for version 1, "0::/user.slice" for version 2.
std::vector<Hierarchy> read_hierarchies(const std::string& root) {
  std::vector<Hierarchy> hierarchies;
  const std::vector<Mount> mounts = read_mounts(root);
  const std::string text = read_system_text(root + "/proc/self/cgroup").value_or("");
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string group(line.substr(second + 1));
    const Version version = controllers.empty() ? Version::v2 : Version::v1;
    const auto names = to_strings(split(controllers, ','));
    for (const Mount& mount : mounts) {
      const bool fits = mount.version == version &&
                        (version == Version::v2 || std::find(mount.controllers.begin(), mount.controllers.end(),
                                                             names[0]) != mount.controllers.end());
      if (!fits) continue;
      hierarchies.push_back({version, names, mount.mount_point, below_mount(group, mount.root)});
      break;
    }
  }
  return hierarchies;
}

// The folders of the group and of those above it, up to the mount point: each of their limits holds.
std::vector<std::string> folders_of(const Hierarchy& hierarchy) {
  std::vector<std::string> folders;
  std::string group = hierarchy.group;
  while (!group.empty()) {
    folders.push_back(hierarchy.mount_point + group);
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
  folders.push_back(hierarchy.mount_point);
  return folders;
}

std::optional<std::int64_t> memory_limit(const std::string& folder, Version version) {
  const auto text = read_system_text(folder + (version == Version::v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!text) return std::nullopt;
  const auto bytes = parse_integer(trimmed(*text));  // "max" of version 2 is no number: no limit.
  // Version 1 writes "no limit" as the largest multiple of the page size.
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 62;
  return bytes && *bytes >= 0 && *bytes < kUnlimited ? bytes : std::nullopt;
}

// Below 0 where the group uses more than it may.
std::optional<std::int64_t> memory_left(const std::string& folder, Version version) {
  const bool is_v2 = version == Version::v2;
  const auto limit = memory_limit(folder, version);
  const auto used = parse_integer(
      trimmed(read_system_text(folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or("")));
  if (!limit || !used) return std::nullopt;
  const std::string statistics = read_system_text(folder + "/memory.stat").value_or("");
  const auto idle_files = value_of(statistics, is_v2 ? "inactive_file" : "total_inactive_file", ' ');
  return *limit - *used + parse_integer(idle_files.value_or("")).value_or(0);
}

std::optional<double> cpu_quota(const std::string& folder, Version version) {
  std::optional<std::int64_t> quota, period;
  if (version == Version::v2) {
    const auto text = read_system_text(folder + "/cpu.max");  // "max 100000" or "150000 100000".
    if (!text) return std::nullopt;
    const auto parts = split(trimmed(*text), ' ');
    if (parts.size() != 2) return std::nullopt;
    quota = parse_integer(parts[0]);
    period = parse_integer(parts[1]);
  } else {
    quota = parse_integer(trimmed(read_system_text(folder + "/cpu.cfs_quota_us").value_or("")));  // -1: no limit.
    period = parse_integer(trimmed(read_system_text(folder + "/cpu.cfs_period_us").value_or("")));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  for (const Hierarchy& hierarchy : read_hierarchies(root)) {
    for (const std::string& folder : folders_of(hierarchy)) {
      if (hierarchy.controls("memory")) {
        const auto memory = memory_limit(root + folder, hierarchy.version);
        if (memory && (!limits.memory || *memory < *limits.memory)) {
          limits.memory = memory;
          limits.memory_from = (hierarchy.version == Version::v2 ? "cgroup v2 " : "cgroup v1 ") + folder;
        }
      }
      if (hierarchy.controls("cpu")) {
        const auto cpus = cpu_quota(root + folder, hierarchy.version);
        if (cpus && (!limits.cpus || *cpus < *limits.cpus)) limits.cpus = cpus;
      }
    }
  }
  return limits;
}

std::optional<std::int64_t> cgroup_memory_left(const std::string& root) {
  std::optional<std::int64_t> least;
  for (const Hierarchy& hierarchy : read_hierarchies(root)) {
    if (!hierarchy.controls("memory")) continue;
    for (const std::string& folder : folders_of(hierarchy)) {
      const auto left = memory_left(root + folder, hierarchy.version);
      if (left && (!least || *left < *least)) least = left;
    }
  }
  return least;
}

std::optional<std::string> cgroup_v2_folder(const std::string& root) {
  for (const Hierarchy& hierarchy : read_hierarchies(root)) {
    if (hierarchy.version == Version::v2) return hierarchy.mount_point + hierarchy.group;
  }
  return std::nullopt;
}

}  // namespace headrace
