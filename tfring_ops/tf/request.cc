#include "tfring_ops/tf/request.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/framework/types.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/adasum.h"
#include "tfring_ops/tf/dtypes.h"

namespace tfring {
namespace {

absl::StatusOr<DataType> FromTensorFlow(tensorflow::DataType dtype) {
  switch (dtype) {
#define TFRING_CASE(DTYPE, TYPE, NAME)          \
  case tensorflow::DataTypeToEnum<TYPE>::value: \
    return DataType::DTYPE;
    TFRING_FOR_EACH_TENSORFLOW_DTYPE(TFRING_CASE)
#undef TFRING_CASE
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          tensorflow::DataTypeString(dtype), " is not supported."));
  }
}

template <typename T>
absl::StatusOr<T> Attribute(tensorflow::OpKernelConstruction* context,
                            absl::string_view name) {
  T value;
  TFRING_RETURN_IF_ERROR(context->GetAttr(name, &value));
  return value;
}

// Reads the names of a list of tensors.  A single tensor has the name of its
// request.
absl::StatusOr<std::vector<std::string>> TensorNames(
    tensorflow::OpKernelConstruction* context,
    const std::string& request_name) {
  if (!context->HasAttr("N")) return std::vector<std::string>{request_name};
  TFRING_ASSIGN_OR_RETURN(
      std::vector<std::string> names,
      Attribute<std::vector<std::string>>(context, "tensor_names"));
  TFRING_ASSIGN_OR_RETURN(const int count, Attribute<int>(context, "N"));
  if (static_cast<int>(names.size()) == count) return names;
  return absl::InvalidArgumentError(absl::StrCat("'", request_name, "' has ",
                                                 count, " tensors and ",
                                                 names.size(), " names."));
}

absl::StatusOr<DataType> TypeAttribute(
    tensorflow::OpKernelConstruction* context, absl::string_view name) {
  TFRING_ASSIGN_OR_RETURN(const auto dtype,
                          Attribute<tensorflow::DataType>(context, name));
  return FromTensorFlow(dtype);
}

absl::StatusOr<double> Number(absl::string_view name, absl::string_view text) {
  double value;
  if (absl::SimpleAtod(text, &value)) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": '", text, "' is not a number."));
}

// Reads a double from a text attribute: an attribute of type float would round
// to 32 bits.
absl::StatusOr<double> DoubleAttribute(
    tensorflow::OpKernelConstruction* context, absl::string_view name) {
  TFRING_ASSIGN_OR_RETURN(const std::string text,
                          Attribute<std::string>(context, name));
  return Number(name, text);
}

// Sets the wire type of an allreduce; its dtype is known.
absl::Status SetWireType(DataType wire, CollectiveRequest& request) {
  if (!CanTravelAs(request.dtype, wire)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(request.dtype), " cannot travel as ", Name(wire),
                     ": only float32 and float64 as float16 or bfloat16."));
  }
  if (request.kind == CollectiveKind::kAdasum && wire != request.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("adasum casts nothing on the way, and cannot send ",
                     Name(request.dtype), " as ", Name(wire), "."));
  }
  request.wire_dtype = wire;
  return absl::OkStatus();
}

