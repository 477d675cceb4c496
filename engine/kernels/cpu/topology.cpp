#include "topology.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>

namespace bayard {
namespace {

constexpr int kMostNodes = 1024;
constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h, which not every system has

std::string first_line(const std::string& name) {
  char text[4096] = {};
  if (FILE* f = std::fopen(name.c_str(), "r")) {
    if (!std::fgets(text, sizeof text, f)) text[0] = 0;
    std::fclose(f);
  }
  text[std::strcspn(text, "\n")] = 0;
  return text;
}

// "0-3,8" as numbers; what is no such list gives none.
std::vector<int> numbers(const std::string& list) {
  std::vector<int> found;
  const char* at = list.c_str();
  while (*at >= '0' && *at <= '9') {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    for (long i = first; i <= last && i < (1 << 20); i++) found.push_back(static_cast<int>(i));
    if (*end != ',') break;
    at = end + 1;
  }
  return found;
}

// CPU -> its node, of nodes with memory.
std::map<int, int> nodes_of_cpus(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node/";
  std::vector<int> with_memory = numbers(first_line(folder + "has_memory"));
  if (with_memory.empty()) with_memory = numbers(first_line(folder + "has_normal_memory"));
  if (with_memory.empty()) with_memory = numbers(first_line(folder + "online"));
  std::map<int, int> found;
  for (int node : with_memory)
    for (int cpu : numbers(first_line(folder + "node" + std::to_string(node) + "/cpulist"))) found[cpu] = node;
  return found;
}

// Controllers and path of each control group that may bound CPU time; version 2 has no controllers.
std::vector<std::pair<std::string, std::string>> own_cgroups(const std::string& root) {
  std::vector<std::pair<std::string, std::string>> found;
  char line[4096];
  FILE* f = std::fopen((root + "/proc/self/cgroup").c_str(), "r");
  while (f && std::fgets(line, sizeof line, f)) {
    line[std::strcspn(line, "\n")] = 0;
    const char* first = std::strchr(line, ':');
    const char* second = first ? std::strchr(first + 1, ':') : nullptr;
    if (!second) continue;
    const std::string controllers(first + 1, second);
    const bool cpu = ("," + controllers + ",").find(",cpu,") != std::string::npos;
    if (controllers.empty() || cpu) found.emplace_back(controllers, second + 1);
  }
  if (f) std::fclose(f);
  if (found.empty()) found.emplace_back("", "/");
  return found;
}

// "/a/b" gives "", "/a" and "/a/b": limits of all hold.
std::vector<std::string> with_parents(const std::string& path) {
  std::vector<std::string> found = {""};
  for (size_t at = 0; at < path.size();) {
    size_t end = path.find('/', at);
    if (end == std::string::npos) end = path.size();
    const std::string part = path.substr(at, end - at);
    if (!part.empty() && part != "..") found.push_back(found.back() + "/" + part);
    at = end + 1;
  }
  return found;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; i++)
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

std::vector<Place> places(const std::string& root, const std::vector<int>& allowed) {
  const std::map<int, int> nodes = nodes_of_cpus(root);
  std::map<int, std::vector<int>> by_node;
  std::set<std::string> seen;
  for (int cpu : allowed) {
    const std::string core = first_line(root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                        "/topology/thread_siblings_list");
    if (!core.empty() && !seen.insert(core).second) continue;
    const auto node = nodes.find(cpu);
    by_node[node == nodes.end() ? 0 : node->second].push_back(cpu);
  }
  std::vector<Place> found;
  for (size_t turn = 0, left = 1; left; turn++) {
    left = 0;
    for (const auto& [node, cpus] : by_node) {
      if (turn < cpus.size()) found.push_back({cpus[turn], node});
      left += turn + 1 < cpus.size();
    }
  }
  return found;
}

int cgroup_quota(const std::string& root) {
  double least = 0;
  const auto consider = [&](double quota, double period) {
    if (quota > 0 && period > 0 && (least == 0 || quota / period < least)) least = quota / period;
  };
  for (const auto& [controllers, path] : own_cgroups(root))
    for (const std::string& group : with_parents(path)) {
      if (controllers.empty()) {  // version 2
        const std::string limit = first_line(root + "/sys/fs/cgroup" + group + "/cpu.max");
        const size_t space = limit.find(' ');
        if (space != std::string::npos) consider(std::atof(limit.c_str()), std::atof(limit.c_str() + space));
        continue;
      }
      for (const std::string& folder : {std::string("cpu"), controllers}) {
        const std::string at = root + "/sys/fs/cgroup/" + folder + group + "/cpu.cfs_";
        consider(std::atof(first_line(at + "quota_us").c_str()), std::atof(first_line(at + "period_us").c_str()));
      }
    }
  return least == 0 ? 0 : std::max(1, static_cast<int>(least + 1e-6));
}

int interleave(void* memory, int64_t bytes) {
  static const std::vector<Place> all = places("", allowed_cpus());
  std::set<int> nodes;
  for (const Place& place : all)
    if (place.node < kMostNodes) nodes.insert(place.node);
  if (nodes.size() < 2) return 1;
  if (bytes == 0) return static_cast<int>(nodes.size());
#if defined(SYS_mbind)
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMostNodes / kBits] = {};
  for (int node : nodes) mask[node / kBits] |= 1ul << (node % kBits);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / page * page;
  if (end > begin && syscall(SYS_mbind, begin, end - begin, kInterleave, mask, kMostNodes + 1, 0) == 0)
    return static_cast<int>(nodes.size());
#else
  (void)memory;
#endif
  return 1;
}

}  // namespace bayard
