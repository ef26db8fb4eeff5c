// The part of CUDA's driver API that is used, declared here because the module builds without a toolkit and finds the
// driver when it is first needed. cuda/api_check.cpp compares every line with cuda.h (`make cuda`).
#pragma once

#include <cstddef>
#include <cstdint>

namespace aegaeon::cuda {

using Result = int;
using DevicePtr = unsigned long long;
using MemHandle = unsigned long long;
using DeviceId = int;
using Context = struct ContextOf*;
using Stream = struct StreamOf*;
using CuEvent = struct EventOf*;

struct Uuid {
  unsigned char bytes[16];
};

struct Location {
  int type;
  int id;
};

struct AllocationProp {
  int type;
  int handle_types;
  Location location;
  void* win32;
  struct {
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDesc {
  Location location;
  int flags;
};

struct CopyAttributes {
  int source_order;
  Location source_hint;
  Location target_hint;
  unsigned int flags;
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kGranularityMinimum = 0;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kAttributeMajor = 75;
inline constexpr int kAttributeMinor = 76;
inline constexpr int kAttributeSameHostPointer = 91;
inline constexpr int kAttributeVmm = 102;
inline constexpr int kAttributeReadOnlyLocks = 113;
inline constexpr unsigned kRegisterPortable = 1;
inline constexpr unsigned kRegisterDeviceMap = 2;
inline constexpr unsigned kRegisterReadOnly = 8;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingNoTiming = 3;
inline constexpr int kSourceOrderStream = 1;

// X(symbol in libcuda.so.1, its parameters). All return Result.
#define AEGAEON_CUDA_CALLS(X)                                                                   \
  X(cuInit, (unsigned))                                                                         \
  X(cuDriverGetVersion, (int*))                                                                 \
  X(cuDeviceGetCount, (int*))                                                                   \
  X(cuDeviceGet, (DeviceId*, int))                                                              \
  X(cuDeviceGetName, (char*, int, DeviceId))                                                    \
  X(cuDeviceGetPCIBusId, (char*, int, DeviceId))                                                \
  X(cuDeviceGetUuid_v2, (Uuid*, DeviceId))                                                      \
  X(cuDeviceTotalMem_v2, (std::size_t*, DeviceId))                                              \
  X(cuDeviceGetAttribute, (int*, int, DeviceId))                                                \
  X(cuDevicePrimaryCtxRetain, (Context*, DeviceId))                                             \
  X(cuDevicePrimaryCtxRelease_v2, (DeviceId))                                                   \
  X(cuCtxPushCurrent_v2, (Context))                                                             \
  X(cuCtxPopCurrent_v2, (Context*))                                                             \
  X(cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                              \
  X(cuMemGetAllocationGranularity, (std::size_t*, const AllocationProp*, int))                  \
  X(cuMemCreate, (MemHandle*, std::size_t, const AllocationProp*, unsigned long long))          \
  X(cuMemRelease, (MemHandle))                                                                  \
  X(cuMemAddressReserve, (DevicePtr*, std::size_t, std::size_t, DevicePtr, unsigned long long)) \
  X(cuMemAddressFree, (DevicePtr, std::size_t))                                                 \
  X(cuMemMap, (DevicePtr, std::size_t, std::size_t, MemHandle, unsigned long long))             \
  X(cuMemUnmap, (DevicePtr, std::size_t))                                                       \
  X(cuMemSetAccess, (DevicePtr, std::size_t, const AccessDesc*, std::size_t))                   \
  X(cuMemHostRegister_v2, (void*, std::size_t, unsigned))                                       \
  X(cuMemHostUnregister, (void*))                                                               \
  X(cuStreamCreate, (Stream*, unsigned))                                                        \
  X(cuStreamSynchronize, (Stream))                                                              \
  X(cuStreamDestroy_v2, (Stream))                                                               \
  X(cuEventCreate, (CuEvent*, unsigned))                                                        \
  X(cuEventRecord, (CuEvent, Stream))                                                           \
  X(cuEventSynchronize, (CuEvent))                                                              \
  X(cuEventDestroy_v2, (CuEvent))                                                               \
  X(cuMemcpyAsync, (DevicePtr, DevicePtr, std::size_t, Stream))

// Drivers before 13.0 lack these.
#define AEGAEON_CUDA_LATER_CALLS(X) \
  X(cuMemcpyBatchAsync_v2,          \
    (DevicePtr*, DevicePtr*, std::size_t*, std::size_t, CopyAttributes*, std::size_t*, std::size_t, Stream))

}  // namespace aegaeon::cuda
