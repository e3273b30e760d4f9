// Modules, and the launches of their kernels.
#include <elf.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/fake/cuda/entry.h"
#include "tests/gpu/fake/cuda/fake_cuda.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/cuda_pieces.h"

using namespace tfring::fake_cuda;  // NOLINT(google-build-using-namespace)

namespace {

using tfring::DataType;

constexpr int kErrorLog = 5;       // CU_JIT_ERROR_LOG_BUFFER
constexpr int kCudaMachine = 190;  // EM_CUDA

uint64_t Address(const void* host) { return reinterpret_cast<uint64_t>(host); }

using Reduce = void (*)(void* dst, const void* a, const void* b, int64_t count);
using CopyPieces = void (*)(tfring::CudaPieces table);

struct Function {
  const Context* context = nullptr;
  void* kernel = nullptr;
  bool copies_pieces = false;
  uint64_t from_bytes = 1, to_bytes = 1;  // an element
};

// By its name, "tfring_sum_float32", "tfring_copy_uint8" or
// "tfring_convert_float32_float16", as cuda_kernels.cu has it.
Function Describe(const std::string& name) {
  Function function{CurrentContext(), FindKernel(name.c_str())};
  std::vector<std::string> words;
  std::istringstream stream(name);
  for (std::string word; std::getline(stream, word, '_');) {
    words.push_back(word);
  }
  const std::string& what = words[1];
  function.copies_pieces =
      what == "copy" || what == "scale" || what == "convert";
  for (int type = 0; type <= static_cast<int>(DataType::kBool); ++type) {
    const auto dtype = static_cast<DataType>(type);
    if (words[2] == Name(dtype)) function.from_bytes = SizeInBytes(dtype);
    if (words.back() == Name(dtype)) function.to_bytes = SizeInBytes(dtype);
  }
  return function;
}

struct Module {
  Context* context;
  std::set<std::string> names;
  std::map<std::string, Function> functions;
};

std::set<std::string> NamesInPtx(const std::string& ptx) {
  std::set<std::string> names;
  const std::string entry = ".visible .entry ";
  for (size_t at = ptx.find(entry); at != std::string::npos;
       at = ptx.find(entry, at)) {
    at += entry.size();
    names.insert(ptx.substr(at, ptx.find('(', at) - at));
  }
  return names;
}

// Each kernel has its own section in GPU code.
std::set<std::string> NamesInCode(const char* image) {
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* const sections =
      reinterpret_cast<const Elf64_Shdr*>(image + header.e_shoff);
  const char* const texts = image + sections[header.e_shstrndx].sh_offset;
  std::set<std::string> names;
  const std::string text = ".text.";
  for (int i = 0; i < header.e_shnum; ++i) {
    const std::string name = texts + sections[i].sh_name;
    if (name.rfind(text, 0) == 0) names.insert(name.substr(text.size()));
  }
  return names;
}

// The capability that code was made for: another byte has it since ABI 8.
int MadeFor(const Elf64_Ehdr& header) {
  const unsigned shift = header.e_ident[EI_ABIVERSION] < 8 ? 0 : 8;
  return static_cast<int>(header.e_flags >> shift & 0xff);
}

// Code runs on GPUs of its generation that are no older.
bool RunsHere(const char* image) {
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(image);
  const int made_for = MadeFor(header), capability = GetOptions().capability;
  return GetOptions().no_code == 0 && header.e_machine == kCudaMachine &&
         made_for / 10 == capability / 10 && made_for <= capability;
}

// The loaded modules.
std::mutex modules_mutex;
std::set<Module*>& Modules() {
  static auto* const modules = new std::set<Module*>();
  return *modules;
}
// Sets `found` to a copy, as the module may be unloaded.
int FindFunction(const void* handle, Function* found) {
  const std::lock_guard<std::mutex> lock(modules_mutex);
  for (const Module* const module : Modules()) {
    for (const auto& [name, function] : module->functions) {
      if (&function != handle) continue;
      *found = function;
      return function.context == CurrentContext() ? kSuccess : kInvalidHandle;
    }
  }
  return kInvalidHandle;
}

// Launch... leave `kernel` empty where an address is not the GPU's.

int LaunchReduce(const Function& function, void** parameters,
                 std::function<void()>& kernel) {
  uint64_t addresses[3], together = 0;
  for (int i = 0; i < 3; ++i) {
    std::memcpy(&addresses[i], parameters[i], sizeof(addresses[i]));
    if (addresses[i] % function.to_bytes != 0) return kMisaligned;
    together |= addresses[i];
  }
  int64_t count = 0;
  std::memcpy(&count, parameters[3], sizeof(count));
  if (together % 16 != 0 && count * function.to_bytes >= 16) {
    ++GetCounts().slow_reductions;
  }
  const uint64_t bytes = count * function.to_bytes;
  const uint64_t most = GetOptions().blind_kernels;
  std::byte* operands[3];
  std::vector<std::byte> zeros;
  for (int i = 0; i < 3; ++i) {
    operands[i] = OnHost(addresses[i], bytes);
    if (operands[i] == nullptr) return kSuccess;
    if (most > 0 && bytes >= most && IsImported(addresses[i])) {
      zeros.resize(bytes);
      operands[i] = nullptr;
    }
  }
  kernel = [dst = operands[0], a = operands[1], b = operands[2], count,
            zeros = std::move(zeros),
            reduce = reinterpret_cast<Reduce>(function.kernel)] {
    reduce(dst, a == nullptr ? zeros.data() : a,
           b == nullptr ? zeros.data() : b, count);
  };
  return kSuccess;
}

int LaunchCopyPieces(const Function& function, void** parameters,
                     std::function<void()>& kernel) {
  tfring::CudaPieces table;
  std::memcpy(&table, parameters[0], sizeof(table));
  for (int64_t i = 0; i < table.count; ++i) {
    tfring::CudaPiece& piece = table.pieces[i];
    const uint64_t from = Address(piece.from), to = Address(piece.to);
    if (from % function.from_bytes != 0 || to % function.to_bytes != 0) {
      return kMisaligned;
    }
    piece.from = OnHost(from, piece.count * function.from_bytes);
    piece.to = OnHost(to, piece.count * function.to_bytes);
    if (piece.from == nullptr || piece.to == nullptr) return kSuccess;
  }
  kernel = [table, copy = reinterpret_cast<CopyPieces>(function.kernel)] {
    copy(table);
  };
  return kSuccess;
}

}  // namespace

