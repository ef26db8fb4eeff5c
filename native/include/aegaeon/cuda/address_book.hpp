// Which addresses a GPU reaches by itself, and under which address: device ranges as they are, page-locked host memory
// as it is, and host ranges, whose pages are locked where the pool is mapped linearly, under those linear addresses.
#pragma once

#include <cstddef>
#include <map>
#include <shared_mutex>

namespace aegaeon::cuda {

class AddressBook {
 public:
  // `target` is where the GPU finds the bytes; `bytes` follow each other there. Not known: both unchanged.
  struct Reach {
    std::byte* target;
    std::size_t bytes;
    bool known;
  };

  void add(std::byte* base, std::size_t bytes, std::byte* target);
  void remove(std::byte* base);
  Reach find(std::byte* address, std::size_t bytes) const;
  std::size_t size() const;

 private:
  struct Entry {
    std::size_t bytes;
    std::byte* target;
  };

  mutable std::shared_mutex mutex_;
  std::map<std::byte*, Entry> entries_;
};

}  // namespace aegaeon::cuda
