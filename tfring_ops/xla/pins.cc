#include "tfring_ops/xla/pins.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "tfring_ops/ffi/handlers.h"
#include "xla/ffi/api/ffi.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace xla::ffi {
// Defined by TensorFlow: see registration.cc.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfring {
namespace {

// On a GPU, XLA itself knows that these calls do nothing.  On the host it needs
// handlers for them.
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), "Pin", "Host",
                         tfring_host_pin);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), "Unpin", "Host",
                         tfring_host_pin);

// Pin and Unpin have one output, which aliases their operand.
using Aliasing =
    std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>;
const Aliasing kInPlace = {/*output=*/{}, {/*operand=*/0, {}}};
constexpr auto kSchedule = xla::CustomCallSchedule::SCHEDULE_NONE;
constexpr auto kVersion = xla::CustomCallApiVersion::API_VERSION_TYPED_FFI;

// The layout is row-major.  XLA checks that all values with one memory have one
// layout, so the results of the Start, of its Done and of Unpin have it, too.
// The side effect keeps XLA from merging the pins of one tensor that two
// collectives take.
xla::XlaOp PinShaped(xla::XlaOp tensor, xla::Shape shape) {
  if (xla::ShapeUtil::IsZeroElementArray(shape)) return tensor;
  xla::LayoutUtil::SetToDefaultLayout(&shape);
  const absl::StatusOr<xla::Shape> buffer =
      xla::ShapeUtil::MakeValidatedBufferShape(shape);
  if (!buffer.ok()) return tensor.builder()->ReportError(buffer.status());
  return xla::CustomCallWithLayout(
      tensor.builder(), std::string(xla::kPinCustomCallTarget), {tensor},
      *buffer, {shape}, /*opaque=*/"", /*has_side_effect=*/true, {kInPlace},
      /*literal=*/nullptr, kSchedule, kVersion);
}

}  // namespace

bool IsPinned(const xla::Shape& shape) { return shape.IsBuffer(); }

xla::XlaOp Pin(xla::XlaOp tensor) {
  const absl::StatusOr<xla::Shape> shape = tensor.builder()->GetShape(tensor);
  if (!shape.ok()) return tensor.builder()->ReportError(shape.status());
  return PinShaped(tensor, *shape);
}

xla::XlaOp Unpin(xla::XlaOp value) {
  const absl::StatusOr<xla::Shape> shape = value.builder()->GetShape(value);
  if (!shape.ok()) return value.builder()->ReportError(shape.status());
  if (!IsPinned(*shape)) return value;
  return xla::CustomCall(
      value.builder(), std::string(xla::kUnpinCustomCallTarget), {value},
      shape->buffer_shape(), /*opaque=*/"", /*has_side_effect=*/false,
      {kInPlace}, /*literal=*/nullptr, kSchedule, kVersion);
}

}  // namespace tfring
