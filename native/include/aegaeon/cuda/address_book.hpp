// Which addresses GPUs reach by themselves, and under which address: device ranges as they are, page-locked host memory
// as it is, and host ranges, whose pages are locked where the pool is mapped linearly, under those linear addresses.
// One for the process, whose GPUs share its addresses and the page locks of any of them.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <shared_mutex>

namespace aegaeon::cuda {

class AddressBook {
 public:
  // `target` is where the GPU finds the bytes; `bytes` follow each other there. Not known: both unchanged. `border`:
  // what was locked with another call lies before it.
  struct Reach {
    std::byte* target;
    std::size_t bytes;
    bool known;
    bool border = false;
  };

  static const std::shared_ptr<AddressBook>& of_process();

  void add(std::byte* base, std::size_t bytes, std::byte* target);
  // Memory that is page-locked in pieces of so many bytes, perhaps behind what was locked before; no copy may cross
  // their borders.
  void add_locked(std::byte* base, std::size_t bytes, std::size_t piece_bytes);
  // Returns how many bytes there were; none for unknown addresses.
  std::size_t remove(std::byte* base);
  Reach find(std::byte* address, std::size_t bytes) const;
  std::size_t size() const;

 private:
  struct Entry {
    std::size_t bytes;
    std::byte* target;
  };

  mutable std::shared_mutex mutex_;
  std::map<std::byte*, Entry> entries_;
  std::set<std::byte*> borders_;  // where pieces begin that were locked one by one
};

}  // namespace aegaeon::cuda
