#include "cpu/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace tilewise::cpu {
namespace {

namespace fs = std::filesystem;

// "max 100000" or "150000 100000"; 0 where there is no limit.
double of_version_2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period && period > 0 ? quota / period : 0;
}

// A quota of -1 is none.
double of_version_1(const fs::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period
                                                                                 : 0;
}

// A line of /proc/self/cgroup is "0::/path" for version 2 and "4:cpu,cpuacct:/path" for version 1.
struct Group {
  std::string controllers, path;
};
Group parse(const std::string& line) {
  const std::size_t first = line.find(':');
  const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
  if (second == std::string::npos) return {"none", ""};
  return {line.substr(first + 1, second - first - 1), line.substr(second + 1)};
}

bool names_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

double granted_processors(const std::string& root) {
  const fs::path mount = fs::path(root) / "sys/fs/cgroup";
  double least = 0;
  const auto take = [&](double limit) {
    if (limit > 0) least = least > 0 ? std::min(least, limit) : limit;
  };
  // A container's own group may be named by a path of the host that isn't there: the mount's top is
  // looked at in any case.
  const auto walk = [&](const fs::path& top, const std::string& path,
                        double (*limit)(const fs::path&)) {
    take(limit(top));
    for (fs::path at = fs::path(path).relative_path(); !at.empty(); at = at.parent_path())
      take(limit(top / at));
  };
  std::ifstream groups(fs::path(root) / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const Group group = parse(line);
    if (group.controllers.empty()) walk(mount, group.path, of_version_2);
    if (names_cpu(group.controllers)) walk(mount / "cpu", group.path, of_version_1);
  }
  return least;
}

}  // namespace tilewise::cpu
