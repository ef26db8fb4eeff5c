#include "aegaeon/cpu_level.hpp"

#include <gtest/gtest.h>

#include "aegaeon/errors.hpp"

using aegaeon::CpuLevel;
using aegaeon::lowered;

TEST(CpuLevel, IsTheProcessorsUnlessALowerOneIsAskedFor) {
  EXPECT_EQ(lowered(CpuLevel::kAvx512, ""), CpuLevel::kAvx512);
  EXPECT_EQ(lowered(CpuLevel::kAvx512, "avx512"), CpuLevel::kAvx512);
  EXPECT_EQ(lowered(CpuLevel::kAvx512, "avx2"), CpuLevel::kAvx2);
  EXPECT_EQ(lowered(CpuLevel::kAvx512, "baseline"), CpuLevel::kBaseline);
}

TEST(CpuLevel, IsRefusedWhereTheProcessorHasLessOrNoneHasThatName) {
  EXPECT_THROW(lowered(CpuLevel::kAvx2, "avx512"), aegaeon::NativeError);
  EXPECT_THROW(lowered(CpuLevel::kBaseline, "avx2"), aegaeon::NativeError);
  EXPECT_THROW(lowered(CpuLevel::kAvx512, "AVX2"), aegaeon::NativeError);
  EXPECT_THROW(lowered(CpuLevel::kAvx512, "sse9"), aegaeon::NativeError);
}
