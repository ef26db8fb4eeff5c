// Holds aegaeon/cuda/api.hpp against NVIDIA's own cuda.h: every call's parameters by size and kind, every constant and
// every struct by layout. Compiled by `make cuda`, never linked.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "aegaeon/cuda/api.hpp"

namespace ours = aegaeon::cuda;

namespace aegaeon::cuda {

template <typename A, typename B>
constexpr bool same_kind =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> && alignof(A) == alignof(B);

template <typename A, typename B>
struct SameCall;
template <typename... A, typename... B>
struct SameCall<void(A...), CUresult(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return (same_kind<A, B> && ...);
    } else {
      return false;
    }
  }();
};

#define SAME_CALL(name, parameters) \
  static_assert(SameCall<void parameters, decltype(::name)>::value, #name " differs from cuda.h");
AEGAEON_CUDA_CALLS(SAME_CALL)
AEGAEON_CUDA_LATER_CALLS(SAME_CALL)

}  // namespace aegaeon::cuda

static_assert(sizeof(CUresult) == sizeof(ours::Result) && CUDA_SUCCESS == ours::kSuccess);
static_assert(CUDA_ERROR_OUT_OF_MEMORY == ours::kOutOfMemory);
static_assert(sizeof(CUmemAllocationProp) == sizeof(ours::AllocationProp));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(ours::AllocationProp, location));
static_assert(offsetof(CUmemAllocationProp, allocFlags) == offsetof(ours::AllocationProp, flags));
static_assert(sizeof(CUuuid) == sizeof(ours::Uuid));
static_assert(sizeof(CUmemAccessDesc) == sizeof(ours::AccessDesc));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(ours::AccessDesc, flags));
static_assert(sizeof(CUmemcpyAttributes) == sizeof(ours::CopyAttributes));
static_assert(offsetof(CUmemcpyAttributes, dstLocHint) == offsetof(ours::CopyAttributes, target_hint));
static_assert(offsetof(CUmemcpyAttributes, flags) == offsetof(ours::CopyAttributes, flags));
static_assert(CU_MEM_LOCATION_TYPE_DEVICE == ours::kLocationDevice);
static_assert(CU_MEM_ALLOCATION_TYPE_PINNED == ours::kAllocationPinned);
static_assert(CU_MEM_ALLOC_GRANULARITY_MINIMUM == ours::kGranularityMinimum);
static_assert(CU_MEM_ACCESS_FLAGS_PROT_READWRITE == ours::kAccessReadWrite);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == ours::kAttributeMajor);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == ours::kAttributeMinor);
static_assert(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM == ours::kAttributeSameHostPointer);
static_assert(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == ours::kAttributeVmm);
static_assert(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED == ours::kAttributeReadOnlyLocks);
static_assert(CU_MEMHOSTREGISTER_PORTABLE == ours::kRegisterPortable);
static_assert(CU_MEMHOSTREGISTER_DEVICEMAP == ours::kRegisterDeviceMap);
static_assert(CU_MEMHOSTREGISTER_READ_ONLY == ours::kRegisterReadOnly);
static_assert(CU_STREAM_NON_BLOCKING == ours::kStreamNonBlocking);
static_assert((CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) == ours::kEventBlockingNoTiming);
static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == ours::kSourceOrderStream);
