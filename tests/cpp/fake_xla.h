// XLA as a handler of its FFI sees it: calls one with buffers and attributes,
// on a stream.
#ifndef TESTS_CPP_FAKE_XLA_H_
#define TESTS_CPP_FAKE_XLA_H_

#include <cstdint>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "xla/ffi/api/c_api.h"

// Left open by the header.
struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};
struct XLA_FFI_ExecutionContext {
  void* stream;
  int32_t device;
};
struct XLA_FFI_Future {
  std::promise<XLA_FFI_Error*> error;  // null if there is none
};

namespace tfring {

struct XlaBuffer {
  XLA_FFI_DataType dtype;
  void* data;
  std::vector<int64_t> dims;
};

using XlaAttribute = std::variant<std::string, int64_t>;

// The part of XLA's FFI API that our handlers use.
inline const XLA_FFI_Api& FakeXlaApi() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api made{};
    made.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    made.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
    made.api_version.major_version = XLA_FFI_API_MAJOR;
    made.api_version.minor_version = XLA_FFI_API_MINOR;
    made.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return new XLA_FFI_Error{args->errc, args->message};
    };
    made.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      args->message = args->error->message.c_str();
    };
    made.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) {
      delete args->error;
    };
    made.XLA_FFI_Stream_Get =
        [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
      args->stream = args->ctx->stream;
      return nullptr;
    };
    made.XLA_FFI_DeviceOrdinal_Get =
        [](XLA_FFI_DeviceOrdinal_Get_Args* args) -> XLA_FFI_Error* {
      args->device_ordinal = args->ctx->device;
      return nullptr;
    };
    made.XLA_FFI_Future_Create =
        [](XLA_FFI_Future_Create_Args* args) -> XLA_FFI_Error* {
      args->future = new XLA_FFI_Future;
      return nullptr;
    };
    made.XLA_FFI_Future_SetAvailable =
        [](XLA_FFI_Future_SetAvailable_Args* args) -> XLA_FFI_Error* {
      args->future->error.set_value(nullptr);
      return nullptr;
    };
    made.XLA_FFI_Future_SetError =
        [](XLA_FFI_Future_SetError_Args* args) -> XLA_FFI_Error* {
      args->future->error.set_value(args->error);
      return nullptr;
    };
    return made;
  }();
  return api;
}

// Calls `handler` as a running XLA program would, and waits for its future.
inline absl::Status CallHandler(
    XLA_FFI_Handler* handler, void* stream, int32_t device,
    std::vector<XlaBuffer> args, std::vector<XlaBuffer> rets,
    const std::map<std::string, XlaAttribute>& attributes) {
  XLA_FFI_ExecutionContext context{stream, device};
  const auto described = [](std::vector<XlaBuffer>& buffers) {
    std::vector<XLA_FFI_Buffer> result;
    for (XlaBuffer& buffer : buffers) {
      result.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, buffer.dtype,
                        buffer.data, static_cast<int64_t>(buffer.dims.size()),
                        buffer.dims.data()});
    }
    return result;
  };
  const auto pointers = [](auto& items) {
    std::vector<void*> result;
    for (auto& item : items) result.push_back(&item);
    return result;
  };
  std::vector<XLA_FFI_Buffer> arg_buffers = described(args);
  std::vector<XLA_FFI_Buffer> ret_buffers = described(rets);
  std::vector<void*> arg_pointers = pointers(arg_buffers);
  std::vector<void*> ret_pointers = pointers(ret_buffers);
  std::vector<XLA_FFI_ArgType> arg_types(args.size(), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(rets.size(), XLA_FFI_RetType_BUFFER);
  std::vector<XLA_FFI_ByteSpan> names, texts;
  std::vector<XLA_FFI_Scalar> numbers;
  names.reserve(attributes.size());
  texts.reserve(attributes.size());
  numbers.reserve(attributes.size());
  std::vector<XLA_FFI_ByteSpan*> name_pointers;
  std::vector<void*> values;
  std::vector<XLA_FFI_AttrType> types;
  for (const auto& [name, value] : attributes) {
    name_pointers.push_back(
        &names.emplace_back(XLA_FFI_ByteSpan{name.data(), name.size()}));
    if (const auto* const text = std::get_if<std::string>(&value)) {
      types.push_back(XLA_FFI_AttrType_STRING);
      values.push_back(
          &texts.emplace_back(XLA_FFI_ByteSpan{text->data(), text->size()}));
    } else {
      types.push_back(XLA_FFI_AttrType_SCALAR);
      int64_t* const number = const_cast<int64_t*>(&std::get<int64_t>(value));
      values.push_back(
          &numbers.emplace_back(XLA_FFI_Scalar{XLA_FFI_DataType_S64, number}));
    }
  }

  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &FakeXlaApi();
  frame.ctx = &context;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr,
                static_cast<int64_t>(args.size()), arg_types.data(),
                arg_pointers.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr,
                static_cast<int64_t>(rets.size()), ret_types.data(),
                ret_pointers.data()};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                 nullptr,
                 static_cast<int64_t>(attributes.size()),
                 types.data(),
                 name_pointers.data(),
                 values.data()};
  XLA_FFI_Error* error = handler(&frame);
  if (frame.future != nullptr) {
    error = frame.future->error.get_future().get();
    delete frame.future;
  }
  if (error == nullptr) return absl::OkStatus();
  const absl::Status status(static_cast<absl::StatusCode>(error->code),
                            error->message);
  delete error;
  return status;
}

}  // namespace tfring

#endif  // TESTS_CPP_FAKE_XLA_H_
