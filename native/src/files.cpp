#include "aegaeon/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

void ask_for_huge_pages(std::byte* base, std::size_t bytes) noexcept {
  static_cast<void>(::madvise(base, bytes, MADV_HUGEPAGE));
}

void write_at(int fd, const std::byte* src, std::size_t bytes, std::uint64_t at) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t count = ::pwrite(fd, src + done, bytes - done, static_cast<off_t>(at + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == ENOSPC) throw FileSystemFullError("pwrite: the file system is full");
    if (count < 0) throw_errno("pwrite");
    done += static_cast<std::size_t>(count);
  }
}

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(Mapping&& other) noexcept : base_(other.base_), bytes_(other.bytes_) { other.base_ = nullptr; }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

namespace {

std::size_t data_bytes(const Trailer& trailer) { return trailer.unit_bytes * trailer.units; }

// The creator holds a lock until it exits, which distinguishes an orphaned file from one in use.
Fd open_fresh(const std::string& path) {
  constexpr int kFlags = O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC;
  Fd fd(::open(path.c_str(), kFlags, 0600));
  if (fd.get() < 0 && errno == EEXIST) {
    const Fd left(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (left.get() < 0) throw_errno("open " + path);
    if (::flock(left.get(), LOCK_EX | LOCK_NB) != 0) {
      throw NativeError("open " + path +
                        ": a living process holds this file; choose another name or stop that process");
    }
    if (::unlink(path.c_str()) != 0) throw_errno("unlink " + path);
    fd = Fd(::open(path.c_str(), kFlags, 0600));
  }
  if (fd.get() < 0) throw_errno("open " + path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) throw_errno("flock " + path);
  return fd;
}

// Reserve every page now: a tmpfs that fills up later would otherwise end the process with SIGBUS.
void reserve(int fd, std::size_t bytes, const std::string& path) {
  struct statvfs info{};
  if (::fstatvfs(fd, &info) != 0) throw_errno("fstatvfs " + path);
  const auto room = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  const std::string sizes = path + ": needs " + std::to_string(bytes) + " bytes, its file system has " +
                            std::to_string(room) + " free; enlarge it (mount -o remount,size=...) or ask for less";
  if (info.f_blocks != 0 && room < bytes) throw NativeError("create " + sizes);
  const int code = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (code != 0) throw NativeError("posix_fallocate " + sizes + ": " + std::strerror(code));
}

}  // namespace

std::unique_ptr<MemoryFile> MemoryFile::anonymous(const std::string& name, std::size_t bytes) {
  Fd fd(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (fd.get() < 0) throw_errno("memfd_create " + name);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) throw_errno("ftruncate " + name);
  return std::unique_ptr<MemoryFile>(new MemoryFile(std::move(fd), true));
}

std::unique_ptr<MemoryFile> MemoryFile::anonymous_linear(const std::string& name, const Trailer& trailer) {
  auto file = anonymous(name, data_bytes(trailer));
  file->trailer_ = trailer;
  file->map_linear(data_bytes(trailer), name);
  return file;
}

std::unique_ptr<MemoryFile> MemoryFile::create(const std::string& path, const Trailer& trailer) {
  std::unique_ptr<MemoryFile> file(new MemoryFile(open_fresh(path), true));
  file->owned_path_ = path;
  file->trailer_ = trailer;
  const std::size_t end = (data_bytes(trailer) + page_bytes() - 1) / page_bytes() * page_bytes();
  reserve(file->fd(), end + page_bytes(), path);
  file->map_linear(end, path);
  if (::pwrite(file->fd(), &trailer, sizeof trailer, static_cast<off_t>(end)) != sizeof trailer) {
    throw_errno("pwrite " + path);
  }
  return file;
}

std::unique_ptr<MemoryFile> MemoryFile::attach(const std::string& path, std::uint64_t magic, bool writable) {
  Fd fd(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (fd.get() < 0) throw_errno("open " + path);
  std::unique_ptr<MemoryFile> file(new MemoryFile(std::move(fd), writable));
  file->read_trailer(path, magic);
  return file;
}

void MemoryFile::read_trailer(const std::string& path, std::uint64_t magic) {
  struct stat info{};
  if (::fstat(fd(), &info) != 0) throw_errno("fstat " + path);
  const auto end = info.st_size - static_cast<off_t>(page_bytes());
  const bool read = end >= 0 && ::pread(fd(), &trailer_, sizeof trailer_, end) == sizeof trailer_;
  const auto bytes = static_cast<std::size_t>(end);
  const bool whole = read && trailer_.magic == magic && trailer_.unit_bytes != 0 &&
                     trailer_.units <= bytes / trailer_.unit_bytes && bytes - data_bytes(trailer_) < page_bytes();
  if (!whole) throw NativeError("attach " + path + ": not a file of this kind, or not finished yet");
  map_linear(bytes, path);
}

void MemoryFile::map_linear(std::size_t bytes, const std::string& path) {
  const int protection = writable_ ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd(), 0);
  if (base == MAP_FAILED) throw_errno("mmap " + path);
  linear_ = Mapping(base, bytes);
  ask_for_huge_pages(linear_.base(), bytes);
}

void MemoryFile::remove() noexcept {
  if (!owned_path_.empty()) ::unlink(owned_path_.c_str());
  owned_path_.clear();
}

MemoryFile::~MemoryFile() { remove(); }

}  // namespace aegaeon
