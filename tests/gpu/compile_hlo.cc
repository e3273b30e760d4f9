// Compiles a module for a GPU that is not there, by the plugin of XLA that JAX
// has, which takes from JAX itself no module with schedules of custom calls:
// StableHLO has none.  tests/gpu/schedule.py loads it.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "xla/ffi/api/ffi.h"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/c/pjrt_c_api_ffi_extension.h"

namespace {

const PJRT_Api* Api(const char* plugin) {
  void* const library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  void* const get = library == nullptr ? nullptr : dlsym(library, "GetPjrtApi");
  return get == nullptr ? nullptr
                        : reinterpret_cast<const PJRT_Api* (*)()>(get)();
}

std::string Message(const PJRT_Api& api, PJRT_Error* error) {
  PJRT_Error_Message_Args arguments{};
  arguments.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  arguments.error = error;
  api.PJRT_Error_Message(&arguments);
  return {arguments.message, arguments.message_size};
}

// A stub for our handlers. Compilers ask a handler only for the version of its
// interface.
XLA_FFI_DEFINE_HANDLER(Handle, [] { return xla::ffi::Error::Success(); },
                       xla::ffi::Ffi::Bind());

// Returns an error, or null.
const char* Register(const PJRT_Api& api, const std::string& target) {
  const PJRT_Extension_Base* extension = api.extension_start;
  while (extension != nullptr && extension->type != PJRT_Extension_Type_FFI) {
    extension = extension->next;
  }
  if (extension == nullptr) return "the plugin takes no handlers";
  const std::string platform = "CUDA";
  PJRT_FFI_Register_Handler_Args arguments{};
  arguments.struct_size = PJRT_FFI_Register_Handler_Args_STRUCT_SIZE;
  arguments.target_name = target.data();
  arguments.target_name_size = target.size();
  arguments.handler = reinterpret_cast<void*>(Handle);
  arguments.platform_name = platform.data();
  arguments.platform_name_size = platform.size();
  PJRT_Error* const error =
      reinterpret_cast<const PJRT_FFI_Extension*>(extension)->register_handler(
          &arguments);
  return error == nullptr ? nullptr : "the plugin refuses a handler";
}

PJRT_NamedValue Option(const std::string& name, const std::string& value) {
  PJRT_NamedValue option{};
  option.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  option.name = name.data();
  option.name_size = name.size();
  option.type = PJRT_NamedValue_kString;
  option.string_value = value.data();
  option.value_size = value.size();
  return option;
}

std::string compiled;

}  // namespace

// Returns null, and the optimized module, an xla.HloModuleProto with a
// schedule; or what is wrong.  Both live until the next call.
extern "C" [[gnu::visibility("default")]] const char* compile_hlo(
    const char* plugin, const char* gpu, const char* module,
    size_t module_bytes, const char* options, size_t options_bytes,
    const char** optimized, size_t* optimized_bytes) {
  const PJRT_Api* const api = Api(plugin);
  if (api == nullptr) return "there is no such plugin";

  for (const char* const target : {"tfring_start", "tfring_done"}) {
    if (const char* const error = Register(*api, target)) return error;
  }
  const std::string names[] = {"target_config", "topology"};
  const std::string values[] = {gpu, "1x1x1"};
  const PJRT_NamedValue facts[] = {Option(names[0], values[0]),
                                   Option(names[1], values[1])};
  PJRT_TopologyDescription_Create_Args create{};
  create.struct_size = PJRT_TopologyDescription_Create_Args_STRUCT_SIZE;
  create.topology_name = "";
  create.create_options = facts;
  create.num_options = 2;
  if (PJRT_Error* const error = api->PJRT_TopologyDescription_Create(&create)) {
    return (compiled = Message(*api, error)).c_str();
  }

  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = const_cast<char*>(module);
  program.code_size = module_bytes;
  program.format = "hlo";
  program.format_size = 3;
  PJRT_Compile_Args compile{};
  compile.struct_size = PJRT_Compile_Args_STRUCT_SIZE;
  compile.topology = create.topology;
  compile.program = &program;
  compile.compile_options = options;
  compile.compile_options_size = options_bytes;
  if (PJRT_Error* const error = api->PJRT_Compile(&compile)) {
    return (compiled = Message(*api, error)).c_str();
  }

  PJRT_Program result{};
  result.struct_size = PJRT_Program_STRUCT_SIZE;
  PJRT_Executable_OptimizedProgram_Args take{};
  take.struct_size = PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE;
  take.executable = compile.executable;
  take.program = &result;
  // First how long it is, and then itself.
  if (PJRT_Error* const error = api->PJRT_Executable_OptimizedProgram(&take)) {
    return (compiled = Message(*api, error)).c_str();
  }
  compiled.resize(result.code_size);
  result.code = compiled.data();
  if (PJRT_Error* const error = api->PJRT_Executable_OptimizedProgram(&take)) {
    return (compiled = Message(*api, error)).c_str();
  }
  *optimized = compiled.data();
  *optimized_bytes = compiled.size();
  return nullptr;
}
