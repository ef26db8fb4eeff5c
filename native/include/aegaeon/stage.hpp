// The stage ring: a few page-aligned slots between files and memory, so that a load needs no second copy of a model.
// Reader threads fill slots from the files in order, past the page cache; drain threads convert and copy what is in
// them to its places in this machine's memory. No interpreter is on the way: a load keeps its rate while Python is busy
// with something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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
  std::vector<std::byte*> destinations;
  Float format = Float::kF32;
  // Sees a chunk's bytes before they are copied: in any order, from several threads at once. May be empty.
  std::function<void(std::size_t chunk, const std::byte* data)> inspect;
  // Told the bytes done, by the caller's thread: at the start, a few times a second, at the end. False stops the job.
  std::function<bool(std::uint64_t done)> watch;
};

class StageRing {
 public:
  // `depth` slots; `readers` of them are read into at a time.
  StageRing(std::size_t chunk_bytes, std::size_t depth, std::size_t readers);

  // One at a time. True: every destination is whole. False: `watch` stopped it. Throws NativeError when a file cannot
  // be read or ends early, and whatever `inspect` and `watch` throw. No copy is under way afterwards in any case.
  bool run(const StageJob& job);

 private:
  void validate(const StageJob& job) const;

  const std::size_t chunk_bytes_;
  const std::size_t slot_bytes_;
  const std::size_t depth_;
  const std::size_t readers_;
  const Mapping slots_;
};

}  // namespace aegaeon
