// How much processor time the control group of this process may use (Linux): what `docker --cpus`
// and Kubernetes' limits set. OpenMP knows of affinity alone.
#pragma once

#include <string>

namespace tilewise::cpu {

// In processors, the least of the group and those above it, from version 2's cpu.max and version
// 1's cpu.cfs_quota_us; 0: unlimited, or there is nothing of the kind. `root` is where the file
// system begins.
double granted_processors(const std::string& root = "/");

}  // namespace tilewise::cpu
