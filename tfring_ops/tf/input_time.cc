// How long this process's training has waited for its input: a function of the
// C API.
#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/capi/capi.h"

namespace {

// TensorFlow's own metric: the time in GetNext of every iterator that a program
// reads from, in microseconds.
constexpr char kMetric[] = "/tensorflow/data/getnext_duration";

}  // namespace

double tfring_input_seconds() {
  return tfring::RunOr(0.0, [] {
    tensorflow::monitoring::CollectionRegistry::CollectMetricsOptions options;
    options.collect_metric_descriptors = false;
    const auto metrics =
        tensorflow::monitoring::CollectionRegistry::Default()->CollectMetrics(
            options);
    const auto found = metrics->point_set_map.find(kMetric);
    double microseconds = 0;
    if (found != metrics->point_set_map.end()) {
      for (const auto& point : found->second->points) {
        microseconds += point->histogram_value.sum();
      }
    }
    return microseconds / 1e6;
  });
}
