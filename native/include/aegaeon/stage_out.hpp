// One drain's way from the stage ring's slots to a job's destinations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "aegaeon/mover.hpp"
#include "aegaeon/stage.hpp"

namespace aegaeon {

// Used by one thread. What is copied from must stay as it is until `finish`: a stream's copies are under way until
// then.
class StageOut {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{512} << 10;

  // `piece`: kPieceBytes for what is converted. `device` is used when the job has a destination there.
  StageOut(const StageJob& job, std::byte* piece, const cuda::SharedDevice& device);

  // The bytes of a part, which are at `src`, converted where the job wants another format.
  void write(const StagePart& part, const std::byte* src);
  void finish();

 private:
  void copy(std::uint64_t to, const std::byte* src, std::size_t bytes);
  void convert_and_copy(const StagePart& part, const std::byte* src);

  const StageJob& job_;
  std::byte* const piece_;
  const std::unique_ptr<Mover> memory_;
  const std::unique_ptr<Mover> device_;  // null without a destination there
};

}  // namespace aegaeon
