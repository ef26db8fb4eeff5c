// The seam between books and memory: where a pool's slabs physically are and how they get addresses. Two of them: files
// of memory (file_store.hpp) and a GPU's virtual memory management (cuda/store.hpp).
#pragma once

#include <cstddef>
#include <memory>

namespace aegaeon {

class SlabStore {
 public:
  static constexpr int kHost = -1;

  virtual ~SlabStore() = default;

  // Addresses with nothing behind them, aligned for huge pages; given up with the last copy of the pointer.
  virtual std::shared_ptr<std::byte> reserve(std::size_t bytes) = 0;
  // Slabs first .. first + count of the store at `where`, inside a reservation. All or nothing.
  virtual void map(std::byte* where, std::size_t first, std::size_t count) = 0;
  // What was mapped at `where`: the addresses stay reserved. Works on a closed store.
  virtual void unmap(std::byte* where, std::size_t count) = 0;
  // Memory behind these slabs from now on instead of from their first use; what is in them stays. The default is for
  // stores that have all of it from the beginning.
  virtual void prefault(std::size_t /*first*/, std::size_t /*count*/) {}
  // Slab 0 of all slabs in a row. Throws where they are not mapped so.
  virtual std::byte* linear() const = 0;
  // The GPU's number, or kHost.
  virtual int device() const { return kHost; }
  // The physical memory goes as soon as nothing is mapped; no further map. Idempotent.
  virtual void close() = 0;
};

}  // namespace aegaeon
