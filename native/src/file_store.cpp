#include "aegaeon/file_store.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

std::byte* aligned(std::byte* base) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  return base + (kHugePage - address % kHugePage) % kHugePage;
}

// Every page is there, and mapped, in huge ones where the kernel has them. In steps, between which others map and
// unmap: MAP_POPULATE would keep them from it until all is done. Kernels before 5.14 cannot; there pages come at first
// use.
void populate(std::byte* base, std::size_t bytes) {
  ask_for_huge_pages(base, bytes);
  for (std::size_t done = 0; done < bytes; done += kHugePage) {
    static_cast<void>(::madvise(base + done, std::min(kHugePage, bytes - done), MADV_POPULATE_READ));
  }
}

}  // namespace

FileStore::FileStore(std::shared_ptr<MemoryFile> file, std::size_t slab_bytes)
    : slab_bytes_(slab_bytes), file_(std::move(file)) {}

std::shared_ptr<MemoryFile> FileStore::file() const {
  const std::scoped_lock lock(mutex_);
  if (!file_) throw NativeError("this slab pool is closed");
  return file_;
}

std::shared_ptr<std::byte> FileStore::reserve(std::size_t bytes) {
  const std::size_t whole = bytes + kHugePage;
  void* base = ::mmap(nullptr, whole, PROT_NONE, kNothing, -1, 0);
  if (base == MAP_FAILED) throw_errno("mmap to reserve " + std::to_string(whole) + " bytes of addresses");
  const auto mapping = std::make_shared<Mapping>(base, whole);
  return {mapping, aligned(mapping->base())};
}

void FileStore::map(std::byte* where, std::size_t first, std::size_t count) {
  const auto memory = file();
  const int protection = memory->writable() ? PROT_READ | PROT_WRITE : PROT_READ;
  const auto offset = static_cast<off_t>(first * slab_bytes_);
  const std::size_t bytes = count * slab_bytes_;
  if (::mmap(where, bytes, protection, MAP_SHARED | MAP_FIXED, memory->fd(), offset) == MAP_FAILED) {
    throw_errno("mmap of " + std::to_string(count) + " slabs from " + std::to_string(first));
  }
  populate(where, bytes);
}

void FileStore::unmap(std::byte* where, std::size_t count) {
  if (::mmap(where, count * slab_bytes_, PROT_NONE, kNothing | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw_errno("mmap to unmap " + std::to_string(count) + " slabs");
  }
}

void FileStore::prefault(std::size_t first, std::size_t count) {
  const auto memory = file();
  const auto offset = static_cast<off_t>(first * slab_bytes_);
  const std::size_t bytes = count * slab_bytes_;
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, memory->fd(), offset);
  if (base == MAP_FAILED) throw_errno("mmap of " + std::to_string(count) + " slabs to prefault");
  const Mapping window(base, bytes);
  populate(window.base(), bytes);
}

std::byte* FileStore::linear() const {
  const auto memory = file();
  if (!memory->is_linear()) {
    throw NativeError("a private pool is not mapped linearly; map its slabs into a Range");
  }
  return memory->base();
}

void FileStore::close() {
  const std::scoped_lock lock(mutex_);
  if (file_) file_->remove();
  file_.reset();
}

}  // namespace aegaeon
