// Decides which requests run as one bucket.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_

#include <cstdint>
#include <vector>

#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Returns true if two requests may be reduced as one message: their kind is
// fusible, and they have one dtype, one wire dtype, one op and the same
// factors.
bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b);

// Cuts requests that have become ready together into buckets, the same way on
// every rank.
class Fusion {
 public:
  // REQUIRES: `options` outlives this.
  explicit Fusion(const Options& options) : options_(options) {}

  // Returns true if `request` joins the bucket of those before it; if not, it
  // is the first of the next one.
  // REQUIRES: `request` outlives the next call.
  bool Joins(const CollectiveRequest& request);
  // Closes the bucket: no other request joins it.
  void Restart() { previous_ = nullptr; }

  // Returns true if other requests may join the bucket of `request`.
  static bool MayFuse(const Options& options, const CollectiveRequest& request);

 private:
  const Options& options_;
  const CollectiveRequest* previous_ = nullptr;
  int64_t bytes_ = 0;
};

// Adds the sizes of one request, by rank, to the sizes of the bucket that it
// joins.
void AddSizes(std::vector<std::vector<int64_t>> of_request, Response& bucket);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_
