// The native core's error tree: NativeError, and below it OutOfSlabs and FileSystemFullError, which callers handle
// apart.
#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace aegaeon {

class NativeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Nothing changed; the caller may wait, evict or ask for a larger grant.
class OutOfSlabs : public NativeError {
 public:
  using NativeError::NativeError;
};

// A file system is full; what was to be written is there in part.
class FileSystemFullError : public NativeError {
 public:
  using NativeError::NativeError;
};

// Call directly after the failed system call: reads errno.
[[noreturn]] inline void throw_errno(const std::string& what) {
  const int code = errno;
  throw NativeError(what + ": " + std::strerror(code) + " (errno " + std::to_string(code) + ")");
}

}  // namespace aegaeon
