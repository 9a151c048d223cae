// The functions of runtime/clustered_grid.cuh.
#include "runtime/clustered_grid.cuh"

#include "cluster.cpp"
#include "grid.cpp"

namespace gpu {
inline bool deliver_both(Chance& chance) {
  const bool sent = deliver_some(chance);
  return deliver_packets(chance) || sent;
}
inline void end_both() {
  end_cluster();
  end_group();
}
inline const bool both = (arrive = deliver_both, leave = end_both, true);
}  // namespace gpu
