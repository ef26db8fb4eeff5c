#include "aegaeon/cpu_level.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include "aegaeon/errors.hpp"

namespace aegaeon {

namespace {

constexpr std::array<std::string_view, 3> kNames{"baseline", "avx2", "avx512"};

#if defined(__x86_64__)

CpuLevel highest_level() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CpuLevel::kBaseline;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  return wide ? CpuLevel::kAvx512 : CpuLevel::kAvx2;
}

#else

CpuLevel highest_level() { return CpuLevel::kBaseline; }

#endif

}  // namespace

std::string_view cpu_level_name(CpuLevel level) { return kNames.at(static_cast<std::size_t>(level)); }

CpuLevel lowered(CpuLevel highest, std::string_view wanted) {
  if (wanted.empty()) return highest;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(highest); ++i)
    if (kNames[i] == wanted) return static_cast<CpuLevel>(i);
  throw NativeError("AEGAEON_CPU_LEVEL is " + std::string(wanted) + "; this processor has " +
                    std::string(cpu_level_name(highest)) + ", and the levels are baseline, avx2 and avx512");
}

CpuLevel cpu_level() {
  static const CpuLevel level = [] {
    const char* wanted = std::getenv("AEGAEON_CPU_LEVEL");
    return lowered(highest_level(), wanted == nullptr ? "" : wanted);
  }();
  return level;
}

}  // namespace aegaeon
