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

int cgroup_quota() {
  long quota = -1, period = 100000;
  if (FILE* f = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    char first[32] = {};
    if (std::fscanf(f, "%31s %ld", first, &period) >= 1 && std::strcmp(first, "max") != 0) quota = std::atol(first);
    std::fclose(f);
  } else if (FILE* g = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r")) {
    if (std::fscanf(g, "%ld", &quota) != 1) quota = -1;
    std::fclose(g);
    if (FILE* h = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r")) {
      if (std::fscanf(h, "%ld", &period) != 1) period = 100000;
      std::fclose(h);
    }
  }
  return quota > 0 && period > 0 ? static_cast<int>((quota + period - 1) / period) : 0;
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
