// Files of memory: anonymous (memfd) for one process, named on a tmpfs for several. A named file ends with a trailer
// page that says what it holds, written last, so that a half-made file is never mistaken for a whole one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace aegaeon {

std::size_t page_bytes();

// Of these addresses, where the kernel has some to give; it works without them as well.
void ask_for_huge_pages(std::byte* base, std::size_t bytes) noexcept;

// All of them at byte `at` of the file. Throws FileSystemFullError when its file system is full.
void write_at(int fd, const std::byte* src, std::size_t bytes, std::uint64_t at);

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Addresses of this process; unmapped by the destructor.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* base() const { return static_cast<std::byte*>(base_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// What a named file says about itself.
struct Trailer {
  std::uint64_t magic;
  std::uint64_t unit_bytes;
  std::uint64_t units;
};

class MemoryFile {
 public:
  // Anonymous; pages appear when they are first touched.
  static std::unique_ptr<MemoryFile> anonymous(const std::string& name, std::size_t bytes);
  // The same, mapped linearly: `trailer` is kept, not written.
  static std::unique_ptr<MemoryFile> anonymous_linear(const std::string& name, const Trailer& trailer);
  // Creates `path` with all its pages reserved, mapped linearly. A file whose creator is dead is replaced; that of
  // a living one is an error.
  static std::unique_ptr<MemoryFile> create(const std::string& path, const Trailer& trailer);
  // Opens another's file; `writable` decides how it is mapped. Throws when it does not carry `magic`.
  static std::unique_ptr<MemoryFile> attach(const std::string& path, std::uint64_t magic, bool writable);

  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Removes the file of its creator now, while others may still have it mapped. The destructor does so at the latest.
  void remove() noexcept;
  int fd() const { return fd_.get(); }
  bool writable() const { return writable_; }
  bool is_linear() const { return linear_.base() != nullptr; }
  std::byte* base() const { return linear_.base(); }
  const Trailer& trailer() const { return trailer_; }

 private:
  MemoryFile(Fd fd, bool writable) : fd_(std::move(fd)), writable_(writable) {}
  void map_linear(std::size_t bytes, const std::string& path);
  void read_trailer(const std::string& path, std::uint64_t magic);

  Fd fd_;
  bool writable_;
  Mapping linear_;
  Trailer trailer_{};
  std::string owned_path_;  // empty for anonymous, attached and removed files
};

}  // namespace aegaeon
