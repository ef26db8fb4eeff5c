#include "aegaeon/cuda/driver.hpp"

#include <dlfcn.h>

#include "aegaeon/errors.hpp"

namespace aegaeon::cuda {

namespace {

constexpr int kOldestDriver = 12000;  // stream priorities, VMM and primary contexts are older; nothing older is tested

// The driver must outlive every thread that may still be inside it, so it is never unloaded.
std::shared_ptr<void> open(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    throw NativeError("NVIDIA's driver cannot be loaded (" + std::string(::dlerror()) +
                      "); install it, or use device cpu");
  }
  return {handle, [](void* opened) { ::dlclose(opened); }};
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

template <typename Function>
void require(void* library, const char* name, Function& function) {
  find(library, name, function);
  if (function != nullptr) return;
  throw NativeError(std::string("NVIDIA's driver has no ") + name + "; update it to 525 or later, or use device cpu");
}

}  // namespace

void throw_result(const char* call, Result code, Result (*describe)(Result, const char**)) {
  const char* text = nullptr;
  const bool known = describe != nullptr && describe(code, &text) == kSuccess && text != nullptr;
  throw NativeError(std::string(call) + ": " + (known ? text : "unknown error") + " (CUDA error " +
                    std::to_string(code) + ")");
}

Driver::Driver(const std::string& library) : library_(open(library)) {
  Result (*describe)(Result, const char**) = nullptr;
  require(library_.get(), "cuGetErrorString", describe);
#define AEGAEON_FIND(name, parameters)                 \
  require(library_.get(), #name, this->name.function); \
  this->name.describe = describe;
  AEGAEON_CUDA_CALLS(AEGAEON_FIND)
#undef AEGAEON_FIND
#define AEGAEON_FIND(name, parameters)              \
  find(library_.get(), #name, this->name.function); \
  this->name.describe = describe;
  AEGAEON_CUDA_LATER_CALLS(AEGAEON_FIND)
#undef AEGAEON_FIND
  cuInit(0);
  int version = 0;
  cuDriverGetVersion(&version);
  if (version < kOldestDriver) {
    throw NativeError("NVIDIA's driver speaks CUDA " + std::to_string(version / 1000) + "." +
                      std::to_string(version % 1000 / 10) + "; 12.0 is the oldest that serves: update it");
  }
}

}  // namespace aegaeon::cuda
