// DescribeDifference: describes a mismatch between two ranks' requests.

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/negotiation/coordinator.h"

namespace tfring {
namespace {

std::string Shape(const TensorInfo& tensor) {
  // Formatted as Python prints a tuple.
  return absl::StrCat("(", absl::StrJoin(tensor.dims, ", "),
                      tensor.dims.size() == 1 ? ",)" : ")");
}

// "shapes differ. Rank 0 sent A; rank 2 sent B"
std::string Compare(absl::string_view what, int rank_a, absl::string_view a,
                    int rank_b, absl::string_view b) {
  return absl::StrCat(what, " differ. Rank ", rank_a, " sent ", a, "; rank ",
                      rank_b, " sent ", b);
}

std::string Factors(const CollectiveRequest& request) {
  // Print all digits: factors that differ in the last bit give different sums.
  return absl::StrFormat("prescale %.17g, postscale %.17g",
                         request.prescale_factor, request.postscale_factor);
}

// A request that the engine named has a tensor without a name.
std::string Quoted(const TensorInfo& tensor) {
  return tensor.name.empty() ? "unnamed" : absl::StrCat("'", tensor.name, "'");
}

std::string Tensors(const CollectiveRequest& request) {
  const size_t count = request.tensors.size();
  const std::string first = Quoted(request.tensors.front());
  if (count == 1) return absl::StrCat("1 tensor, ", first);
  return absl::StrCat(count, " tensors, ", first, " to ",
                      Quoted(request.tensors.back()));
}

// The role of a tensor in its layer, "kernel" or "bias".  The ranks may name
// the layer differently: Keras numbers layers by how many the process has made,
// and a model that was loaded has other paths than one that was built.
std::string Role(absl::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash != absl::string_view::npos) name.remove_prefix(slash + 1);
  const size_t end = name.find_last_not_of("0123456789");
  if (end != absl::string_view::npos && end + 1 < name.size() &&
      name[end] == '_') {
    name = name.substr(0, end);
  }
  return std::string(name);
}

}  // namespace

std::string DescribeDifference(const CollectiveRequest& a, int rank_a,
                               const CollectiveRequest& b, int rank_b) {
  const auto compare = [&](absl::string_view what, absl::string_view of_a,
                           absl::string_view of_b) {
    return Compare(what, rank_a, of_a, rank_b, of_b);
  };
  if (a.kind != b.kind) {
    return compare("collectives", Name(a.kind), Name(b.kind));
  }
  if (a.dtype != b.dtype) {
    return compare("dtypes", Name(a.dtype), Name(b.dtype));
  }
  if (a.tensors.size() != b.tensors.size()) {
    return compare("numbers of tensors", Tensors(a), Tensors(b));
  }
  if (OnDevice(a) != OnDevice(b)) {
    const auto memory = [](const CollectiveRequest& request) {
      return OnDevice(request) ? "GPU memory" : "host memory";
    };
    return compare("places of the tensors", memory(a), memory(b));
  }
  if (WireType(a) != WireType(b)) {
    return compare("dtypes on the wire", Name(WireType(a)), Name(WireType(b)));
  }
  const Collective& collective = CollectiveOf(a.kind);
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorInfo& of_a = a.tensors[i];
    const TensorInfo& of_b = b.tensors[i];
    if (of_a.name != of_b.name && collective.roles_agree() &&
        Role(of_a.name) != Role(of_b.name)) {
      return compare("tensors", Quoted(of_a), Quoted(of_b));
    }
    if (!collective.ShapesAgree(of_a, of_b)) {
      const std::string of =
          a.tensors.size() == 1 ? "" : absl::StrCat(" of ", Quoted(of_a));
      return compare(absl::StrCat("shapes", of),
                     absl::StrCat(Name(a.dtype), " ", Shape(of_a)),
                     absl::StrCat(Name(b.dtype), " ", Shape(of_b)));
    }
  }
  if (a.op != b.op) return compare("ops", Name(a.op), Name(b.op));
  const bool same_factors = a.prescale_factor == b.prescale_factor &&
                            a.postscale_factor == b.postscale_factor;
  if (!same_factors && Factors(a) != Factors(b)) {
    return compare("factors", Factors(a), Factors(b));
  }
  if (a.root_rank != b.root_rank) {
    return compare("root ranks", absl::StrCat(a.root_rank),
                   absl::StrCat(b.root_rank));
  }
  return "";
}

}  // namespace tfring
