// Slabs in a file of memory, mapped by mmap: both tiers of a CPU, and the host tier of a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "aegaeon/files.hpp"
#include "aegaeon/store.hpp"

namespace aegaeon {

class FileStore final : public SlabStore {
 public:
  FileStore(std::shared_ptr<MemoryFile> file, std::size_t slab_bytes);

  std::shared_ptr<std::byte> reserve(std::size_t bytes) override;
  void map(std::byte* where, std::size_t first, std::size_t count) override;
  void unmap(std::byte* where, std::size_t count) override;
  void prefault(std::size_t first, std::size_t count) override;
  std::byte* linear() const override;
  void close() override;

 private:
  std::shared_ptr<MemoryFile> file() const;

  const std::size_t slab_bytes_;
  mutable std::mutex mutex_;
  std::shared_ptr<MemoryFile> file_;  // null once closed
};

}  // namespace aegaeon
