#include "aegaeon/stage.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <stdexcept>

#include "aegaeon/cuda/stores.hpp"
#include "aegaeon/errors.hpp"
#include "aegaeon/range.hpp"
#include "fake_cuda.hpp"

namespace {

using aegaeon::Float;
using aegaeon::NativeError;
using aegaeon::StageJob;
using aegaeon::StageRing;

constexpr std::size_t kChunk = 8192;

class Stage : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "aegaeon-stage-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    ASSERT_GE(fd, 0);
    ::close(fd);
    path_ = name;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // A file of `bytes` with another value at each place, read from `begin` on to the same places of `image_`.
  StageJob job(std::size_t bytes, std::size_t begin = 0) {
    source_.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i) source_[i] = static_cast<char>(i * 7 + i / 251);
    std::ofstream(path_, std::ios::binary).write(source_.data(), static_cast<std::streamsize>(bytes));
    image_.assign(bytes, 0);
    StageJob made;
    made.files = {path_};
    made.destinations = {reinterpret_cast<std::byte*>(image_.data())};
    for (std::size_t at = begin; at < bytes; at += kChunk) {
      const std::size_t size = std::min(kChunk, bytes - at);
      made.chunks.push_back({0, at, size, {{at, size, Float::kF32, at}}});
    }
    return made;
  }

  std::string path_;
  std::string source_;
  std::string image_;
};

TEST_F(Stage, EveryByteArrivesWhateverTheRing) {
  for (const auto& [depth, readers] :
       std::vector<std::pair<std::size_t, std::size_t>>{{1, 1}, {3, 1}, {4, 2}, {4, 4}, {2, 8}}) {
    for (const std::size_t begin : {std::size_t{0}, std::size_t{77}}) {
      const StageJob read = job(100 * kChunk + 1234, begin);
      EXPECT_TRUE(StageRing(kChunk, depth, readers).run(read));
      EXPECT_EQ(image_.substr(begin), source_.substr(begin)) << depth << " " << readers;
    }
  }
}

TEST_F(Stage, EveryDestinationIsWritten) {
  StageJob read = job(10 * kChunk);
  std::string other(10 * kChunk, 0);
  read.destinations.push_back(reinterpret_cast<std::byte*>(other.data()));
  EXPECT_TRUE(StageRing(kChunk, 2, 1).run(read));
  EXPECT_EQ(image_, source_);
  EXPECT_EQ(other, source_);
}

TEST_F(Stage, AFileIsWrittenAtTheSamePlaces) {
  StageJob read = job(10 * kChunk + 5, 77);
  const aegaeon::Fd file(::memfd_create("image", MFD_CLOEXEC));
  read.into_file = file.get();
  EXPECT_TRUE(StageRing(kChunk, 2, 1).run(read));
  std::string written(source_.size(), 1);
  EXPECT_EQ(::pread(file.get(), written.data(), written.size(), 0), static_cast<ssize_t>(written.size()));
  EXPECT_EQ(written, image_);
}

TEST_F(Stage, AFullFileSystemEndsTheRun) {
  StageJob read = job(10 * kChunk);
  const aegaeon::Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  read.into_file = full.get();
  EXPECT_THROW(StageRing(kChunk, 2, 1).run(read), aegaeon::FileSystemFullError);
}

TEST_F(Stage, WatchSeesTheStartAndTheEnd) {
  StageJob read = job(10 * kChunk);
  std::vector<std::uint64_t> seen;
  read.watch = [&](std::uint64_t done) {
    seen.push_back(done);
    return true;
  };
  EXPECT_TRUE(StageRing(kChunk, 2, 1).run(read));
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.back(), 10 * kChunk);
}

TEST_F(Stage, WatchStopsItInTheMiddle) {
  StageJob read = job(100 * kChunk);
  std::atomic<int> inspected{0};
  std::latch go_ahead{1};
  read.inspect = [&](std::size_t, const std::byte*) {
    if (++inspected == 3) go_ahead.wait();
  };
  read.watch = [&](std::uint64_t) {
    const bool go_on = inspected < 3;
    if (!go_on) go_ahead.count_down();
    return go_on;
  };
  EXPECT_FALSE(StageRing(kChunk, 1, 1).run(read));
  EXPECT_LE(inspected, 4);
}

TEST_F(Stage, InspectSeesEveryChunkOnce) {
  StageJob read = job(50 * kChunk);
  std::vector<std::atomic<int>> seen(read.chunks.size());
  read.inspect = [&](std::size_t chunk, const std::byte* data) {
    EXPECT_EQ(std::memcmp(data, source_.data() + chunk * kChunk, kChunk), 0);
    ++seen[chunk];
  };
  EXPECT_TRUE(StageRing(kChunk, 4, 2).run(read));
  EXPECT_TRUE(std::ranges::all_of(seen, [](const auto& count) { return count == 1; }));
}

TEST_F(Stage, WhatInspectThrowsEndsTheRun) {
  StageJob read = job(50 * kChunk);
  read.inspect = [](std::size_t chunk, const std::byte*) {
    if (chunk == 20) throw std::domain_error("enough");
  };
  StageRing ring(kChunk, 4, 2);
  EXPECT_THROW(ring.run(read), std::domain_error);
  read.inspect = nullptr;
  EXPECT_TRUE(ring.run(read));
  EXPECT_EQ(image_, source_);
}