ENTRY cuModuleLoadDataEx(void** module, const void* image, unsigned options,
                         const int* names, void** values) {
  RETURN_IF_ERROR(Check());
  MayWaitUntilAllIdle();
  const auto* const bytes = static_cast<const char*>(image);
  const bool assembled = std::memcmp(bytes, ELFMAG, SELFMAG) == 0;
  if (assembled) {
    if (!RunsHere(bytes)) return kNoBinaryForGpu;
  } else if (GetOptions().no_compiler != 0) {
    for (unsigned i = 0; i < options; ++i) {
      if (names[i] != kErrorLog) continue;
      std::strcpy(static_cast<char*>(values[i]), "the fake compiler is lost");
    }
    return kNoCompiler;
  } else if (std::strstr(bytes, ".version 8.1\n.target sm_52\n") == nullptr) {
    return kInvalidPtx;
  }
  auto* const loaded = new Module{
      CurrentContext(), assembled ? NamesInCode(bytes) : NamesInPtx(bytes), {}};
  if (!assembled) ++GetCounts().compiled_modules;
  *module = loaded;
  ++GetCounts().loaded_modules;
  const std::lock_guard<std::mutex> lock(modules_mutex);
  Modules().insert(loaded);
  return kSuccess;
}
ENTRY cuModuleUnload(Module* module) {
  RETURN_IF_ERROR(Check());
  MayWaitUntilAllIdle();
  const std::lock_guard<std::mutex> lock(modules_mutex);
  if (Modules().erase(module) == 0) return kInvalidHandle;
  if (module->context != CurrentContext()) return kInvalidContext;
  delete module;
  return kSuccess;
}
ENTRY cuModuleGetFunction(void** function, Module* module, const char* name) {
  RETURN_IF_ERROR(Check());
  const std::lock_guard<std::mutex> lock(modules_mutex);
  if (Modules().count(module) == 0) return kInvalidHandle;
  if (module->context != CurrentContext()) return kInvalidContext;
  if (module->names.count(name) == 0) return kNotFound;
  auto found = module->functions.find(name);
  if (found == module->functions.end()) {
    found = module->functions.emplace(name, Describe(name)).first;
  }
  *function = &found->second;
  return found->second.kernel == nullptr ? kNotFound : kSuccess;
}

ENTRY cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y,
                     unsigned grid_z, unsigned block_x, unsigned block_y,
                     unsigned block_z, unsigned shared_bytes, void* handle,
                     void** parameters, void** extra) {
  Stream* stream = nullptr;
  Function asked;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  RETURN_IF_ERROR(FindFunction(function, &asked));
  if (grid_x < 1 || block_x < 1 || block_x > 1024 || grid_y != 1 ||
      grid_z != 1 || block_y != 1 || block_z != 1 || shared_bytes != 0 ||
      extra != nullptr) {
    return kInvalidValue;
  }
  auto& left = GetOptions().launches_left;
  if (left == 0) return kLaunchFailed;
  if (left > 0) --left;
  std::atomic<int64_t>& most = GetCounts().most_blocks;
  for (int64_t before = most;
       before < grid_x && !most.compare_exchange_weak(before, grid_x);) {
  }
  std::function<void()> kernel;
  RETURN_IF_ERROR(asked.copies_pieces
                      ? LaunchCopyPieces(asked, parameters, kernel)
                      : LaunchReduce(asked, parameters, kernel));
  Enqueue(stream, [=] {
    if (kernel == nullptr) return kIllegalAddress;
    RunGrid(grid_x, block_x, kernel);
    return kSuccess;
  });
  return kSuccess;
}