bool IsFloatingPoint(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

absl::StatusOr<DataType> DtypeOf(absl::string_view name) {
#define TFRING_IF_NAMED(DTYPE, TYPE, NAME) \
  if (name == NAME) return DataType::DTYPE;
  TFRING_FOR_EACH_DTYPE(TFRING_IF_NAMED)
#undef TFRING_IF_NAMED
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is not a dtype."));
}

std::optional<ReduceOp> ReductionOf(absl::string_view name) {
#define TFRING_IF_NAMED(OP, NAME, IDENTITY) \
  if (name == NAME) return ReduceOp::OP;
  TFRING_FOR_EACH_REDUCTION(TFRING_IF_NAMED)
#undef TFRING_IF_NAMED
  return std::nullopt;
}

// Sets the reduction of an allreduce or a reducescatter by its name.
absl::Status SetReduction(absl::string_view name, CollectiveRequest& request) {
  if (request.kind == CollectiveKind::kAllreduce &&
      name == Name(CollectiveKind::kAdasum)) {
    if (!HasAdasum(request.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("There is no adasum of ", Name(request.dtype),
                       ", only of floating-point numbers."));
    }
    request.kind = CollectiveKind::kAdasum;
    return absl::OkStatus();
  }
  const std::optional<ReduceOp> op = ReductionOf(name);
  if (!op) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not a reduction."));
  }
  if (op == ReduceOp::kAverage && !IsFloatingPoint(request.dtype)) {
    // tfring/_ops/integer_averages.py replaces an average of integers by a sum.
    return absl::InvalidArgumentError(
        absl::StrCat("There is no average of ", Name(request.dtype),
                     ", whose sum may be beyond its range."));
  }
  request.op = *op;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CollectiveRequest> ReadRequest(
    tensorflow::OpKernelConstruction* context, CollectiveKind kind) {
  CollectiveRequest request;
  request.kind = kind;
  TFRING_ASSIGN_OR_RETURN(request.name,
                          Attribute<std::string>(context, "request_name"));
  TFRING_ASSIGN_OR_RETURN(request.process_set_id,
                          Attribute<int32_t>(context, "process_set_id"));
  if (kind == CollectiveKind::kBarrier || kind == CollectiveKind::kJoin) {
    return request;
  }
  TFRING_ASSIGN_OR_RETURN(request.dtype, TypeAttribute(context, "T"));
  TFRING_ASSIGN_OR_RETURN(const std::vector<std::string> tensor_names,
                          TensorNames(context, request.name));
  for (const std::string& name : tensor_names) {
    request.tensors.push_back(TensorInfo{name, {}});
  }
  if (kind == CollectiveKind::kAllreduce ||
      kind == CollectiveKind::kReduceScatter ||
      kind == CollectiveKind::kScatterInPlace) {
    TFRING_ASSIGN_OR_RETURN(const std::string op,
                            Attribute<std::string>(context, "reduce_op"));
    TFRING_RETURN_IF_ERROR(SetReduction(op, request));
    TFRING_ASSIGN_OR_RETURN(request.prescale_factor,
                            DoubleAttribute(context, "prescale_factor"));
    TFRING_ASSIGN_OR_RETURN(request.postscale_factor,
                            DoubleAttribute(context, "postscale_factor"));
  }
  if (kind == CollectiveKind::kAllreduce) {
    TFRING_ASSIGN_OR_RETURN(const DataType wire,
                            TypeAttribute(context, "wire_dtype"));
    TFRING_RETURN_IF_ERROR(SetWireType(wire, request));
  }
  if (kind == CollectiveKind::kBroadcast) {
    TFRING_ASSIGN_OR_RETURN(request.root_rank,
                            Attribute<int32_t>(context, "root_rank"));
  }
  return request;
}

absl::StatusOr<CollectiveRequest> ReadAllreduce(
    tensorflow::OpKernelConstruction* context) {
  TFRING_ASSIGN_OR_RETURN(const std::string text,
                          Attribute<std::string>(context, "request"));
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::MaxSplits(' ', 5));
  if (words.size() != 6) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' describes no allreduce."));
  }
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = words[5];
  request.tensors.push_back(TensorInfo{request.name, {}});
  TFRING_ASSIGN_OR_RETURN(request.dtype, TypeAttribute(context, "T"));
  TFRING_RETURN_IF_ERROR(SetReduction(words[0], request));
  TFRING_ASSIGN_OR_RETURN(request.prescale_factor,
                          Number("prescale_factor", words[1]));
  TFRING_ASSIGN_OR_RETURN(request.postscale_factor,
                          Number("postscale_factor", words[2]));
  TFRING_ASSIGN_OR_RETURN(const DataType wire, DtypeOf(words[3]));
  TFRING_RETURN_IF_ERROR(SetWireType(wire, request));
  if (!absl::SimpleAtoi(words[4], &request.process_set_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", words[4], "' is not the number of a process set."));
  }
  return request;
}

}  // namespace tfring