TEST_F(Stage, AFileThatEndsEarlyOrIsNotThereIsNamed) {
  const StageJob read = job(50 * kChunk);
  std::filesystem::resize_file(path_, 30 * kChunk + 5);
  StageRing ring(kChunk, 4, 2);
  try {
    ring.run(read);
    ADD_FAILURE() << "it ran";
  } catch (const NativeError& error) {
    EXPECT_EQ(std::string(error.what()), path_ + ": ends early; it was changed while being read");
  }
  std::filesystem::remove(path_);
  EXPECT_THROW(ring.run(read), NativeError);
}

TEST_F(Stage, PartsOutsideTheirChunkAreRefused) {
  const std::vector<aegaeon::StagePart> outside{
      {4 * kChunk, 4, Float::kF32, 0}, {3 * kChunk, 2 * kChunk, Float::kF32, 0}, {0, 4, Float::kF32, 0}};
  for (const aegaeon::StagePart& part : outside) {
    StageJob read = job(50 * kChunk);
    read.chunks[2].parts = {part};
    EXPECT_THROW(StageRing(kChunk, 1, 1).run(read), NativeError);
  }
  EXPECT_THROW(StageRing(kChunk - 1, 1, 1).run(job(kChunk)), NativeError);
  EXPECT_THROW(StageRing(kChunk, 1, 0), NativeError);
}

// The double's device memory can be looked at from here.
class StageToDevice : public Stage {
 protected:
  static constexpr std::size_t kSlab = 2 << 20;
  static constexpr std::size_t kSlabs = 3;

  void SetUp() override {
    Stage::SetUp();
    device_ = std::make_shared<aegaeon::cuda::Device>(0, FAKE_CUDA);
    range_ = std::make_unique<aegaeon::Range>(aegaeon::cuda::create_pool(device_, kSlab, kSlabs), kSlabs);
    range_->map(0, std::vector<aegaeon::Slab>{2, 0, 1});
  }
  void TearDown() override {
    range_.reset();
    device_.reset();
    const FakeLive live = fake_live();
    EXPECT_EQ(live.locked + live.streams + live.events + live.contexts, 0);
    Stage::TearDown();
  }

  StageJob to_device(std::size_t bytes) {
    StageJob made = job(bytes);
    made.on_device = reinterpret_cast<std::byte*>(range_->address());
    return made;
  }
  std::string arrived(std::size_t bytes) const { return {reinterpret_cast<const char*>(range_->address()), bytes}; }

  aegaeon::cuda::SharedDevice device_;
  std::unique_ptr<aegaeon::Range> range_;
};

TEST_F(StageToDevice, EveryByteArrivesOnTheDeviceAndInTheCacheAtOnce) {
  const std::size_t bytes = kSlabs * kSlab - 1000;
  StageJob both = to_device(bytes);
  StageRing ring(kChunk, 3, 2, device_);
  EXPECT_EQ(fake_live().locked, 1);
  EXPECT_TRUE(ring.run(both));
  EXPECT_EQ(image_, source_);
  EXPECT_EQ(arrived(bytes), source_);
  both.destinations.clear();
  std::memset(reinterpret_cast<void*>(range_->address()), 0, bytes);
  EXPECT_TRUE(ring.run(both));
  EXPECT_EQ(arrived(bytes), source_);
}

TEST_F(StageToDevice, WhatIsConvertedIsTheSameOnBothSides) {
  constexpr std::size_t kBig = 1 << 20;  // several pieces in a chunk
  const std::size_t bytes = kSlabs * kSlab / 2;
  StageJob both = to_device(bytes);
  image_.assign(2 * bytes, 0);
  both.destinations = {reinterpret_cast<std::byte*>(image_.data())};
  both.chunks.clear();
  for (std::size_t at = 0; at < bytes; at += kBig)
    both.chunks.push_back({0, at, kBig, {{at, kBig, Float::kBF16, 2 * at}}});
  EXPECT_TRUE(StageRing(kBig, 4, 2, device_).run(both));
  EXPECT_EQ(arrived(2 * bytes), image_);
  EXPECT_NE(image_, std::string(2 * bytes, 0));
}

TEST_F(StageToDevice, ACopyThatFailsEndsTheRunAndNothingIsUnderWayAfterwards) {
  const std::size_t bytes = kSlabs * kSlab;
  const StageJob read = to_device(bytes);
  StageRing ring(kChunk, 3, 2, device_);
  fake_fail("cuMemcpyAsync", 1, 40);
  EXPECT_THROW(ring.run(read), NativeError);
  std::memset(reinterpret_cast<void*>(range_->address()), 7, bytes);
  EXPECT_EQ(arrived(bytes), std::string(bytes, 7));
  EXPECT_EQ(fake_live().streams, 0);
  EXPECT_TRUE(ring.run(read));
  EXPECT_EQ(arrived(bytes), source_);
}

TEST_F(StageToDevice, ARingOfThisMachineHasNoDevice) {
  EXPECT_THROW(StageRing(kChunk, 1, 1).run(to_device(kChunk)), NativeError);
}

TEST_F(Stage, NothingToReadIsDoneAtOnce) { EXPECT_TRUE(StageRing(kChunk, 2, 1).run(job(0))); }

}  // namespace
