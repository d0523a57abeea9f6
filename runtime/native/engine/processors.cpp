#include "engine/processors.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#endif

namespace hybridge {

namespace {

#if defined(__linux__)

// Returns the first word of the first of these files that there is; nothing without one.
template <typename T>
std::optional<T> first_of(const std::string& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    std::ifstream file(folder + name);
    if (T value; file >> value) return value;
  }
  return std::nullopt;
}

// Returns the number of cores of at least half the fastest one's speed, of those that this process may run on.
// Hyperthreads of one core are one: they share what a product needs. 0 if Linux does not say which it may run on.
size_t fast_cores_of(const std::string& root) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 0;
  std::vector<std::pair<int64_t, std::string>> cores;  // speed, and a name that hyperthreads share
  int64_t fastest = 0;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &allowed)) continue;
    const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(number) + "/";
    const int64_t speed = first_of<int64_t>(folder, {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}).value_or(0);
    cores.emplace_back(
        speed, first_of<std::string>(folder + "topology/", {"core_cpus_list", "thread_siblings_list"})
                   .value_or(std::to_string(number))
    );
    fastest = std::max(fastest, speed);
  }
  std::set<std::string> fast;
  for (const auto& [speed, name] : cores)
    if (2 * speed >= fastest) fast.insert(name);
  return fast.size();
}

// Returns how many processors a control group's quota lasts for, rounded up; nothing without a limit. Version 2 has
// both numbers in one file, version 1 in two.
std::optional<size_t> quota_of(const std::string& group) {
  int64_t quota = 0, period = 0;
  std::ifstream both(group + "/cpu.max");
  if (!(both >> quota >> period)) {
    quota = first_of<int64_t>(group, {"/cpu.cfs_quota_us"}).value_or(0);
    period = first_of<int64_t>(group, {"/cpu.cfs_period_us"}).value_or(0);
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<size_t>((quota - 1) / period + 1);
}

// Returns the least quota of this process's control groups and of those that they are in; nothing without one.
std::optional<size_t> quota(const std::string& root) {
  std::optional<size_t> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    std::istringstream words(line);
    std::string controllers, path;
    if (!std::getline(words, controllers, ':') || !std::getline(words, controllers, ':') || !std::getline(words, path))
      continue;
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    std::vector<std::string> mounts = {"/sys/fs/cgroup"};
    if (!controllers.empty()) mounts = {"/sys/fs/cgroup/" + controllers, "/sys/fs/cgroup/cpu"};  // version 1
    for (const std::string& mounted : mounts) {  // in a container, the path may be one of the host's that is not there
      for (std::string at = path;; at.resize(at.find_last_of('/'))) {
        if (const auto found = quota_of(root + mounted + at)) least = std::min(least.value_or(*found), *found);
        if (at.find_last_of('/') == std::string::npos) break;
      }
    }
  }
  return least;
}

#endif

}  // namespace

size_t fast_cores([[maybe_unused]] const std::string& root) {
#if defined(__APPLE__)
  int count = 0;
  size_t size = sizeof(count);
  if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0)
    return static_cast<size_t>(count);
#elif defined(__linux__)
  size_t cores = fast_cores_of(root);
  if (cores == 0) cores = std::max<size_t>(1, std::thread::hardware_concurrency());
  return std::min(cores, quota(root).value_or(cores));
#endif
  return std::max<size_t>(1, std::thread::hardware_concurrency());
}

}  // namespace hybridge
