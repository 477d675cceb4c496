// Which CPUs threads run on and which memory nodes they read from, as /sys says.
#ifndef BAYARD_TOPOLOGY_H
#define BAYARD_TOPOLOGY_H

#include <cstdint>
#include <string>
#include <vector>

namespace bayard {

struct Place {
  int cpu, node;  // node 0 where /sys names none
};

// The CPUs this process may run on.
std::vector<int> allowed_cpus();

// One CPU of each core among the allowed ones. Nodes take turns, so that threads fewer than cores still use the memory
// of all nodes; on one node the order is that of `allowed`. root stands before /sys: "" but in tests.
std::vector<Place> places(const std::string& root, const std::vector<int>& allowed);

// Whole CPUs' worth of time that this process's control groups allow, at least 1; 0 when unlimited or unknown. More
// threads than that would stand still for part of each period, all at once.
int cgroup_quota(const std::string& root);

// Spreads the pages of some fresh memory over the nodes that the allowed CPUs belong to. The number of nodes; 1 where
// nothing was to do or Linux would not.
int interleave(void* memory, int64_t bytes);

}  // namespace bayard

#endif
