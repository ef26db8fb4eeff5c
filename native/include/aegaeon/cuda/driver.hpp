// libcuda.so.1 as a table of calls that throw. Found by dlopen, so that the module imports on a machine without it.
#pragma once

#include <memory>
#include <string>

#include "aegaeon/cuda/api.hpp"

namespace aegaeon::cuda {

[[noreturn]] void throw_result(const char* call, Result code, Result (*describe)(Result, const char**));

template <typename... P>
struct Call {
  const char* name;
  Result (*function)(P...) = nullptr;
  Result (*describe)(Result, const char**) = nullptr;

  // Throws NativeError naming the call and what the driver says of it.
  void operator()(P... parameters) const {
    const Result code = function(parameters...);
    if (code != kSuccess) throw_result(name, code, describe);
  }
  // For destructors, where a failure cannot be handled.
  Result quiet(P... parameters) const noexcept { return function(parameters...); }
  explicit operator bool() const { return function != nullptr; }
};

template <typename Signature>
struct CallOf;
template <typename... P>
struct CallOf<void(P...)> {
  using Type = Call<P...>;
};

class Driver {
 public:
  // Loads and initialises the driver. Throws NativeError saying what is missing.
  explicit Driver(const std::string& library);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

// NOLINTNEXTLINE(bugprone-macro-parentheses): the parameters bring their own
#define AEGAEON_CALL(name, parameters) CallOf<void parameters>::Type name{#name};
  AEGAEON_CUDA_CALLS(AEGAEON_CALL)
  AEGAEON_CUDA_LATER_CALLS(AEGAEON_CALL)
#undef AEGAEON_CALL

 private:
  std::shared_ptr<void> library_;
};

}  // namespace aegaeon::cuda
