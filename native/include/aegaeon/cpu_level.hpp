// Which vector instructions the native core uses, decided once for the process.
#pragma once

#include <cstdint>
#include <string_view>

namespace aegaeon {

// In order: each has all that those before it have.
enum class CpuLevel : std::uint8_t {
  kBaseline,  // what the compiler emits for any processor of this architecture
  kAvx2,      // AVX2 and FMA
  kAvx512,    // AVX-512 F and DQ
};

// What the processor has; or less, where AEGAEON_CPU_LEVEL in the environment says so: baseline, avx2 or avx512. Raises
// NativeError for another word, and for more than the processor has.
CpuLevel cpu_level();

std::string_view cpu_level_name(CpuLevel level);

// What `cpu_level` says of a processor that has `highest`, with this value of AEGAEON_CPU_LEVEL; empty: it is not set.
CpuLevel lowered(CpuLevel highest, std::string_view wanted);

}  // namespace aegaeon
