// The stage ring: a few page-aligned slots between files and memory, so that a load needs no second copy of a model.
// Reader threads fill slots from the files in order, past the page cache; drain threads convert and copy what is in
// them to its places in this machine's memory and in a GPU's, each by a stream of its own. No interpreter is on the
// way: a load keeps its rate while Python is busy with something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aegaeon/cuda/device.hpp"
#include "aegaeon/files.hpp"
#include "aegaeon/floats.hpp"

namespace aegaeon {

// `bytes` of format `of` at byte `at` of the file; in the job's format they go to byte `to` of each destination.
struct StagePart {
  std::uint64_t at;
  std::uint64_t bytes;
  Float of;
  std::uint64_t to;
};

// Bytes begin .. begin + bytes of a file. Its parts begin inside and end less than a page behind it.
struct StageChunk {
  std::size_t file;
  std::uint64_t begin;
  std::uint64_t bytes;
  std::vector<StagePart> parts;
};

struct StageJob {
  std::vector<std::string> files;
  std::vector<StageChunk> chunks;
  std::vector<std::byte*> destinations;  // in this machine's memory
  int into_file = -1;                    // a file that is written at the same places, its pages made on the way
  std::byte* on_device = nullptr;        // and one in that of the ring's GPU, if any
  Float format = Float::kF32;
  // Sees a chunk's bytes before they are copied: in any order, from several threads at once. May be empty.
  std::function<void(std::size_t chunk, const std::byte* data)> inspect;
  // Called with the bytes done by the caller's thread: soon after the start, a few times a second, at the end. False
  // stops the job.
  std::function<bool(std::uint64_t done)> watch;
};

class StageRing {
 public:
  // `depth` slots; `readers` of them are read into at a time. For a `device` the slots are page-locked.
  StageRing(std::size_t chunk_bytes, std::size_t depth, std::size_t readers, cuda::SharedDevice device = nullptr);

  // One at a time. True: every destination is whole. False: `watch` stopped it. Throws NativeError when a file cannot
  // be read or ends early, FileSystemFullError, and whatever `inspect` and `watch` throw. No copy is under way
  // afterwards in any case.
  bool run(const StageJob& job);

 private:
  void validate(const StageJob& job) const;

  const std::size_t chunk_bytes_;
  const std::size_t slot_bytes_;
  const std::size_t depth_;
  const std::size_t readers_;
  const cuda::SharedDevice device_;
  const Mapping memory_;  // the slots, and a piece for each drain
  std::unique_ptr<cuda::LockedPages> locked_;
};

}  // namespace aegaeon
